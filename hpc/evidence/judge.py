"""Judges an unpacked bundle from its files alone. Standard library only, and the same code in `tp verify` and in the bundle's verify.py.

`tampered`: a file is not what the list says, the audit of the run finds one that is not what was recorded, or an entry of the log says otherwise.
`incomplete`: nothing contradicts, but the run's evidence is not whole. `verified`: everything that the bundle holds was recomputed and fits.
What could not be checked is told beside the verdict and never silently passed.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tuneplane.contract.layout import RunPaths, StorageRoot
from tuneplane.record.digest import digest_file
from tuneplane.record.files import read_bytes, read_object

from hpc.evidence.bundle import LIST, LOG, BundleError, LeftOut, Manifest, files_of, read_manifest, run_of, run_prefix
from hpc.evidence.entries import Entry, by_place, subject_of
from hpc.evidence.facts import Reader, changes
from hpc.evidence.note import MAX_NOTE, Checkpoint, NoteError, VerifierKey, open_checkpoint, parse_verifier
from hpc.evidence.proof import SUFFIX, check_proof
from hpc.runs.audit import audit
from hpc.spec.text import escaped

SCHEMA: Final = "tuneplane-hpc/evidence-check/v1"
EXITS: Final = {"verified": 0, "incomplete": 1, "tampered": 2}
_ORDER: Final = ("verified", "incomplete", "tampered")


@dataclass(frozen=True)
class Pins:
    """Keys that the reader has from elsewhere; empty ones leave the bundle's own word. `witness`: bytes of a witness's checkpoint."""

    log: str = ""
    admission: str = ""
    witness: bytes | None = None


@dataclass
class Judgement:
    """The verdict, every finding as (level, where, what), and what could not be checked."""

    run: str = ""
    findings: list[tuple[str, str, str]] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)
    checked: list[str] = field(default_factory=list)

    @property
    def verdict(self) -> str:
        return max((level for level, _, _ in self.findings if level in _ORDER), key=_ORDER.index, default="verified")

    @property
    def exit(self) -> int:
        return EXITS[self.verdict]

    def add(self, level: str, where: str, what: str) -> None:
        self.findings.append((level, escaped(where), escaped(what)))

    def as_json(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA, "run": self.run, "verdict": self.verdict, "checked": self.checked, "unchecked": self.unchecked,
            "findings": [{"level": level, "path": where, "message": what} for level, where, what in self.findings],
        }  # fmt: skip

    def lines(self) -> list[str]:
        """The judgement for people."""
        out = [f"{self.run}: {self.verdict}"]
        out += [f"  {level:<10}  {where}: {what}" for level, where, what in self.findings]
        out += [f"  recomputed  {text}" for text in self.checked]
        return out + [f"  unchecked   {text}" for text in self.unchecked]


def judge(folder: Path, pins: Pins) -> Judgement:
    """Judge the bundle unpacked in `folder`. Never raises for what its files hold."""
    out = Judgement(folder.name)
    try:
        manifest = read_manifest(folder)
    except (BundleError, OSError) as exc:
        out.add("tampered", LIST, str(exc))
        return out
    run = run_of(folder, manifest)
    out.run = f"{manifest.owner}/{manifest.exp}/{manifest.run_id}"
    _files(folder, manifest, out)
    _audit(run, manifest, out)
    _keys(folder, manifest, pins, out)
    if out.verdict not in ("tampered", manifest.exported_as):
        out.add("tampered", LIST, f"says {manifest.exported_as!r:.40}, which the evidence is not")
    _admission(folder, run, pins, out)
    _log(folder, run, manifest, pins, out)
    order = {"tampered": 0, "incomplete": 1, "note": 2}
    out.findings.sort(key=lambda f: order[f[0]])
    return out


def _artifact_places(run: RunPaths, manifest: Manifest) -> set[str]:
    """Where the reader may put artifacts, to have them checked, too."""
    return {f"{run_prefix(run)}/{a.path}" for a in manifest.left_out}


def _files(folder: Path, manifest: Manifest, out: Judgement) -> None:
    """Every file against the list, and no file beside it."""
    listed = {f.path: f for f in manifest.files}
    allowed = listed.keys() | {LIST} | _artifact_places(run_of(folder, manifest), manifest)
    for path in sorted(files_of(folder) - allowed):
        out.add("tampered", path, "is not in the list")
    if len(listed) != len(manifest.files):
        out.add("tampered", LIST, "a file stands twice")
    for path, entry in sorted(listed.items()):
        try:
            same = os.lstat(folder / path).st_size == entry.size and digest_file(folder / path) == entry.sha256
            found = "" if same else "was changed"
        except FileNotFoundError:
            found = "is gone"
        except OSError as exc:
            found = f"cannot be read: {exc.strerror or exc}"
        if found:
            out.add("tampered", path, found)
    out.checked.append(f"{len(listed)} files against {LIST}")


def _audit(run: RunPaths, manifest: Manifest, out: Judgement) -> None:
    """The audit of the run, as in its storage root; artifacts that stayed behind are known by digest only."""
    here = run.root
    absent = {a.path for a in manifest.left_out if not os.path.lexists(here / a.path)}
    shown = {escaped(path) for path in absent}
    copy = os.path.relpath(StorageRoot(here.parents[3]).admitted / run.run_id / "work", here)
    found = audit(run)
    for f in found.findings:
        if (f.check == "artifacts" and f.path in shown) or (f.path == copy and not os.path.lexists(here / copy)):
            continue
        out.add(f.level, f.path, f.message)
    _same_artifacts(run, manifest, out)
    out.checked.append(
        f"{len(found.chains)} event chains with {sum(len(c.events) for c in found.chains)} events, package, admission, scripts, "
        f"submissions, {found.facts['attempts']} attempts, report"
    )
    if absent:
        out.unchecked.append(
            f"the bytes of {len(absent)} artifacts, which are not in the bundle; their digests are the report's"
        )
    out.unchecked.append("who owned the files: an archive does not carry that")


def _same_artifacts(run: RunPaths, manifest: Manifest, out: Judgement) -> None:
    """What the list says was left out is what the reports list."""
    reported = {a.path: (a.size, a.sha256) for a in artifacts_of(run)}
    if reported != {a.path: (a.size, a.sha256) for a in manifest.left_out}:
        out.add("tampered", LIST, "what it says was left out is not what the report lists")


def _admission_key(folder: Path) -> str:
    key = (read_object(folder / "site/policy.json") or {}).get("admission")
    return str(key.get("public_key", "")) if isinstance(key, dict) else ""


def _keys(folder: Path, manifest: Manifest, pins: Pins, out: Judgement) -> None:
    """The keys that the list names are those that the bundle's records were signed with."""
    if manifest.keys["admission"] != _admission_key(folder):
        out.add("tampered", LIST, "names another key of the admission than site/policy.json")
    if pins.log and manifest.keys["log"] and _parsed(manifest.keys["log"]) != _parsed(pins.log):
        out.add("tampered", LIST, f"names the log's key as {manifest.keys['log']!r:.120}, which is not the one given")


