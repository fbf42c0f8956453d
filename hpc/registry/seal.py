"""`tp registry seal`: writes down what it sees first, as the service user or root. Doing it again adds only what is new.

A version is sealed after its bytes were read and agree with its record, a generation of a pointer after it was found whole. What differs from an
earlier seal, or is gone, is reported and never overwritten. Each folder of seals has a log beside it that lists them all (`hpc.registry.seals`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from tuneplane.contract.layout import StorageRoot
from tuneplane.record import files

from hpc.errors.core import Refusal
from hpc.registry.content import hash_content
from hpc.registry.generations import Pointer
from hpc.registry.kinds import Kind
from hpc.registry.places import admin_pointers, names, owner_pointers, pack_subjects, seal_subjects
from hpc.registry.problems import INCOMPLETE, NOTE, TAMPERED, Problem, below, of_error, of_refusal
from hpc.registry.records import DIGEST, FILE_MODE
from hpc.registry.resolve import against_seal, look_at
from hpc.registry.seals import LOG, Seal, judge_sealer, read_seal, seal_path, sealers
from hpc.registry.shelf import CONTENT, Ref, Shelf
from hpc.registry.storing import sweep
from hpc.registry.tombstones import departed
from hpc.registry.trees import FOLDER, measure
from hpc.site.users import User
from hpc.store.faults import refusal
from hpc.store.folders import make_folder

if TYPE_CHECKING:
    from hpc.site.sitefile import Site

Clock = Callable[[], bool]
T = TypeVar("T")
KEPT_LOGS: Final = 2
TRIES: Final = 5


@dataclass
class Sealed:
    """What one run did: subjects sealed now, how many stood already, what is wrong with the rest, and litter that was removed."""

    new: list[str] = field(default_factory=list)
    standing: int = 0
    problems: list[Problem] = field(default_factory=list)
    swept: list[str] = field(default_factory=list)
    complete: bool = True

    @property
    def exit(self) -> int:
        levels = {p.level for p in self.problems}
        return 2 if TAMPERED in levels else 1 if INCOMPLETE in levels or not self.complete else 0

    def as_json(self) -> dict[str, Any]:
        return {
            "sealed": self.new,
            "standing": self.standing,
            "swept": self.swept,
            "complete": self.complete,
            "problems": [p.as_json() for p in self.problems],
        }


def seal(
    root: StorageRoot, kinds: Sequence[Kind], *, site: Site, user: User, now: str, over: Clock = lambda: False
) -> Sealed:
    """Seal everything that is not sealed yet. `over`: True when the time is up; what is left is sealed by the next run.

    Raises Refusal E-REG-031 (not the service user or root), E-STORE-02x (the folder of seals itself).
    """
    uids = sealers(root)
    if user.uid not in uids:
        raise Refusal(
            "E-REG-031", f"{user.name} does not own {root.seals}", found=user.name, allowed="the service user"
        )
    return _Sealer(root, uids, site, user, now, over).run(kinds)


class _Sealer:
    def __init__(self, root: StorageRoot, uids: frozenset[int], site: Site, user: User, now: str, over: Clock) -> None:
        self.root, self.uids, self.site, self.user, self.now, self.over = root, uids, site, user, now, over
        self.out = Sealed()
        self.owner = os.lstat(root.seals).st_uid
        self.touched: dict[Path, dict[str, str]] = {}

    def run(self, kinds: Sequence[Kind]) -> Sealed:
        for step in self._steps(kinds):
            if self.over():
                self.out.complete = False
                break
            step()
        else:
            self._gone()
        self._flush()
        return self.out

    def _steps(self, kinds: Sequence[Kind]) -> Iterator[Callable[[], None]]:
        for kind in kinds:
            shelf = Shelf(self.root, kind, site=self.site)
            for owner in self._listed(shelf.owners, shelf.path):
                for name in self._listed(lambda s=shelf, o=owner: s.packages(o), shelf.path / owner):  # type: ignore[misc]
                    yield from self._package(shelf, owner, name)
                    yield self._flush
        for pointer in self._pointers(kinds):
            for number in self._listed(pointer.numbers, pointer.folder):
                yield lambda p=pointer, n=number: self._generation(p, n)  # type: ignore[misc]
            yield self._flush
        for subject, folder in pack_subjects(self.root):
            yield lambda s=subject, f=folder: self._pack(s, f)  # type: ignore[misc]

    def _pointers(self, kinds: Sequence[Kind]) -> Iterator[Pointer]:
        yield from admin_pointers(self.root, kinds, self.site, self.out.problems)
        for kind in kinds:
            yield from owner_pointers(Shelf(self.root, kind, site=self.site), self.out.problems)

    def _package(self, shelf: Shelf, owner: str, name: str) -> Iterator[Callable[[], None]]:
        # Only root can remove what an owner's dead publisher left; the owner's next publishing does it as well.
        if os.geteuid() == 0:
            where = f"registry/{shelf.kind.shelf}/{owner}/{name}"
            self.out.swept += [f"{where}/{gone}" for gone in sweep(shelf.package(owner, name), self.now)]
        for version in self._listed(lambda: shelf.versions(owner, name), shelf.package(owner, name)):
            yield lambda r=Ref(owner, name, version): self._version(shelf, r)  # type: ignore[misc]

    def _listed(self, ask: Callable[[], list[T]], folder: Path) -> list[T]:
        """A list of names, or nothing and a problem where the folder cannot be listed."""
        try:
            return ask()
        except Refusal as fault:
            self._say(of_refusal(fault, below(self.root.path, folder)))
            return []

    def _say(self, problem: Problem) -> None:
        self.out.problems.append(problem)

    def _known(self, subject: str) -> tuple[bool, Seal | None]:
        """(may go on, seal). Where a seal is not to be believed, or is gone, that is reported and nothing is written in its place."""
        where = f"registry/seals/{subject}.json"
        path = seal_path(self.root, subject)
        logged = self._logged(path.parent)
        try:
            seal = read_seal(self.root, subject, uids=self.uids)
        except Refusal as fault:
            self._say(of_refusal(fault, where))
            return False, None
        if seal is None and path.stem in logged:
            self._say(seal_gone(where))
            return False, None
        return True, seal

    def _logged(self, folder: Path) -> dict[str, str]:
        """What the log of a folder of seals lists; read once until the next flush."""
        if folder not in self.touched:
            state = log_of(self.root, folder, self.uids).state()
            self.touched[folder] = listed(state.good.body) if state.good else {}
            self.out.problems += [p._replace(path=below(self.root.path, p.path)) for p in state.problems]
        return self.touched[folder]

    def _version(self, shelf: Shelf, ref: Ref) -> None:
        subject = f"{shelf.kind.shelf}/{ref.owner}/{ref.name}/{ref.version}"
        where = f"registry/{subject}"
        good, seal = self._known(subject)
        if not good:
            return
        try:
            record, problems = look_at(shelf, ref, shelf.require(ref.owner, ref.name))
        except Refusal as fault:
            self._say(of_refusal(fault, where))
            return
        if seal is not None:
            self.out.standing += 1
            if record is not None and (problem := against_seal(record, seal, where)):
                self._say(problem)
        problems = [p._replace(path=below(self.root.path, p.path)) for p in problems if p.level != NOTE]
        if record is None or problems or seal is not None:
            self.out.problems += problems
            return
        folder = shelf.version(ref.owner, ref.name, ref.version)
        hashed = hash_content(folder / CONTENT, f"{where}/{CONTENT}", record, v1=True, stop=self.over)
        if hashed.problems:
            self.out.problems += hashed.problems
            return
        self._write(
            Seal(
                subject, record["digest"], record["digest_v2"], record[DIGEST], self.user.uid, self.now,
                record["published"], record["starts"],
            )
        )  # fmt: skip

    def _generation(self, pointer: Pointer, number: int) -> None:
        subject = f"{pointer.subject}/{number}"
        good, seal = self._known(subject)
        if not good:
            return
        generation, problem = pointer.read(number)
        if problem is not None or generation is None:
            if problem is not None:
                self._say(problem._replace(path=below(self.root.path, problem.path)))
        elif seal is None:
            self._write(Seal(subject, "", "", generation.digest, self.user.uid, self.now))
        elif seal.record != generation.digest:
            self.out.standing += 1
            self._say(changed(seal.record, generation.digest, f"registry/{subject}.json", seal))
        else:
            self.out.standing += 1

    def _pack(self, subject: str, folder: Path) -> None:
        good, seal = self._known(subject)
        if not good:
            return
        where = f"registry/{subject}"
        try:
            fd = os.open(folder, FOLDER)
            try:
                tree = measure(fd, lenient=False)
            finally:
                os.close(fd)
        except Refusal as fault:
            self._say(of_refusal(fault, f"{where}/{fault.field}"))
            return
        except OSError as exc:
            self._say(of_error(exc, where))
            return
        if seal is None:
            self._write(Seal(subject, tree.v1, tree.v2, tree.v2, self.user.uid, self.now))
        elif seal.digest_v2 != tree.v2:
            self.out.standing += 1
            self._say(changed(seal.digest_v2, tree.v2, where, seal))
        else:
            self.out.standing += 1

    def _gone(self) -> None:
        """Seals whose version, generation or pack is not there any more; what its owner removed is a note."""
        for subject in seal_subjects(self.root):
            if not os.path.lexists(target_of(self.root, subject)):
                self._say(departed(self.root, self._readable(subject), gone(subject), self.now))

    def _readable(self, subject: str) -> Seal | None:
        try:
            return read_seal(self.root, subject, uids=self.uids)
        except Refusal:
            return None  # the audit says what is wrong with it

    def _write(self, value: Seal) -> None:
        path = seal_path(self.root, value.subject)
        try:
            self._make(path.parent)
            files.write_new(path, value.encode(), mode=FILE_MODE)
            self._give(path)
        except FileExistsError:
            return  # another sealer was first; the next run compares
        except OSError as exc:
            raise refusal(exc, path, "seal") from exc
        self.out.new.append(value.subject)

    def _make(self, folder: Path) -> None:
        here = self.root.seals
        for part in folder.relative_to(here).parts:
            here = here / part
            if not here.is_dir():
                make_folder(here, 0o755, uid=self.owner, anchor=self.root.seals)

    def _give(self, path: Path) -> None:
        if self.owner != os.geteuid():
            os.chown(path, self.owner, -1, follow_symlinks=False)

    def _flush(self) -> None:
        """Enter into the logs what they do not list yet: new seals, and those that a killed run wrote and did not enter."""
        while self.touched:
            folder, known = self.touched.popitem()
            for _ in range(TRIES):
                if not (more := self._unlisted(folder, known)):
                    break
                log = log_of(self.root, folder, self.uids)
                self._make(log.folder)
                state = log.state()
                known = listed(state.good.body) if state.good else {}
                try:
                    number = log.advance(state.number, {"seals": {**more, **known}}, by=self.user, now=self.now)
                except Refusal as fault:
                    if fault.code != "E-REG-020":
                        raise
                    continue  # another sealer entered its own meanwhile
                self._give(log.path(number))
                for old in log.numbers()[:-KEPT_LOGS]:
                    log.path(old).unlink(missing_ok=True)
                break

    def _unlisted(self, folder: Path, known: dict[str, str]) -> dict[str, str]:
        base = folder.relative_to(self.root.seals).as_posix()
        out = {}
        for name in names(folder):
            stem = name.removesuffix(".json")
            if stem == name or name.startswith(".") or stem in known:
                continue
            try:
                seal = read_seal(self.root, f"{base}/{stem}", uids=self.uids)
            except Refusal:
                continue  # the audit names it
            if seal is not None:
                out[stem] = seal.own_digest
        return out


def log_of(root: StorageRoot, folder: Path, uids: frozenset[int]) -> Pointer:
    """The log of the seals in `folder`."""

    def judge(path: Path, found: os.stat_result) -> Problem | None:
        doubt = judge_sealer(found, uids)
        return Problem(TAMPERED, "E-REG-016", str(path), doubt) if doubt else None

    return Pointer(root, folder / LOG, judge=judge)


def seal_gone(where: str) -> Problem:
    return Problem(TAMPERED, "E-REG-016", where, "is listed in the log of seals and is gone")


def listed(body: Any) -> dict[str, str]:
    """The seals that a log's generation lists, by file stem. Pure."""
    seals = body.get("seals")
    return {str(k): str(v) for k, v in seals.items()} if isinstance(seals, dict) else {}


def target_of(root: StorageRoot, subject: str) -> Path:
    """What a seal is the seal of: a version's folder, a generation's file, a pack's folder."""
    path = root.registry / subject
    return path if subject.startswith("recipes/") or not _is_generation(subject) else Path(f"{path}.json")


def _is_generation(subject: str) -> bool:
    return subject.startswith("activation/") or "/.switch/" in subject


def changed(sealed: str, found: str, where: str, seal: Seal) -> Problem:
    text = f"digest is {found}, and was {sealed} when it was sealed at {seal.sealed_at}"
    return Problem(TAMPERED, "E-REG-014", where, text, found, sealed)


def gone(subject: str) -> Problem:
    path = f"registry/{subject}.json" if _is_generation(subject) else f"registry/{subject}"
    return Problem(TAMPERED, "E-REG-014", path, "was sealed and is gone")
