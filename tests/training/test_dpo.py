"""deepspeed/dpo: its loss, its reference, its runs."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from lessons import LORA, RPO, Lessons, encoded, golden, plain_logp, plain_losses
from ranks import Run
from tuneplane.training.settings import parse
from tuneplane.training.sums import held_out_path
from tuneplane.training.tables import DPO, DpoSettings


def settings(**values: Any) -> DpoSettings:
    return parse(values, None, DPO)


def test_the_sigmoid_loss_is_the_documented_formula() -> None:
    """-logsigmoid(beta * logits) * (1 - label_smoothing) - logsigmoid(-beta * logits) * label_smoothing (DPO, and Mitchell's conservative DPO)."""
    import torch
    from tuneplane.training.preference import pair_loss

    def log_sigmoid(x: float) -> float:
        return -math.log(1 + math.exp(-x))

    margins = [-3.0, 0.0, 0.7, 12.0]
    for smooth in (0.0, 0.2):
        found = pair_loss(torch.tensor(margins), settings(beta=0.3, label_smoothing=smooth)).tolist()
        wanted = [-(1 - smooth) * log_sigmoid(0.3 * m) - smooth * log_sigmoid(-0.3 * m) for m in margins]
        assert found == pytest.approx(wanted, rel=1e-5)


def test_the_ipo_loss_is_the_documented_formula() -> None:
    """TRL: (logits - 1 / (2 * beta)) ** 2."""
    import torch
    from tuneplane.training.preference import pair_loss

    found = pair_loss(torch.tensor([0.0, 2.5, 4.0]), settings(loss_type="ipo", beta=0.2)).tolist()
    assert found == pytest.approx([6.25, 0.0, 2.25])


def test_what_is_kept_of_the_reference_is_read_back_and_a_damaged_file_is_not(tmp_path: Path) -> None:
    import numpy as np
    from tuneplane.training.reference import _keep, _read

    path, values = tmp_path / "cache" / "a.bin", np.array([-1.5, -2.25])
    assert _read(path, 2) is None
    _keep(path, values)
    assert _read(path, 2).tolist() == [-1.5, -2.25]
    assert _read(path, 3) is None
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    assert _read(path, 2) is None


def test_a_warning_ends_the_asking_of_the_reference_on_all_ranks_and_keeps_nothing(tmp_path: Path) -> None:
    """The ranks agree before each forward; this one hears of another rank's signal, and makes no forward."""
    from types import SimpleNamespace

    from tuneplane.training.reference import Reference
    from tuneplane.training.warning import Warned

    peers = SimpleNamespace(
        place=SimpleNamespace(rank=1, world_size=2),
        policies=SimpleNamespace(start_timeout_s=1.0),
        first=False,
        total=lambda values: [next(warned)],
    )
    warned = iter([0.0, 1.0])  # nobody knows the values; another rank is warned
    engine = SimpleNamespace(
        settings=SimpleNamespace(lora=False, zero_stage=2, micro_batch_size=2),
        precision="fp32",
        asking=lambda: pytest.fail("a forward was made"),
    )
    reference = Reference(tmp_path, "sha256:model", peers, SimpleNamespace(again=lambda: None))
    with pytest.raises(Warned, match="another rank's signal"):
        reference.know(engine, "rows", 5, lambda index: ([1, 2], 1), lambda rows: None)
    assert list(tmp_path.iterdir()) == []


def test_values_of_an_earlier_attempt_come_from_rank_0_where_a_node_does_not_see_the_file(tmp_path: Path) -> None:
    import threading
    from concurrent.futures import ThreadPoolExecutor
    from types import SimpleNamespace

    import numpy as np
    from tuneplane.training.reference import Reference

    here, met, values = threading.local(), threading.Barrier(2, timeout=30), dict[int, Any]()

    def total(mine: list[float]) -> list[float]:
        values[here.rank] = mine
        met.wait()
        summed = [sum(pair) for pair in zip(*values.values(), strict=True)]
        met.wait()
        return summed

    settings = SimpleNamespace(lora=False, zero_stage=2, micro_batch_size=1)

    def know(rank: int, attempt: int) -> Any:
        here.rank = rank
        peers = SimpleNamespace(
            place=SimpleNamespace(rank=rank, world_size=2), policies=SimpleNamespace(start_timeout_s=1.0), first=rank == 0,
            total=total, once=lambda name, work, bound, by: work() if rank == by else None,
        )  # fmt: skip
        # Each node has a cache of its own, as if the other one never saw what rank 0 wrote.
        reference = Reference(tmp_path / str(rank), "sha256:model", peers, SimpleNamespace(again=lambda: None))  # type: ignore[arg-type]
        reference._ask = lambda *_: np.array([-1.5, -2.25]) if attempt == 1 else pytest.fail("asked again")  # type: ignore[method-assign]
        reference.know(SimpleNamespace(settings=settings, precision="fp32"), "rows", 2, None, None)  # type: ignore[arg-type]
        return reference._known["rows"].tolist()

    with ThreadPoolExecutor(2) as pool:
        for attempt in (1, 2):
            assert list(pool.map(know, (0, 1), (attempt, attempt))) == [[-1.5, -2.25]] * 2
    assert [p.name for p in tmp_path.iterdir()] == ["0"]


@pytest.mark.train
def test_a_run_starts_at_the_reference_and_learns_which_sums_are_right(lessons: Lessons) -> None:
    attempt = lessons.straight("dpo", **LORA)
    first, last = attempt.metrics()[0], attempt.metrics()[-1]
    assert first["loss"] == pytest.approx(math.log(2), abs=1e-3)
    assert abs(first["reward_margin"]) < 0.02
    assert first["reward_margin"] == pytest.approx(first["reward_chosen"] - first["reward_rejected"], abs=1e-9)
    assert last["loss"] < 0.68
    result = attempt.result()
    assert result["method"] == "dpo"
    assert result["validation_accuracy"] >= 0.9
    assert result["validation_reward_margin"] > 0.03
    assert result["rows"]["kept"] == 200


@pytest.mark.train
@pytest.mark.parametrize("case", ["lora", "full"])
def test_golden_losses(case: str, lessons: Lessons) -> None:
    attempt = lessons.straight("dpo", **(LORA if case == "lora" else RPO))
    assert list(attempt.losses().values()) == golden(f"dpo {case}")


@pytest.mark.train
@pytest.mark.parametrize("case", ["lora", "zero3-lora"])
def test_p35_a_resumed_run_is_bit_identical(case: str, lessons: Lessons) -> None:
    zero3 = {"zero_stage": 3, "gradient_checkpointing": True, "max_steps": 4, "save_steps": 2}
    attempt = lessons.assert_resumes("dpo", **(LORA | (zero3 if case == "zero3-lora" else {})))
    assert "reference:" not in attempt.log(0)


@pytest.mark.train
def test_p35_a_resumed_run_knows_the_reference_and_asks_again_for_what_was_lost_of_it(lessons: Lessons) -> None:
    def damage(run: Run) -> None:
        (path,) = (p for p in (run.root / "cache" / "reference").iterdir() if p.stat().st_size < 1000)
        path.write_bytes(b"?" + path.read_bytes()[1:])

    attempt = lessons.assert_resumes("dpo", damage, **RPO)
    assert "reference: 400 answers known from an earlier attempt" in attempt.log(0)
    assert "reference: 40 answers asked of the initial model" in attempt.log(0)
    whole = lessons.straight("dpo", **RPO)
    kept = [{p.name: p.read_bytes() for p in (a.root / "cache" / "reference").iterdir()} for a in (whole, attempt)]
    assert kept[0] == kept[1]
    assert len(kept[0]) == 2


@pytest.mark.train
def test_the_losses_are_those_of_a_plain_torch_loop_with_a_second_model(lessons: Lessons) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model, frozen = (AutoModelForCausalLM.from_pretrained(lessons.tiny, dtype=torch.float32) for _ in range(2))
    pairs = encoded(lessons.rows("dpo"), "preference", AutoTokenizer.from_pretrained(lessons.tiny))

    def loss_of(ids: list[int]) -> Any:
        lost = torch.zeros((), dtype=torch.float64)
        own, tokens = torch.zeros((), dtype=torch.float64), 0
        for chosen, rejected in (pairs[i] for i in ids):
            now = [plain_logp(model, *row) for row in (chosen, rejected)]
            with torch.no_grad():
                then = [plain_logp(frozen, *row) for row in (chosen, rejected)]
            margin = 0.1 * ((now[0] - then[0]) - (now[1] - then[1]))
            lost = lost - torch.log(torch.sigmoid(margin))
            own, tokens = own - now[0], tokens + len(chosen[0]) - chosen[1]
        return lost / len(ids) + 0.5 * own / tokens

    wanted = plain_losses(model, len(pairs), loss_of, 1e-3)
    assert list(lessons.straight("dpo", **RPO).losses().values()) == pytest.approx(wanted, rel=2e-4)


@pytest.mark.train
def test_ranks_micro_batches_and_accumulation_share_one_global_batch(lessons: Lessons) -> None:
    two = lessons.straight("dpo", **RPO)
    one = lessons.run("dpo", **(RPO | {"micro_batch_size": 8, "gradient_accumulation": 1})).complete(world=1)
    for name in ("loss", "reward_margin", "accuracy", "tokens"):
        first = (
            name == "accuracy"
        )  # before the first update every margin is rounding about 0, and its sign is the CPU's
        found, wanted = ([m[name] for m in run.metrics()[first:]] for run in (one, two))
        assert found == pytest.approx(wanted, rel=2e-4, abs=1e-5)


@pytest.mark.train
def test_the_adapter_gives_the_run_s_log_probabilities_in_plain_transformers(lessons: Lessons) -> None:
    from tuneplane.training.answers import load

    attempt = lessons.straight("dpo", **LORA)
    network, tokenizer = load(lessons.tiny, attempt.out / "final")
    pairs = encoded(held_out_path(lessons.rows("dpo")), "preference", tokenizer)
    for side, name in enumerate(("validation_logp_chosen", "validation_logp_rejected")):
        mean = sum(float(plain_logp(network, *pair[side])) for pair in pairs) / len(pairs)
        assert attempt.result()[name] == pytest.approx(mean, rel=1e-5)
