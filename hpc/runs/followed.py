"""The check of an audit that looks beyond the run: what it read of other runs, against its own events and against those runs as they stand."""

from __future__ import annotations

from typing import Any, Final

from tuneplane.contract.checkpointed import CANCELLED, marks_of, name_of
from tuneplane.contract.followups import CHECKPOINT, CHECKPOINTS, LATE_SCHEMA, late_path
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


def unreached(case: Case) -> set[int]:
    """Of evaluations of checkpoints the elements whose checkpoint never came, by the marks of the script that cancelled them; else none."""
    follows = (case.json("package", case.run.launch) or {}).get("follows")
    if not isinstance(follows, dict) or follows.get("action") != CHECKPOINTS:
        return set()
    exp, run_id = str(follows.get("exp")), str(follows.get("run_id"))
    if not SEGMENT.match(exp) or not RUN_ID.match(run_id):
        return set()
    try:
        marks = marks_of(case.root.run(case.run.owner, exp, run_id))
    except OSError:
        return set()
    return {element for element, mark in marks.items() if mark.word == CANCELLED}


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
    other = case.root.run(case.run.owner, exp, run_id)
    if found.get("artefact") == CHECKPOINT:
        _checkpoint(case, path, name, found, other)
        return
    report = other.report
    now = case.digest(CHECK, report)
    if now is None and not case.blind(report):
        case.note(CHECK, path, f"{name}: {run_id} ({exp}) is gone; what was read of it stands in the record alone")
    elif now is not None and now != stated:
        case.tampered(CHECK, report, f"{run_id} has another report than this run read: recorded {stated}, found {now}")


def _checkpoint(case: Case, path: Any, name: str, found: dict[str, Any], other: RunPaths) -> None:
    """A checkpoint comes and goes, and a later attempt may write it anew: only the one that was read is compared."""
    step, attempt = found.get("step"), found.get("attempt")
    if type(step) is not int:
        case.tampered(CHECK, path, f"{name}: names no step")
        return
    manifest = other.checkpoints / name_of(step) / "manifest.json"
    now = case.digest(CHECK, manifest)
    if now is None or now == found["report_sha256"]:
        if now is None and not case.blind(manifest):
            case.note(
                CHECK,
                path,
                f"{name}: step {step} of {other.run_id} is gone; what was read of it stands in the record alone",
            )
        return
    if (case.json(CHECK, manifest) or {}).get("attempt") == attempt:
        stated = found["report_sha256"]
        case.tampered(CHECK, manifest, f"is not the checkpoint that was evaluated: recorded {stated}, found {now}")
    else:
        case.note(CHECK, path, f"{name}: another attempt of {other.run_id} has written step {step} anew since")
