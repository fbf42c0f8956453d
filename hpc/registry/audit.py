"""The whole registry, judged from its files alone: a quick pass over everything, and a deep one over the bytes as far as a budget goes.

Quick: names, sizes, owners, modes, records, switches, activations, seals and their logs, recipe packs, and what does not belong. Deep: every byte,
going round from where the last audit stopped. One bad record never hides another. What could not be looked at is `incomplete`, never `tampered`.
Memory does not grow with the registry: packages are judged one by one, and only what is wrong is kept.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tuneplane.contract import exits
from tuneplane.contract.layout import StorageRoot

from hpc.errors.core import Refusal
from hpc.registry import tombstones, workers
from hpc.registry.activationcheck import check_active
from hpc.registry.deepcheck import targets
from hpc.registry.kinds import Kind
from hpc.registry.packagecheck import Case, check_lost_package, check_owner
from hpc.registry.places import admin_pointers, names
from hpc.registry.pointercheck import check_pointer
from hpc.registry.problems import (
    INCOMPLETE,
    LEVELS,
    LITTER,
    NO_TICKET,
    NOTE,
    TAMPERED,
    Problem,
    below,
    of_error,
)
from hpc.registry.recipecheck import AdminTree, CheckPack, check_recipes
from hpc.registry.rotation import Rotation, further, next_round, own_folder, past, read_rotation, write_rotation
from hpc.registry.sealcheck import seal_folders
from hpc.registry.seals import sealers
from hpc.registry.shelf import Shelf, is_litter, is_segment
from hpc.registry.tally import Tally
from hpc.site.plan import ROWS, SHELVES
from hpc.site.users import User
from hpc.store.faults import refusal
from hpc.store.probe import PREFIX

if TYPE_CHECKING:
    from hpc.site.sitefile import Site

_NO_LOCK: Final = frozenset(f"E-STORE-{n}" for n in ("002", "003", "010", "020", "021", "024", "025"))
TOP: Final = frozenset(row.path.split("/")[1] for row in ROWS if row.path.startswith("registry/"))
MAX_KEPT: Final = 20_000
"""Problems that are kept word for word; further ones are counted."""


@dataclass(frozen=True)
class Options:
    """`budget`: bytes that the deep pass may hash (None: all). `deadline`: time.monotonic() at which everything stops."""

    deep: bool = False
    budget: int | None = None
    jobs: int = 1
    deadline: float | None = None


@dataclass
class Report:
    """The verdict. `counts` of what was looked at; `dropped`: problems beyond those that are kept."""

    tally: Tally = field(default_factory=Tally)
    owners: int = 0
    generations: int = 0
    quick_complete: bool = True
    deep: bool = False
    deep_complete: bool = True
    rotation: Rotation = field(default_factory=Rotation)
    dropped: int = 0
    levels: dict[str, int] = field(default_factory=lambda: dict.fromkeys(LEVELS, 0))
    no_ticket: int = 0
    started_at: str = ""
    duration_s: float = 0.0

    @property
    def problems(self) -> list[Problem]:
        return self.tally.problems

    @property
    def verdict(self) -> str:
        return TAMPERED if self.levels[TAMPERED] else INCOMPLETE if self.levels[INCOMPLETE] else "verified"

    @property
    def exit(self) -> int:
        if self.no_ticket and self.verdict == INCOMPLETE and self.no_ticket == self.levels[INCOMPLETE]:
            return exits.TRY_LATER  # nothing but a ticket is missing (P73)
        return {TAMPERED: exits.TAMPERED, INCOMPLETE: exits.REFUSED}.get(self.verdict, exits.DONE)

    def add(self, tally: Tally) -> None:
        for problem in tally.problems:
            self.levels[problem.level] += 1
            self.no_ticket += problem.code == NO_TICKET
        room = max(0, MAX_KEPT - len(self.problems))
        self.dropped += max(0, len(tally.problems) - room)
        tally.problems = tally.problems[:room]
        self.tally.add(tally)

    def say(self, *problems: Problem) -> None:
        self.add(Tally(problems=list(problems)))


@contextmanager
def only_one(root: StorageRoot, user: User) -> Iterator[str]:
    """Hold off other audits of this user for the body; "" or why they are not held off (an audit only reads, so it goes on).

    Raises Refusal E-REG-030 while another audit runs.
    """
    from hpc.store.locks import held

    with ExitStack() as stack:
        why = ""
        try:
            stack.enter_context(held(own_folder(root, user) / "audit.lock", purpose="registry audit"))
        except Refusal as fault:
            if fault.code == "E-STORE-001":
                raise Refusal("E-REG-030", fault.message, field=fault.field, found=fault.found) from fault
            if fault.code not in _NO_LOCK:
                raise
            why = f"other audits are not held off: {fault.field}: {fault.message}"
        yield why


def audit(
    root: StorageRoot,
    kinds: Sequence[Kind],
    *,
    site: Site,
    user: User,
    options: Options,
    core_version: str,
    now: str,
    check_pack: CheckPack | None = None,
) -> Report:
    """Judge the registry. Raises Refusal E-STORE-02x only where the registry itself cannot be entered."""
    begin = time.monotonic()
    try:
        top = sorted(os.listdir(root.registry))
    except OSError as exc:
        raise refusal(exc, root.registry, "list") from exc
    work = _Audit(root, kinds, site, user, options, core_version, now)
    work.top(top)
    work.shelves()
    work.pointers()
    work.report.add(check_recipes(work.case, site, check_pack))
    work.lost_seals()
    if options.deep:
        work.deep()
    work.report.duration_s = time.monotonic() - begin
    return work.report


class _Audit:
    def __init__(
        self, root: StorageRoot, kinds: Sequence[Kind], site: Site, user: User, options: Options, core: str, now: str
    ) -> None:
        self.root, self.kinds, self.site, self.user = root, kinds, site, user
        self.options, self.now = options, now
        self.case = Case(root, sealers(root), options.deadline, now)
        self.report = Report(deep=options.deep, started_at=now)
        self.owners: list[tuple[int, str, int]] = []
        self.job = workers.Job(self.case, kinds, core)

    def top(self, listed: list[str]) -> None:
        for name in listed:
            if name not in TOP and not name.startswith(PREFIX):
                self.report.say(Problem(TAMPERED, "E-REG-013", f"registry/{name}", "does not belong here"))
        known = {kind.shelf for kind in self.kinds}
        for shelf in sorted(set(SHELVES) - known):
            for owner in self._names(self.root.shelf(shelf)):
                if self._names(self.root.shelf(shelf) / owner):
                    text = "holds records of a kind that this release cannot judge"
                    self.report.say(Problem(INCOMPLETE, "unknown-kind", f"registry/{shelf}/{owner}", text))

    def _names(self, folder: Path) -> list[str]:
        try:
            return names(folder)
        except OSError as exc:
            self.report.say(of_error(exc, below(self.root.path, folder), "list"))
            return []

    def shelves(self) -> None:
        packages = (p for number, kind in enumerate(self.kinds) for p in self._packages(number, kind))
        for tally in workers.run(self.job, workers.quick, packages, self.options.jobs):
            self.report.quick_complete &= not tally.stopped
            self.report.add(tally)
            if self.case.over():
                self.report.quick_complete = False
                break
        if not self.report.quick_complete:
            text = f"the time was up after {self.report.tally.packages} packages"
            self.report.say(Problem(INCOMPLETE, "deadline", "registry", text))

    def _packages(self, number: int, kind: Kind) -> Iterator[workers.Package]:
        shelf = Shelf(self.root, kind, site=self.site)
        for owner in self._names(shelf.path):
            where = f"registry/{kind.shelf}/{owner}"
            if owner.startswith(PREFIX):
                continue
            if not is_segment(owner):
                self.report.say(Problem(TAMPERED, "E-REG-013", where, "is no owner's folder"))
                continue
            uid, problem = check_owner(self.case, kind.shelf, owner, shelf.uid)
            if problem is not None:
                self.report.say(problem)
                continue
            self.report.owners += 1
            self.owners.append((number, owner, uid))
            for name in self._names(shelf.path / owner):
                if is_segment(name):
                    yield workers.Package(number, owner, name, uid)
                elif is_litter(name):
                    self.report.say(Problem(NOTE, LITTER, f"{where}/{name}", "a writer died here"))
                elif name == tombstones.FOLDER:
                    self.report.say(*tombstones.check_tombstones(self.root, kind.shelf, owner))
                else:
                    self.report.say(Problem(TAMPERED, "E-REG-013", f"{where}/{name}", "does not belong here"))

    def pointers(self) -> None:
        """The admins' pointers; the owners' are judged with their packages."""
        out = Tally()
        self._activation(out)
        for pointer in admin_pointers(self.root, self.kinds, self.site, out.problems):
            check_pointer(pointer, self.case.sealers, out)
        out.problems += check_active(self.root, self.kinds, self.site)
        self.report.add(out)

    def _activation(self, out: Tally) -> None:
        """Owner, mode and name of everything below registry/activation that is no generation."""
        tree = AdminTree(self.root, self.site, out.problems)

        def on_error(exc: OSError) -> None:
            out.problems.append(of_error(exc, below(self.root.path, exc.filename or self.root.activation), "list"))

        depths = {"policy": 2, "switches": 4}
        for folder, folders, found in os.walk(self.root.activation, onerror=on_error):
            parts = Path(folder).relative_to(self.root.activation).parts
            wanted = depths.get(parts[0], 0) if parts else 0
            tree.judge(folder)
            for name in sorted(folders):
                path = os.path.join(folder, name)
                good = is_segment(name) and len(parts) < wanted if parts else name in depths
                if not good or os.path.islink(path):
                    folders.remove(name)
                    out.problems.append(
                        Problem(TAMPERED, "E-REG-013", below(self.root.path, path), "does not belong here")
                    )
            for name in found if len(parts) != wanted or not parts else ():
                where = below(self.root.path, os.path.join(folder, name))
                out.problems.append(Problem(TAMPERED, "E-REG-013", where, "does not belong here"))

    def lost_seals(self) -> None:
        """Seals of packages, pointers and packs whose whole folder is gone."""
        out = Tally()
        for subject in seal_folders(self.root, out.problems):
            if not os.path.lexists(self.root.registry / subject):
                out.add(check_lost_package(self.case, subject))
        self.report.add(out)

    def deep(self) -> None:
        """Hash from where the last audit stopped to the end, and then from the beginning to there, until budget or time are used up."""
        folder = own_folder(self.root, self.user)
        rotation, why = read_rotation(folder)
        if why:
            self.report.say(Problem(NOTE, "rotation", below(self.root.path, folder), why))
        self.owners.sort(key=lambda o: (self.kinds[o[0]].shelf, o[1]))
        after = tuple(rotation.after.split("/")) if rotation.after else ()
        begin = rotation if after else Rotation(rotation.round)
        rotation, more = self._segment(begin, after, ())
        if more and after:
            rotation, more = self._segment(next_round(rotation), (), after)
        self.report.rotation = rotation
        try:
            write_rotation(folder, next_round(rotation) if more and not after else rotation)
        except Refusal as fault:
            text = f"the place of the rotation is not kept: {fault.message}"
            self.report.say(Problem(NOTE, "rotation", below(self.root.path, folder), text))

    def _segment(self, rotation: Rotation, after: tuple[str, ...], until: tuple[str, ...]) -> tuple[Rotation, bool]:
        """Hash the versions between two places; the rotation now, and whether all of them were hashed."""
        budget = self.options.budget
        todo = targets(self.case, self.kinds, self.owners, after, until)
        # Parts of one version where a budget must be met, else of several, which costs less between processes.
        parts = workers.chunks(todo, 1 if budget is not None else workers.CHUNK)
        for tally in workers.run(self.job, workers.deep, parts, self.options.jobs):
            rotation = further(rotation, tally.last, tally.hashed, tally.hashed_versions, self.now)
            self.report.add(tally)
            if tally.stopped or self.case.over():
                self.report.deep_complete = False
                rotation, told = past(rotation, tally, self.report.tally.hashed_versions, "registry", self.now)
                self.report.say(*told)
                return rotation, False
            if budget is not None and self.report.tally.hashed >= budget:
                return rotation, False
        return further(rotation, "", 0, 0, self.now), True


def coverage(report: Report) -> dict[str, Any]:
    """What was hashed in this run and in this round, of what the quick pass saw. Pure."""
    total = report.tally.size
    share = report.rotation.size / total if total else 1.0
    return {
        "hashed_bytes": report.tally.hashed,
        "hashed_versions": report.tally.hashed_versions,
        "total_bytes": total,
        "total_versions": report.tally.versions,
        "round": report.rotation.round,
        "round_started_at": report.rotation.started_at,
        "round_bytes": report.rotation.size,
        "round_versions": report.rotation.versions,
        "round_share": f"{min(share, 1.0):.4f}",
        "up_to": report.rotation.after,
    }
