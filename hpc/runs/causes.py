"""Which cause an ended attempt has: rules over its records, accounting and the first error line that is no echo of another. Pure.

| confidence | what it rests on |
|---|---|
| certain | a record says it: the end's class, a refusal's code, Slurm's own state of the job or a step |
| likely | the first error line of a rank that ended by itself, or of the batch script, means it; or an end's class that this log speaks against |
| possible | it is inferred: from an exit code or a signal alone |
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final

from hpc.runs.clues import CODE, Clues
from hpc.runs.logs import Line, plain


@dataclass(frozen=True)
class Cause:
    """One cause: its name for programs, in words, what to do. `codes`: refusals that mean it; `patterns`: lines that show it."""

    id: str
    words: str
    mend: tuple[str, ...]
    codes: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()

    @cached_property
    def pattern(self) -> re.Pattern[str] | None:
        return re.compile("|".join(self.patterns), re.IGNORECASE) if self.patterns else None

    def shown_by(self, text: str) -> bool:
        return self.pattern is not None and self.pattern.search(text) is not None


@dataclass(frozen=True)
class Found:
    """A cause with its confidence and what shows it, as (where, text)."""

    id: str
    words: str
    confidence: str
    evidence: tuple[tuple[str, str], ...] = ()
    mend: tuple[str, ...] = field(default=())

    def as_json(self) -> dict[str, Any]:
        evidence = [{"where": where, "text": text} for where, text in self.evidence]
        return {"id": self.id, "words": self.words, "confidence": self.confidence, "evidence": evidence}


MEMORY: Final = Cause(
    "out-of-memory", "a node's memory was not enough",
    ("Ask for more --mem (or more nodes), or use less: micro_batch_size, max_length, gradient_checkpointing, a higher zero_stage.",
     "`tp plan` with the same flags says what it needs."),
    patterns=(r"oom[-_ ]kill", r"\bout of memory\b", r"\bMemoryError\b", r"cannot allocate memory", r"bad_alloc", r"DefaultCPUAllocator: can't"),
)  # fmt: skip
PEER_SILENT: Final = Cause(
    "hung-collective", "a rank fell silent in a collective, and the others gave up waiting",
    ("Look at the rank that wrote no end: `tp job logs RUN --rank N`; ranks must all come to the same collectives in the same order.",
     "A slow rank needs a longer bound; `kill -USR1` of a hung rank prints where it stands into its log."),
    patterns=(r"timed out waiting \d+ ?ms", r"no end in sight:", r"watchdog caught collective operation timeout",
              r"application timeout caused pair closure", r"collective operation timeout"),
)  # fmt: skip
# The more particular cause stands before the more general one: "CUDA out of memory" is out of memory, too.
TABLE: Final[tuple[Cause, ...]] = (
    Cause("plugin-mismatch", "a plugin of the job is not what was locked, or does not fit the job's interpreter",
          ("Submit again; `tp plugin info` shows what was published.",),
          ("E-JOB-030", "E-JOB-031", "E-JOB-032", "E-JOB-033", "E-JOB-034", "E-JOB-035", "E-JOB-036", "E-JOB-039")),
    Cause("plugin-raised", "a plugin's own code raised", ("Its author can mend it and publish a new version.",), ("E-JOB-037",)),
    Cause("package-changed", "the job's package is not what was admitted", ("Submit again; a package is never edited.",),
          ("E-JOB-001", "E-JOB-002", "E-JOB-003", "E-JOB-004", "E-JOB-008")),
    Cause("input-changed", "a model or data file is not what was submitted", ("Put the file back, or submit again with the new one.",),
          ("E-JOB-009",)),
    Cause("image-changed", "the image or the kernel on disk is not the registered one", ("Tell your admins: `tp runtime verify`, `tp site sync`.",),
          ("E-JOB-010", "E-JOB-014", "E-JOB-015")),
    Cause("other-shape", "the allocation is not the shape that the spec asks for", ("Look at the profile's gpu_dialect and at `tp doctor --probe`.",),
          ("E-JOB-011", "E-TRAIN-002", "E-TRAIN-005")),
    Cause("rendezvous", "the ranks or nodes did not come together",
          ("`tp job logs RUN --node N` names who is missing; `tp doctor --probe` checks nodes.",),
          ("E-JOB-013", "E-TRAIN-006")),
    Cause("nan-loss", "the loss or the gradient norm is no number any more",
          ("Lower learning_rate, add warmup_steps, set grad_clip, and look at the rows near that step.",
           "The checkpoint before it stands: `tp job resume` goes on from there, into the same fault unless something is changed."),
          ("E-TRAIN-046",)),
    Cause("empty-adapter", "the adapter that was trained changes nothing",
          ("Train for at least one step, with a learning rate that is not vanishing.",), ("E-TRAIN-062",)),
    Cause("bad-rows", "a row of the data cannot be trained on", ("Mend the rows that are named, or choose another over_long policy.",),
          ("E-TRAIN-020", "E-TRAIN-021", "E-TRAIN-022", "E-TRAIN-023", "E-TRAIN-024", "E-TRAIN-025")),
    Cause("other-checkpoint", "the checkpoints are not of this run, or none of them is whole",
          ("Go back to the settings that it began with, or submit a new run.",),
          ("E-TRAIN-040", "E-TRAIN-041", "E-TRAIN-042", "E-TRAIN-043", "E-TRAIN-044")),
    Cause("gpu-out-of-memory", "a GPU's memory was not enough",
          ("Use less: micro_batch_size, max_length, gradient_checkpointing, a higher zero_stage, LoRA; or GPUs with more memory.",
           "`tp plan` with the same flags says what it needs."),
          patterns=(r"cuda out of memory", r"cuda error: out of memory", r"hip out of memory")),
    MEMORY,
    Cause("disk-full", "no space was left, or a quota is used up",
          ("Make room (`tp gc`), lower keep_checkpoints, or ask for more quota; `tp plan` says what a run writes.",),
          patterns=(r"no space left on device", r"disk quota exceeded", r"\benospc\b", r"\bedquot\b", r"file too large")),
    Cause("bad-bind", "a folder that the container is to see is not there on the node",
          ("Is the path on shared storage, and mounted on that node? Site paths stand under `binds` of the site file: tell your admins.",),
          patterns=(r"mount source .* doesn't exist", r"container creation failed: (?:mount|unable)", r"unable to add .* to mount list",
                    r"failed to mount|mount hook function failure")),
    Cause("port-clash", "a port was taken already",
          ("Use the job's own MASTER_PORT, or port 0, instead of a fixed number.",),
          patterns=(r"address already in use", r"\beaddrinuse\b")),
    Cause("wrong-shape", "tensors do not fit together",
          ("Compare the model's sizes with what is put in: vocabulary, hidden size, batch; a checkpoint of another model shows the same.",),
          patterns=(r"shapes cannot be multiplied", r"size mismatch for", r"the size of tensor a", r"sizes of tensors must match",
                    r"shape '\[.*\]' is invalid", r"mat1 and mat2", r"operands could not be broadcast", r"expected input .* to have \d+ channels",
                    r"index out of range in self", r"dimension out of range", r"expected size \[?\d+")),
    Cause("import-error", "a module is not in the image, or not at the version that is needed",
          ("Choose a runtime that has it (`tp runtime ls`), bring it as a plugin, or put the module into the experiment or common/.",),
          patterns=(r"\bModuleNotFoundError\b", r"\bImportError\b", r"cannot open shared object file")),
    Cause("missing-file", "a file is not there",
          ("Paths of the login node may be no paths of the job: give inputs with --model, --train-data, --volume; put others into the experiment.",),
          patterns=(r"\bFileNotFoundError\b", r"no such file or directory")),
    Cause("no-permission", "a file or program may not be used", ("Look at its modes and owner; the job runs as you.",),
          patterns=(r"\bPermissionError\b", r"permission denied")),
    Cause("command-not-found", "a program is not in the image", ("Name it by its path, or choose a runtime that has it.",),
          patterns=(r"command not found",)),
)  # fmt: skip
CLASSES: Final = {
    "timeout": Cause("time-limit", "the time limit was reached",
                     ("Save more often (save_steps), so that less is lost; `tp plan` says how long such runs took.",)),
    "preempted": Cause("preempted", "a job of higher priority took the nodes",
                       ("Nothing is wrong with the run. `--requeue-on preempted` lets it come back by itself.",)),
    "node_fail": Cause("node-failure", "a node was lost",
                       ("Nothing is wrong with the run; tell your admins the node's name if it happens there again.",)),
    "cancelled": Cause("cancelled", "somebody ended it", ()),
}  # fmt: skip
_SLURM_ENDS: Final = {
    "TIME LIMIT": "timeout", "PREEMPTION": "preempted", "JOB REQUEUE": "preempted", "NODE FAILURE": "node_fail",
}  # fmt: skip
"""Slurm's words for why it ends a job, as classes of an end."""
_CODES: Final = {code: cause for cause in TABLE for code in cause.codes}
_EXITS: Final = {
    126: Cause(
        "no-permission", "the program may not be executed", ("chmod +x, or a path that is mounted without noexec.",)
    ),
    127: Cause(
        "command-not-found", "the program was not found", ("Name it by its path, or choose a runtime that has it.",)
    ),
    134: Cause("aborted", "the program aborted itself", ("The lines before its end say why: `tp job logs RUN`.",)),
    139: Cause(
        "crashed",
        "a segmentation fault in native code",
        ("A library does not fit the driver or the CPU, or has a fault: try another runtime.",),
    ),
}


