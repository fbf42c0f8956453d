"""Everything in one package's folder, quickly: its versions, its owner's switch, its seals, and what does not belong. For the audit; reads only."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass

from tuneplane.contract.layout import StorageRoot

from hpc.errors.core import Refusal
from hpc.registry.generations import Pointer
from hpc.registry.kinds import Kind
from hpc.registry.look import Look, Subject, look
from hpc.registry.pointercheck import check_pointer
from hpc.registry.pointers import owner_judge
from hpc.registry.problems import INCOMPLETE, LITTER, NOTE, TAMPERED, Problem, is_stale, of_error, of_refusal
from hpc.registry.resolve import against_seal
from hpc.registry.sealcheck import SealFolder
from hpc.registry.shelf import SWITCH, is_litter, is_segment
from hpc.registry.tally import Tally
from hpc.registry.trees import FOLDER
from hpc.site.trust import require_owner_folder


@dataclass(frozen=True)
class Case:
    """What every visit needs: the root, who seals, whether the time is up, and what time it is (UTC)."""

    root: StorageRoot
    sealers: frozenset[int]
    deadline: float | None = None
    now: str = ""

    def over(self) -> bool:
        return self.deadline is not None and time.monotonic() >= self.deadline


def check_package(case: Case, kind: Kind, owner: str, name: str, uid: int) -> Tally:
    """One package. Never raises for what it finds; a stale handle is opened again by path."""
    out = Tally(packages=1)
    where = f"registry/{kind.shelf}/{owner}/{name}"
    folder = case.root.shelf(kind.shelf) / owner / name
    try:
        require_owner_folder(folder, uid)
        fd = os.open(folder, FOLDER)
    except Refusal as fault:
        out.problems.append(of_refusal(fault, where))
        return out
    except OSError as exc:
        out.problems.append(of_error(exc, where))
        return out
    try:
        with SealFolder(case.root, f"{kind.shelf}/{owner}/{name}", case.sealers, out.problems, case.now) as seals:
            _Visit(case, kind, owner, name, uid, where, out, seals).run(fd)
            out.seals += seals.count
    except OSError as exc:
        out.problems.append(of_error(exc, where))
    finally:
        os.close(fd)
    return out


class _Visit:
    def __init__(
        self, case: Case, kind: Kind, owner: str, name: str, uid: int, where: str, out: Tally, seals: SealFolder
    ) -> None:
        self.case, self.kind, self.owner, self.name, self.uid = case, kind, owner, name, uid
        self.where, self.out, self.seals = where, out, seals

    def run(self, fd: int) -> None:
        names = sorted(os.listdir(fd))
        versions = [n for n in names if is_segment(n)]
        for other in names:
            if not is_segment(other):
                self._other(other)
        for version in versions:
            if self.case.over():
                self.out.stopped = True
                return
            self._version(fd, version)
        self.seals.close_with(versions)

    def _other(self, name: str) -> None:
        if name == SWITCH:
            folder = self.case.root.shelf(self.kind.shelf) / self.owner / self.name / SWITCH
            pointer = Pointer(self.case.root, folder, judge=owner_judge(self.uid))
            check_pointer(pointer, self.case.sealers, self.out)
        elif is_litter(name):
            self.out.problems.append(Problem(NOTE, LITTER, f"{self.where}/{name}", "a publisher died here"))
        else:
            self.out.problems.append(Problem(TAMPERED, "E-REG-013", f"{self.where}/{name}", "does not belong here"))

    def _version(self, fd: int, version: str) -> None:
        out, where = self.out, f"{self.where}/{version}"
        subject = Subject(self.kind.name, self.owner, self.name, version, self.uid, where, self.kind.facts)
        seal = self.seals.get(version)
        seen = self._look(fd, subject, seal.record if seal is not None else "")
        out.versions += 1
        out.problems += seen.problems
        if seen.record is None:
            return
        out.files += len(seen.record["files"])
        out.size += seen.record["size"]
        if seal is None:
            out.unsealed += 1
        elif problem := against_seal(seen.record, seal, where):
            out.problems.append(problem)

    def _look(self, fd: int, subject: Subject, sealed: str) -> Look:
        try:
            return look(fd, subject, sealed)
        except OSError as exc:
            if not is_stale(exc):
                return Look(None, [of_error(exc, subject.where)])
        for _ in range(2):
            try:
                again = os.open(self.case.root.shelf(self.kind.shelf) / self.owner / self.name, FOLDER)
                try:
                    return look(again, subject)
                finally:
                    os.close(again)
            except OSError as exc:
                last = exc
                if not is_stale(exc):
                    break
        return Look(None, [of_error(last, subject.where)])


def check_lost_package(case: Case, subject: str) -> Tally:
    """Seals whose whole package is gone."""
    out = Tally()
    with SealFolder(case.root, subject, case.sealers, out.problems, case.now) as seals:
        seals.close_with(())
        out.seals += seals.count
    return out


def check_owner(case: Case, kind_shelf: str, owner: str, uid_of: Callable[[str], int]) -> tuple[int, Problem | None]:
    """The owner's uid and what is wrong with their folder; a folder that is not to be believed is reported, never used."""
    where = f"registry/{kind_shelf}/{owner}"
    try:
        uid = uid_of(owner)
    except Refusal as fault:
        # Nobody knows whose it is: an account that went away, or a name that never was one.
        return -1, of_refusal(fault, where, INCOMPLETE)
    try:
        require_owner_folder(case.root.shelf(kind_shelf) / owner, uid)
    except Refusal as fault:
        return -1, of_refusal(fault, where)
    return uid, None
