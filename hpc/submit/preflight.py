"""What Slurm would accept silently and then never start, found before anything is packed: dependencies on jobs that are gone or have failed,
array indices past the site's limit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hpc.errors import Refusal
from hpc.slurm.commands import Slurm
from hpc.spec.arrays import parse_array
from hpc.spec.dependencies import parse_dependency
from hpc.submit.pieces import ranges

FIELD = "spec.slurm.dependency"
NEEDS_SUCCESS = ("afterok", "aftercorr")
FAILED = ("error", "timeout", "node_fail", "cancelled", "preempted")


def dependency_refusals(text: str, states: Mapping[str, str]) -> list[Refusal]:
    """Judge a dependency by its parents' state classes (id → class; a job nobody knows is missing). Pure."""
    out = []
    for item in parse_dependency(text).items:
        for job in item.jobs:
            known = states.get(job.split("_")[0], states.get(job))
            if known is None:
                out.append(
                    Refusal(
                        "E-SUBMIT-063",
                        f"nobody knows job {job}",
                        field=FIELD,
                        found=text,
                        allowed="a queued, running or finished job",
                    )
                )
            elif item.kind in NEEDS_SUCCESS and known in FAILED:
                out.append(
                    Refusal(
                        "E-SUBMIT-063",
                        f"{item.kind}:{job} can never be met: that job ended {known}",
                        field=FIELD,
                        found=known,
                    )
                )
            elif item.kind == "afternotok" and known == "done":
                out.append(
                    Refusal(
                        "E-SUBMIT-063",
                        f"afternotok:{job} can never be met: that job succeeded",
                        field=FIELD,
                        found=known,
                    )
                )
    return out


def parent_states(slurm: Slurm, user: str, ids: list[str]) -> dict[str, str]:
    """State class of each known parent, by base id: from the queue, else from accounting. Raises Refusal E-SLURM-* if nobody can be asked."""
    from hpc.slurm import query
    from hpc.slurm.states import state_class

    bases = {i.split("_")[0] for i in ids}
    found = {str(row.raw_id): state_class(row.state) for row in query.jobs(slurm, user).rows}
    found |= {row.job_id.split("_")[0].split("+")[0]: state_class(row.state) for row in query.jobs(slurm, user).rows}
    if missing := sorted(bases - found.keys()):
        try:
            rows = query.history(slurm, ids=missing).rows
        except Refusal:
            rows = ()  # a site without accounting: what the controller forgot is unknown
        found |= {row.job_id.split("_")[0]: state_class(row.state) for row in rows}
    return {i: found[i] for i in bases if i in found}


def check_dependency(slurm: Slurm, user: str, options: Mapping[str, Any]) -> list[Refusal]:
    """Refusals E-SUBMIT-063 for the dependency of a submission, if it has one."""
    text = str(options.get("dependency") or "")
    if not text:
        return []
    ids = list(parse_dependency(text).jobs)
    return dependency_refusals(text, parent_states(slurm, user, ids)) if ids else []


def check_array(slurm: Slurm, options: Mapping[str, Any]) -> list[Refusal]:
    """Refusal E-SUBMIT-064 where an index reaches the site's MaxArraySize; it says into which arrays to split."""
    from hpc.slurm.site_facts import read

    text = str(options.get("array") or "")
    if not text:
        return []
    limit = read(slurm).max_array_size
    chunks = array_chunks(text, limit)
    if chunks == [(0, text)]:
        return []
    hint = "; ".join(f"--array={part} (add {offset} in your script)" for offset, part in chunks[:4])
    message = f"index {parse_array(text).highest} reaches the site's MaxArraySize"
    return [
        Refusal(
            "E-SUBMIT-064",
            message,
            field="spec.slurm.array",
            found=text,
            allowed=f"indices below {limit}",
            hint=f"submit {hint}",
        )
    ]


def array_chunks(text: str, max_array_size: int) -> list[tuple[int, str]]:
    """(offset, indices to give to sbatch) of an array, split so that no index reaches the site's MaxArraySize. Pure.

    MaxArraySize bounds the highest index, not the count. A chunk's indices start again near 0; the job adds the offset.
    """
    spec = parse_array(text)
    limit = f"%{spec.limit}" if spec.limit else ""
    if spec.highest < max_array_size:
        return [(0, text)]
    chunks: dict[int, list[int]] = {}
    for index in spec:
        chunks.setdefault(index // max_array_size, []).append(index % max_array_size)
    return [(number * max_array_size, ",".join(ranges(indices)) + limit) for number, indices in sorted(chunks.items())]