def cause_of(end_class: str, clues: Clues, memory: str, said: tuple[str, str], *, slurm: str = "") -> Found | None:
    """The cause of an attempt's end. None where nothing tells.

    `memory`: what Slurm's accounting says of memory, "" if nothing. `said`: who says the end's class, and the words. `slurm`: the class of the
    job's own end by accounting, "" if it does not say.
    """
    if (known := CLASSES.get(end_class)) is not None:
        # Of the warnings only a SIGTERM may be another's than Slurm's.
        warned = end_class != "node_fail" and said[1].startswith("USR2:")
        confirmed = warned or end_class == "cancelled" or end_class in (slurm, _SLURM_ENDS.get(clues.ended_by))
        if not confirmed and (other := _contrary(clues, memory, said)) is not None:
            return other
        if end_class == "node_fail" and clues.echoes and set(clues.silent_nodes) <= set(clues.killed_nodes):
            return _echoed(clues)  # every node was there: a rank fell silent, and nobody crashed
        return _class(known, clues, said, confirmed)
    if clues.refused:
        return _by_code(clues.refused, "launcher", clues.refused)
    if (found := _of_memory(clues, memory)) is not None:
        return found
    lines = [*clues.errors, *(clues.batch_errors if not clues.errors else ())]
    return _by_lines(lines) or _by_exit(clues) or _echoed(clues) or _unnamed(lines)


