"""The behaviour evaluator: questions to a model, its answers, their scores, one report.

What is kept while it runs: `predictions.jsonl`, appended batch by batch, and `evaluation.json`, the basis that they rest on (digests of model,
adapter, data and settings, releases). A later start with the same basis goes on behind what is there; with another basis it is refused. The report
is written last, and only when each question has exactly one answer.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tuneplane.contract.evaluation import INPUTS, PREDICTIONS, REPORT, REPORT_SCHEMA, SCORES
from tuneplane.evaluation import cache
from tuneplane.evaluation.answers import Prediction, join, read_predictions
from tuneplane.evaluation.basis import alone, basis_of, earlier_report, make_folders, settle
from tuneplane.evaluation.examples import Examples, Question, inputs_bytes, read_examples, read_inputs
from tuneplane.evaluation.followup import PROGRESS, Subject, Suite, Where
from tuneplane.evaluation.loading import choose, load
from tuneplane.evaluation.metrics import aggregate, score
from tuneplane.evaluation.settings import Settings, settings_digest
from tuneplane.record.canonical import canonical_bytes, pretty_bytes
from tuneplane.record.digest import digest_bytes, digest_file
from tuneplane.record.files import replace
from tuneplane.record.times import utc_now
from tuneplane.training import warning

_SAY_S = 10.0


@dataclass(frozen=True)
class Request:
    """One evaluation. `keep` holds what a later start goes on with (by default `out`); `model_files` are digests that are known already.

    `earlier`: folders of finished reports that may stand in for this one where they rest on the same. `log`: where progress goes, by default `out`.
    """

    model: Path
    data: Path
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
    """Run it, or what is left of it, and return the report. Raises Refused, or Warned between two batches, all answers so far kept."""
    make_folders((request.out, request.kept))
    with alone(request.kept):
        return _evaluate(request, say, now)


def suite(settings: Settings, data: Path, device: str, say: Callable[[str], None]) -> Suite:
    """These rows as a suite, to be asked of several models."""

    def ask(one: Subject, at: Where) -> dict[str, Any]:
        request = Request(
            one.model,
            data,
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

    return Suite(settings.suite, ask)


def _evaluate(request: Request, say: Callable[[str], None], now: Callable[[], str]) -> dict[str, Any]:
    settings, begun = request.settings, time.monotonic()
    examples = read_examples(
        request.data, max_rows=settings.max_rows, seed=settings.sample_seed, repeats=settings.repeats
    )
    device, precision = choose(request.device, settings.precision)
    basis = basis_of(
        request.model,
        request.adapter,
        request.model_files,
        digest_file(request.data, follow=True),
        settings_digest(settings, precision),
    )
    say(f"{len(examples.questions)} questions of {examples.total} rows; {settings.metrics}; {device.type}, {precision}")
    replace(request.out / INPUTS, inputs_bytes(examples.questions))
    done = resume(request.kept, basis, {q.id for q in examples.questions})
    if done:
        say(f"goes on behind {len(done)} answers that are there")
    shelf = cache.Shelf.at(settings.cache, os.getuid())
    if (found := earlier_report(shelf, request.earlier, basis, request.out)) is not None:
        say(f"the same evaluation was done before: {found['cached']['from']}")
        return found
    left = [q for q in read_inputs(request.out / INPUTS) if q.id not in {p.id for p in done}]
    fresh = _ask(left, request, device, precision, say) if left else []
    report = finish(request, examples, [*done, *fresh], basis, now())
    report["settings"]["precision"] = precision
    report["figures"] = _figures(fresh, time.monotonic() - begun)
    replace(request.out / REPORT, pretty_bytes(report))
    if shelf:
        shelf.keep(basis, request.out)
    return report


def resume(folder: Path, basis: Mapping[str, Any], wanted: set[str]) -> list[Prediction]:
    """Answers of an earlier start on the same basis; a line that was being written is cut off. Raises Refused E-EVAL-013 for another basis."""
    path = folder / PREDICTIONS
    if not settle(folder, basis, path):
        return []
    done = read_predictions(path, torn=True)
    join(done, {p.id for p in done} & wanted)
    os.truncate(path, sum(len(p.line()) for p in done))
    return done


def _ask(
    questions: Sequence[Question], request: Request, device: Any, precision: str, say: Callable[[str], None]
) -> list[Prediction]:
    """Load the model and get every answer; each batch is on the disk before the next one begins."""
    from tuneplane.evaluation.generate import answers, encode

    loaded = load(request.model, request.adapter, device, precision)
    asked = encode(questions, loaded, request.settings, os.fspath(request.data))
    out: list[Prediction] = []
    progress = Progress(request.log or request.out / PROGRESS, len(asked), say)
    with open(request.kept / PREDICTIONS, "ab") as stream:
        for batch in answers(asked, loaded, request.settings):
            stream.write(b"".join(p.line() for p in batch))
            stream.flush()
            os.fsync(stream.fileno())
            out += batch
            progress.note(out)
            if len(out) < len(asked):
                warning.check()
    return out


class Progress:
    """How far this start is: a line of metrics.jsonl a batch, with which `tp job status` shows it, and now and then one for people."""

    def __init__(self, path: Path, total: int, say: Callable[[str], None]) -> None:
        self._path, self._total, self._say = path, total, say
        self._begun = self._told = time.monotonic()

    def note(self, done: Sequence[Prediction]) -> None:
        now = time.monotonic()
        speed = round(sum(p.tokens for p in done) / max(now - self._begun, 1e-9), 1)
        line = {"step": len(done), "total_steps": self._total, "tokens_per_s": speed, "time": utc_now()}
        with open(self._path, "ab") as stream:
            stream.write(canonical_bytes(line) + b"\n")
        if now - self._told >= _SAY_S or len(done) == self._total:
            self._told = now
            self._say(f"{len(done)} of {self._total} answers, {speed:.0f} tokens/s")


def finish(
    request: Request, examples: Examples, predictions: Sequence[Prediction], basis: Mapping[str, Any], at: str
) -> dict[str, Any]:
    """Join answers and expectations, write both files in the order of the questions, and make the report. Raises Refused E-EVAL-010."""
    settings, scoring = request.settings, request.settings.scoring
    joined = join(predictions, examples.expected)
    ordered = [joined[q.id] for q in examples.questions]
    scores = [score(p, examples.expected[p.id], scoring) for p in ordered]
    lines = {
        PREDICTIONS: b"".join(p.line() for p in ordered),
        SCORES: b"".join(canonical_bytes(s.as_json()) + b"\n" for s in scores),
    }
    for name, data in lines.items():
        replace(request.out / name, data)
    return {
        "schema": REPORT_SCHEMA,
        "suite": settings.suite,
        "created_at": at,
        "basis": dict(basis),
        "model": os.fspath(request.model),
        "adapter": None if request.adapter is None else os.fspath(request.adapter),
        "data": {
            "path": os.fspath(request.data),
            "rows": examples.total,
            "used": len(examples.questions),
            "repeated": examples.repeated,
            "sampled": examples.sampled,
        },
        "settings": settings.exact(),
        "decides": scoring.metrics[0],
        "metrics": aggregate(scores, scoring),
        "files": {
            INPUTS: digest_file(request.out / INPUTS),
            **{name: digest_bytes(data) for name, data in lines.items()},
        },
    }


def _figures(fresh: Sequence[Prediction], seconds: float) -> dict[str, Any]:
    """Speed of this start: answers that were there already are not in it. Latencies are those of batches."""
    latencies = sorted(p.latency_ms for p in fresh)
    tokens = sum(p.tokens for p in fresh)
    return {
        "seconds": round(seconds, 3),
        "answers": len(fresh),
        "tokens": tokens,
        "latency_ms": {
            "median": statistics.median(latencies),
            "p95": latencies[min(len(latencies) - 1, round(0.95 * len(latencies)))],
            "longest": latencies[-1],
        }
        if latencies
        else None,
    }
