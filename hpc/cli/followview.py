"""What follows a run and whom a run follows, as `tp job status`, `stop` and `why` show it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tuneplane.contract.layout import RunPaths
from tuneplane.record.files import read_json

from hpc.errors import Refusal
from hpc.spec.text import escaped

if TYPE_CHECKING:
    from hpc.cli.desk import Desk
    from hpc.evaluate.verdicts import RunVerdict
    from hpc.runs.records import Facts
    from hpc.runs.state import RunState


def followups(desk: Desk, run: RunPaths) -> list[dict[str, Any]]:
    """Every follow-up of a run with its state now, in the order in which they run."""
    from hpc.submit.followlist import children

    out = []
    for action, child in children(desk.root, run):
        facts, state = desk.state(child)
        after = facts.last_submission.after_run if facts.last_submission else ""
        named = {"action": action, "run_id": child.run_id, "exp": child.exp, "after": after or None}
        out.append({**named, "state": state.cls, "active": state.active, "dead": state.dead, "message": state.message})
    return out


def follows(desk: Desk, run: RunPaths) -> dict[str, Any] | None:
    """The run that this one follows, with its state now; None for any other run."""
    try:
        named = read_json(run.launch).get("follows")
        parent = desk.root.run(run.owner, named["exp"], named["run_id"]) if named else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    if parent is None:
        return None
    told = {"action": named["action"], "run_id": parent.run_id, "exp": parent.exp}
    if not parent.root.is_dir():
        return {**told, "state": "unknown", "message": "its folder is gone"}
    _, state = desk.state(parent)
    return {**told, "state": state.cls, "message": state.message}


def verdict(desk: Desk, run: RunPaths, rows: list[dict[str, Any]]) -> RunVerdict | None:
    """What the gates say of a run; None where it has none, or follows another run itself."""
    if not rows and not has_gates(run):
        return None
    from hpc.evaluate.verdicts import verdict_of

    return verdict_of(desk.root, run)


def has_gates(run: RunPaths) -> bool:
    """Whether a run that was trained is to be judged. A follow-up carries its parent's gates and is none."""
    try:
        return bool(read_json(run.jobspec)["spec"].get("evaluation", {}).get("gates")) and "follows" not in read_json(
            run.launch
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def lines(rows: list[dict[str, Any]], found: RunVerdict | None, parent: dict[str, Any] | None) -> list[tuple[str, str]]:
    """Rows of a run's paragraph."""
    out = []
    if parent is not None:
        out.append(("follows", f"{parent['run_id']} ({parent['exp']}) {parent['state']}{_why(parent)}"))
    for row in rows:
        dead = ", will never start" if row["dead"] else ""
        out.append(("after it", f"{row['action']} {row['run_id']} {row['state']}{dead}{_why(row)}"))
    if found is not None:
        out.append(("gates", escaped(f"{found.state}: {found.reason}")))
    return out


def _why(row: dict[str, Any]) -> str:
    return f": {escaped(str(row['message']))}" if row["message"] else ""


def stop_all(desk: Desk, run: RunPaths, *, runs: bool = False) -> list[str]:
    """Stop what follows a run that was stopped: it could not begin any more. One line each.

    `runs`: the run's job was running; of the evaluations of its checkpoints only those are stopped that have none.
    """
    from tuneplane.contract.followups import CHECKPOINTS

    from hpc.runs import actions
    from hpc.submit.followlist import children

    said = []
    for action, child in children(desk.root, run):
        facts, state = desk.state(child)
        if not state.active:
            continue
        if action == CHECKPOINTS and runs:
            said.append(f"{action} {child.run_id}: {_stop_unreached(desk, run, facts, state)}")
            continue
        try:
            done = actions.stop(child, facts, state, desk.actor, lambda fleet=state.fleet: desk.asker.slurm(fleet))  # type: ignore[misc]
            said.append(f"{action} {child.run_id}: {done}")
        except Refusal as exc:
            said.append(f"{action} {child.run_id}: {exc.code} {exc.message}")
    return said


def stop_stranded(desk: Desk, run: RunPaths) -> list[str]:
    """Cancel evaluations that wait for checkpoints of a run that has ended: its script was killed before it could. One line each."""
    from tuneplane.contract.followups import CHECKPOINTS

    from hpc.submit.followlist import children

    waiting = [(child, *desk.state(child)) for action, child in children(desk.root, run) if action == CHECKPOINTS]
    return [
        f"{CHECKPOINTS} {child.run_id}: {_stop_unreached(desk, run, facts, state)}"
        for child, facts, state in waiting
        if state.active
    ]


def _stop_unreached(desk: Desk, run: RunPaths, facts: Facts, state: RunState) -> str:
    """What was done about evaluations whose checkpoint is not there; those that have one are left alone."""
    from hpc.runs import unreached
    from hpc.submit.followlist import evaluations

    try:
        found = evaluations(run)
        steps = unreached.cancel(run, found, facts, desk.actor, lambda: desk.asker.slurm(state.fleet)) if found else []
    except Refusal as exc:
        return f"{exc.code} {exc.message}"
    shown = ", ".join(map(str, steps[:8])) + (f" and {len(steps) - 8} more" if len(steps) > 8 else "")
    return f"those without a checkpoint are cancelled: step {shown}" if steps else "each has its checkpoint"
