"""What a run says of itself: metrics.jsonl and saves.jsonl (a line an event), result.json, progress lines for people. Rank 0 only writes."""

from __future__ import annotations

import json
import math
import sys
import time
from pathlib import Path
from typing import Any

from tuneplane.record.canonical import canonical_text
from tuneplane.record.files import replace_json
from tuneplane.record.times import utc_now
from tuneplane.training.board import Board
from tuneplane.training.speed import Speed
from tuneplane.training.writing import Saved

_VALIDATION = "validation_"


def clock_text(seconds: float) -> str:
    """`0:01:10`; hours are not wrapped into days."""
    minutes, rest = divmod(max(0, round(seconds)), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


def thousands(number: float) -> str:
    """`1 234`."""
    return f"{number:,.0f}".replace(",", " ")


def progress_line(
    step: int, total: int, loss: float, lr: float, tokens_per_s: float, eta_s: float, mfu: float | None = None
) -> str:
    """`step 12/80  loss 1.234  lr 1.0e-04  1 234 tokens/s  mfu 41.2 %  eta 0:01:10`; without mfu where it is not known."""
    share = "" if mfu is None else f"  mfu {mfu * 100:.1f} %"
    return f"step {step}/{total}  loss {loss:.3f}  lr {lr:.1e}  {thousands(tokens_per_s)} tokens/s{share}  eta {clock_text(eta_s)}"


def earlier_saves(out: Path) -> list[float]:
    """Seconds of the saves that earlier attempts recorded; `out` is this one's folder, `attempts/<n>/out`. A line that was cut is left out."""
    seconds = []
    for path in sorted(out.parent.parent.glob("*/out/saves.jsonl")):
        for line in path.read_text("utf-8", errors="replace").splitlines():
            try:
                seconds.append(float(json.loads(line)["seconds"]))
            except (ValueError, KeyError, TypeError):
                continue
    return seconds


def earlier_validation(out: Path, step: int) -> dict[str, float]:
    """The validation of `step` that an earlier attempt recorded, {} where none did; `out` is this one's folder. A line that was cut is left out.

    What was no number (null) is NaN: it was measured, and would be the same a second time.
    """
    found: dict[str, float] = {}
    for path in sorted(out.parent.parent.glob("*/out/metrics.jsonl")):
        for line in path.read_text("utf-8", errors="replace").splitlines():
            if '"validation_' not in line:
                continue
            try:
                value = json.loads(line)
                means = {
                    n.removeprefix(_VALIDATION): math.nan if v is None else float(v)
                    for n, v in value.items()
                    if n.startswith(_VALIDATION)
                }
                found = means if value["step"] == step else found
            except (ValueError, KeyError, TypeError, AttributeError):
                continue
    return found


class Reporter:
    """Writes into `out` on rank 0; on other ranks every call does nothing."""

    def __init__(self, out: Path, writes: bool, log_steps: int, total_steps: int) -> None:
        self._out, self._writes, self._log, self._total = out, writes, log_steps, total_steps
        self._began = self._last = time.monotonic()
        self._window: list[tuple[int, float]] = []
        self.newest: dict[str, Any] = {}
        """The newest value of each metric, training and validation, on rank 0, as it was measured: NaN too."""
        self._said: set[str] = set()
        self._speed: Speed | None = None
        self._board: Board | None = None
        if writes:
            out.mkdir(parents=True, exist_ok=True)
            self._metrics = open(out / "metrics.jsonl", "a", encoding="utf-8")  # noqa: SIM115 - open for the whole run
            self._saves = open(out / "saves.jsonl", "a", encoding="utf-8")  # noqa: SIM115

    def say(self, text: str) -> None:
        """A line for people, at once."""
        if self._writes:
            print(text, file=sys.stdout, flush=True)

    def begin(self, speed: Speed | None = None, board: Board | None = None) -> None:
        """The clock of the first step starts now. `speed` gives the share of the peak, `board` takes the points as well."""
        self._speed, self._board = speed, board
        if speed is not None:
            self.say(speed.formula())
        self._complain()
        self._began = self._last = time.monotonic()

    def _complain(self) -> None:
        """Why there are no event files, once."""
        if self._board is not None and self._board.fault:
            self.say(self._board.fault)
            self._board = None

    def _points(self, part: str, step: int, values: dict[str, float], *, flush: bool = False) -> None:
        if self._board is not None:
            self._board.add(part, step, values)
            if flush:
                self._board.flush()
            self._complain()

    def step(self, step: int, loss: float, lr: float, grad_norm: float, tokens: int, more: dict[str, float]) -> None:
        """Record a finished step. `tokens` are those of this step, all ranks, without padding."""
        now = time.monotonic()
        seconds, self._last = max(1e-9, now - self._last), now
        self._window = [*self._window[-19:], (tokens, seconds)]
        line = {
            "step": step,
            "total_steps": self._total,
            "loss": loss,
            "lr": lr,
            "grad_norm": grad_norm,
            "tokens": tokens,
            "tokens_per_s": round(tokens / seconds, 1),
            "elapsed_s": round(now - self._began, 3),
            "time": utc_now(),
        }
        mfu = None if self._speed is None else self._speed.mfu(tokens / seconds)
        known = {} if mfu is None else {"mfu": round(mfu, 6)}
        self._line("metrics", line | known | more)
        if step % self._log == 0 or step == self._total or step == 1:
            self._progress(step, loss, lr, {"loss": loss, "lr": lr, "grad_norm": grad_norm, **more})

    def _progress(self, step: int, loss: float, lr: float, points: dict[str, float]) -> None:
        """A line for people and the points for TensorBoard; speeds are means over the last steps."""
        counted, spent = (sum(column) for column in zip(*self._window, strict=True))
        eta = spent / len(self._window) * (self._total - step)
        mfu = None if self._speed is None else self._speed.mfu(counted / spent)
        self.say(progress_line(step, self._total, loss, lr, counted / spent, eta, mfu))
        speeds = {"tokens_per_s": counted / spent} | ({} if mfu is None else {"mfu": mfu})
        self._points("train", step, points | speeds, flush=step == self._total)

    def validation(self, step: int, means: dict[str, float]) -> None:
        """Record means over held-out rows, each under its name with `validation_` before it."""
        line = {"step": step, "total_steps": self._total, "time": utc_now()}
        self._line("metrics", line | {f"{_VALIDATION}{name}": value for name, value in means.items()})
        self.say(f"step {step}/{self._total}  validation {'  '.join(f'{n} {v:.3f}' for n, v in means.items())}")
        self._points("validation", step, means, flush=True)
        self._last = time.monotonic()

    def saved(self, saved: Saved) -> None:
        """Record a save that is published; the warning's lead time is set from these."""
        line = {"step": saved.step, "seconds": round(saved.seconds, 3), "blocked_s": round(saved.blocked_s, 3)}
        self._line("saves", line | {"bytes": saved.bytes, "reason": saved.reason, "time": utc_now()})
        stood = "" if saved.blocked_s > 0.9 * saved.seconds else f" (training stood still for {saved.blocked_s:.2f} s)"
        size = f"{saved.bytes / 1e6:.1f} MB in {saved.seconds:.2f} s{stood}"
        self.say(f"step {saved.step}/{self._total}  saved ({saved.reason}), {size}")
        self._points("saves", saved.step, {"seconds": saved.seconds, "bytes": saved.bytes}, flush=True)

    def stood(self) -> None:
        """The loop did something else than steps until now: the next step's speed does not count it."""
        self._last = time.monotonic()

    def result(self, value: dict[str, Any]) -> None:
        if self._writes:
            replace_json(self._out / "result.json", self._sayable(value, self._total))

    def _line(self, name: str, value: dict[str, Any]) -> None:
        if self._writes:
            if name == "metrics":
                self.newest |= value
            stream = self._metrics if name == "metrics" else self._saves
            stream.write(canonical_text(self._sayable(value, value["step"])) + "\n")
            stream.flush()

    def _sayable(self, value: dict[str, Any], step: int) -> dict[str, Any]:
        """`value` with null for what is no finite number, which JSON cannot say: no reason to end a run. The log has it once a name."""
        wrong = {name: v for name, v in value.items() if isinstance(v, float) and not math.isfinite(v)}
        for name in sorted(wrong.keys() - self._said):
            self.say(
                f"{name} is no number at step {step} ({wrong[name]}): metrics.jsonl and result.json have null there"
            )
        self._said |= wrong.keys()
        return value | dict.fromkeys(wrong)
