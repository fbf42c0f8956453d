"""The check of an audit that follows early stopping: what an element of a sweep decided at a rung is what its chain says that it decided."""

from __future__ import annotations

from tuneplane.contract.layout import RunPaths
from tuneplane.record.digest import digest_json
from tuneplane.record.events import Chain

from hpc.runs.evidence import Case


def check_rungs(case: Case, part: RunPaths, chains: dict[str, Chain]) -> None:
    """Each rung's record against the events that name its digest. An attempt that was killed between the two left no event."""
    told: dict[int, set[str]] = {}
    for chain in (c for writer, c in chains.items() if writer.startswith("rungs-")):
        for event in chain.events:
            details = event.get("details")
            if isinstance(details, dict) and type(details.get("step")) is int and "rung_sha256" in details:
                told.setdefault(details["step"], set()).add(str(details["rung_sha256"]))
    for step, digests in sorted(told.items()):
        path = part.rungs / f"{step}.json"
        record = case.json("rungs", path)
        if record is None:
            case.gone("rungs", path, "is gone; the decision's event is there")
        elif digests != {digest_json(record)}:
            case.tampered("rungs", path, "is not what the decision's event recorded")
    known = case.numbered("rungs", part.rungs, ".json") if part.rungs.is_dir() else []
    for step in sorted(set(known) - set(told)):
        case.incomplete("rungs", part.rungs / f"{step}.json", "the decision has no event")
