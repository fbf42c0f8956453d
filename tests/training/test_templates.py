"""Loss masks on chat templates of the kinds that are in use. Each is written here in the published format of its family, with its quirks:
default system texts, no system role at all, a beginning token, roles of other names, marks of thinking, trimmed texts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tuneplane.training.chat import Encoded, Encoder
from tuneplane.training.refusals import Reason
from tuneplane.training.rows import parse_row

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LLAMA3 = (
    "{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n{{ m.content | trim }}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
MISTRAL = (
    "{{ bos_token }}{% for m in messages %}"
    "{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]"
    "{% elif m.role == 'assistant' %} {{ m.content }}{{ eos_token }}"
    "{% else %}{{ raise_exception('Only user and assistant roles are supported') }}{% endif %}{% endfor %}"
)
QWEN = (
    "{% if messages[0].role != 'system' %}<|im_start|>system\nYou are helpful.<|im_end|>\n{% endif %}"
    "{% for m in messages %}{% set text = m.content %}"
    "{% if m.role == 'assistant' and '</think>' in text and not loop.last %}{% set text = text.split('</think>')[-1].lstrip('\n') %}{% endif %}"
    "<|im_start|>{{ m.role }}\n{{ text }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
QWEN_CLOSED = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' and loop.last and '</think>' not in m.content %}<think>\n\n</think>\n\n{% endif %}{{ m.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
GEMMA = (
    "{{ bos_token }}{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for m in messages %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Conversation roles must alternate') }}{% endif %}"
    "<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n{{ m.content | trim }}<end_of_turn>\n{% endfor %}"
    "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
PHI = (
    "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% else %}{{ eos_token }}{% endif %}"
)
MARKS = (
    "<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<bos>", "</s>", "[INST]", "[/INST]",
    "<start_of_turn>", "<end_of_turn>", "<|user|>", "<|assistant|>", "<|system|>", "<|end|>", "<think>", "</think>",
)  # fmt: skip


@pytest.fixture(scope="module")
def dressed() -> Callable[[str], Any]:
    """A byte-level tokenizer that knows the marks of all of them, under one of the templates."""
    from tuneplane.training.tiny import make_tokenizer

    def dress(template: str) -> Any:
        tokenizer = make_tokenizer()
        tokenizer.add_special_tokens({"additional_special_tokens": list(MARKS)})
        tokenizer.bos_token, tokenizer.eos_token = "<bos>", "</s>"
        tokenizer.chat_template = template
        return tokenizer

    return dress


SYSTEM = {"role": "system", "content": "Be brief."}


def turns(*texts: str) -> list[dict[str, str]]:
    return [{"role": ("user", "assistant")[n % 2], "content": text} for n, text in enumerate(texts)]


def masked(tokenizer: Any, *messages: dict[str, str]) -> tuple[str, str] | Reason:
    """What carries no loss and what does, as text; or why the row is refused."""
    (got,) = Encoder(tokenizer, 512, "error", "train.jsonl").encode([parse_row({"messages": list(messages)}, 4)])
    if isinstance(got, Reason):
        return got
    assert isinstance(got, Encoded)
    return tokenizer.decode(got.ids[: got.prompt]), tokenizer.decode(got.ids[got.prompt :])


ANSWERED = {
    "chatml": (CHATML, "42<|im_end|>\n", "<|im_start|>assistant\n"),
    "llama-3": (LLAMA3, "42<|eot_id|>", "<|start_header_id|>assistant<|end_header_id|>\n\n"),
    "mistral": (MISTRAL, " 42</s>", "[INST] 40 + 2? [/INST]"),
    "qwen": (QWEN, "42<|im_end|>\n", "<|im_start|>assistant\n"),
    "qwen-closed": (QWEN_CLOSED, "<think>\n\n</think>\n\n42<|im_end|>\n", "<|im_start|>assistant\n"),
    "gemma": (GEMMA, "42<end_of_turn>\n", "<start_of_turn>model\n"),
    "phi": (PHI, "42<|end|>\n</s>", "<|assistant|>\n"),
}


@pytest.mark.parametrize("name", ANSWERED)
def test_the_loss_covers_the_last_answer_and_its_end_only(dressed: Callable[[str], Any], name: str) -> None:
    template, learnt, before = ANSWERED[name]
    tokenizer = dressed(template)
    found = masked(tokenizer, *turns("1 + 1?", "2", "40 + 2?", "42"))
    assert isinstance(found, tuple)
    assert found[1] == learnt
    assert found[0].endswith(before)
    assert "2" in found[0].split("1 + 1?")[1].split("40")[0]  # the earlier answer is read, and not learnt
    whole = tokenizer.apply_chat_template(turns("1 + 1?", "2", "40 + 2?", "42"), tokenize=False)
    assert "".join(found) == whole


@pytest.mark.parametrize("name", ["chatml", "llama-3", "qwen", "phi"])
def test_a_system_text_is_read_and_not_learnt(dressed: Callable[[str], Any], name: str) -> None:
    template, learnt, _ = ANSWERED[name]
    found = masked(dressed(template), SYSTEM, *turns("40 + 2?", "42"))
    assert isinstance(found, tuple)
    assert ("Be brief." in found[0], found[1]) == (True, learnt)
    assert "You are helpful." not in found[0]


@pytest.mark.parametrize(
    ("name", "why"),
    [("mistral", "Only user and assistant roles are supported"), ("gemma", "System role not supported")],
)
def test_a_template_without_a_system_role_refuses_the_row_by_name(
    dressed: Callable[[str], Any], name: str, why: str
) -> None:
    found = masked(dressed(ANSWERED[name][0]), SYSTEM, *turns("40 + 2?", "42"))
    assert isinstance(found, Reason)
    assert (found.code, found.field) == ("E-TRAIN-022", "train.jsonl:4")
    assert why in found.message


def test_turns_that_do_not_alternate_are_refused_by_name(dressed: Callable[[str], Any]) -> None:
    found = masked(dressed(GEMMA), *turns("1 + 1?"), *turns("40 + 2?", "42"))
    assert isinstance(found, Reason)
    assert "must alternate" in found.message


@pytest.mark.parametrize("name", ["llama-3", "mistral", "gemma"])
def test_the_beginning_token_stands_once(dressed: Callable[[str], Any], name: str) -> None:
    tokenizer = dressed(ANSWERED[name][0])
    (got,) = Encoder(tokenizer, 512, "error").encode([parse_row({"messages": turns("a", "b")}, 1)])
    assert isinstance(got, Encoded)
    assert got.ids.count(tokenizer.convert_tokens_to_ids("<bos>")) == 1


def test_thinking_is_learnt_where_it_is_the_answer_s_and_dropped_from_earlier_ones(
    dressed: Callable[[str], Any],
) -> None:
    thought = "<think>\n40 and 2\n</think>\n\n"
    found = masked(dressed(QWEN), *turns("1 + 1?", "<think>\nhm\n</think>\n\n2", "40 + 2?", f"{thought}42"))
    assert isinstance(found, tuple)
    assert found[1] == f"{thought}42<|im_end|>\n"
    assert "hm" not in found[0]


def test_a_generation_prompt_that_the_answer_does_not_begin_with_is_refused(dressed: Callable[[str], Any]) -> None:
    """It asks with an empty thought, and an answer in the row has none: mask by prefix would be wrong, so the row is named."""
    opened = QWEN.replace("{% if enable_thinking is defined and not enable_thinking %}", "{% if true %}")
    found = masked(dressed(opened), *turns("40 + 2?", "42"))
    assert isinstance(found, Reason)
    assert (found.code, found.field) == ("E-TRAIN-023", "train.jsonl:4")
    found = masked(dressed(opened), *turns("40 + 2?", "<think>\n\n</think>\n\n42"))
    assert isinstance(found, tuple)
    assert found[1] == "42<|im_end|>\n"


@pytest.mark.parametrize(("name", "room"), [(n, r) for n in ("chatml", "llama-3", "qwen") for r in (60, 90)])
def test_truncation_never_cuts_the_system_text_whatever_the_template(
    dressed: Callable[[str], Any], name: str, room: int
) -> None:
    tokenizer = dressed(ANSWERED[name][0])
    row = parse_row({"messages": [SYSTEM, *turns("1 + 1? " * 20, "2", "40 + 2?", "4" * 200)]}, 1)
    (got,) = Encoder(tokenizer, room, "truncate").encode([row])
    assert isinstance(got, Encoded)
    text = tokenizer.decode(got.ids)
    assert (got.cut, len(got.ids)) == (True, room)
    assert ("Be brief." in text, "1 + 1?" in text, "40 + 2?" in text) == (True, False, True)
    assert set(tokenizer.decode(got.ids[got.prompt :])) == {"4"}


def test_texts_that_a_template_trims_are_learnt_as_it_writes_them(dressed: Callable[[str], Any]) -> None:
    found = masked(dressed(LLAMA3), *turns("40 + 2?", "  42\n"))
    assert isinstance(found, tuple)
    assert found[1] == "42<|eot_id|>"
