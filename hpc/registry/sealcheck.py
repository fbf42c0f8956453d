"""Seals against what they seal, and against the log that lists them; folder by folder, for the audit. Reads only."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import final

from tuneplane.contract.layout import StorageRoot

from hpc.errors.core import Refusal
from hpc.registry.generations import Pointer
from hpc.registry.places import PACKS
from hpc.registry.problems import INCOMPLETE, LITTER, NOTE, TAMPERED, Problem, below, is_gone, of_error, of_refusal
from hpc.registry.records import RecordError, read_raw
from hpc.registry.seal import gone, listed, log_of, seal_gone
from hpc.registry.seals import LOG, MAX_SEAL, Seal, decode_seal, judge_sealer
from hpc.registry.shelf import SWITCH, is_litter
from hpc.registry.tombstones import departed
from hpc.registry.trees import FOLDER
from hpc.site.plan import SHELVES


@final
class SealFolder:
    """The seals of one folder of things: opened once, each read when it is asked for. A context; never raises for what it finds."""

    def __init__(
        self, root: StorageRoot, subject: str, uids: frozenset[int], problems: list[Problem], now: str = ""
    ) -> None:
        self.root, self.subject, self.uids, self.problems, self.now = root, subject, uids, problems, now
        self.where = f"registry/seals/{subject}"
        self.fd = -1
        self.stems: set[str] = set()
        self.log: Mapping[str, str] = {}
        self.count = 0

    def __enter__(self) -> SealFolder:
        try:
            self.fd = os.open(self.root.seals / self.subject, FOLDER)
            if doubt := judge_sealer(os.fstat(self.fd), self.uids):
                self.problems.append(Problem(TAMPERED, "E-REG-016", self.where, doubt))
            self._list()
        except OSError as exc:
            if not is_gone(exc) or os.path.islink(self.root.seals / self.subject):
                self.problems.append(of_error(exc, self.where))
        return self

    def _list(self) -> None:
        logged = False
        for name in os.listdir(self.fd):
            if name.endswith(".json") and name[0] != ".":
                self.stems.add(name[:-5])
            elif name == LOG:
                logged = True
            elif is_litter(name):
                self.problems.append(Problem(NOTE, LITTER, f"{self.where}/{name}", "a writer died here"))
        if logged:
            pointer = log_of(self.root, self.root.seals / self.subject, self.uids)
            self.log = self._read_log(pointer)

    def _read_log(self, pointer: Pointer) -> Mapping[str, str]:
        try:
            state = pointer.state()
        except Refusal as fault:
            self.problems.append(of_refusal(fault, f"{self.where}/{LOG}"))
            return {}
        self.problems += [p._replace(path=below(self.root.path, p.path)) for p in state.problems]
        if state.good is not None and 1 < state.number == state.good.number:
            before, problem = pointer.read(state.number - 1)
            if problem is not None:
                self.problems.append(problem._replace(path=below(self.root.path, problem.path)))
            elif before is not None and state.good.previous != before.digest:
                text = f"does not follow generation {before.number}"
                self.problems.append(Problem(TAMPERED, "E-REG-012", f"{self.where}/{LOG}/{state.number}.json", text))
        return listed(state.good.body) if state.good else {}

    def __exit__(self, *error: object) -> None:
        if self.fd >= 0:
            os.close(self.fd)

    def get(self, stem: str) -> Seal | None:
        """The seal of one thing; what is wrong with it is a problem, and then there is none."""
        if stem not in self.stems:
            return None
        self.count += 1
        where = f"{self.where}/{stem}.json"
        try:
            raw = read_raw(f"{stem}.json", dir_fd=self.fd, limit=MAX_SEAL, names=2)
            if doubt := judge_sealer(raw.found, self.uids):
                raise RecordError(doubt)
            if raw.found.st_mode & 0o7777 != 0o444:
                raise RecordError(f"has mode {raw.found.st_mode & 0o7777:04o}, not 0444")
            seal = decode_seal(raw.data, f"{self.subject}/{stem}", self.log.get(stem, ""))
        except RecordError as exc:
            self.problems.append(Problem(TAMPERED, "E-REG-016", where, str(exc)))
            return None
        except OSError as exc:
            self.problems.append(of_error(exc, where))
            return None
        entered = self.log.get(stem)
        if entered is None:
            text = "is not in the log of seals; the next `tp registry seal` enters it"
            self.problems.append(Problem(INCOMPLETE, "E-REG-016", where, text))
        elif entered != seal.own_digest:
            text = f"is another than the one in the log: {seal.own_digest}, entered {entered}"
            self.problems.append(Problem(TAMPERED, "E-REG-016", where, text, seal.own_digest, entered))
        return seal

    def close_with(self, present: Iterable[str]) -> None:
        """Name the things that were sealed and are gone, and the seals that the log lists and are gone."""
        have = set(present)
        for stem in sorted(self.stems - have):
            if (seal := self.get(stem)) is not None:
                self.problems.append(departed(self.root, seal, gone(seal.subject), self.now))
        for stem in sorted(self.log.keys() - self.stems):
            self.problems.append(seal_gone(f"{self.where}/{stem}.json"))


def seal_folders(root: StorageRoot, problems: list[Problem]) -> Iterable[str]:
    """Subjects of all folders below registry/seals that hold seals or a log, sorted. Links are named and not followed."""

    def on_error(exc: OSError) -> None:
        problems.append(of_error(exc, below(root.path, exc.filename or root.seals), "list"))

    for folder, folders, found in os.walk(root.seals, onerror=on_error):
        folders.sort()
        subject = os.path.relpath(folder, root.seals)
        for name in [f for f in folders if os.path.islink(os.path.join(folder, f))]:
            problems.append(Problem(TAMPERED, "E-REG-016", below(root.path, Path(folder) / name), "is a link"))
        for name in found:
            if not (_holds_seals(subject) and name.endswith(".json")) and not is_litter(name):
                where = below(root.path, Path(folder) / name)
                problems.append(Problem(TAMPERED, "E-REG-016", where, "does not belong here"))
        if LOG in folders or found:
            yield subject
        folders[:] = [f for f in folders if f != LOG]


def _holds_seals(subject: str) -> bool:
    """True for the folders in which seals lie: a package's or its switch's, an admins' pointer's, a framework's packs'. Pure."""
    parts = subject.split("/")
    if parts[0] == "activation":
        return len(parts) == {"policy": 3, "switches": 5}.get(parts[1] if len(parts) > 1 else "", 0)
    if parts[0] == "recipes":
        return len(parts) == 3 and parts[2] == PACKS
    return parts[0] in SHELVES and (len(parts) == 3 or (len(parts) == 4 and parts[3] == SWITCH))
