"""The states of all of an owner's runs, quickly: finished ones come from an index, open ones from their records and one look at Slurm.

The index is a snapshot in the viewer's state folder: run → (modification time of the run folder, state). It is never truth: an entry counts only
while the folder has the same time and Slurm has no live job of the run's id; a damaged or missing index is made anew. Its lines are divided by tabs
and end with the state as JSON, so that ten thousand of them are read without unpacking a state that nobody asks for.
"""

from __future__ import annotations

import json
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tuneplane.contract.layout import RunPaths, StorageRoot
from tuneplane.record.files import replace

from hpc.runs.arrays import decide_run
from hpc.runs.asking import Asker
from hpc.runs.find import scan
from hpc.runs.records import Facts, read_facts
from hpc.runs.state import RunState

SCHEMA: Final = "tuneplane-hpc/runs-index/v2"
Entry = tuple[int, str, float, str, str]
"""(folder time, class, submitted at, job id, the state as JSON)."""


@dataclass
class Overview:
    """All runs of an owner. `open_runs` were decided now; the others are in the index and are unpacked when they are asked for."""

    root: StorageRoot
    owner: str
    open_runs: dict[tuple[str, str], RunState] = field(default_factory=dict)
    closed: dict[tuple[str, str], Entry] = field(default_factory=dict)
    index_saved: bool = True

    def counts(self) -> Counter[str]:
        """How many runs there are of each class."""
        found: Counter[str] = Counter(e[1] for e in self.closed.values())
        found.update(s.cls for s in self.open_runs.values())
        return found

    def newest(
        self, limit: int = 0, *, exp: str = "", cls: str = "", only_open: bool = False
    ) -> list[tuple[RunPaths, RunState]]:
        """Runs by submission, newest first; 0 is no limit."""
        keyed: list[tuple[float, str, str]] = []
        for (e, run_id), state in self.open_runs.items():
            if exp in ("", e) and cls in ("", state.cls) and (state.active or not only_open):
                keyed.append((state.submitted_at or 0.0, e, run_id))
        if not only_open:
            keyed += [
                (entry[2], e, run_id)
                for (e, run_id), entry in self.closed.items()
                if exp in ("", e) and cls in ("", entry[1])
            ]
        keyed.sort(reverse=True)
        chosen = keyed[:limit] if limit else keyed
        return [(self.root.run(self.owner, e, run_id), self.state(e, run_id)) for _, e, run_id in chosen]

    def state(self, exp: str, run_id: str) -> RunState:
        found = self.open_runs.get((exp, run_id))
        return found if found is not None else RunState(*json.loads(self.closed[exp, run_id][4]))


def index_path(root: StorageRoot, viewer: str, owner: str) -> Path | None:
    """Where the viewer keeps the index of an owner's runs; None where the viewer has no state folder."""
    folder = root.user_state(viewer)
    return folder / f"runs-{owner}.index" if folder.is_dir() else None


def read_index(path: Path | None) -> dict[tuple[str, str], Entry]:
    """The index as it stands; empty where it is missing, damaged or of another version."""
    out: dict[tuple[str, str], Entry] = {}
    try:
        head, _, body = path.read_bytes().partition(b"\n") if path else (b"", b"", b"")
        if head != _head(body):
            return {}
        for line in body.decode("ascii").split("\n")[:-1]:
            exp, run_id, mtime, cls, submitted, job_id, state = line.split("\t")
            out[exp, run_id] = (int(mtime), cls, float(submitted), job_id, state)
    except (OSError, ValueError):
        return {}
    return out


def _head(body: bytes) -> bytes:
    """The first line: schema, number of a state's fields, checksum of the rest."""
    return f"{SCHEMA} {len(RunState.__dataclass_fields__)} {zlib.crc32(body):08x}".encode()


def _entry(mtime: int, state: RunState) -> Entry:
    # Only a number is compared with the queue; anything else in a damaged record must not break a line.
    job_id = state.job_id if state.job_id.isascii() and state.job_id.isprintable() else ""
    values = [getattr(state, name) for name in RunState.__dataclass_fields__]
    return mtime, state.cls, state.submitted_at or 0.0, job_id, json.dumps(values, separators=(",", ":"))


