"""Writes a run as an evidence bundle: records, package, proofs, public keys and a verifier in one archive that is the same each time.

Each file is listed from the bytes that are written. The finished archive is read back and judged as its reader will judge it, before it gets its
name. Never holds: artifacts and checkpoints, logs, the job's environment.
"""

from __future__ import annotations

import os
import secrets
import stat
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

from tuneplane.contract.layout import RunPaths, StorageRoot
from tuneplane.record.canonical import pretty_bytes
from tuneplane.record.digest import FileEntry, digest_bytes, digest_fd
from tuneplane.record.files import open_regular, read_json

from hpc.errors import Refusal
from hpc.evidence.bundle import LIST, LOG, Manifest, run_prefix
from hpc.evidence.entries import by_place, subject_of
from hpc.evidence.facts import Conflict, Reader, changes
from hpc.evidence.judge import Judgement, Pins, artifacts_of, judge
from hpc.evidence.log import Head, read_head, trusted_key
from hpc.evidence.logged import entries_about
from hpc.evidence.offline import README
from hpc.evidence.proof import SUFFIX
from hpc.evidence.ustar import ArchiveError, Member, header, read_archive, write_archive
from hpc.evidence.verifier import sources
from hpc.evidence.verify import proof_of
from hpc.runs.audit import audit
from hpc.store.faults import refusal

if TYPE_CHECKING:
    from hpc.site.sitefile import Site

_TOP: Final = ("admission.json", "report.json")
_OF_ATTEMPT: Final = ("claim", "late.json", "start.json", "end.json", "requeue.json", "out/continuity.json")
_FOLDERS: Final = (("submissions", ".json"), ("batch", ".sh"), ("events", ".jsonl"))
_CHUNK: Final = 1 << 20


@dataclass(frozen=True)
class Piece:
    """One file of the bundle: where it comes from, or its bytes."""

    path: str
    source: Path | None = None
    data: bytes = b""
    exec: bool = False


@dataclass(frozen=True)
class Plan:
    """Everything that a bundle will hold, and why it may be made: the verdict of the run's audit."""

    run: RunPaths
    manifest: Manifest
    pieces: tuple[Piece, ...]
    verdict: str
    proofs: int


def _folder(prefix: str, folder: Path, suffix: str) -> Iterator[Piece]:
    try:
        names = sorted(n for n in os.listdir(folder) if n.endswith(suffix) and not n.startswith("."))
    except FileNotFoundError:
        return
    for name in names:
        yield Piece(f"{prefix}/{name}", folder / name, exec=suffix == ".sh")


def _part(prefix: str, part: RunPaths) -> Iterator[Piece]:
    """A run's own life, or an element's: attempts, events, report."""
    try:
        numbers = sorted(n for n in os.listdir(part.attempts) if n.isdigit())
    except FileNotFoundError:
        numbers = []
    for number in numbers:
        attempt = part.attempts / number
        yield from (
            Piece(f"{prefix}/attempts/{number}/{n}", attempt / n) for n in _OF_ATTEMPT if os.path.lexists(attempt / n)
        )
        yield from _folder(f"{prefix}/attempts/{number}/nodes", attempt / "nodes", ".json")


