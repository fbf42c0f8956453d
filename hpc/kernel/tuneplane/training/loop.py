"""The step loop that every method shares: step, agree, report, save, heed the warning."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tuneplane.contract.leads import lead_advice
from tuneplane.training import memory, warning
from tuneplane.training.board import FOLDER, Board
from tuneplane.training.engine import Engine
from tuneplane.training.method import Method, valid_norm
from tuneplane.training.metrics import Reporter, earlier_saves, earlier_validation
from tuneplane.training.peers import Peers
from tuneplane.training.refusals import refuse
from tuneplane.training.rungs import Rungs
from tuneplane.training.saving import Resumed, Saved, Saver
from tuneplane.training.settings import Settings
from tuneplane.training.speed import speed_of
from tuneplane.training.watchdog import Watchdog

_SAVE_MARGIN_S = 5.0
"""Kept back from the lead time: to leave cleanly after the save."""
_LEAST_S = 1.0
REGULAR = "every save_steps"
"""The reason of a save that nobody waits for."""


class Preempted(Exception):  # noqa: N818 - the agreed end of an attempt
    """All ranks saved after a warning and leave; exit code 85. `step` is what the newest checkpoint holds."""

    def __init__(self, step: int) -> None:
        super().__init__(step)
        self.step = step


class Stopped(Exception):  # noqa: N818 - the agreed end of an element of a sweep
    """The element's metric was not among those that go on at the rung `step`; exit code 0, without an artefact."""

    def __init__(self, step: int) -> None:
        super().__init__(step)
        self.step = step


@dataclass
class Progress:
    """What the loop did in this attempt."""

    step: int
    loss: float | None = None
    validation: dict[str, float] = field(default_factory=dict)
    tokens: int = 0
    seconds: float = 0.0
    save_seconds: list[float] = field(default_factory=list)
    memory: dict[str, int] = field(default_factory=dict)


