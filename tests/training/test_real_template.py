"""Loss masks on a real chat template and a real tokenizer: SmolLM2-135M-Instruct's, out of its Python package (kept in the build cache)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from tuneplane.training.chat import Encoded, Encoder
from tuneplane.training.rows import parse_row
from tuneplane.training.smollm import fetch

pytestmark = pytest.mark.train
BEGIN = "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"


@pytest.fixture(scope="module")
def real() -> Any:
    """The real tokenizer with its chat template."""
    from transformers import AutoTokenizer

    home = Path("/var/cache/tuneplane-hpc") if os.geteuid() == 0 else Path.home() / ".cache" / "tuneplane-hpc"
    gguf = fetch(Path(os.environ.get("TP_BUILD_CACHE") or home) / "smollm2")
    return AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name, local_files_only=True)


def masked(real: Any, row: dict[str, Any]) -> tuple[str, str]:
    """What carries no loss, and what does."""
    (got,) = Encoder(real, 2048, "error").encode([parse_row(row, 1)])
    assert isinstance(got, Encoded)
    return real.decode(got.ids[: got.prompt]), real.decode(got.ids[got.prompt :])


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


@pytest.mark.parametrize(
    "answer", ["42", " 42", "42 ", "\n42", "Hello!\n\n- one\n- two\n", "naïve 日本 🙂", "```python\nprint(1)\n```", "."]
)
def test_the_loss_covers_exactly_the_answer_and_its_end(real: Any, answer: str) -> None:
    prompt, learnt = masked(real, {"messages": [user("What is 40 + 2?"), assistant(answer)]})
    assert learnt == f"{answer}<|im_end|>\n"
    assert prompt == f"{BEGIN}<|im_start|>user\nWhat is 40 + 2?<|im_end|>\n<|im_start|>assistant\n"


def test_earlier_answers_are_read_and_not_learnt(real: Any) -> None:
    rows = [{"role": "system", "content": "Be brief."}, user("1 + 1?"), assistant("2"), user("2 + 2?"), assistant("4")]
    prompt, learnt = masked(real, {"messages": rows})
    assert learnt == "4<|im_end|>\n"
    assert prompt.startswith("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n1 + 1?")
    assert "<|im_start|>assistant\n2<|im_end|>\n" in prompt


def test_plain_text_ends_with_the_model_s_end_token(real: Any) -> None:
    assert masked(real, {"prompt": "The capital of France is", "completion": " Paris."}) == (
        "The capital of France is",
        " Paris.<|im_end|>",
    )


def test_plain_text_that_would_share_a_token_is_refused(real: Any) -> None:
    (got,) = Encoder(real, 2048, "error", "rows.jsonl").encode(
        [parse_row({"prompt": "The capi", "completion": "tal"}, 6)]
    )
    assert not isinstance(got, (Encoded, str))
    assert (got.code, got.field) == ("E-TRAIN-023", "rows.jsonl:6")


def test_the_mask_is_the_difference_between_asked_and_answered(real: Any) -> None:
    """By the template's own hand: the ids with the answer, less the ids that ask for it."""
    messages = [user("What is 40 + 2?"), assistant("42")]
    whole = real.apply_chat_template(messages, tokenize=True, return_dict=True)["input_ids"]
    asking = real.apply_chat_template(messages[:1], tokenize=True, add_generation_prompt=True, return_dict=True)[
        "input_ids"
    ]
    (got,) = Encoder(real, 2048, "error").encode([parse_row({"messages": messages}, 1)])
    assert isinstance(got, Encoded)
    assert (got.ids, got.ids[: got.prompt]) == (whole, asking)
