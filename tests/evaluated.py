"""What the behaviour evaluator leaves of answers that no model gave, by its own hand."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tuneplane.contract.evaluation import INPUTS, REPORT
from tuneplane.evaluation.answers import Prediction
from tuneplane.evaluation.behaviour import finish
from tuneplane.evaluation.examples import inputs_bytes, read_examples
from tuneplane.evaluation.request import Request
from tuneplane.evaluation.settings import parse
from tuneplane.record.canonical import pretty_bytes
from tuneplane.record.digest import digest_file


def evaluated(out: Path, rows: Path, answers: Mapping[str, tuple[str, str]], **settings: Any) -> Path:
    """A report's folder on question -> (expected, given), and the file of `rows` that was asked."""
    out.mkdir()
    lines = [json.dumps({"prompt": question, "completion": expected}) for question, (expected, _) in answers.items()]
    rows.write_text("\n".join(lines) + "\n")
    examples = read_examples(rows)
    given = [Prediction(q.id, text, 20, 3) for q, (_, text) in zip(examples.questions, answers.values(), strict=True)]
    (out / INPUTS).write_bytes(inputs_bytes(examples.questions))
    basis = {"model": "m", "adapter": None, "data": digest_file(rows), "settings": "s"}
    request = Request(Path("/models/m"), rows, out, parse(settings))
    report = finish(request, examples, given, basis, "2026-01-01T00:00:00.000000Z")
    report["settings"]["precision"] = "fp32"
    (out / REPORT).write_bytes(pretty_bytes(report))
    return out
