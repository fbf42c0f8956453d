"""Loss masks and over-long rows, on a chat template of SmolLM2's kind; tests of the real template are in test_real_template.py."""

from __future__ import annotations

from typing import Any

from tuneplane.training.chat import Encoded, Encoder, without_oldest_turn
from tuneplane.training.refusals import Reason
from tuneplane.training.rows import Row, parse_row

SYSTEM = {"role": "system", "content": "Answer with the sum, as a number."}


def turn(question: str, answer: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def chat(*messages: dict[str, str], line: int = 1) -> Row:
    return parse_row({"messages": list(messages)}, line)


def one(tokenizer: Any, row: Row, max_length: int = 400, over_long: str = "error") -> Encoded | Reason | str:
    return Encoder(tokenizer, max_length, over_long, "train.jsonl").encode([row])[0]


def learnt(tokenizer: Any, got: Encoded | Reason | str) -> str:
    assert isinstance(got, Encoded)
    return str(tokenizer.decode(got.ids[got.prompt :]))


def asked(tokenizer: Any, got: Encoded | Reason | str) -> str:
    assert isinstance(got, Encoded)
    return str(tokenizer.decode(got.ids[: got.prompt]))


def test_the_loss_covers_the_answer_and_its_end_only(tokenizer: Any) -> None:
    got = one(tokenizer, chat(SYSTEM, *turn("What is 1 + 2?", "3")))
    assert learnt(tokenizer, got) == "3<|im_end|>\n"
    assert asked(tokenizer, got) == (
        "<|im_start|>system\nAnswer with the sum, as a number.<|im_end|>\n"
        "<|im_start|>user\nWhat is 1 + 2?<|im_end|>\n<|im_start|>assistant\n"
    )


def test_of_several_answers_only_the_last_is_learnt(tokenizer: Any) -> None:
    got = one(tokenizer, chat(*turn("What is 1 + 2?", "3"), *turn("What is 2 + 2?", "4")))
    assert learnt(tokenizer, got) == "4<|im_end|>\n"
    assert "3<|im_end|>" in asked(tokenizer, got)


def test_the_template_s_default_system_text_is_in_the_prompt(tokenizer: Any) -> None:
    assert asked(tokenizer, one(tokenizer, chat(*turn("a", "b")))).startswith(
        "<|im_start|>system\nYou are a tiny model."
    )


def test_prompt_and_completion_as_text_end_with_the_end_token(tokenizer: Any) -> None:
    got = one(tokenizer, parse_row({"prompt": "What is 1 + 2? ", "completion": "3"}, 1))
    assert (asked(tokenizer, got), learnt(tokenizer, got)) == ("What is 1 + 2? ", "3<|im_end|>")


def test_prompt_and_completion_as_messages_are_a_conversation(tokenizer: Any) -> None:
    question, answer = turn("What is 1 + 2?", "3")
    assert one(tokenizer, parse_row({"prompt": [SYSTEM, question], "completion": [answer]}, 1)) == one(
        tokenizer, chat(SYSTEM, question, answer)
    )


def test_a_prompt_that_is_no_token_prefix_is_refused_by_row_and_token(tokenizer: Any) -> None:
    assert (
        tokenizer("What is", add_special_tokens=False)["input_ids"]
        != [i for part in ("What", " is") for i in tokenizer(part, add_special_tokens=False)["input_ids"]]
        or len(tokenizer("What", add_special_tokens=False)["input_ids"]) == 1
    )
    got = one(tokenizer, parse_row({"prompt": "Wha", "completion": "t is 1 + 2?"}, 17))
    assert isinstance(got, Reason)
    assert (got.code, got.field) == ("E-TRAIN-023", "train.jsonl:17")
    assert "no exact token prefix" in got.message
    assert got.found.startswith("token ")


def test_a_template_that_refuses_a_row_is_quoted(tokenizer: Any) -> None:
    class Strict:
        chat_template = "x"
        eos_token_id = 2

        def __call__(self, text: Any, **kwargs: Any) -> Any:
            return tokenizer(text, **kwargs)

        def apply_chat_template(self, *_: Any, **__: Any) -> str:
            raise ValueError("roles must alternate")

    got = one(Strict(), chat(*turn("a", "b"), line=5))
    assert got == Reason("E-TRAIN-022", "the chat template refuses it: roles must alternate", field="train.jsonl:5")


def test_messages_without_a_template_are_refused_with_the_way_out(tokenizer: Any) -> None:
    class Plain:
        chat_template = None
        eos_token_id = 2

        def __call__(self, text: Any, **kwargs: Any) -> Any:
            return tokenizer(text, **kwargs)

    got = one(Plain(), chat(*turn("a", "b")))
    assert isinstance(got, Reason)
    assert "give `prompt` and `completion` as text instead" in got.message


def test_a_tokenizer_s_own_beginning_is_kept_for_plain_text(tokenizer: Any) -> None:
    class Begins:
        chat_template = None
        eos_token_id = 2

        def __call__(self, text: Any, add_special_tokens: bool = True) -> Any:
            got = tokenizer(text, add_special_tokens=False)["input_ids"]
            return {"input_ids": [1, *got, 2] if add_special_tokens else got}

        def decode(self, ids: Any) -> str:
            return str(tokenizer.decode(ids))

    got = one(Begins(), parse_row({"prompt": "a", "completion": " b"}, 1))
    assert isinstance(got, Encoded)
    assert (got.ids[0], got.ids[-1], got.prompt) == (1, 2, 2)


LONG = [SYSTEM, *turn("What is 1 + 2?", "3"), *turn("What is 3 + 4?", "7"), *turn("What is 5 + 6?", "1" * 60)]


def test_over_long_error_names_both_lengths(tokenizer: Any) -> None:
    got = one(tokenizer, chat(*LONG, line=9), max_length=50)
    assert isinstance(got, Reason)
    whole = one(tokenizer, chat(*LONG))
    assert isinstance(whole, Encoded)
    assert (got.code, got.field, got.found, got.allowed) == (
        "E-TRAIN-024",
        "train.jsonl:9",
        f"{len(whole.ids)} tokens",
        "50 tokens",
    )


def test_over_long_skip_leaves_the_row_out(tokenizer: Any) -> None:
    assert one(tokenizer, chat(*LONG), max_length=50, over_long="skip") == "skipped"


def test_over_long_truncate_drops_the_oldest_turn_first_and_keeps_the_system_text(tokenizer: Any) -> None:
    whole = one(tokenizer, chat(*LONG))
    assert isinstance(whole, Encoded)
    got = one(tokenizer, chat(*LONG), max_length=len(whole.ids) - 1, over_long="truncate")
    assert isinstance(got, Encoded)
    assert (got.cut, learnt(tokenizer, got)) == (True, "1" * 60 + "<|im_end|>\n")
    assert "What is 1 + 2?" not in asked(tokenizer, got)
    assert "What is 3 + 4?" in asked(tokenizer, got)
    assert asked(tokenizer, got).startswith(f"<|im_start|>system\n{SYSTEM['content']}<|im_end|>\n")


def test_over_long_truncate_then_cuts_the_answer_but_never_system_text_or_last_question(tokenizer: Any) -> None:
    alone = one(tokenizer, chat(SYSTEM, *LONG[-2:]))
    assert isinstance(alone, Encoded)
    got = one(tokenizer, chat(*LONG), max_length=alone.prompt + 5, over_long="truncate")
    assert isinstance(got, Encoded)
    assert (got.cut, got.prompt, len(got.ids)) == (True, alone.prompt, alone.prompt + 5)
    assert learnt(tokenizer, got) == "11111"
    assert one(tokenizer, chat(*LONG), max_length=alone.prompt + 1, over_long="truncate") != "unfit"
    assert one(tokenizer, chat(*LONG), max_length=alone.prompt, over_long="truncate") == "unfit"


def test_a_row_that_fits_is_never_touched(tokenizer: Any) -> None:
    whole = one(tokenizer, chat(*LONG))
    assert isinstance(whole, Encoded)
    assert one(tokenizer, chat(*LONG), max_length=len(whole.ids), over_long="truncate") == whole
    assert not whole.cut


def test_dropping_a_turn_keeps_system_messages_wherever_they_stand() -> None:
    rows = (SYSTEM, *turn("a", "b"), {"role": "system", "content": "c"}, *turn("d", "e"))
    once = without_oldest_turn(rows)
    assert once == (SYSTEM, rows[3], *turn("d", "e"))
    assert without_oldest_turn(once) is None


def test_both_answers_of_a_pair_lose_the_same_turns(tokenizer: Any) -> None:
    talk = [*turn("What is 1 + 2?", "3"), *turn("What is 2 + 2?", "4"), {"role": "user", "content": "What is 3 + 3?"}]
    rows = [chat(*talk, {"role": "assistant", "content": text}) for text in ("6", "6 " * 40)]
    whole = Encoder(tokenizer, 400, "error").encode_groups([rows])[0]
    assert isinstance(whole, list)
    for room in (len(whole[1].ids) - 1, len(whole[1].ids) - 30):
        got = Encoder(tokenizer, room, "truncate").encode_groups([rows])[0]
        assert isinstance(got, list)
        assert asked(tokenizer, got[0]) == asked(tokenizer, got[1])
        assert "What is 1 + 2?" not in asked(tokenizer, got[0])
        assert learnt(tokenizer, got[0]) == "6<|im_end|>\n"
        assert len(got[1].ids) <= room


def test_a_prompt_ends_where_the_answer_is_to_begin_and_loses_its_oldest_turns(tokenizer: Any) -> None:
    talk = (*turn("What is 1 + 2?", "3"), {"role": "user", "content": "What is 3 + 3?"})
    row = Row(1, messages=talk, open=True)
    whole = one(tokenizer, row)
    assert isinstance(whole, Encoded)
    assert len(whole.ids) == whole.prompt
    assert asked(tokenizer, whole).endswith("What is 3 + 3?<|im_end|>\n<|im_start|>assistant\n")
    cut = one(tokenizer, row, len(whole.ids) - 1, "truncate")
    assert "What is 1 + 2?" in asked(tokenizer, whole)
    assert "What is 1 + 2?" not in asked(tokenizer, cut)
    assert isinstance(cut, Encoded)
    assert one(tokenizer, row, len(cut.ids), "truncate") == cut
    assert one(tokenizer, row, len(cut.ids) - 1, "truncate") == "unfit"