def _write_index(path: Path | None, closed: dict[tuple[str, str], Entry]) -> bool:
    if path is None:
        return False
    lines = [f"{e}\t{r}\t{m}\t{c}\t{s!r}\t{j}\t{state}\n" for (e, r), (m, c, s, j, state) in sorted(closed.items())]
    body = "".join(lines).encode("ascii")
    try:
        replace(path, _head(body) + b"\n" + body, mode=0o600)
    except OSError:
        return False
    return True


def survey(root: StorageRoot, owner: str, asker: Asker, *, keep: bool = True) -> Overview:
    """Every run's state. One query to each Slurm that has an open run of the owner, if one is due; `keep`: the index may be written.

    Raises Refusal E-SITE-*, E-SLURM-001.
    """
    path = index_path(root, asker.viewer, owner)
    before = read_index(path)
    closed: dict[tuple[str, str], Entry] = {}
    unsure: dict[tuple[str, str], tuple[int, Facts]] = {}
    for exp, run_id, mtime in scan(root, owner):
        entry = before.get((exp, run_id))
        if entry is not None and entry[0] == mtime:
            closed[exp, run_id] = entry
        else:
            unsure[exp, run_id] = (mtime, read_facts(root.run(owner, exp, run_id)))
    asker.wanted = lambda fleet: _job_ids((f for _, f in unsure.values()), fleet)
    looks = {key: asker.look(facts) for key, (_, facts) in unsure.items()}
    for key in _revived(closed, asker):
        mtime = closed.pop(key)[0]
        facts = read_facts(root.run(owner, *key))
        unsure[key], looks[key] = (mtime, facts), asker.look(facts)
    out = Overview(root, owner, closed=closed)
    now = asker.now()
    for key, (mtime, facts) in unsure.items():
        state = decide_run(facts, looks[key], now)
        if state.final:
            closed[key] = _entry(mtime, state)
        else:
            out.open_runs[key] = state
    if not keep:
        return out
    if closed.keys() != before.keys() or any(before[k][0] != closed[k][0] for k in unsure.keys() & closed.keys()):
        out.index_saved = _write_index(path, closed)
    return out


def _job_ids(all_facts: Iterable[Facts], fleet: str) -> list[str]:
    """Job ids of runs that may still be open, for the one accounting query of a refresh."""
    out = []
    for facts in all_facts:
        last, attempt = facts.last_submission, facts.last_attempt
        over = attempt is not None and attempt.end is not None and not attempt.runs_again
        if last is not None and last.kind == "slurm" and last.fleet == fleet and not over:
            jobs = (s.job_id for s in (facts.submissions if last.tasks is not None else (last,)))
            out += [job.partition("_")[0].partition("+")[0] for job in jobs if job[:1].isdigit()]
    return out


def _revived(closed: dict[tuple[str, str], Entry], asker: Asker) -> list[tuple[str, str]]:
    """Finished runs of whose id Slurm has a live job again: requeued by hand, or an id that came back."""
    alive = {str(r.base_id) for p in asker.polls.values() for r in p.queue if r.active}
    return [key for key, entry in closed.items() if entry[3] in alive] if alive else []


def state_of(run: RunPaths, asker: Asker) -> tuple[Facts, RunState]:
    """One run's facts and state, read now."""
    facts = read_facts(run)
    asker.wanted = lambda fleet: _job_ids(_open_facts(asker), fleet)
    return facts, decide_run(facts, asker.look(facts), asker.now())


def _open_facts(asker: Asker) -> Iterator[Facts]:
    known = read_index(index_path(asker.root, asker.viewer, asker.owner))
    for exp, run_id, mtime in scan(asker.root, asker.owner):
        entry = known.get((exp, run_id))
        if entry is None or entry[0] != mtime:
            yield read_facts(asker.root.run(asker.owner, exp, run_id))
