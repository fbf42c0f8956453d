"""deepspeed/kto: its loss, its estimate of the divergence, its runs."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from lessons import FULL, LEANING, LORA, Lessons, encoded, golden, plain_logp, plain_losses
from sources import file_source
from tuneplane.training.chat import Encoder
from tuneplane.training.kto import judged_loss, pair_accuracy, partner
from tuneplane.training.settings import parse
from tuneplane.training.tables import KTO
from tuneplane.training.tokens import Tokens, ensure, open_tokens

PULLED = FULL | {"learning_rate": 2e-3, "desirable_weight": 3.0}
"""A run whose estimate of the divergence leaves 0."""


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def test_the_loss_is_the_documented_formula() -> None:
    """TRL: weight * (1 - sigmoid(beta * (chosen_logratios - kl))) and weight * (1 - sigmoid(beta * (kl - rejected_logratios)))."""
    import torch

    settings = parse({"beta": 0.3, "desirable_weight": 1.5, "undesirable_weight": 0.5}, None, KTO)
    gains, good, kl = [2.0, -1.0, 2.0, -1.0], [True, True, False, False], 0.75
    found = judged_loss(torch.tensor(gains), torch.tensor(good), kl, settings).tolist()
    wanted = [1.5 * (1 - sigmoid(0.3 * (g - kl))) for g in gains[:2]] + [
        0.5 * (1 - sigmoid(0.3 * (kl - g))) for g in gains[2:]
    ]
    assert found == pytest.approx(wanted, rel=1e-5)


def test_pair_accuracy_counts_pairs_and_ties_half() -> None:
    assert pair_accuracy([1.0, 3.0], [0.0, 2.0]) == 0.75
    assert pair_accuracy([0.0], [0.0, 0.0]) == 0.5
    assert pair_accuracy([5.0], [1.0]) == 1.0


def tokens_of(tmp_path: Path, tokenizer: Any, prompts: list[str]) -> Tokens:
    source = tmp_path / "rows.jsonl"
    rows = [{"prompt": p, "completion": str(n), "label": n % 2 == 0} for n, p in enumerate(prompts)]
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    encoder = Encoder(tokenizer, 100, "error")
    return open_tokens(ensure(tmp_path / "cache", file_source(source), "sha256:0", encoder, "judged"))


def test_a_partner_lies_half_a_file_away_and_has_another_prompt(tmp_path: Path, tokenizer: Any) -> None:
    tokens = tokens_of(tmp_path, tokenizer, ["a ", "b ", "c ", "a ", "a ", "b "])
    assert [partner(tokens, i) for i in range(6)] == [5, 4, 5, 1, 1, 2]
    alone = tokens_of(tmp_path, tokenizer, ["a "])
    assert partner(alone, 0) == 0


@pytest.mark.train
def test_good_answers_rise_above_bad_ones_on_held_out_rows(lessons: Lessons) -> None:
    attempt = lessons.straight("kto", **LEANING)
    first, result = attempt.metrics()[0], attempt.result()
    assert first["loss"] == pytest.approx(0.5 * (3 + 1.3 * 5) / 8)  # nothing gained yet; 3 of the 8 are good
    assert result["validation_accuracy"] >= 0.8
    assert result["validation_reward_margin"] > 0.05
    assert "94 answers are labelled good, 106 bad" in attempt.log(0)


@pytest.mark.train
@pytest.mark.parametrize("case", ["lora", "full"])
def test_golden_losses(case: str, lessons: Lessons) -> None:
    attempt = lessons.straight("kto", **(LORA if case == "lora" else PULLED))
    assert list(attempt.losses().values()) == golden(f"kto {case}")


@pytest.mark.train
@pytest.mark.parametrize("case", ["lora", "full"])
def test_p35_a_resumed_run_is_bit_identical(case: str, lessons: Lessons) -> None:
    lessons.assert_resumes("kto", **(LORA if case == "lora" else PULLED))


@pytest.mark.train
def test_losses_and_divergences_are_those_of_a_plain_torch_loop_with_a_second_model(lessons: Lessons) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model, frozen = (AutoModelForCausalLM.from_pretrained(lessons.tiny, dtype=torch.float32) for _ in range(2))
    rows = [group[0] for group in encoded(lessons.rows("kto"), "judged", AutoTokenizer.from_pretrained(lessons.tiny))]
    labels = [json.loads(line)["label"] for line in lessons.rows("kto").read_text().splitlines()]
    estimates: list[float] = []

    def gain(ids: list[int], prompt: int) -> Any:
        with torch.no_grad():
            then = plain_logp(frozen, ids, prompt)
        return plain_logp(model, ids, prompt) - then

    def loss_of(numbers: list[int]) -> Any:
        mismatched = []
        for i in numbers:  # all prompts differ
            (ids, prompt), (other, answer) = rows[i], rows[(i + 100) % 200]
            with torch.no_grad():
                mismatched.append(float(gain(ids[:prompt] + other[answer:], prompt)))
        kl = max(0.0, sum(mismatched) / len(mismatched))
        estimates.append(kl)
        lost = [
            3.0 * (1 - torch.sigmoid(0.1 * (gain(*rows[i]) - kl)))
            if labels[i]
            else 1 - torch.sigmoid(0.1 * (kl - gain(*rows[i])))
            for i in numbers
        ]
        return torch.stack(lost).mean()

    wanted = plain_losses(model, 200, loss_of, 2e-3)
    lines = lessons.straight("kto", **PULLED).metrics()
    assert [line["loss"] for line in lines] == pytest.approx(wanted, rel=5e-4)
    assert [line["kl"] for line in lines] == pytest.approx(estimates, rel=5e-3, abs=1e-4)
    assert max(estimates) > 1
