"""What the log says about single runs, compared with their files: for the audit of a run, by whoever may read it.

Only entries that a proof ties to the signed head count. A log that is not there, that no admin names a key for, or that is damaged accuses no run:
what it could have said is told as not known.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tuneplane.contract.layout import RunPaths, StorageRoot

from hpc.errors import Refusal
from hpc.evidence.entries import Entry, EntryError, by_place, decode_entry, subject_of
from hpc.evidence.facts import Reader, changes
from hpc.evidence.log import Head, read_head, tree, trusted_key
from hpc.evidence.note import NoteError, VerifierKey
from hpc.evidence.proof import check_proof
from hpc.evidence.tiles import TileError
from hpc.evidence.verify import proof_of
from hpc.runs.audit import Audit, verdict_of
from hpc.runs.evidence import Finding

if TYPE_CHECKING:
    from hpc.site.sitefile import Site


def entries_about(root: StorageRoot, head: Head, subjects: set[str]) -> dict[str, list[Entry]]:
    """The log's entries by subject, of these subjects only; others are passed over undecoded. Raises Refusal E-EVID-006."""
    out: dict[str, list[Entry]] = {subject: [] for subject in subjects}
    try:
        for index, data in tree(root, head).entries():
            subject = _subject(data)
            if subject in out:
                out[subject].append(decode_entry(data, index))
    except (TileError, EntryError) as exc:
        raise Refusal("E-EVID-006", str(exc), field=str(root.log)) from exc
    return out


def _subject(entry: bytes) -> str:
    """The subject of an entry in canonical JSON, without parsing it: it is its last field, and holds nothing that JSON escapes."""
    return entry.rpartition(b'"subject":"')[2].partition(b'"')[0].decode("utf-8", "replace")


class Logged:
    """The log as it stands now. `why` says why nothing can be compared with it, "" where it can."""

    def __init__(self, root: StorageRoot, site: Site) -> None:
        self.root, self.why = root, ""
        self._entries: dict[str, list[Entry]] = {}
        try:
            self._key: VerifierKey = trusted_key(root, site)
            self._head = read_head(root, self._key)
        except Refusal as exc:
            self.why = "there is no log" if exc.code in ("E-EVID-001", "E-EVID-004") else f"{exc.code} {exc.message}"

    def read(self, runs: list[RunPaths]) -> None:
        """Read what the log has about these runs, in one pass."""
        if self.why:
            return
        try:
            self._entries |= entries_about(self.root, self._head, {_name(run) for run in runs})
        except Refusal as exc:
            self.why = f"{exc.code} {exc.message}"

    def judge(self, found: Audit) -> Audit:
        """The audit of a run that was read before, with what the log says; `facts["log"]`: how many entries agree, None without a log."""
        entries = self._entries.get(_name(found.run), [])
        if self.why:
            return replace(found, facts={**found.facts, "log": None})
        if unproved := next((e for e in entries if not self._proved(e)), None):
            text = f"entry {unproved.index} cannot be proved from the signed head: `tp log verify` says what is wrong with the log"
            return replace(
                found, findings=(*found.findings, Finding("note", "log", "registry/log", text)), facts={**found.facts, "log": None}
            )  # fmt: skip
        _, conflicts = changes(Reader(self.root, found.run).read(), by_place(entries))
        findings = [
            Finding("tampered", "log", c.entry.fact.path, f"{c.message} (entry {c.entry.index} of the log)") for c in conflicts
        ]  # fmt: skip
        every = tuple(
            sorted((*found.findings, *findings), key=lambda f: ("tampered", "incomplete", "note").index(f.level))
        )
        told = {**found.facts, "log": len(entries) - len(conflicts)}
        return replace(found, findings=every, verdict=verdict_of(every), facts=told)

    def _proved(self, entry: Entry) -> bool:
        try:
            proof = proof_of(self.root, self._head, entry.index)
            return check_proof(proof, self._key, opened=(self._head.note, self._head.checkpoint)).entry == entry
        except (Refusal, NoteError):
            return False


def _name(run: RunPaths) -> str:
    return subject_of(run.owner, run.exp, run.run_id)
