"""deepspeed/rm: its loss, its runs, and the scores of what it leaves in plain transformers."""

from __future__ import annotations

import math
from typing import Any

import pytest
from lessons import CENTRED, LORA, Lessons, encoded, golden, plain_losses
from tuneplane.training.settings import parse
from tuneplane.training.sums import held_out_path
from tuneplane.training.tables import RM


def score(model: Any, ids: list[int]) -> Any:
    import torch

    return model(input_ids=torch.tensor([ids])).logits[0, 0]


def test_the_loss_is_the_documented_formula() -> None:
    """TRL: -logsigmoid(chosen - rejected) + center_rewards_coefficient * (chosen + rejected) ** 2."""
    import torch
    from tuneplane.training.reward import score_loss

    chosen, rejected = [0.5, -2.0, 3.0], [0.5, 1.0, -4.0]
    for weight in (0.0, 0.25):
        settings = parse({"center_rewards_coefficient": weight}, None, RM)
        found = score_loss(torch.tensor(chosen), torch.tensor(rejected), settings).tolist()
        wanted = [math.log(1 + math.exp(r - c)) + weight * (c + r) ** 2 for c, r in zip(chosen, rejected, strict=True)]
        assert found == pytest.approx(wanted, rel=1e-5)


@pytest.mark.train
def test_the_accuracy_on_held_out_pairs_rises(lessons: Lessons) -> None:
    attempt = lessons.straight("rm", **LORA)
    first, result = attempt.metrics()[0], attempt.result()
    assert first["loss"] == pytest.approx(math.log(2), abs=0.05)
    assert first["accuracy"] < 0.6
    assert result["method"] == "rm"
    assert result["validation_accuracy"] >= 0.9
    margin = result["validation_score_chosen"] - result["validation_score_rejected"]
    assert result["validation_score_margin"] == pytest.approx(margin)
    assert margin > 0


@pytest.mark.train
@pytest.mark.parametrize("case", ["lora", "full"])
def test_golden_losses(case: str, lessons: Lessons) -> None:
    attempt = lessons.straight("rm", **(LORA if case == "lora" else CENTRED))
    assert list(attempt.losses().values()) == golden(f"rm {case}")


@pytest.mark.train
def test_p35_a_resumed_run_is_bit_identical(lessons: Lessons) -> None:
    lessons.assert_resumes("rm", **LORA)


@pytest.mark.train
def test_the_losses_are_those_of_a_plain_torch_loop(lessons: Lessons) -> None:
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer
    from tuneplane.training.engine import seed_all

    seed_all(3)  # the head is new
    model = AutoModelForSequenceClassification.from_pretrained(lessons.tiny, dtype=torch.float32, num_labels=1)
    pairs = encoded(lessons.rows("rm"), "preference", AutoTokenizer.from_pretrained(lessons.tiny))

    def loss_of(ids: list[int]) -> Any:
        scores = [[score(model, answer[0]) for answer in pairs[i]] for i in ids]
        lost = [-torch.log(torch.sigmoid(one - other)) + 0.01 * (one + other) ** 2 for one, other in scores]
        return torch.stack(lost).mean()

    wanted = plain_losses(model, len(pairs), loss_of, 1e-3)
    assert list(lessons.straight("rm", **CENTRED).losses().values()) == pytest.approx(wanted, rel=2e-4)


@pytest.mark.train
@pytest.mark.parametrize("case", ["lora", "full", "zero3-lora"])
def test_p50_what_a_run_leaves_gives_its_scores_in_plain_transformers(case: str, lessons: Lessons) -> None:
    import torch
    from peft import PeftModel
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    short = {"zero_stage": 3, "max_steps": 2, "save_steps": 0, "precision": "bf16"}
    attempt = lessons.straight("rm", **{"lora": LORA, "full": CENTRED, "zero3-lora": LORA | short}[case])
    final = attempt.out / "final"
    torch.manual_seed(99)  # whatever head is made now must not count
    folder = final if case == "full" else lessons.tiny
    heads = {} if case == "full" else {"num_labels": 1}
    model = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32, **heads)
    if case != "full":
        model = PeftModel.from_pretrained(model, final)
    model.eval()
    pairs = encoded(held_out_path(lessons.rows("rm")), "preference", AutoTokenizer.from_pretrained(final))
    with torch.no_grad():
        scores = torch.tensor([[float(score(model, answer[0])) for answer in pair] for pair in pairs])
    found = attempt.result()
    exact = {"abs": 0.02} if case == "zero3-lora" else {"rel": 1e-4, "abs": 1e-5}  # bf16 there, fp32 here
    assert scores.mean(0).tolist() == pytest.approx(
        [found["validation_score_chosen"], found["validation_score_rejected"]], **exact
    )
    assert scores.abs().mean() > 0.1
    if case != "zero3-lora":
        assert float((scores[:, 0] > scores[:, 1]).float().mean()) == pytest.approx(found["validation_accuracy"])