def _parsed(text: str) -> VerifierKey | None:
    try:
        return parse_verifier(text)
    except NoteError:
        return None


def _admission(folder: Path, run: RunPaths, pins: Pins, out: Judgement) -> None:
    admitted = folder / "admitted" / run.run_id / "admission.json"
    if not os.path.lexists(admitted):
        out.unchecked.append("who admitted the package: the admission is advisory, the owner's own word")
        if pins.admission:
            out.add("incomplete", "admission.json", "no key signed it, and --admission-key names one")
        return
    out.unchecked.append("the service user's copy of the package; its digest is that of the package here")
    own = _admission_key(folder)
    if not pins.admission:
        out.unchecked.append(f"whose key signed the admission: {own} is the bundle's word (--admission-key)")
    elif pins.admission != own:
        out.add("tampered", "site/policy.json", f"the admission's key is {own!r:.80}, not the one given")


def artifacts_of(run: RunPaths) -> list[LeftOut]:
    """What the report of the run, or of each element of its array, lists as artifacts; damaged ones list nothing."""
    out = []
    indices = sorted(int(n) for n in os.listdir(run.array) if n.isdigit()) if run.array.is_dir() else []
    for part, prefix in [(run, ""), *((run.element(i), f"array/{i}/") for i in indices)]:
        report = read_object(part.report) or {}
        try:
            last = int(report["attempts"][-1]["attempt"])
            rows = [(str(a["path"]), int(a["size"]), str(a["sha256"])) for a in report.get("artifacts") or ()]
        except (KeyError, IndexError, TypeError, ValueError):
            continue
        out += [LeftOut(f"{prefix}attempts/{last}/out/{path}", size, sha256) for path, size, sha256 in rows]
    return out


