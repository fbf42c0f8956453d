"""The check of an audit that looks beyond the run: what it read of other runs, against its own events and against those runs as they stand."""

from __future__ import annotations

from typing import Any, Final

from tuneplane.contract.followups import LATE_SCHEMA, late_path
from tuneplane.contract.layout import RUN_ID, SEGMENT, RunPaths
from tuneplane.record.digest import digest_json
from tuneplane.record.events import Chain

from hpc.runs.evidence import Case

CHECK: Final = "late inputs"


def check_late(case: Case, part: RunPaths, chains: dict[str, Chain], numbers: list[int]) -> None:
    """Every attempt's record of late inputs: what its event names, and what the other run's report is today."""
    named = (case.json("package", case.run.launch) or {}).get("late")
    for number in numbers:
        told = _told(chains.get(f"launch-{number}"))
        path = late_path(part.attempt(number))
        record = case.json(CHECK, path)
        if record is None:
            if told:
                case.gone(CHECK, path, "is gone; its event is there")
            continue
        inputs = record.get("inputs")
        if (
            record.get("schema") != LATE_SCHEMA
            or not isinstance(inputs, dict)
            or not told
            or inputs.keys() != told.keys()
        ):
            case.tampered(CHECK, path, "is not what the attempt's event names")
            continue
        for name, found in inputs.items():
            _one(case, path, name, found, told[name])
    if named and part.report.exists() and not any(_told(c) for c in chains.values()):
        case.tampered(CHECK, part.report, "the run is done, and no event says what it read of the run that it follows")


def _told(chain: Chain | None) -> dict[str, Any]:
    """What an attempt's event says of its late inputs."""
    for event in chain.events if chain else ():
        details = event.get("details")
        if isinstance(details, dict) and isinstance(details.get("late"), dict):
            return dict(details["late"])
    return {}


def _one(case: Case, path: Any, name: str, found: Any, told: Any) -> None:
    try:
        digest = digest_json([[row["path"], row["sha256"]] for row in found["files"]])
        same = all(found[k] == told[k] for k in ("run_id", "attempt", "artefact", "digest", "report_sha256"))
        exp, run_id, stated = str(found["exp"]), str(found["run_id"]), str(found["report_sha256"])
    except (KeyError, TypeError):
        same, digest = False, ""
    if not same or digest != found["digest"]:
        case.tampered(CHECK, path, f"{name}: is not what the attempt's event recorded")
        return
    if not SEGMENT.match(exp) or not RUN_ID.match(run_id):
        case.tampered(CHECK, path, f"{name}: names no run")
        return
    report = case.root.run(case.run.owner, exp, run_id).report
    now = case.digest(CHECK, report)
    if now is None and not case.blind(report):
        case.note(CHECK, path, f"{name}: {run_id} ({exp}) is gone; what was read of it stands in the record alone")
    elif now is not None and now != stated:
        case.tampered(CHECK, report, f"{run_id} has another report than this run read: recorded {stated}, found {now}")
