"""What follows a run, found from its folder: a word in `followups/` points to it, and its own package must say the same."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tuneplane.contract.checkpointed import Evaluations, evaluations_of
from tuneplane.contract.followups import CANDIDATE, FOLLOWING
from tuneplane.contract.layout import RUN_ID, SEGMENT, RunPaths, StorageRoot
from tuneplane.record.files import read_json, write_json_new

from hpc.errors import Refusal

FOLDER: Final = "followups"
SCHEMA: Final = "tuneplane-hpc/followup/v1"


def remember(parent: RunPaths, action: str, run: RunPaths, now: str) -> None:
    """Tell the parent's folder of a follow-up."""
    folder = parent.root / FOLDER
    folder.mkdir(mode=0o755, exist_ok=True)
    record = {"schema": SCHEMA, "action": action, "run_id": run.run_id, "exp": run.exp, "at": now}
    write_json_new(folder / f"{run.run_id}.json", record)


def children(root: StorageRoot, run: RunPaths) -> list[tuple[str, RunPaths]]:
    """(action, run) of everything that follows a run, in the order in which it runs. Only what its own package says counts."""
    found = []
    for path in sorted((run.root / FOLDER).glob("run-*.json")):
        try:
            value = read_json(path)
            if not SEGMENT.match(value["exp"]) or not RUN_ID.match(value["run_id"]):
                continue
            child = root.run(run.owner, value["exp"], value["run_id"])
            follows = read_json(child.launch)["follows"]
            if follows["run_id"] == run.run_id and follows["action"] in FOLLOWING:
                found.append((FOLLOWING.index(follows["action"]), str(value.get("at", "")), follows["action"], child))
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return [(action, child) for _, _, action, child in sorted(found, key=lambda f: f[:2])]


def evaluations(run: RunPaths) -> Evaluations | None:
    """What evaluates the checkpoints of a run, None where nothing does. Raises Refusal E-SUBMIT-097 for records that are damaged."""
    try:
        return evaluations_of(run)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as exc:
        message = f"what evaluates the checkpoints of {run.run_id} cannot be read: {exc}"
        raise Refusal("E-SUBMIT-097", message, field=f"{run.root / FOLDER}") from exc


def source_run(root: StorageRoot, run: RunPaths, launch: Mapping[str, Any]) -> RunPaths | None:
    """The run whose artefact a follow-up works on; None for any other run."""
    late = launch.get("late", {}).get(CANDIDATE)
    return root.run(run.owner, late["exp"], late["run_id"]) if isinstance(late, dict) else None
