"""The checks of an audit on what a report says beside its digests: each claim against the record that it was copied from. Standard library only."""

from __future__ import annotations

from typing import Any, Final

from tuneplane.contract.layout import AttemptPaths, RunPaths
from tuneplane.record.files import read_json

from hpc.runs.checks import expect
from hpc.runs.evidence import Case

Record = dict[str, Any]
OF_LAUNCH: Final = ("inputs", "runtime", "kernel", "policies", "follows")
OF_START: Final = ("job_id", "cluster", "hosts", "restart_count")
RESULT: Final = "result.json"


def check_claims(case: Case, part: RunPaths, report: Record, admission: Record | None) -> None:
    """Names, inputs, image, kernel, hosts, attempts and result of the report; what it does not say is not asked for."""
    launch, spec = case.json("package", case.run.launch), case.json("spec", case.run.jobspec)
    wanted: Record = {key: launch.get(key, {}) for key in OF_LAUNCH} if launch is not None else {}
    if spec is not None:
        body, about = spec.get("spec"), spec.get("metadata")
        wanted |= {"recipe": body.get("recipe")} if isinstance(body, dict) else {}
        wanted |= {"exp": about.get("name")} if isinstance(about, dict) else {}
    if admission is not None:
        wanted["admission"] = admission.get("mode")
    expect(case, "report", part.report, report, {k: v for k, v in wanted.items() if k in report})
    if beyond := report.get("artifacts_not_listed"):
        case.note(
            "artifacts",
            part.report,
            f"{beyond} further files of the output are in no list, so that nothing is said about them",
        )
    last = _attempts(case, part, report)
    if last is not None:
        _of_attempt(case, part, part.attempt(last), report)


def _attempts(case: Case, part: RunPaths, report: Record) -> int | None:
    """The attempt that the report was written by; every one up to it must be told, in order."""
    told = report.get("attempts")
    numbers = [e.get("attempt") if isinstance(e, dict) else None for e in told] if isinstance(told, list) else []
    if not numbers or numbers != list(range(len(numbers))):
        case.tampered("report", part.report, f"tells attempts {numbers[:20]}, not all from 0 on")
        return None
    return len(numbers) - 1


def _of_attempt(case: Case, part: RunPaths, attempt: AttemptPaths, report: Record) -> None:
    start, slurm = case.json("attempts", attempt.start), report.get("slurm")
    if start is not None and isinstance(slurm, dict):
        known: Record = {k: start[k] for k in OF_START if k in start and k in slurm}
        expect(case, "report", part.report, slurm, known)
    rows = report.get("artifacts")
    if not isinstance(rows, list) or not any(isinstance(row, dict) and row.get("path") == RESULT for row in rows):
        return
    try:
        result = read_json(attempt.out / RESULT)
    except (OSError, ValueError):
        return  # as an artifact it has a finding of its own
    if isinstance(result, dict) and report.get("result") != result:
        case.tampered("report", part.report, f"its result is not what {RESULT} says")
