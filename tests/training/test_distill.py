"""deepspeed/distill: its divergences, its teacher, its runs."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from lessons import FULL, LONGER, LORA, Lessons, encoded, golden, plain_losses
from tuneplane.training.refusals import Refused
from tuneplane.training.settings import parse
from tuneplane.training.tables import DISTILL, DistillSettings

P, Q = [0.5, 0.3, 0.15, 0.05], [0.1, 0.2, 0.3, 0.4]


def settings(**values: Any) -> DistillSettings:
    return parse({"teacher": "/none"} | values, None, DISTILL)


def found(p: list[float], q: list[float], **values: Any) -> float:
    import torch
    from tuneplane.training.distill import divergence

    logs = [torch.tensor([[math.log(x) + 3.0 for x in side]]) for side in (q, p)]  # a constant changes no distribution
    return float(divergence(*logs, settings(**values))[0])


def kl(p: list[float], q: list[float]) -> float:
    return sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))


def test_the_divergences_are_the_documented_formulas() -> None:
    """TRL's generalised JSD: beta KL(teacher || m) + (1 - beta) KL(student || m), m = beta teacher + (1 - beta) student."""
    assert found(P, Q) == pytest.approx(kl(P, Q), rel=1e-5)
    assert found(P, Q, divergence="reverse_kl") == pytest.approx(kl(Q, P), rel=1e-5)
    for beta in (0.5, 0.1):
        m = [beta * a + (1 - beta) * b for a, b in zip(P, Q, strict=True)]
        wanted = beta * kl(P, m) + (1 - beta) * kl(Q, m)
        assert found(P, Q, divergence="jsd", jsd_beta=beta) == pytest.approx(wanted, rel=1e-5)


def test_the_temperature_divides_the_logits() -> None:
    def cooled(side: list[float]) -> list[float]:
        roots = [math.sqrt(x) for x in side]
        return [r / sum(roots) for r in roots]

    assert found(P, Q, temperature=2.0) == pytest.approx(kl(cooled(P), cooled(Q)), rel=1e-5)


def test_with_top_k_all_other_tokens_are_one_class() -> None:
    assert found(P, Q, top_k=2) == pytest.approx(kl([0.5, 0.3, 0.2], [0.1, 0.2, 0.7]), rel=1e-5)
    assert found(P, Q, top_k=4) == found(P, Q, top_k=99) == found(P, Q)
    assert found(P, P, top_k=1) == pytest.approx(0.0, abs=1e-6)


def test_a_teacher_with_other_tokens_is_refused_by_name(tokenizer: Any) -> None:
    from tuneplane.training.teacher import check_vocabulary
    from tuneplane.training.tiny import make_tokenizer

    check_vocabulary(tokenizer, make_tokenizer(), "teacher")
    other = make_tokenizer()
    other.add_tokens(["<extra>"])
    with pytest.raises(Refused, match=r"E-TRAIN-035 hyperparams.teacher: (.|\n)*1 tokens differ, '<extra>' among them"):
        check_vocabulary(tokenizer, other, "teacher")


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another random model with the same tokenizer, smaller than the student."""
    from tuneplane.training.tiny import build

    out = tmp_path_factory.mktemp("teacher") / "model"
    build(out, layers=1, seed=7)
    return out


def mixed(teacher: Path) -> dict[str, Any]:
    return FULL | {"teacher": str(teacher), "temperature": 2.0, "alpha": 0.7}


@pytest.mark.train
def test_a_student_learns_what_its_teacher_knows(lessons: Lessons) -> None:
    knows = lessons.straight("sft", **LONGER)
    wise = str(knows.out / "final")
    attempt = lessons.straight("distill", **LONGER, teacher=wise)
    lines, result = attempt.metrics(), attempt.result()
    assert lines[0]["cross_entropy"] == pytest.approx(
        knows.metrics()[0]["loss"], rel=1e-5
    )  # the same rows, the same model
    assert lines[0]["loss"] == lines[0]["divergence"]
    assert lines[0]["divergence"] > 10 * result["validation_divergence"]
    assert result["validation_cross_entropy"] < lines[0]["cross_entropy"] / 1.5
    assert result["validation_agreement"] > 0.7


@pytest.mark.train
@pytest.mark.parametrize("case", ["lora", "full"])
def test_golden_losses(case: str, lessons: Lessons, teacher: Path) -> None:
    lora = LORA | {"teacher": str(teacher), "divergence": "jsd", "top_k": 50}
    attempt = lessons.straight("distill", **(lora if case == "lora" else mixed(teacher)))
    assert list(attempt.losses().values()) == golden(f"distill {case}")


@pytest.mark.train
def test_p35_a_resumed_run_is_bit_identical(lessons: Lessons, teacher: Path) -> None:
    lessons.assert_resumes("distill", **mixed(teacher))


@pytest.mark.train
def test_another_teacher_does_not_go_on(lessons: Lessons, teacher: Path, tmp_path: Path) -> None:
    """The same shapes with other weights: only a digest of the weights tells them apart."""
    from safetensors.torch import load_file, save_file

    other = tmp_path / "model"
    other.mkdir()
    for path in teacher.iterdir():
        (other / path.name).write_bytes(path.read_bytes())
    weights = load_file(other / "model.safetensors")
    save_file({name: tensor * 1.01 for name, tensor in weights.items()}, other / "model.safetensors", {"format": "pt"})
    whole = lessons.straight("distill", **mixed(teacher))
    run = lessons.run("distill", **mixed(other))
    (run.root / "checkpoints").parent.mkdir(parents=True, exist_ok=True)
    (run.root / "checkpoints").symlink_to(whole.root / "checkpoints")
    attempt = run.start()
    assert attempt.wait() == [1, 1]
    assert "E-TRAIN-043 step-000000008: teacher: changed since the checkpoint was written" in attempt.log(0)


@pytest.mark.train
def test_the_losses_are_those_of_a_plain_torch_loop(lessons: Lessons, teacher: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model, frozen = (AutoModelForCausalLM.from_pretrained(f, dtype=torch.float32) for f in (lessons.tiny, teacher))
    rows = [
        group[0] for group in encoded(lessons.rows("distill"), "answer", AutoTokenizer.from_pretrained(lessons.tiny))
    ]

    def loss_of(numbers: list[int]) -> Any:
        lost, count = torch.zeros(()), 0
        for ids, prompt in (rows[i] for i in numbers):
            inputs = torch.tensor([ids])
            ours = model(input_ids=inputs).logits[0, prompt - 1 : -1]
            with torch.no_grad():
                theirs = frozen(input_ids=inputs).logits[0, prompt - 1 : -1]
            p, q = (torch.softmax(x / 2.0, -1) for x in (theirs, ours))
            own = torch.nn.functional.cross_entropy(ours, inputs[0, prompt:], reduction="sum")
            lost = lost + 0.7 * 4.0 * (p * (p / q).log()).sum() + 0.3 * own
            count += len(ids) - prompt
        return lost / count

    wanted = plain_losses(model, len(rows), loss_of, 1e-3)
    assert list(lessons.straight("distill", **mixed(teacher)).losses().values()) == pytest.approx(wanted, rel=2e-4)


@pytest.mark.train
def test_a_teacher_that_is_not_there_is_refused_before_the_first_step(lessons: Lessons) -> None:
    attempt = lessons.run("distill", **FULL, teacher="nowhere").start()
    assert attempt.wait() == [1, 1]
    assert "E-TRAIN-030 hyperparams.teacher: no config.json in it" in attempt.log(0)
    assert attempt.metrics() == []
