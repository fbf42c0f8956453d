"""Every run of a storage root in one visit, for cron: a quick pass over all of them, and a deep one over the bytes as far as a budget goes.

Runs are judged one by one by `hpc.runs.audit`; one that trips it hides no other. What is not what was recorded is `tampered`, what this user may not
read is `incomplete`, and a run that goes on or ended badly is neither: it is counted. Deep rounds go on where the last visit stopped, in the order
of owner, experiment and run id, so that each run's bytes are read once a round.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tuneplane.contract.layout import RUN_ID, SEGMENT, StorageRoot

from hpc.errors import Refusal
from hpc.registry import workers
from hpc.registry.audit import Options, Report, coverage
from hpc.registry.packagecheck import Case
from hpc.registry.problems import INCOMPLETE, NOTE, TAMPERED, Problem, below, of_error, of_refusal
from hpc.registry.rotation import Rotation, further, next_round, own_folder, past, read_rotation, write_rotation
from hpc.registry.tally import Tally
from hpc.runs.audit import Audit, audit
from hpc.runs.evidence import Finding, Stopped
from hpc.site.roll import owner_uid
from hpc.site.trust import require_owner_folder

if TYPE_CHECKING:
    from hpc.site.sitefile import Site
    from hpc.site.users import User

ROTATION: Final = "rotation-runs.json"
VERDICTS: Final = ("verified", "incomplete", "tampered")


class Spot(NamedTuple):
    """Which run."""

    owner: str
    exp: str
    run_id: str

    @property
    def where(self) -> str:
        return f"runs/{self.owner}/{self.exp}/{self.run_id}"


@dataclass
class RunTally(Tally):
    """What a pass over runs counts; `versions` are runs, `size` the bytes that their lists name."""

    verified: int = 0
    incomplete: int = 0
    tampered: int = 0

    def add(self, other: Tally) -> None:
        super().add(other)
        for verdict in VERDICTS:
            setattr(self, verdict, getattr(self, verdict) + getattr(other, verdict, 0))


class Nightly:
    """One visit. Call `quick`, then `deep` where bytes shall be read; `report` is what was found so far."""

    def __init__(self, root: StorageRoot, *, site: Site, user: User, options: Options, now: str) -> None:
        self.root, self.site, self.user, self.options, self.now = root, site, user, options, now
        self.report = Report(RunTally(), deep=options.deep, started_at=now)
        self.owners: list[str] = []
        self._job = workers.Job(Case(root, frozenset(), options.deadline), (), "")
        self._said: set[Problem] = set()

    def quick(self) -> None:
        """Judge every run but for the bytes of package files and artifacts."""
        begin = time.monotonic()
        chunks = workers.chunks(self._runs())
        for tally in workers.run(self._job, _quick, chunks, self.options.jobs):
            self._add(tally)
            if tally.stopped:
                self.report.quick_complete = False
                text = f"the time was up after {self.report.tally.versions} runs"
                self.report.say(Problem(INCOMPLETE, "deadline", "runs", text))
                break
        self.report.duration_s += time.monotonic() - begin

    def _add(self, tally: Tally) -> None:
        tally.problems = [p for p in tally.problems if p not in self._said]
        self._said |= set(tally.problems)
        self.report.add(tally)

    def _runs(self) -> Iterator[Spot]:
        """Every run in order; owners whose folder is not to be believed are told and left out."""
        for owner in self._names(self.root.runs):
            try:
                require_owner_folder(self.root.owner_runs(owner), owner_uid(self.root, owner, site=self.site))
            except Refusal as fault:
                # Nobody knows whose it is where the account went away: that accuses nobody.
                level = INCOMPLETE if fault.code == "E-SITE-030" else TAMPERED
                self.report.say(of_refusal(fault, f"runs/{owner}", level))
                continue
            self.report.owners += 1
            self.owners.append(owner)
            yield from self._of_owner(owner)

    def _of_owner(self, owner: str) -> Iterator[Spot]:
        for exp in self._names(self.root.owner_runs(owner)):
            if not SEGMENT.match(exp):
                continue
            for run_id in self._names(self.root.owner_runs(owner) / exp):
                if RUN_ID.match(run_id):
                    yield Spot(owner, exp, run_id)

    def _names(self, folder: Path) -> list[str]:
        try:
            with os.scandir(folder) as entries:
                return sorted(e.name for e in entries if not e.name.startswith(".") and e.is_dir(follow_symlinks=False))
        except FileNotFoundError:
            return []
        except OSError as exc:
            self._add(Tally(problems=[of_error(exc, below(self.root.path, folder), "list")]))
            return []

    def deep(self, budget: int | None) -> None:
        """Judge runs with all their bytes, from where the last visit stopped, round to there, until `budget` bytes or the time are used up."""
        begin, folder = time.monotonic(), own_folder(self.root, self.user)
        rotation, why = read_rotation(folder, ROTATION)
        if why:
            self.report.say(Problem(NOTE, "rotation", below(self.root.path, folder), why))
        after = tuple(rotation.after.split("/")) if rotation.after else ()
        rotation, more = self._segment(rotation if after else Rotation(rotation.round), after, (), budget)
        if more and after:
            rotation, more = self._segment(next_round(rotation), (), after, budget)
        self.report.rotation = rotation
        try:
            write_rotation(folder, next_round(rotation) if more and not after else rotation, ROTATION)
        except Refusal as fault:
            text = f"the place of the rotation is not kept: {fault.message}"
            self.report.say(Problem(NOTE, "rotation", below(self.root.path, folder), text))
        self.report.duration_s += time.monotonic() - begin

    def _segment(
        self, rotation: Rotation, after: tuple[str, ...], until: tuple[str, ...], budget: int | None
    ) -> tuple[Rotation, bool]:
        """Judge the runs between two places; the rotation now, and whether all of them were judged."""
        todo = (
            s for o in self.owners for s in self._of_owner(o) if tuple(s) > after and (not until or tuple(s) <= until)
        )
        parts = workers.chunks(todo, 1 if budget is not None else workers.CHUNK)
        for tally in workers.run(self._job, _deep, parts, self.options.jobs):
            rotation = further(rotation, tally.last, tally.hashed, tally.hashed_versions, self.now)
            self._add(tally)
            if tally.stopped:
                self.report.deep_complete = False
                rotation, told = past(rotation, tally, self.report.tally.hashed_versions, "runs", self.now)
                self.report.say(*told)
                return rotation, False
            if budget is not None and self.report.tally.hashed >= budget:
                return rotation, False
        return further(rotation, "", 0, 0, self.now), True


def _quick(job: workers.Job, spots: Sequence[Spot]) -> Tally:
    out = RunTally()
    for spot in spots:
        if job.case.over():
            out.stopped = True
            break
        out.add(workers.guarded(spot.where, lambda s=spot: _judged(job.case, s)))  # type: ignore[misc]
    return out


def _judged(case: Case, spot: Spot) -> Tally:
    found = audit(case.root.run(*spot), deep=False)
    out = RunTally(versions=1, size=found.listed, problems=list(problems(spot, found)))
    setattr(out, found.verdict, 1)
    return out


def _deep(job: workers.Job, spots: Sequence[Spot]) -> Tally:
    out = RunTally()
    for spot in spots:
        part = workers.guarded(spot.where, lambda s=spot: _read(job.case, s))  # type: ignore[misc]
        out.add(part)
        if part.stopped:
            out.at = "/".join(spot)
            break
        out.last = "/".join(spot)
    return out


def _read(case: Case, spot: Spot) -> Tally:
    if case.over():
        return Tally(stopped=True)
    try:
        found = audit(case.root.run(*spot), stop=case.over)
    except Stopped as stopped:
        return Tally(stopped=True, hashed=stopped.read)
    return Tally(hashed=found.listed, hashed_versions=1, problems=list(problems(spot, found)))


def problems(spot: Spot, found: Audit) -> Iterator[Problem]:
    """What an audit of a run has to tell an admin: what is not what was recorded, and what could not be read."""
    for finding in found.findings:
        where = f"{spot.where}/{finding.path}"
        if finding.level == "tampered":
            yield Problem(TAMPERED, "E-RUNS-031", where, finding.message)
        elif finding.errno:
            yield _unread(finding, where)


def _unread(finding: Finding, where: str) -> Problem:
    return of_error(OSError(finding.errno, os.strerror(finding.errno)), where)


def as_json(report: Report) -> dict[str, Any]:
    """What a visit found, for programs."""
    tally, part = report.tally, coverage(report)
    told = {key.replace("versions", "runs"): value for key, value in part.items()}
    return {
        "verdict": report.verdict,
        "duration_s": f"{report.duration_s:.3f}",
        "complete": {"quick": report.quick_complete, "deep": report.deep_complete if report.deep else None},
        "counts": {
            "owners": report.owners,
            "runs": tally.versions,
            **{verdict: getattr(tally, verdict) for verdict in VERDICTS},
            "bytes": tally.size,
        },
        "problems_by_level": dict(report.levels),
        "coverage": told if report.deep else None,
        "problems": [p.as_json() for p in report.problems],
        "problems_not_listed": report.dropped,
    }
