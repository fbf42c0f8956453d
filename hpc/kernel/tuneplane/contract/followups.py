"""What a run that follows another one is told and leaves: names that both rooms share.

A follow-up is a run of its own. launch.json says whom it follows (`follows`) and which inputs do not exist yet (`late`); the job resolves those
before any rank starts and writes down what it found: `attempts/<n>/late.json`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from tuneplane.contract.evaluation import REPORT
from tuneplane.contract.layout import AttemptPaths
from tuneplane.record.files import read_json

EXPORT, EVAL = "export", "eval"
ACTIONS: Final = (EXPORT, EVAL)
"""What a spec or a user asks for by name."""
CHECKPOINTS: Final = "checkpoints"
"""Evaluations of the run's checkpoints while it goes on, an array: `contract.checkpointed`."""
FOLLOWING: Final = (CHECKPOINTS, *ACTIONS)
"""Everything that follows a run, in the order in which it is listed."""
CANDIDATE, BASELINE = "candidate", "baseline"
"""Names of late inputs: what is exported or evaluated, and a run that it is compared with."""

ARTEFACTS: Final = {"final": "final", "export": "export/model"}
"""Artefact of a run → its folder below the out folder of the attempt that ended well."""
CHECKPOINT: Final = "checkpoint"
"""The artefact of a run that need not have ended: one of its checkpoints, by step."""

LATE_SCHEMA: Final = "tuneplane-hpc/late-inputs/v1"
VERDICT_SCHEMA: Final = "tuneplane-hpc/eval-verdict/v1"
VERDICT: Final = "verdict.json"
"""In the out folder of an evaluation that follows a run: the gates' verdict, beside the report of the candidate."""
BASELINE_FOLDER: Final = "baseline"
"""Below a report's folder: the report of what the candidate is compared with."""
SUITES_FOLDER: Final = "suites"
"""In an out folder of several suites: one folder a suite. The report of a single suite stands in the out folder itself."""


def late_path(attempt: AttemptPaths) -> Path:
    return attempt.root / "late.json"


def report_folders(out: Path) -> list[Path]:
    """The folders below an out folder that hold a candidate's report, in the order of their names."""
    found = sorted((out / SUITES_FOLDER).glob(f"*/{REPORT}"))
    return [path.parent for path in (found or [out / REPORT])]


def read_late(path: Path) -> dict[str, dict[str, Any]]:
    """Late input → `{run_id, attempt, artefact, path, files, digest, report, report_sha256}`; {} where the job had none.

    Raises OSError, ValueError.
    """
    try:
        value = read_json(path, limit=64 << 20)
    except FileNotFoundError:
        return {}
    inputs = value.get("inputs") if isinstance(value, dict) and value.get("schema") == LATE_SCHEMA else None
    if not isinstance(inputs, dict):
        raise ValueError(f"{path}: not a record of late inputs")
    return inputs