def run_pieces(root: StorageRoot, run: RunPaths) -> Iterator[Piece]:
    """The run's records and its package. Raises OSError where something may not be read."""
    prefix = run_prefix(run)
    yield from (Piece(f"{prefix}/{n}", run.root / n) for n in _TOP if os.path.lexists(run.root / n))
    for name, suffix in _FOLDERS:
        yield from _folder(f"{prefix}/{name}", run.root / name, suffix)
    yield from _part(prefix, run)
    for index in sorted(n for n in os.listdir(run.array) if n.isdigit()) if run.array.is_dir() else []:
        part, place = run.element(int(index)), f"{prefix}/array/{index}"
        yield from _part(place, part)
        yield from _folder(f"{place}/events", part.events, ".jsonl")
        yield from _folder(f"{place}/rungs", part.rungs, ".json")
        yield from (Piece(f"{place}/report.json", p) for p in [part.report] if os.path.lexists(p))
    for folder, names, files in os.walk(run.work, onerror=_raise):
        names.sort()
        for name in sorted(files):
            path = Path(folder) / name
            mode = os.lstat(path).st_mode
            yield Piece(f"{prefix}/work/{path.relative_to(run.work).as_posix()}", path, exec=bool(mode & stat.S_IXUSR))
    admitted = root.admitted / run.run_id / "admission.json"
    if os.path.lexists(admitted):
        yield Piece(f"admitted/{run.run_id}/admission.json", admitted)
        if os.path.lexists(root.site / "policy.json"):
            yield Piece("site/policy.json", root.site / "policy.json")


def _raise(exc: OSError) -> None:
    raise exc


def _logged(root: StorageRoot, site: Site, run: RunPaths) -> tuple[list[Piece], str, list[Conflict]]:
    """(head and proofs, the log's public key, what contradicts the log); nothing where there is no log that can be trusted."""
    try:
        key = trusted_key(root, site)
        head: Head = read_head(root, key)
    except Refusal as exc:
        if exc.code in ("E-EVID-001", "E-EVID-004"):
            return [], "", []
        raise
    mine = subject_of(run.owner, run.exp, run.run_id)
    entries = entries_about(root, head, {mine})[mine]
    if not entries:
        return [], "", []
    _, conflicts = changes(Reader(root, run).read(), by_place(entries))
    proofs = [Piece(f"{LOG}/{e.index}{SUFFIX}", data=proof_of(root, head, e.index)) for e in entries]
    return [Piece(f"{LOG}/checkpoint", data=head.note), *proofs], str(key), conflicts


def plan(root: StorageRoot, site: Site, run: RunPaths, *, allow_unverified: bool) -> Plan:
    """What a bundle of the run would hold. Reads only.

    Raises Refusal E-EVID-010 (tampered), E-EVID-011 (not whole), E-EVID-012 (too large, a path too long), E-STORE-02x.
    """
    found = audit(run)
    logged, vkey, conflicts = _logged(root, site, run)
    first = next((f"{f.path}: {f.message}" for f in found.findings), "")
    if found.verdict == "tampered":
        raise Refusal("E-EVID-010", first, field=run.run_id, found="tampered")
    if conflicts:
        clash = conflicts[0]
        text = f"{clash.entry.fact.path}: {clash.message} (entry {clash.entry.index} of the log)"
        raise Refusal("E-EVID-010", text, field=run.run_id, found="tampered")
    if found.verdict != "verified" and not allow_unverified:
        raise Refusal(
            "E-EVID-011", first, field=run.run_id, found=found.verdict, allowed="verified, or --allow-unverified"
        )
    try:
        pieces = [*run_pieces(root, run), *logged]
        pieces += [Piece(path, data=data, exec=path == "verify.py") for path, data in sources().items()]
        pieces.append(Piece("README.txt", data=README.format(run=f"{run.owner}/{run.exp}/{run.run_id}").encode()))
        files = tuple(_entry(p) for p in pieces)
        for entry in files:
            header(Member(f"{run.run_id}/{entry.path}", entry.size, entry.exec))
        policy = read_json(root.site / "policy.json") if any(p.path == "site/policy.json" for p in pieces) else {}
    except (ArchiveError, ValueError) as exc:
        raise Refusal("E-EVID-012", str(exc), field=run.run_id) from exc
    except OSError as exc:
        raise refusal(exc, exc.filename or run.root, "read for the bundle") from exc
    keys = {"log": vkey, "admission": str((policy.get("admission") or {}).get("public_key", ""))}
    manifest = Manifest(run.run_id, run.owner, run.exp, found.verdict, files, tuple(artifacts_of(run)), keys)
    return Plan(run, manifest, tuple(pieces), found.verdict, sum(p.path.endswith(SUFFIX) for p in logged))


