"""How an attempt ended, and whether it runs again: pure rules over what the nodes, the ranks and the batch script saw.

| class | what it means |
|---|---|
| done | every rank of every node ended with 0 |
| cancelled | somebody asked for the end: `tp job stop`, or scancel |
| refused | a launcher did not start the job; nothing of the user's code ran |
| preempted | a warning came with time left on the limit, and the ranks saved or were killed by it |
| timeout | a warning came at the end of the time limit |
| node_fail | a node's launcher disappeared, or ranks lost a peer and nobody crashed |
| no_progress | the class would run again, but this attempt and the one before made no step |
| error | a rank ended by itself with something else than 0 |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tuneplane.contract import exits

KILLED_BY_WARNING = (10, 12, 15)  # USR1, USR2, TERM
ABORTED = 6  # a communication library gives up by abort() when a peer is gone
PUT_BACK = ("PREEMPTION", "NODE FAILURE", "JOB REQUEUE")
"""Why Slurm ends a job that it then starts again by itself, whatever its ranks did on their way out."""


@dataclass(frozen=True)
class Seen:
    """Facts at the end of an attempt. `nodes` maps a node number to its end record or None; times in seconds."""

    nodes: Mapping[int, Mapping[str, Any] | None]
    began: frozenset[int]  # nodes whose launcher began
    stop_requested: bool
    warned: str  # "", "USR2" or "TERM": what the batch script got
    slurm_state: str  # scontrol's JobState, or ""
    step_code: int  # exit code of srun, or of the launcher on the local fleet
    left_s: float | None  # time left on the limit when the attempt ended, None where there is none
    lead_s: float
    started_before: bool = False  # it did in an earlier attempt: the same package can start
    ended_by: str = ""  # why Slurm itself ends the job: CANCELLED, TIME LIMIT or one of PUT_BACK; "" where it does not

    @property
    def silent(self) -> list[int]:
        """Nodes whose launcher began and left no end."""
        return sorted(k for k, node in self.nodes.items() if node is None and k in self.began)


@dataclass(frozen=True)
class Ending:
    """The verdict on one attempt."""

    klass: str
    exit_code: int
    signal: int
    message: str
    saved: bool


def _ranks(seen: Seen) -> list[Mapping[str, Any]]:
    return [r for node in seen.nodes.values() if node for r in node.get("ranks", ())]


def _absent(seen: Seen, missing: Sequence[int]) -> str:
    never = [k for k in missing if k not in seen.began]
    return f"no end record from node {_named(missing)}" + (f"; node {_named(never)} never started" if never else "")


def _named(nodes: Sequence[int]) -> str:
    return ", ".join(map(str, nodes))


def _warning_class(seen: Seen) -> str:
    if seen.ended_by:
        return "timeout" if seen.ended_by == "TIME LIMIT" else "preempted"
    at_limit = seen.left_s is not None and seen.left_s <= seen.lead_s + 60
    return "timeout" if at_limit else "preempted"


def _crashed(ranks: Sequence[Mapping[str, Any]], warned: bool, missing: bool) -> Mapping[str, Any] | None:
    """The first rank that ended by its own fault: neither at its end, nor told to, nor because of a peer."""
    quiet = (exits.DONE, exits.PREEMPTED, exits.PEER_LOST)
    found = [
        r
        for r in ranks
        if r["exit_code"] not in quiet and not r.get("by_us") and not (warned and r.get("signal") in KILLED_BY_WARNING)
    ]
    gave_up = missing and all(r.get("signal") == ABORTED for r in found)
    return found[0] if found and not gave_up else None


def decide(seen: Seen) -> Ending:
    """The class of an attempt's end. Total: every combination has an answer."""
    ranks = _ranks(seen)
    missing = sorted(k for k, node in seen.nodes.items() if node is None)
    refused = next((n["refused"] for n in seen.nodes.values() if n and n.get("refused")), None)
    saved = any(r["exit_code"] == exits.PREEMPTED for r in ranks)
    if not missing and ranks and all(r["exit_code"] == exits.DONE for r in ranks):
        return Ending("done", 0, 0, "every rank is done", False)
    if seen.stop_requested:
        return Ending("cancelled", seen.step_code, 0, "stopped on request", saved)
    if seen.ended_by == "CANCELLED" or seen.slurm_state == "CANCELLED":
        return Ending("cancelled", seen.step_code, 0, "cancelled in Slurm", saved)
    if refused:
        return Ending("refused", exits.LAUNCH_FAILED, 0, f"{refused['code']} {refused['message']}", False)
    told = next((w[-1][3:] for n in seen.nodes.values() if n and (w := n.get("warned"))), "")
    # Where a node is missing, what only the others were told is srun's word that the step is over, and no warning to the job.
    warned = seen.warned or (told if not missing or seen.ended_by else "")
    put_back = seen.ended_by in PUT_BACK
    if missing and seen.ended_by == "NODE FAILURE":
        return Ending("node_fail", seen.step_code, 0, _absent(seen, missing), saved)
    if not put_back and (first := _crashed(ranks, bool(warned or told), bool(missing))) is not None:
        code, signal = first["exit_code"], first.get("signal", 0)
        how = f"was killed by signal {signal}" if signal else f"ended with exit code {code}"
        return Ending("error", code, signal, f"rank {first['rank']} {how}", saved)
    lost = any(r["exit_code"] == exits.PEER_LOST for r in ranks)
    if (warned or put_back) and not lost and (saved or ranks or missing):
        word = "all ranks saved" if saved and not missing else "ended by the warning"
        return Ending(
            _warning_class(replace(seen, warned=warned)),
            exits.PREEMPTED,
            0,
            f"{warned or seen.ended_by}: {word}",
            saved,
        )
    if missing and not seen.began and not seen.started_before:
        return Ending(
            "error", seen.step_code or 1, 0, f"the step did not start on any node (exit code {seen.step_code})", False
        )
    if missing:
        return Ending("node_fail", seen.step_code, 0, _absent(seen, missing), saved)
    if lost:
        return Ending("node_fail", exits.PEER_LOST, 0, "ranks lost a peer and none of them crashed", saved)
    return Ending("error", seen.step_code, 0, f"the step ended with exit code {seen.step_code}", saved)


def _no_progress(ending: Ending, step: int | None, previous: Sequence[Mapping[str, Any]]) -> bool:
    """This attempt and the one before it both ended at the step where they had begun.

    One alone is no sign of a fault: a job may be preempted again before its first step. What a user's own script saved is not known here.
    """
    if not previous or not previous[0].get("requeue") or (step is None and ending.saved):
        return False
    begun = previous[1].get("step") if len(previous) > 1 else None
    return bool(step == previous[0].get("step") == begun)


def runs_again(
    ending: Ending,
    policies: Mapping[str, Any],
    *,
    attempt: int,
    first_attempt: int,
    step: int | None,
    previous: Sequence[Mapping[str, Any]],
    counts_steps: bool = True,
) -> tuple[bool, str]:
    """(again, reason). `previous` are the end records of earlier attempts, newest first; `step` the newest complete checkpoint's.

    `counts_steps`: checkpoints are in our format. What a framework saved in its own is not known here, so that only the attempts are capped.
    """
    if ending.klass not in policies["requeue_on"]:
        return False, f"class {ending.klass} is not in requeue_on"
    used = attempt - first_attempt + 1
    if used >= policies["max_attempts"]:
        return False, f"max_attempts is {policies['max_attempts']}"
    if counts_steps and ending.klass != "node_fail" and _no_progress(ending, step, previous):
        return False, "no_progress"
    return True, f"class {ending.klass}, attempt {used} of {policies['max_attempts']}"
