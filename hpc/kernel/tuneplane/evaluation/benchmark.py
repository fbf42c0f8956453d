"""One benchmark asked of one model by lm-eval, and its report: the same shape as a behaviour evaluation's, so that gates and comparisons read both.

What is kept while it runs: `responses.jsonl`, appended response by response, and `evaluation.json`, the basis that they rest on. A later start with
the same basis goes on behind what is there; with another basis it is refused. The report is written last.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tuneplane.contract.benchmarks import keys_of, shared_keys
from tuneplane.contract.evaluation import INPUTS, PREDICTIONS, REPORT, REPORT_SCHEMA, SCORES
from tuneplane.evaluation import cache
from tuneplane.evaluation.basis import alone, basis_of, earlier_report, make_folders, settle
from tuneplane.evaluation.benchmark_settings import Settings, settings_digest
from tuneplane.evaluation.followup import PROGRESS, Subject, Suite, Where
from tuneplane.evaluation.harness import Answered, Responses, ask
from tuneplane.evaluation.loading import choose, load
from tuneplane.evaluation.metrics import Score, columns, summary
from tuneplane.evaluation.tasks import Tasks, read_tasks
from tuneplane.record.canonical import canonical_bytes, pretty_bytes
from tuneplane.record.digest import digest_bytes
from tuneplane.record.files import replace
from tuneplane.record.times import utc_now

RESPONSES = "responses.jsonl"
_SAY_S = 10.0


@dataclass(frozen=True)
class Request:
    """One benchmark, one model. `keep` holds what a later start goes on with; `model_files` are digests that are known already.

    `earlier`: folders of finished reports that may stand in for this one where they rest on the same. `log`: where progress goes, by default `out`.
    """

    model: Path
    benchmark: Path
    out: Path
    settings: Settings
    adapter: Path | None = None
    device: str = "auto"
    keep: Path | None = None
    model_files: Sequence[Mapping[str, Any]] = ()
    earlier: Sequence[Path] = ()
    log: Path | None = None

    @property
    def kept(self) -> Path:
        return self.keep or self.out


def evaluate(request: Request, say: Callable[[str], None], now: Callable[[], str] = utc_now) -> dict[str, Any]:
    """Run it, or what is left of it, and return the report. Raises Refused, or Warned between two responses, those so far kept."""
    make_folders((request.out, request.kept))
    with alone(request.kept):
        return _evaluate(request, say, now)


def suite(name: str, folder: Path, settings: Settings, device: str, say: Callable[[str], None]) -> Suite:
    """A benchmark as a suite, to be asked of several models."""

    def ask(one: Subject, at: Where) -> dict[str, Any]:
        request = Request(
            one.model,
            folder,
            at.out,
            settings,
            one.adapter,
            device,
            keep=at.keep,
            model_files=one.files,
            earlier=at.earlier,
            log=at.log,
        )
        return evaluate(request, say)

    return Suite(name, ask)


def _evaluate(request: Request, say: Callable[[str], None], now: Callable[[], str]) -> dict[str, Any]:
    settings, begun = request.settings, time.monotonic()
    tasks = read_tasks(request.benchmark, settings.num_fewshot)
    device, precision = choose(request.device, settings.precision)
    digest = settings_digest(settings, precision)
    packages = ("lm-eval", "datasets")
    basis = basis_of(request.model, request.adapter, request.model_files, tasks.digest, digest, packages)
    say(f"{tasks.benchmark.name}: {', '.join(tasks.tasks)}; {device.type}, {precision}")
    settle(request.kept, basis, request.kept / RESPONSES)
    shelf = cache.Shelf.at(settings.cache, os.getuid())
    if (found := earlier_report(shelf, request.earlier, basis, request.out)) is not None:
        say(f"the same evaluation was done before: {found['cached']['from']}")
        return found
    responses = Responses(request.kept / RESPONSES, Progress(request.log or request.out / PROGRESS, say).note)
    if responses.earlier:
        say(f"goes on behind {responses.earlier} responses that are there")
    try:
        answered = ask(load(request.model, request.adapter, device, precision), tasks, settings, responses)
    finally:
        responses.close()
    report = finish(request, tasks, answered, basis, now())
    report["settings"]["precision"] = precision
    report["figures"] = {"seconds": round(time.monotonic() - begun, 3), "answers": len(answered)}
    replace(request.out / REPORT, pretty_bytes(report))
    if shelf:
        shelf.keep(basis, request.out)
    return report


class Progress:
    """How far this start is: now and then a line of metrics.jsonl, with which `tp job status` shows it, and one for people."""

    def __init__(self, path: Path, say: Callable[[str], None]) -> None:
        self._path, self._say = path, say
        self._written = self._told = 0.0

    def note(self, done: int, total: int) -> None:
        now = time.monotonic()
        if now - self._written < 1.0 and done < total:
            return
        self._written = now
        with open(self._path, "ab") as stream:
            stream.write(canonical_bytes({"step": done, "total_steps": total, "time": utc_now()}) + b"\n")
        if now - self._told >= _SAY_S or done == total:
            self._told = now
            self._say(f"{done} of {total} responses")


def finish(
    request: Request, tasks: Tasks, answered: Sequence[Answered], basis: Mapping[str, Any], at: str
) -> dict[str, Any]:
    """Write inputs, predictions and scores, and make the report."""
    scores = scores_of(tasks, answered)
    lines = {
        INPUTS: [a.asked() for a in answered],
        PREDICTIONS: [a.answer() for a in answered],
        SCORES: [s.as_json() for s in scores],
    }
    files = {name: b"".join(canonical_bytes(item) + b"\n" for item in items) for name, items in lines.items()}
    for name, data in files.items():
        replace(request.out / name, data)
    return {
        "schema": REPORT_SCHEMA,
        "suite": tasks.benchmark.name,
        "created_at": at,
        "basis": dict(basis),
        "model": os.fspath(request.model),
        "adapter": None if request.adapter is None else os.fspath(request.adapter),
        "data": {
            "path": os.fspath(request.benchmark),
            "rows": sum(len(tasks.asked(name)) for name in tasks.tasks),
            "used": len(answered),
            "sampled": len(answered) < sum(len(tasks.asked(name)) for name in tasks.tasks),
        },
        "settings": request.settings.exact(),
        "decides": tasks.decides,
        "metrics": {
            key: summary(column.values(), tasks.metrics[key].direction)
            for key, column in columns(scores, tasks.decides).items()
        },
        "files": {name: digest_bytes(data) for name, data in files.items()},
    }


def scores_of(tasks: Tasks, answered: Sequence[Answered]) -> list[Score]:
    """lm-eval's numbers by the names that gates use: those that every task gives, and with several tasks each one's own."""
    shared, several = shared_keys(tasks.tasks), len(tasks.tasks) > 1
    out = []
    for one in answered:
        values = {key: one.numbers[key] for key in shared}
        parts = {f"{one.task}:{key}": one.numbers[key] for key in keys_of(tasks.tasks[one.task])} if several else {}
        out.append(Score(one.id, values[tasks.decides] == 1.0, values, parts))
    return out