@dataclass
class Loop:
    """One attempt's steps from the resume point to the last one."""

    engine: Engine
    method: Method
    settings: Settings
    peers: Peers
    saver: Saver
    reporter: Reporter
    watchdog: Watchdog
    on_first_step: Callable[[], None] = lambda: None
    rungs: Rungs | None = field(default_factory=Rungs.from_env)

    def run(self, resumed: Resumed | None) -> Progress:
        """Train to the last step and save there. Raises Preempted, Stopped, or Refused when loss or gradient norm is no number.

        A step is the unit of everything: ranks learn together, from one sum over all of them, the loss and whether anyone was warned.
        """
        done = Progress(resumed.step if resumed else 0, tokens=resumed.tokens if resumed else 0)
        saved_at, total = done.step, self.method.total_steps
        if self.peers.total([float(warning.given() is not None)])[0]:
            raise Preempted(saved_at)
        if self.rungs and (ended := self.rungs.stopped_before()):
            self._stop(ended)
        self._advise(earlier_saves(self.peers.place.out_dir))
        board = Board(self.peers.place.run_dir / FOLDER, done.step) if self.peers.first else None
        self.reporter.begin(speed_of(self.engine), board)
        began = time.monotonic()
        if resumed and resumed.own:
            self._make_up(done)
        while done.step < total:
            warned = self._step(done)
            if saved := self.saver.look():
                self._saved(done, saved)
            self._edge(done, warned)
        done.seconds = time.monotonic() - began
        done.memory = memory.seen(self.peers.device)
        return done

    def _edge(self, done: Progress, warned: bool) -> None:
        """What a step edge asks for. The save comes first: whatever ends a validation, the steps before it are not lost."""
        step, last = done.step, done.step == self.method.total_steps
        if self._rung_at(step) and not self._needs_validation():
            self._heed_rung(done)
        if saves := warned or last or self._due(step, self.settings.save_steps):
            self._save(done, "warning" if warned else "last step" if last else REGULAR)
        if warned and not last:
            raise Preempted(step)
        if not self._validation_due(step):
            return
        try:
            self._validate(done)
        except warning.Warned:
            if saves:
                self._settle(done)
            else:
                self._save(done, "warning")
            raise Preempted(step) from None
        if self._rung_at(step) and self._needs_validation():
            self._heed_rung(done)

    def _make_up(self, done: Progress) -> None:
        """The validation of the step that this attempt goes on from, and its rung, where the one before was ended in between. A collective."""
        step, out = done.step, self.peers.place.out_dir
        if not self._validation_due(step):
            return
        known = earlier_validation(out, step) if self.peers.first else {}
        judged = self._rung_at(step) and self._needs_validation()
        owed = self.peers.first and not (known and (not judged or self.rungs is None or self.rungs.decided(step)))
        if not self.peers.total([float(owed)])[0]:
            done.validation = known  # on rank 0, which writes the result
            return
        try:
            self._validate(done)
        except warning.Warned:
            raise Preempted(step) from None
        if judged and done.validation:
            self._heed_rung(done)

    def _validation_due(self, step: int) -> bool:
        last = step == self.method.total_steps
        return last or self._due(step, self.settings.eval_steps) or (self._rung_at(step) and self._needs_validation())

    def _rung_at(self, step: int) -> bool:
        return self.rungs is not None and self.rungs.due(step) and step < self.method.total_steps

    def _needs_validation(self) -> bool:
        return self.rungs is not None and self.rungs.stopping.metric.startswith("validation_")

    def _heed_rung(self, done: Progress) -> None:
        """Rank 0 compares this element with the others; all ranks learn its decision together. Raises Stopped."""
        assert self.rungs is not None
        stops = self.peers.first and self.rungs.stops(done.step, self.reporter.newest)
        if self.peers.total([float(stops)])[0]:
            self._settle(done)
            self._stop(done.step)

    def _stop(self, step: int) -> None:
        if self.rungs and self.peers.first:
            self.rungs.leave_result(step)
        raise Stopped(step)

    def _due(self, step: int, every: int) -> bool:
        return every > 0 and step % every == 0

    def _step(self, done: Progress) -> bool:
        """Do the next step; True when any rank has been warned by its end."""
        step = done.step + 1
        rate = self.settings.lr_at(step, self.method.total_steps)
        policies = self.peers.policies
        # Gloo's own bound comes first, since it can say more.
        self.watchdog.beat(
            f"step {step}", policies.start_timeout_s if done.loss is None else policies.peer_timeout_s + 10
        )
        outcome = self.method.step(self.engine, step, rate)
        names = sorted(outcome.sums)
        warned, loss, *sums = self.peers.total(
            [float(warning.given() is not None), outcome.loss, *(outcome.sums[name] for name in names)]
        )
        if not math.isfinite(loss) or not valid_norm(outcome.grad_norm):
            broken = "gradient norm" if math.isfinite(loss) else "loss"
            raise refuse(
                "E-TRAIN-046",
                f"the {broken} is no number any more at step {step}; the checkpoint before it stands",
                field=broken,
                found=f"loss {loss}, gradient norm {outcome.grad_norm}",
            )
        if done.loss is None:
            self.peers.set_timeouts(policies.peer_timeout_s)  # loading is over, and with it its patience
            self.on_first_step()
        self.watchdog.rest()
        done.step, done.loss, done.tokens = step, loss, done.tokens + outcome.tokens
        means = outcome.means(dict(zip(names, sums, strict=True)))
        self.reporter.step(step, loss, rate, outcome.grad_norm, outcome.tokens, means)
        return warned > 0

    def _validate(self, done: Progress) -> None:
        """Raises Warned on all ranks when a warning comes; at the last step, after which only the result is missing, when its time is nearly over."""
        policies, last = self.peers.policies, done.step == self.method.total_steps
        self.watchdog.beat(
            "validation", policies.start_timeout_s if done.loss is None else policies.peer_timeout_s + 10
        )

        def between() -> None:
            self.watchdog.again()
            given = warning.given()
            leaves = given is not None and (not last or self._bound() <= _LEAST_S)
            if self.peers.total([float(leaves)])[0]:
                raise warning.Warned(given.name if given else "another rank's signal")

        found = self.method.validate(self.engine, between)
        self.watchdog.rest()
        if found:
            done.validation = found
            self.reporter.validation(done.step, found)

    def _save(self, done: Progress, reason: str) -> None:
        """Save, behind the training where nobody waits for it: at a warning and at the end it is waited for, within `_bound`."""
        self._settle(done)
        behind = self.settings.async_save and reason == REGULAR
        self.saver.begin(done.step, done.tokens, self._bound(), reason=reason, behind=behind)
        self.reporter.stood()
        if not behind:
            self._settle(done)

    def _settle(self, done: Progress) -> None:
        if saved := self.saver.settle(self._bound()):
            self._saved(done, saved)
        self.reporter.stood()

    def _saved(self, done: Progress, saved: Saved) -> None:
        done.save_seconds.append(saved.seconds)
        self.reporter.saved(saved)
        if len(done.save_seconds) == 1:
            self._advise(done.save_seconds)

    def _advise(self, seconds: Sequence[float]) -> None:
        if told := lead_advice(seconds, self.peers.policies.lead_s - _SAVE_MARGIN_S):
            self.reporter.say(told)

    def _bound(self) -> float:
        """Seconds that a save may take: what is left of the lead after a warning, else the policy's bound (P33)."""
        given = warning.given()
        if given is None:
            return self.peers.policies.save_timeout_s
        return max(_LEAST_S, self.peers.policies.lead_s - (time.monotonic() - given.at) - _SAVE_MARGIN_S)
