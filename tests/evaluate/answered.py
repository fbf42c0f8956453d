"""Reports of evaluations that never ran: questions, expected answers and given ones, written as the evaluator writes them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tuneplane.contract.evaluation import INPUTS, PREDICTIONS, REPORT, REPORT_SCHEMA, SCORES
from tuneplane.evaluation.answers import Prediction
from tuneplane.evaluation.examples import Question, inputs_bytes, question_id
from tuneplane.evaluation.metrics import Scoring, aggregate, score
from tuneplane.record.canonical import canonical_bytes, pretty_bytes
from tuneplane.record.digest import digest_bytes

EXACT = Scoring(("exact_match", "token_f1"))


def answered(
    folder: Path,
    answers: Mapping[str, tuple[str, str]],
    scoring: Scoring = EXACT,
    suite: str = "behaviour",
    basis: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Path:
    """The folder of a report on question → (expected, given)."""
    folder.mkdir(parents=True)
    questions = [Question(question_id(q), line, prompt=q) for line, q in enumerate(answers, 1)]
    given = [Prediction(q.id, answers[q.prompt][1], 20, 3) for q in questions]
    scores = [score(p, answers[q.prompt][0], scoring) for p, q in zip(given, questions, strict=True)]
    files = {
        INPUTS: inputs_bytes(questions),
        PREDICTIONS: b"".join(p.line() for p in given),
        SCORES: b"".join(canonical_bytes(s.as_json()) + b"\n" for s in scores),
    }
    for name, data in files.items():
        (folder / name).write_bytes(data)
    value = {
        "schema": REPORT_SCHEMA,
        "suite": suite,
        "decides": scoring.metrics[0],
        "basis": {
            "model": "m",
            "adapter": None,
            "data": "d",
            "settings": "s",
            "versions": {"torch": "2"},
            **(basis or {}),
        },
        "model": "/models/m",
        "adapter": None,
        "settings": {
            "metrics": ",".join(scoring.metrics),
            "fields": ",".join(scoring.fields) or "*",
            "constraints": ";".join(scoring.constraints) or "none",
            **settings,
        },
        "data": {"path": "rows.jsonl", "rows": len(questions), "used": len(questions)},
        "metrics": aggregate(scores, scoring),
        "files": {name: digest_bytes(data) for name, data in files.items()},
    }
    (folder / REPORT).write_bytes(pretty_bytes(value))
    return folder
