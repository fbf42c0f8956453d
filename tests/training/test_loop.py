"""What happens at a step edge and in which order; one rank, a method and a saver that only note what they are asked."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tuneplane.contract.sweeps import Stopping
from tuneplane.training import loop as loops
from tuneplane.training import warning
from tuneplane.training.loop import Loop, Preempted, Progress
from tuneplane.training.method import Outcome
from tuneplane.training.metrics import Reporter
from tuneplane.training.refusals import Refused

LEAD_S = 60.0


class World:
    """One rank's loop; `log` has what was done. `warn_at`: the entry of the log after which the warning comes."""

    held_out_loss = 0.5
    outcome = Outcome(1.0, 1.0, 1)

    def __init__(self, root: Path, attempt: int, total: int, warn_at: str, held_out: bool = True) -> None:
        self.log: list[str] = []
        self.total_steps, self._warn_at, self._held_out = total, warn_at, held_out
        self.name = "noted"
        out = root / "attempts" / str(attempt) / "out"
        policies = SimpleNamespace(start_timeout_s=9.0, peer_timeout_s=9.0, lead_s=LEAD_S, save_timeout_s=9.0)
        self.peers: Any = SimpleNamespace(
            total=list, policies=policies, first=True, set_timeouts=lambda seconds: None,
            device=SimpleNamespace(type="cpu"), place=SimpleNamespace(out_dir=out, run_dir=root),
        )  # fmt: skip
        self.reporter = Reporter(out, True, 100, total)

    def note(self, text: str) -> None:
        self.log.append(text)
        if text == self._warn_at:
            warning._given = warning.Given("SIGUSR2", time.monotonic())

    def step(self, _engine: Any, step: int, _rate: float) -> Outcome:
        self.note(f"step {step}")
        return self.outcome

    def validate(self, _engine: Any, between: Callable[[], None]) -> dict[str, float]:
        if not self._held_out:
            return {}
        for part in ("validation begins", "validation ends"):
            between()
            self.note(part)
        return {"loss": self.held_out_loss}

    def look(self) -> None: ...

    def begin(self, step: int, _tokens: int, _bound: float, *, reason: str, behind: bool) -> None:
        self.note(f"save {step}: {reason}{', behind' if behind else ''}")

    def settle(self, _bound: float) -> None: ...

    def run(self, resumed_at: int, rungs: Any, **settings: int) -> Progress | None:
        resumed: Any = SimpleNamespace(step=resumed_at, tokens=0, own=True) if resumed_at else None
        chosen: Any = SimpleNamespace(
            **{"eval_steps": 0, "save_steps": 0, "async_save": True, **settings}, lr_at=lambda step, total: 1.0
        )
        watchdog: Any = SimpleNamespace(beat=lambda *_: None, rest=lambda: None, again=lambda: None)
        me: Any = self
        loop = Loop(SimpleNamespace(), me, chosen, self.peers, me, self.reporter, watchdog, rungs=rungs)  # type: ignore[arg-type]
        try:
            return loop.run(resumed)
        except Preempted as exc:
            self.log.append(f"preempted at {exc.step}")
            return None
        finally:
            warning._given = None