def _log(folder: Path, run: RunPaths, manifest: Manifest, pins: Pins, out: Judgement) -> None:
    """Every proof under the log's key, and what the entries say against the records here."""
    text = pins.log or manifest.keys["log"]
    names = sorted(n for n in os.listdir(folder / LOG) if n.endswith(SUFFIX)) if (folder / LOG).is_dir() else []
    if not names:
        out.unchecked.append("that the records are old: no proof of the log is in the bundle")
        if pins.log:
            out.add("incomplete", LOG, "there is no proof, and --log-key names a log")
        return
    try:
        key = parse_verifier(text)
        note = read_bytes(folder / LOG / "checkpoint", limit=MAX_NOTE)
        head = open_checkpoint(note, key)
    except (NoteError, OSError, ValueError) as exc:
        out.add("tampered", f"{LOG}/checkpoint", str(exc))
        return
    mine = subject_of(manifest.owner, manifest.exp, manifest.run_id)
    entries = _proofs(folder, names, key, (note, head), out)
    for entry in (e for e in entries if e.fact.subject != mine):
        out.add("tampered", f"{LOG}/{entry.index}{SUFFIX}", "is about something else than this run")
    look = Reader(StorageRoot(folder), run).read()
    fresh, conflicts = changes(look, by_place(entries))
    for conflict in conflicts:
        out.add("tampered", conflict.entry.fact.path, f"{conflict.message} (entry {conflict.entry.index} of the log)")
    out.checked.append(
        f"{len(entries)} entries of the log {head.origin}, signed at {head.size} entries; {_span(entries)}"
    )
    out.unchecked.append(
        "that the log has no more about this run: who made the bundle chose its proofs (`tp runs audit` asks the log)"
    )
    if fresh:
        text = f"{len(fresh)} records are not in the log: {', '.join(f.path for f in fresh[:5])}"
        out.unchecked.append(f"the age of what is not logged: {text}")
        # Whoever leaves out a proof must not gain by it.
        if pins.log:
            out.add("incomplete", LOG, text)
    if not pins.log:
        out.unchecked.append(f"whose key signed the log: {text} is the bundle's word (--log-key)")
    _witness(head, key, pins, out)


def judge_proof(name: str, data: bytes, pins: Pins) -> Judgement:
    """Judge a proof that `tp log prove` wrote, under the log's key, which no proof brings along."""
    out = Judgement(name)
    if not pins.log:
        out.add("incomplete", name, "a proof names no key: --log-key")
        return out
    try:
        proven = check_proof(data, parse_verifier(pins.log))
    except NoteError as exc:
        out.add("tampered", name, str(exc))
        return out
    fact, head = proven.entry.fact, proven.checkpoint
    out.run = f"{fact.subject} {fact.path}"
    what = "is the head of the chain" if fact.kind == "chain" else "is the SHA-256 of the file"
    out.checked.append(f"{fact.digest} {what}, logged {proven.entry.logged_at} by the log's clock")
    out.checked.append(f"entry {proven.entry.index} of the log {head.origin}, signed at {head.size} entries")
    _witness(head, parse_verifier(pins.log), pins, out)
    return out


def _span(entries: list[Entry]) -> str:
    times = sorted(e.logged_at for e in entries)
    return f"logged {times[0]} to {times[-1]} by the log's clock" if times else "none"


def _proofs(
    folder: Path, names: list[str], key: VerifierKey, opened: tuple[bytes, Checkpoint], out: Judgement
) -> list[Entry]:
    entries = []
    for name in names:
        where = f"{LOG}/{name}"
        try:
            proven = check_proof(read_bytes(folder / where, limit=1 << 20), key, opened=opened)
        except (NoteError, OSError, ValueError) as exc:
            out.add("tampered", where, str(exc))
            continue
        if proven.checkpoint != opened[1]:
            out.add("tampered", where, "is of another head than log/checkpoint")
        entries.append(proven.entry)
    return entries


def _witness(head: Checkpoint, key: VerifierKey, pins: Pins, out: Judgement) -> None:
    if pins.witness is None:
        out.unchecked.append("that the log was not begun again: compare with a witness's checkpoint (--witness)")
        return
    try:
        seen = open_checkpoint(pins.witness, key)
    except NoteError as exc:
        out.add("tampered", "--witness", str(exc))
        return
    if seen.size != head.size:
        out.unchecked.append(
            f"the witness saw {seen.size} entries, the bundle's head has {head.size}: `tp log verify --witness` compares them"
        )
    elif seen.root != head.root:
        out.add("tampered", f"{LOG}/checkpoint", f"the witness saw another tree of {seen.size} entries")
    else:
        out.checked.append(f"the log's head, which a witness saw, too ({seen.size} entries)")