def _entry(piece: Piece) -> FileEntry:
    if piece.source is None:
        return FileEntry(piece.path, piece.exec, len(piece.data), digest_bytes(piece.data))
    with open_regular(piece.source) as stream:
        digest, size = digest_fd(stream.fileno())
    return FileEntry(piece.path, piece.exec, size, digest)


def _chunks(piece: Piece) -> Iterator[bytes]:
    if piece.source is None:
        yield piece.data
        return
    with open_regular(piece.source) as stream:
        while chunk := stream.read(_CHUNK):
            yield chunk


def write_bundle(planned: Plan, target: Path) -> Judgement:
    """Write the archive and return how its reader will judge it. Raises Refusal E-EVID-012; then nothing has the name `target`."""
    top, entries = planned.run.run_id, {f.path: f for f in planned.manifest.files}
    listing = pretty_bytes(planned.manifest.as_json())
    pieces = sorted((*planned.pieces, Piece(LIST, data=listing)), key=lambda p: p.path)
    entries[LIST] = FileEntry(LIST, False, len(listing), digest_bytes(listing))
    temp = target.with_name(f".{target.name}.{secrets.token_hex(6)}.tmp")
    try:
        with open(temp, "xb") as stream:
            write_archive(
                stream,
                ((Member(f"{top}/{p.path}", entries[p.path].size, entries[p.path].exec), _chunks(p)) for p in pieces),
            )
            stream.flush()
            os.fsync(stream.fileno())
        found = judge_archive(temp, Pins())
        if found.verdict != planned.verdict:
            first = next((f"{where}: {what}" for _, where, what in found.findings), "")
            raise Refusal(
                "E-EVID-012", f"the bundle would be judged {found.verdict}: {first}", field=top, found=found.verdict
            )
        os.link(temp, target)
    except FileExistsError as exc:
        raise Refusal("E-EVID-012", f"{target} exists already", field=str(target)) from exc
    except ArchiveError as exc:
        raise Refusal("E-EVID-012", f"the run changed meanwhile: {exc}", field=top) from exc
    except OSError as exc:
        raise refusal(exc, exc.filename or target, "write the bundle") from exc
    finally:
        with suppress(OSError):
            os.unlink(temp)
    return found


def judge_archive(path: Path, pins: Pins) -> Judgement:
    """Judge a bundle that is still an archive: unpack it into a folder of our own, judge, remove it. Raises Refusal E-EVID-013, E-STORE-02x."""
    try:
        stream = open_regular(path)
    except OSError as exc:
        raise Refusal("E-EVID-013", exc.strerror or str(exc), field=str(path)) from exc
    with stream, tempfile.TemporaryDirectory(prefix="tp-verify-") as name:
        try:
            top = _unpack(stream, Path(name))
        except ArchiveError as exc:
            out = Judgement(path.name)
            out.add("tampered", path.name, f"is not an archive as `tp export` writes it: {exc}")
            return out
        except OSError as exc:
            raise refusal(exc, name, "unpack the bundle") from exc
        return judge(Path(name) / top, pins)


def _unpack(stream: BinaryIO, folder: Path) -> str:
    """Write the archive's files below `folder`, which is new and ours alone; the name of its one top folder. Raises ArchiveError, OSError."""
    tops: set[str] = set()
    for member, chunks in read_archive(stream):
        top, slash, _ = member.path.partition("/")
        tops.add(top)
        if not slash or len(tops) > 1:
            raise ArchiveError(f"{member.path}: lies outside of the one folder that a bundle has")
        target = folder / member.path
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with open(target, "xb") as out:
                out.writelines(chunks)
        except (FileExistsError, NotADirectoryError) as exc:
            raise ArchiveError(f"{member.path}: is a file and a folder") from exc
        os.chmod(target, 0o755 if member.exec else 0o644)
    if not tops:
        raise ArchiveError("it is empty")
    return tops.pop()