@pytest.fixture
def attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Run the next attempt and give its log."""
    monkeypatch.setattr(loops, "speed_of", lambda engine: None)
    monkeypatch.setattr(loops, "Board", lambda folder, step: None)
    count = 0

    def run(total: int = 4, warn_at: str = "", resumed_at: int = 0, rungs: Any = None, **settings: int) -> list[str]:
        nonlocal count
        count += 1
        world = World(tmp_path, count, total, warn_at)
        done = world.run(resumed_at, rungs, **settings)
        if done is not None and done.validation:
            world.log.append(f"done with {done.validation['loss']}")
        return world.log

    return run


VALIDATION = ["validation begins", "validation ends"]


def test_a_save_comes_before_the_validation_of_its_step(attempt: Callable[..., list[str]]) -> None:
    assert attempt(eval_steps=2, save_steps=2) == [
        "step 1", "step 2", "save 2: every save_steps, behind", *VALIDATION,
        "step 3", "step 4", "save 4: last step", *VALIDATION, "done with 0.5",
    ]  # fmt: skip


def test_a_warned_rank_saves_and_leaves_and_the_next_attempt_makes_up_the_validation(
    attempt: Callable[..., list[str]],
) -> None:
    assert attempt(warn_at="step 2", eval_steps=2) == ["step 1", "step 2", "save 2: warning", "preempted at 2"]
    assert attempt(resumed_at=2, eval_steps=2, total=3)[:3] == [*VALIDATION, "step 3"]
    assert attempt(resumed_at=2, eval_steps=2, total=3)[0] == "step 3"  # it is in an earlier attempt's metrics now


@pytest.mark.parametrize(
    ("save_steps", "edge"),
    [
        (0, ["validation begins", "save 2: warning"]),
        (2, ["save 2: every save_steps, behind", "validation begins"]),
    ],
)
def test_a_warning_ends_a_validation_at_its_next_part_and_the_step_is_saved(
    save_steps: int, edge: list[str], attempt: Callable[..., list[str]]
) -> None:
    log = attempt(warn_at="validation begins", eval_steps=2, save_steps=save_steps)
    assert log == ["step 1", "step 2", *edge, "preempted at 2"]
    assert attempt(resumed_at=2, eval_steps=2)[:3] == [*VALIDATION, "step 3"]


def test_after_the_last_step_a_warned_rank_goes_on_to_the_result_as_long_as_there_is_time(
    attempt: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = ["step 1", "save 1: warning", *VALIDATION, "done with 0.5"]
    assert attempt(total=1, warn_at="step 1") == whole
    monkeypatch.setattr(loops, "_SAVE_MARGIN_S", LEAD_S)  # the time is nearly over
    assert attempt(total=1, warn_at="validation begins") == [
        "step 1", "save 1: last step", "validation begins", "preempted at 1",
    ]  # fmt: skip


def test_an_attempt_without_a_step_left_has_the_validation_of_the_last_one(attempt: Callable[..., list[str]]) -> None:
    assert attempt(total=2, resumed_at=2) == [*VALIDATION, "done with 0.5"]
    assert attempt(total=2, resumed_at=2) == ["done with 0.5"]


def test_a_rung_that_judges_by_a_validation_is_made_up_with_it(attempt: Callable[..., list[str]]) -> None:
    heeded: list[Any] = []
    rungs = SimpleNamespace(
        stopping=Stopping("validation_loss", "min", (2,), 2), due=lambda step: step == 2, decided=lambda step: bool(heeded),
        stops=lambda step, newest: heeded.append((step, newest["validation_loss"])) is not None, stopped_before=lambda: None,
    )  # fmt: skip
    assert attempt(warn_at="step 2", rungs=rungs)[-1] == "preempted at 2"
    assert heeded == []
    assert attempt(resumed_at=2, rungs=rungs)[:3] == [*VALIDATION, "step 3"]
    assert heeded == [(2, 0.5)]
    assert attempt(resumed_at=2, rungs=rungs)[0] == "step 3"


def rows(root: Path, number: int) -> list[dict[str, Any]]:
    text = (root / "attempts" / str(number) / "out" / "metrics.jsonl").read_text("utf-8")
    return [json.loads(line) for line in text.splitlines()]


def test_a_validation_that_is_no_number_ends_no_attempt_and_is_not_made_up(
    attempt: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(World, "held_out_loss", math.nan)
    assert attempt(total=1) == ["step 1", "save 1: last step", *VALIDATION, "done with nan"]
    assert rows(tmp_path, 1)[1]["validation_loss"] is None
    assert attempt(total=1, resumed_at=1) == ["done with nan"]


def test_a_rung_hears_that_a_validation_is_no_number(
    attempt: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[float] = []
    rungs = SimpleNamespace(
        stopping=Stopping("validation_loss", "min", (1,), 2), due=lambda step: step == 1,
        stops=lambda step, newest: heard.append(newest["validation_loss"]) is not None, stopped_before=lambda: None,
    )  # fmt: skip
    monkeypatch.setattr(World, "held_out_loss", math.inf)
    attempt(total=2, rungs=rungs)
    assert heard == [math.inf]


@pytest.mark.parametrize("norm", [math.nan, math.inf, -1.0])
def test_a_gradient_norm_that_is_none_stops_the_run_before_its_step_counts(
    attempt: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, norm: float
) -> None:
    monkeypatch.setattr(World, "outcome", Outcome(1.0, norm, 1))
    with pytest.raises(Refused, match="E-TRAIN-046 gradient norm: the gradient norm is no number any more at step 1"):
        attempt(save_steps=1)
    assert rows(tmp_path, 1) == []
