"""Says why a run is where it is, and what to do: pending reasons, dependency chains, ends. Pure; the clues come in by argument."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from hpc.plugins.playbook import BUILTIN, Playbook, Thresholds
from hpc.runs.causes import CLASSES, MEMORY, PEER_SILENT, Found, cause_of
from hpc.runs.clues import Clues
from hpc.runs.diagnosis import WHO, Diagnosis
from hpc.runs.logs import plain
from hpc.runs.records import Facts
from hpc.runs.state import RunState
from hpc.runs.wording import worded
from hpc.slurm.query import JobRow
from hpc.slurm.reasons import explain

_DEPENDENCY: Final = re.compile(r"([a-z]+):(\d+(?:_\S+?)?)(?:\+\d+)?\(?([a-z]*)\)?")


def diagnose(
    facts: Facts,
    state: RunState,
    clues: Clues,
    *,
    steps: Sequence[JobRow] = (),
    parents: Mapping[str, str] | None = None,
    playbook: Playbook = BUILTIN,
) -> Diagnosis:
    """Why this run is in this state, in the site's words where its playbook has some.

    `steps`: accounting's rows of the job with its steps; `parents`: job id → state of dependencies.
    """
    return worded(_plain(facts, state, clues, steps, parents or {}, playbook.thresholds), state, clues, playbook)


def _plain(
    facts: Facts, state: RunState, clues: Clues, steps: Sequence[JobRow], parents: Mapping[str, str], limits: Thresholds
) -> Diagnosis:
    if state.cls in ("queued", "requeued") and state.reason:
        return _pending(state, parents)
    if state.active:
        return Diagnosis(
            f"{state.cls}{': ' + state.message if state.message else ''}", "wait", [("known from", state.evidence)]
        )
    if state.cls == "done":
        return Diagnosis("done", "done", [("known from", state.evidence)])
    if state.cls in ("vanished", "unknown"):
        return _lost(facts, state, clues)
    return _ended(facts, state, clues, steps, limits)


def _pending(state: RunState, parents: Mapping[str, str]) -> Diagnosis:
    reason = explain(state.reason)
    found = [("reason", reason.word), ("means", reason.meaning)]
    mend = [reason.mend] if reason.mend else []
    found += [("depends on", f"{kind} job {job}: {parents.get(job) or note or 'not known to Slurm any more'}")
              for kind, job, note in dependencies(state.dependency)]  # fmt: skip
    if reason.outlook == "hopeless":
        mend.append("`tp job stop RUN` removes it from the queue.")
    return Diagnosis(f"{state.cls}: {WHO[reason.outlook]}", reason.outlook, found, mend)


def dependencies(text: str) -> list[tuple[str, str, str]]:
    """(kind, job id, Slurm's note) of a dependency as squeue shows it: `afterok:12(unfulfilled),afterany:13_*(failed)`. Pure."""
    return [(kind, job, note) for kind, job, note in _DEPENDENCY.findall(text)]


def _lost(facts: Facts, state: RunState, clues: Clues) -> Diagnosis:
    found = [("known", state.message)]
    mend = ["`tp job logs RUN` shows what was written last."]
    if not facts.submissions:
        mend = ["`tp job retry RUN` submits it, or adopts the job if it is there after all."]
    elif state.cls == "vanished":
        mend.append("`tp job resume RUN` goes on from its newest checkpoint; `tp job retry RUN` where it has none.")
    if clues.silent_nodes:
        found.append(("nodes without an end", ", ".join(clues.silent_nodes)))
    if facts.problems:
        found += [("damaged", f"{path}: {why}") for path, why in sorted(facts.problems.items())[:5]]
    return Diagnosis(f"{state.cls}: {state.message}", "unknown", found, mend, list(clues.batch_tail), state.cls)


def _ended(facts: Facts, state: RunState, clues: Clues, steps: Sequence[JobRow], limits: Thresholds) -> Diagnosis:
    found: list[tuple[str, str]] = [("class", state.end_class or state.cls), ("known from", state.evidence)]
    if state.message:
        found.append(("ended", state.message))
    if clues.refused:
        found.append(("refused", clues.refused))
    bad = [r for r in clues.ranks if r.exit_code not in (0, 85) and not r.by_us]
    found += [(f"rank {r.rank}", r.describe()) for r in bad[: limits.ranks_shown]]
    if len(bad) > limits.ranks_shown:
        found.append(("and", f"{len(bad) - limits.ranks_shown} more ranks"))
    if clues.silent_nodes:
        found.append(("nodes without an end", ", ".join(clues.silent_nodes)))
    if clues.absent_nodes:
        found.append(("nodes that never began", ", ".join(clues.absent_nodes)))
    memory = _out_of_memory(clues, steps, guess=state.cls in ("error", "node_fail"))
    if memory:
        found.append(("memory", memory))
    if clues.layers:
        found.append(("environment", clues.layers))
    lines = []
    if clues.first_error is not None:
        where = clues.first_error.source.label
        lines.append(f"{where}: {plain(clues.first_error.text)}")
    if not clues.rank_logs and not lines:
        found.append(("logs", _no_log(state, clues, limits)))
        lines = list(clues.batch_tail)
    told, ended = (state.evidence, state.message), state.end_class or state.cls
    by_slurm = next((r.cls for r in steps if "." not in r.job_id), "")
    cause = cause_of(ended, clues, memory if _by_slurm(steps) else "", told, slurm=by_slurm)
    other = cause is not None and (cause.id == PEER_SILENT.id or (ended in CLASSES and cause.id != CLASSES[ended].id))
    by_memory = bool(memory) and (state.cls == "error" or (cause is not None and cause.id == MEMORY.id))
    mend = _with_cause(
        _mend(facts, state, clues, by_memory), cause, first=other or state.cls == "error", instead=by_memory
    )
    headline = cause.words if cause is not None and other and not by_memory else _headline(state, by_memory)
    end = _end(state, clues, by_memory)
    return Diagnosis(headline, state.cls, found, mend, lines, end, cause, [*clues.unseen, *_NEVER_SEEN])


_NEVER_SEEN: Final = ("the nodes' kernel logs, GPU error counters and the network's own logs, which tp cannot read",)


def _with_cause(mend: list[str], cause: Found | None, *, first: bool, instead: bool) -> list[str]:
    """The advice with that of the cause: before it where a program failed, and in place of what is general about memory."""
    own = list(cause.mend) if cause else []
    if instead and own:
        return [*own, mend[-1]]
    return [*own, *mend] if first else [*mend, *own]


def _by_slurm(steps: Sequence[JobRow]) -> bool:
    return any(r.state == "OUT_OF_MEMORY" for r in steps)


def _end(state: RunState, clues: Clues, memory: bool) -> str:
    if state.end_class in ("refused", "no_progress"):
        return state.end_class
    if memory:
        return "out_of_memory"
    silent = not clues.rank_logs and not clues.batch_log
    return "no_output" if state.cls == "error" and silent else state.cls


def _out_of_memory(clues: Clues, steps: Sequence[JobRow], *, guess: bool) -> str:
    """What is known of memory. `guess`: whether a SIGKILL that nobody explains may count; what Slurm ends, it ends with one as well."""
    killed = [r.job_id for r in steps if r.state == "OUT_OF_MEMORY"]
    if killed:
        return f"Slurm ended {', '.join(killed)} for memory"
    if clues.memory is not None:
        return f"{clues.memory.source.label} says: {plain(clues.memory.text)}"
    if guess and any(r.signal == 9 and not r.by_us for r in clues.ranks):
        return "a rank was killed by SIGKILL and not by the launcher; most often that is the kernel, for memory"
    return ""


def _no_log(state: RunState, clues: Clues, limits: Thresholds) -> str:
    if clues.batch_log:
        return "no rank wrote a line; the batch script's own output is shown below"
    lasted_s = None if state.started_at is None or state.ended_at is None else state.ended_at - state.started_at
    quick = lasted_s is not None and lasted_s < limits.quick_end_s
    lasted = "ended at once and " if quick else ""
    return f"the job {lasted}wrote nothing at all: the node could not open the log, most often because the storage root is not mounted there"


def _headline(state: RunState, memory: bool) -> str:
    words = {
        "preempted": "preempted: a job of higher priority took the nodes",
        "timeout": "the time limit was reached",
        "node_fail": "a node was lost",
        "cancelled": "cancelled",
        "error": "the job failed",
    }
    if state.end_class == "refused":
        return "refused in the job: nothing of your code ran"
    if state.end_class == "no_progress":
        return "not run again: two attempts in a row made no step"
    return "out of memory" if memory else words.get(state.cls, state.cls)


def _mend(facts: Facts, state: RunState, clues: Clues, memory: bool) -> list[str]:
    saved = state.step is not None
    again = (
        "`tp job resume RUN` goes on from its newest checkpoint." if saved else "`tp job retry RUN` starts it again."
    )
    if state.end_class == "refused":
        return ["Mend what is named, then `tp job retry RUN`; a changed package needs a new `tp submit`."]
    if memory:
        return [
            "Ask for more --mem (or more nodes), or use less: batch size, sequence length, a higher ZeRO stage.",
            again,
        ]
    if state.cls == "error" and not clues.rank_logs and not clues.batch_log:
        return [
            "Tell your admins the node's name and the storage root; `tp doctor --probe` checks a compute node.",
            again,
        ]
    if state.cls == "timeout":
        return [again, "A longer --time needs a new `tp submit`."]
    if state.cls == "error":
        return [
            "Look at the line below and `tp job logs RUN`, mend the cause, and `tp submit` again.",
            f"If it was an accident: {again}",
        ]
    return [again]