def _of_memory(clues: Clues, memory: str) -> Found | None:
    """Slurm says that it, or the kernel in its name, ended a process for memory."""
    if memory:
        return _found(MEMORY, "certain", [("accounting", memory)])
    if clues.memory is not None and clues.memory.source.kind == "batch":
        return _found(MEMORY, "certain", [_shown(clues.memory)])
    return None


def _contrary(clues: Clues, memory: str, said: tuple[str, str]) -> Found | None:
    """What made an end look like that of a lost or taken node: launchers that were killed for memory, or that never began on some node.

    When one task of a step fails, srun ends the others with a SIGTERM, which nobody there can tell from Slurm's own.
    """
    found = _of_memory(clues, memory)
    if found is None and clues.absent_nodes:
        found = _by_lines(clues.batch_errors)
    if found is None or found.id == PEER_SILENT.id:
        return None
    shown = [*found.evidence, *(("node", f"{host} never began") for host in clues.absent_nodes[:4])]
    return replace(found, evidence=(*shown, *([said] if said[1] else [])))


def _class(cause: Cause, clues: Clues, said: tuple[str, str], confirmed: bool) -> Found:
    """The end's class is the cause. Not certain where the log holds errors that it does not explain and Slurm does not say the same."""
    shown = [said] if said[1] else []
    shown += [("batch", text) for text in clues.batch_tail if "DUE TO" in text][:2]
    shown += [("node", f"{host} left no end") for host in clues.silent_nodes[:4]]
    if confirmed or not (clues.batch_errors or clues.absent_nodes):
        return _found(cause, "certain", shown)
    shown += [("node", f"{host} never began") for host in clues.absent_nodes[:4]]
    other = _by_lines(clues.batch_errors)
    mend = other.mend if other else ("The batch script's own output may say more: `tp job logs RUN --batch`.",)
    return replace(_found(cause, "likely", [*shown, *map(_shown, clues.batch_errors[:2])]), mend=mend)


