"""One benchmark asked of one model by lm-eval, and its report: the same shape as a behaviour evaluation's, so that gates and comparisons read both.

What is kept while it runs: `responses.jsonl`, appended response by response, and `evaluation.json`, the basis that they rest on. A later start with
the same basis goes on behind what is there; with another basis it is refused. The report is written last.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tuneplane.contract.benchmarks import keys_of, shared_keys
from tuneplane.contract.evaluation import INPUTS, PREDICTIONS, SCORES
from tuneplane.evaluation.basis import basis_of, settle
from tuneplane.evaluation.benchmark_settings import Settings, settings_digest
from tuneplane.evaluation.followup import Suite
from tuneplane.evaluation.harness import Answered, Responses, ask
from tuneplane.evaluation.loading import choose, load
from tuneplane.evaluation.metrics import Score, columns, summary
from tuneplane.evaluation.request import Evaluation, Progress, Request, Say, report_of, run_alone, suite_of
from tuneplane.evaluation.tasks import Tasks, read_tasks
from tuneplane.record.canonical import canonical_bytes
from tuneplane.record.digest import digest_bytes
from tuneplane.record.files import replace
from tuneplane.record.times import utc_now

RESPONSES = "responses.jsonl"
_EVERY_S = 1.0


def evaluate(request: Request[Settings], say: Say, now: Callable[[], str] = utc_now) -> dict[str, Any]:
    """Run it, or what is left of it, and return the report. Raises Refused, or Warned between two responses, those so far kept."""
    return run_alone(request, lambda one, tell: _evaluate(one, tell, now), say)


def suite(name: str, folder: Path, settings: Settings, device: str, say: Say) -> Suite:
    """A benchmark as a suite, to be asked of several models."""
    return suite_of(name, evaluate, folder, settings, device, say)


def _evaluate(request: Request[Settings], say: Say, now: Callable[[], str]) -> dict[str, Any]:
    settings, begun = request.settings, time.monotonic()
    tasks = read_tasks(request.data, settings.num_fewshot)
    device, precision = choose(request.device, settings.precision)
    digest = settings_digest(settings, precision)
    packages = ("lm-eval", "datasets")
    basis = basis_of(request.model, request.adapter, request.model_files, tasks.digest, digest, packages)
    say(f"{tasks.benchmark.name}: {', '.join(tasks.tasks)}; {device.type}, {precision}")
    settle(request.kept, basis, request.kept / RESPONSES)
    evaluation = Evaluation(request, basis, begun)
    if (found := evaluation.done_before(say)) is not None:
        return found
    responses = Responses(request.kept / RESPONSES, Progress(request.progress, "responses", say, _EVERY_S).note)
    if responses.earlier:
        say(f"goes on behind {responses.earlier} responses that are there")
    try:
        answered = ask(load(request.model, request.adapter, device, precision), tasks, settings, responses)
    finally:
        responses.close()
    return evaluation.publish(finish(request, tasks, answered, basis, now()), precision, {"answers": len(answered)})


def finish(
    request: Request[Settings], tasks: Tasks, answered: Sequence[Answered], basis: Mapping[str, Any], at: str
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
    rows = sum(len(tasks.asked(name)) for name in tasks.tasks)
    used = {"rows": rows, "used": len(answered), "sampled": len(answered) < rows}
    return {
        **report_of(request, tasks.benchmark.name, basis, at, used),
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
