"""One suite asked of one model, whoever asks it: what is wanted, the folder held alone, what was done before, and the shape of the report.

An evaluator gives its settings, its basis and its answers; the behaviour evaluator and lm-eval's both do.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from tuneplane.contract.evaluation import REPORT, REPORT_SCHEMA
from tuneplane.evaluation import cache
from tuneplane.evaluation.basis import alone, earlier_report, make_folders
from tuneplane.evaluation.followup import PROGRESS, Subject, Suite, Where
from tuneplane.record.canonical import canonical_bytes, pretty_bytes
from tuneplane.record.files import replace
from tuneplane.record.times import utc_now

_SAY_S = 10.0


class Exact(Protocol):
    """Settings of an evaluator."""

    @property
    def cache(self) -> str: ...
    def exact(self) -> dict[str, Any]:
        """Those that decide the numbers, for the report."""
        ...


S = TypeVar("S", bound=Exact)


@dataclass(frozen=True)
class Request(Generic[S]):
    """`data` asked of one model: a file of rows, or a benchmark's folder.

    `keep` holds what a later start goes on with (by default `out`); `model_files` are digests that are known already. `earlier`: folders of finished
    reports that may stand in for this one where they rest on the same. `log`: where progress goes, by default `out`.
    """

    model: Path
    data: Path
    out: Path
    settings: S
    adapter: Path | None = None
    device: str = "auto"
    keep: Path | None = None
    model_files: Sequence[Mapping[str, Any]] = ()
    earlier: Sequence[Path] = ()
    log: Path | None = None

    @property
    def kept(self) -> Path:
        return self.keep or self.out

    @property
    def progress(self) -> Path:
        return self.log or self.out / PROGRESS


Say = Callable[[str], None]
Run = Callable[[Request[S], Say], dict[str, Any]]


def run_alone(request: Request[S], run: Run[S], say: Say) -> dict[str, Any]:
    """`run` with the request's folders made and held against a second evaluation. Raises Refused E-EVAL-014, 015."""
    make_folders((request.out, request.kept))
    with alone(request.kept):
        return run(request, say)


def suite_of(name: str, run: Run[S], data: Path, settings: S, device: str, say: Say) -> Suite:
    """`data` as a suite, to be asked of several models."""

    def ask(one: Subject, at: Where) -> dict[str, Any]:
        request = Request(
            one.model, data, at.out, settings, one.adapter, device, at.keep, one.files, at.earlier, at.log
        )
        return run(request, say)

    return Suite(name, ask)


@dataclass
class Evaluation(Generic[S]):
    """A request under way, since `begun` on the monotonic clock: what was asked before on the same basis, and the report at the end."""

    request: Request[S]
    basis: Mapping[str, Any]
    begun: float

    def __post_init__(self) -> None:
        self._shelf = cache.Shelf.at(self.request.settings.cache, os.getuid())

    def done_before(self, say: Say) -> dict[str, Any] | None:
        """The report of a finished evaluation on the same basis, its files in `out`."""
        found = earlier_report(self._shelf, self.request.earlier, self.basis, self.request.out)
        if found is not None:
            say(f"the same evaluation was done before: {found['cached']['from']}")
        return found

    def publish(self, report: Mapping[str, Any], precision: str, figures: Mapping[str, Any]) -> dict[str, Any]:
        """Write the report, the last of all files, and put everything on the shelf."""
        whole = {
            **report,
            "settings": {**report["settings"], "precision": precision},
            "figures": {"seconds": round(time.monotonic() - self.begun, 3), **figures},
        }
        replace(self.request.out / REPORT, pretty_bytes(whole))
        if self._shelf:
            self._shelf.keep(self.basis, self.request.out)
        return whole


def report_of(request: Request[S], suite: str, basis: Mapping[str, Any], at: str, data: Mapping[str, Any]) -> dict[str, Any]:  # fmt: skip
    """What every report says of what was asked; `data` beside the path. The evaluator adds `decides`, `metrics` and `files`."""
    return {
        "schema": REPORT_SCHEMA,
        "suite": suite,
        "created_at": at,
        "basis": dict(basis),
        "model": os.fspath(request.model),
        "adapter": None if request.adapter is None else os.fspath(request.adapter),
        "data": {"path": os.fspath(request.data), **data},
        "settings": request.settings.exact(),
    }


class Progress:
    """How far this start is: lines of metrics.jsonl, by which `tp job status` shows it, and now and then one for people."""

    def __init__(self, path: Path, unit: str, say: Say, every_s: float = 0.0) -> None:
        self._path, self._unit, self._say, self._every = path, unit, say, every_s
        self._begun = self._told = time.monotonic()
        self._written = 0.0

    def note(self, done: int, total: int, tokens: int | None = None) -> None:
        """`tokens`: those of this start so far, for the speed; lines that come sooner than `every_s` are left out, the last one never."""
        now = time.monotonic()
        if now - self._written < self._every and done < total:
            return
        self._written = now
        speed = {} if tokens is None else {"tokens_per_s": round(tokens / max(now - self._begun, 1e-9), 1)}
        line = {"step": done, "total_steps": total, **speed, "time": utc_now()}
        with open(self._path, "ab") as stream:
            stream.write(canonical_bytes(line) + b"\n")
        if now - self._told >= _SAY_S or done == total:
            self._told = now
            told = "".join(f", {value:.0f} tokens/s" for value in speed.values())
            self._say(f"{done} of {total} {self._unit}{told}")