def _by_code(text: str, where: str, shown: str) -> Found:
    """A refusal names itself; what the table does not know is explained by the catalogue's own words."""
    from hpc.errors.catalogue import CATALOGUE

    match = CODE.search(text)
    code = match.group(1) if match else ""
    if (cause := _CODES.get(code)) is not None:
        return _found(cause, "certain", [(where, shown)])
    kind = CATALOGUE.get(code)
    words, mend = (kind.title, (kind.mend,)) if kind else ("refused", ())
    return Found(f"refused-{code.lower()}" if code else "refused", words, "certain", ((where, shown),), mend)


def _by_lines(lines: Sequence[Line]) -> Found | None:
    """By the first line in time that a cause writes; a code of ours in it is as good as a record."""
    for line in lines:
        text = plain(line.text)
        if CODE.search(text):
            return _by_code(text, *_shown(line))
        if (cause := next((c for c in (*TABLE, PEER_SILENT) if c.shown_by(text)), None)) is not None:
            return _found(cause, "likely", [_shown(line)])
    return None


def _by_exit(clues: Clues) -> Found | None:
    own = [r for r in clues.ranks if not r.by_us and r.exit_code not in (0, 85, 87)]
    if killed := [r for r in own if r.signal == 9]:
        return _found(MEMORY, "possible", [(f"rank {r.rank}", r.describe()) for r in killed[:4]])
    for rank in own:
        if (cause := _EXITS.get(rank.exit_code)) is not None:
            return _found(cause, "possible", [(f"rank {rank.rank}", rank.describe())])
    return None


def _echoed(clues: Clues) -> Found | None:
    """Nobody failed by himself: somebody fell silent, and what the others say is all there is."""
    if clues.errors or not clues.echoes:
        return None
    shown = [_shown(line) for line in clues.echoes[:3]]
    return _found(
        PEER_SILENT, "likely" if any(PEER_SILENT.shown_by(plain(e.text)) for e in clues.echoes) else "possible", shown
    )


def _unnamed(lines: Sequence[Line]) -> Found | None:
    if not lines:
        return None
    return Found("program-error", "the program failed", "likely", (_shown(lines[0]),), ())


def _found(cause: Cause, confidence: str, evidence: Sequence[tuple[str, str]]) -> Found:
    return Found(cause.id, cause.words, confidence, tuple(evidence), cause.mend)


def _shown(line: Line) -> tuple[str, str]:
    return line.source.label, plain(line.text)[:400]
