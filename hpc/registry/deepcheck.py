"""The bytes of versions against their records, as far as a budget goes. For the audit; reads only.

A file is read once. The documented v1 digest would need SHA-256 twice over every byte, so it is computed only for versions without a seal: sealing
computed it, and a sealed record that still has its digest states the v1 of exactly the listed files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hpc.errors.core import Refusal, Refusals
from hpc.registry.content import hash_content
from hpc.registry.kinds import Kind
from hpc.registry.packagecheck import Case
from hpc.registry.problems import INCOMPLETE, NOTE, TAMPERED, Problem, of_refusal
from hpc.registry.resolve import look_at
from hpc.registry.seals import read_seal
from hpc.registry.shelf import CONTENT, Ref, Shelf
from hpc.registry.tally import Tally


class Target(NamedTuple):
    """One version to hash: the index of its kind, its owner's uid, its reference."""

    kind: int
    uid: int
    owner: str
    name: str
    version: str

    def place(self, kinds: Sequence[Kind]) -> tuple[str, ...]:
        """What orders versions and says how far a round has come."""
        return (kinds[self.kind].shelf, self.owner, self.name, self.version)


def targets(
    case: Case,
    kinds: Sequence[Kind],
    owners: Sequence[tuple[int, str, int]],
    after: tuple[str, ...] = (),
    until: tuple[str, ...] = (),
) -> Iterator[Target]:
    """Every version of these believed owners (kind, owner, uid) behind `after` and up to `until` (empty: no end), in order.

    Folders are listed as they are reached.
    """
    for number, owner, uid in owners:
        shelf = Shelf(case.root, kinds[number])
        if (shelf.kind.shelf, owner) < after[:2]:
            continue
        for name in _quiet(shelf.packages, owner):
            if (shelf.kind.shelf, owner, name) < after[:3]:
                continue
            for version in _quiet(shelf.versions, owner, name):
                target = Target(number, uid, owner, name, version)
                if until and target.place(kinds) > until:
                    return
                if target.place(kinds) > after:
                    yield target


def _quiet(ask: Callable[..., list[str]], *words: str) -> list[str]:
    try:
        return ask(*words)
    except Refusal:
        return []  # the quick pass has named the folder


def check_bytes(case: Case, kinds: Sequence[Kind], target: Target, core_version: str) -> Tally:
    """Hash one version and check again what it is. What a quick look finds wrong is the quick pass's to tell."""
    kind, out = kinds[target.kind], Tally()
    shelf, ref = Shelf(case.root, kind), Ref(target.owner, target.name, target.version)
    out.last = "/".join(target.place(kinds))
    record, _ = look_at(shelf, ref, target.uid)
    if record is None:
        return out
    where = f"registry/{out.last}"
    try:
        seal = read_seal(case.root, out.last, uids=case.sealers)
    except Refusal:
        seal = None
    sealed = seal is not None and seal.record == record["record_digest"]
    content = shelf.version(*target[2:]) / CONTENT
    hashed = hash_content(content, f"{where}/{CONTENT}", record, v1=not sealed, stop=case.over)
    out.hashed, out.hashed_versions = hashed.read, int(not hashed.stopped)
    out.stopped = hashed.stopped
    out.problems += [p for p in hashed.problems if p.code != "deadline"]
    if not out.problems and not out.stopped:
        out.problems += _check_kind(kind, content, where, record, core_version)
    return out


def _check_kind(kind: Kind, content: Path, where: str, record: Mapping[str, Any], core_version: str) -> list[Problem]:
    """Whether the bytes still are what the record says they are. A later release may read them otherwise: that is a note."""
    level = TAMPERED if record["published"].get("core_version") == core_version else NOTE
    try:
        found = kind.check(content)
    except (Refusal, Refusals) as exc:
        faults = exc.items if isinstance(exc, Refusals) else [exc]
        return [of_refusal(fault, where, NOTE if fault.code in kind.reader_codes else level) for fault in faults]
    except Exception as exc:  # what trips over one package must not hide all others
        return [Problem(INCOMPLETE, "bug", where, f"our bug, please report: {exc!r:.300}")]
    if (found.name, found.version) != (record["name"], record["version"]):
        text = f"calls itself {found.name} {found.version}"
        return [Problem(TAMPERED, "E-REG-012", where, text, found.name, record["name"])]
    if dict(found.facts) != record["facts"]:
        return [Problem(level, "E-REG-012", where, "records other facts than its content gives")]
    return []
