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
from pathlib import Path
from typing import Any

from tuneplane.contract.evaluation import INPUTS, PREDICTIONS, SCORES
from tuneplane.evaluation.answers import Prediction, join, read_predictions
from tuneplane.evaluation.basis import basis_of, settle
from tuneplane.evaluation.examples import Examples, Question, inputs_bytes, read_examples, read_inputs
from tuneplane.evaluation.followup import Suite
from tuneplane.evaluation.loading import choose, load
from tuneplane.evaluation.metrics import aggregate, score
from tuneplane.evaluation.request import Evaluation, Progress, Request, Say, report_of, run_alone, suite_of
from tuneplane.evaluation.settings import Settings, settings_digest
from tuneplane.record.canonical import canonical_bytes
from tuneplane.record.digest import digest_bytes, digest_file
from tuneplane.record.files import replace
from tuneplane.record.times import utc_now
from tuneplane.training import warning


def evaluate(request: Request[Settings], say: Say, now: Callable[[], str] = utc_now) -> dict[str, Any]:
    """Run it, or what is left of it, and return the report. Raises Refused, or Warned between two batches, all answers so far kept."""
    return run_alone(request, lambda one, tell: _evaluate(one, tell, now), say)


def suite(settings: Settings, data: Path, device: str, say: Say) -> Suite:
    """These rows as a suite, to be asked of several models."""
    return suite_of(settings.suite, evaluate, data, settings, device, say)


def _evaluate(request: Request[Settings], say: Say, now: Callable[[], str]) -> dict[str, Any]:
    settings, begun = request.settings, time.monotonic()
    examples = read_examples(
        request.data, max_rows=settings.max_rows, seed=settings.sample_seed, repeats=settings.repeats
    )
    device, precision = choose(request.device, settings.precision)
    digests = digest_file(request.data, follow=True), settings_digest(settings, precision)
    basis = basis_of(request.model, request.adapter, request.model_files, *digests)
    say(f"{len(examples.questions)} questions of {examples.total} rows; {settings.metrics}; {device.type}, {precision}")
    replace(request.out / INPUTS, inputs_bytes(examples.questions))
    done = resume(request.kept, basis, {q.id for q in examples.questions})
    if done:
        say(f"goes on behind {len(done)} answers that are there")
    evaluation = Evaluation(request, basis, begun)
    if (found := evaluation.done_before(say)) is not None:
        return found
    left = [q for q in read_inputs(request.out / INPUTS) if q.id not in {p.id for p in done}]
    fresh = _ask(left, request, device, precision, say) if left else []
    report = finish(request, examples, [*done, *fresh], basis, now())
    return evaluation.publish(report, precision, _figures(fresh))


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
    questions: Sequence[Question], request: Request[Settings], device: Any, precision: str, say: Callable[[str], None]
) -> list[Prediction]:
    """Load the model and get every answer; each batch is on the disk before the next one begins."""
    from tuneplane.evaluation.generate import answers, encode

    loaded = load(request.model, request.adapter, device, precision)
    asked = encode(questions, loaded, request.settings, os.fspath(request.data))
    out: list[Prediction] = []
    progress = Progress(request.progress, "answers", say)
    with open(request.kept / PREDICTIONS, "ab") as stream:
        for batch in answers(asked, loaded, request.settings):
            stream.write(b"".join(p.line() for p in batch))
            stream.flush()
            os.fsync(stream.fileno())
            out += batch
            progress.note(len(out), len(asked), sum(p.tokens for p in out))
            if len(out) < len(asked):
                warning.check()
    return out


def finish(
    request: Request[Settings], examples: Examples, predictions: Sequence[Prediction], basis: Mapping[str, Any], at: str
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
    used = {
        "rows": examples.total,
        "used": len(examples.questions),
        "repeated": examples.repeated,
        "sampled": examples.sampled,
    }
    return {
        **report_of(request, settings.suite, basis, at, used),
        "decides": scoring.metrics[0],
        "metrics": aggregate(scores, scoring),
        "files": {
            INPUTS: digest_file(request.out / INPUTS),
            **{name: digest_bytes(data) for name, data in lines.items()},
        },
    }


def _figures(fresh: Sequence[Prediction]) -> dict[str, Any]:
    """Speed of this start: answers that were there already are not in it. Latencies are those of batches."""
    latencies = sorted(p.latency_ms for p in fresh)
    tokens = sum(p.tokens for p in fresh)
    return {
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
