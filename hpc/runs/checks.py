"""The checks of an audit, one kind of evidence each. Every check adds findings to the case and returns what later checks compare with."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tuneplane.contract import schemas
from tuneplane.contract.layout import RunPaths
from tuneplane.record.canonical import canonical_bytes
from tuneplane.record.digest import (
    FileEntry,
    TreeError,
    digest_json,
    directory_digest_v1,
    scan_tree,
    tree_digest_v2,
    v1_files,
)
from tuneplane.record.ed25519 import verify as verify_signature
from tuneplane.record.events import Chain
from tuneplane.record.files import MAX_RECORD_BYTES

from hpc.runs.evidence import Case
from hpc.runs.trees import Sized, look_at

PACKAGE_LIST = ".tuneplane/package.json"
RECORDS = ".tuneplane/"
LARGEST_PACKAGE = 64 << 30
"""Bytes; what the site file allows at most."""


@dataclass(frozen=True)
class Package:
    """Digests that were recomputed from the bytes (in a quick audit: from the list of them); None where they could not be."""

    digest: str | None = None
    spec_digest: str | None = None
    files: tuple[FileEntry, ...] = ()


def check_events(case: Case, folder: Path, chains: dict[str, Chain]) -> None:
    """Each writer's chain in an events folder, the run that its events name, and the heads that the batch steps joined."""
    if not chains and not case.blind(folder):
        case.incomplete("events", folder, "there are no events")
    for chain in chains.values():
        path = folder / f"{chain.writer}.jsonl"
        if chain.status == "broken":
            case.tampered("events", path, f"event {chain.broken_at}: {chain.reason}")
        elif chain.status in ("legacy", "mixed"):
            case.incomplete("events", path, f"has events without a hash ({chain.status})")
        if chain.unreadable:
            case.incomplete("events", path, f"{chain.unreadable} lines cannot be read")
        for index, event in enumerate(chain.events):
            if event.get("run_id") != case.run.run_id:
                case.tampered("events", path, f"event {index} is of run {event.get('run_id')!r}")
                break
    for chain in chains.values():
        for event in chain.events:
            heads = (event.get("details") or {}).get("heads") if isinstance(event.get("details"), dict) else None
            if isinstance(heads, dict):
                _check_heads(case, folder, chains, chain.writer, heads)


def _check_heads(case: Case, folder: Path, chains: dict[str, Chain], joiner: str, heads: dict[str, Any]) -> None:
    """A chain may have grown since its head was joined; what was joined must still be in it, at its place."""
    for writer, head in heads.items():
        path = folder / f"{writer}.jsonl"
        chain = chains.get(writer)
        if chain is None:
            case.gone("heads", path, f"is gone; {joiner} joined this chain")
            continue
        hashed = [e for e in chain.events if isinstance(e.get("hash"), str)]
        if not isinstance(head, dict):
            case.tampered("heads", folder / f"{joiner}.jsonl", f"what it joined of {writer} is no head")
            continue
        known = next((i for i, e in enumerate(hashed) if e["hash"] == head.get("hash")), None)
        if known is None and head.get("hash") is not None:
            case.tampered(
                "heads", path, f"the head that {joiner} joined is not in the chain: it was cut off or rewritten"
            )
        elif isinstance(head.get("count"), int) and len(chain.events) < head["count"]:
            case.tampered("heads", path, f"{joiner} joined {head['count']} events, {len(chain.events)} are there")


def check_package(case: Case) -> Package:
    """Every file below work/ against package.json, and that list against its own digests."""
    run = case.run
    listing = case.json("package", run.package)
    if listing is None:
        case.gone("package", run.package, "the list of the package is gone")
        return Package()
    try:
        listed = {e.path: e for e in map(FileEntry.from_json, listing["files"])}
        digest = tree_digest_v2(listed.values())
    except (KeyError, TypeError, TreeError) as exc:
        case.tampered("package", run.package, f"is not a list of files: {exc}")
        return Package()
    if listing.get("digest_v2") != digest or len(listed) != len(listing["files"]):
        case.tampered("package", run.package, "the list does not have the digest that it states")
    if listing.get("run_id") != run.run_id:
        case.tampered("package", run.package, f"is of run {listing.get('run_id')!r}")
    if _check_files(case, listed) and case.deep:
        v1 = directory_digest_v1(run.work, [p for p in v1_files(run.work) if p != PACKAGE_LIST])
        if listing.get("digest_v1") != v1:
            case.tampered("package", run.package, "the v1 digest is not that of the files")
    spec = case.json("spec", run.jobspec)
    return Package(digest, digest_json(spec) if spec is not None else None, tuple(listed.values()))


def _check_files(case: Case, listed: dict[str, FileEntry]) -> bool:
    """Whether the tree is exactly the list. A tree that may not be read is no difference, only no proof."""
    work = case.run.work
    try:
        have = _tree(case, work, sum(e.size for e in listed.values()))
    except TreeError as exc:
        case.tampered("package", work, str(exc))
        return False
    except OSError as exc:
        if isinstance(exc, FileNotFoundError):
            case.tampered("package", work, "the package is gone")
        else:
            case.failed("package", Path(exc.filename or work) if os.path.isabs(str(exc.filename)) else work, exc)
        return False
    for path in sorted(listed.keys() - have.keys()):
        case.tampered("package", work / path, "is gone")
    for path in sorted(have.keys() - listed.keys()):
        case.tampered("package", work / path, "is not in the list")
    wanted = {path: _as_read(case, e) for path, e in listed.items()}
    case.listed += sum(e.size for path, e in have.items() if path in listed)
    for path in sorted(listed.keys() & have.keys()):
        if wanted[path] != have[path]:
            same = isinstance(have[path], Sized) or listed[path].sha256 == getattr(have[path], "sha256", None)
            case.tampered("package", work / path, "has another exec bit or size" if same else "was changed")
    return wanted == have


def _tree(case: Case, work: Path, size: int) -> dict[str, FileEntry | Sized]:
    """The files of a package as they are: with digests in a deep audit, else only the records. Raises TreeError, OSError, Stopped."""
    if not case.deep:
        looked = [e for e in look_at(work) if e.path != PACKAGE_LIST]
        return {e.path: _with_digest(case, work, e) if e.path.startswith(RECORDS) else e for e in looked}
    # A file that was blown up, with holes for one, is a difference without being read for hours.
    most = min(size, LARGEST_PACKAGE) + MAX_RECORD_BYTES
    found: dict[str, FileEntry | Sized] = {}
    for entry in scan_tree(work, max_bytes=most):
        case.went_on(entry.size)
        if entry.path != PACKAGE_LIST:
            found[entry.path] = entry
    return found


def _with_digest(case: Case, work: Path, seen: Sized) -> FileEntry | Sized:
    if seen.size > MAX_RECORD_BYTES:
        return seen
    return FileEntry(seen.path, seen.exec, seen.size, case.file_digest(work / seen.path))


def _as_read(case: Case, entry: FileEntry) -> FileEntry | Sized:
    """A listed file in the form in which this audit reads it."""
    return entry if case.deep or entry.path.startswith(RECORDS) else Sized.of(entry)


def check_admission(case: Case, package: Package) -> dict[str, Any] | None:
    """The admission against the package's bytes and the folder's owner; the signature where it was enforced."""
    paths = [
        p for p in (case.run.admission, case.root.admitted / case.run.run_id / "admission.json") if os.path.lexists(p)
    ]
    if not paths:
        case.incomplete("admission", case.run.admission, "there is no admission")
        return None
    path = paths[-1]
    value = case.json("admission", path)
    if value is None:
        return None
    wanted: dict[str, Any] = {
        "schema": schemas.ADMISSION, "verdict": "admitted", "run_id": case.run.run_id, "owner": case.run.owner,
        "package_digest": package.digest, "spec_digest": package.spec_digest,
    }  # fmt: skip
    for key, found in wanted.items():
        if found is not None and value.get(key) != found:
            case.tampered("admission", path, f"{key} is {value.get(key)!r}, not {found!r}")
    launch = case.json("package", case.run.launch)
    if launch is not None and value.get("kernel") != launch.get("kernel"):
        case.tampered("admission", path, "names another kernel than the package")
    _check_signature(case, path, value)
    if path != case.run.admission:
        _check_copy(case, path.parent / "work", package, str(value.get("package_digest")))
    return value


def _check_copy(case: Case, work: Path, package: Package, admitted: str) -> None:
    """The copy that the service user verified, which is what the job read; `admitted` is the digest that was signed."""
    try:
        have = _tree(case, work, sum(e.size for e in package.files))
    except TreeError as exc:
        case.tampered("admission", work, str(exc))
    except FileNotFoundError:
        case.gone("admission", work, "the admitted copy is gone")
    except OSError as exc:
        case.failed("admission", work, exc)
    else:
        if case.deep:
            same = tree_digest_v2(e for e in have.values() if isinstance(e, FileEntry)) == admitted
        else:
            same = package.digest != admitted or have == {e.path: _as_read(case, e) for e in package.files}
        if not same:
            case.tampered("admission", work, "the admitted copy was changed")


def _check_signature(case: Case, path: Path, admission: dict[str, Any]) -> None:
    mode = admission.get("mode")
    if mode == "advisory":
        return
    if mode != "enforced":
        case.tampered("admission", path, f"mode is {mode!r}")
        return
    policy = case.json("admission", case.root.site / "policy.json") or {}
    try:
        key = bytes.fromhex((policy.get("admission") or {}).get("public_key", ""))
        signature = bytes.fromhex(str(admission.get("signature", "")))
    except (ValueError, TypeError):
        key, signature = b"", b""
    if not key:
        case.incomplete("admission", path, "is enforced, but the site has no public key to check it with")
    elif not verify_signature(key, canonical_bytes({k: admission.get(k) for k in schemas.SIGNED_KEYS}), signature):
        case.tampered("admission", path, "the signature is not the site's")


def numbers_of(chains: dict[str, Chain], kind: str) -> set[int]:
    """The n of every writer `<kind>-<n>` that wrote something."""
    words = [w.rpartition("-") for w, chain in chains.items() if chain.events]
    return {int(n) for k, _, n in words if k == kind and n.isascii() and n.isdigit()}


def first_event(chains: dict[str, Chain], writer: str) -> dict[str, Any] | None:
    """Details of a writer's first event that has some."""
    chain = chains.get(writer)
    for event in chain.events if chain else ():
        if isinstance(details := event.get("details"), dict):
            return details
    return None


def expect(case: Case, check: str, path: Path, record: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Fields that must have these values; each that has not is a finding."""
    for key, value in wanted.items():
        if record.get(key) != value:
            case.tampered(check, path, f"{key} is {record.get(key)!r}, not {value!r}")


def check_submissions(case: Case, chains: dict[str, Chain], package: Package) -> None:
    """Each submission against its frozen script and its event."""
    run = case.run
    found = case.numbered("submissions", run.submissions, ".json")
    if not found and not case.blind(run.submissions):
        case.incomplete("submissions", run.submissions, "the run was never submitted")
    for stated in numbers_of(chains, "submit"):
        if stated not in found:
            case.gone("submissions", run.submissions / f"{stated}.json", "is gone; its event is there")
    for number in found:
        path = run.submissions / f"{number}.json"
        record = case.json("submissions", path)
        if record is None:
            continue
        expect(case, "submissions", path, record, {"run_id": run.run_id, "first_attempt": number})
        if package.spec_digest and "spec_digest" in record:
            expect(case, "submissions", path, record, {"spec_digest": package.spec_digest})
        _check_script(case, number, record)
        event = first_event(chains, f"submit-{number}")
        if event is None:
            if not case.blind(run.events):
                case.incomplete("submissions", run.events / f"submit-{number}.jsonl", "the submission has no event")
            continue
        for key in ("job_id", "fleet", "script_sha256"):
            if key in event and event[key] != record.get(key):
                case.tampered("submissions", path, f"{key} is {record.get(key)!r}, its event says {event[key]!r}")


def _check_script(case: Case, number: int, record: dict[str, Any]) -> None:
    script = case.run.batch / f"{number}.sh"
    if not record.get("script_sha256"):
        case.incomplete("script", script, "the submission recorded no digest of its script")
        return
    digest = case.digest("script", script)
    if digest is None:
        case.gone("script", script, "is gone")
    elif digest != record["script_sha256"]:
        case.tampered("script", script, f"was changed: recorded {record['script_sha256']}, found {digest}")


def check_owner(case: Case, parts: list[RunPaths]) -> None:
    """Every record belongs to the owner of the run folder; another user's file is not the run's word."""
    run = case.run
    try:
        uid = os.lstat(run.root).st_uid
    except OSError as exc:
        case.failed("owner", run.root, exc)
        return
    folders = {run.root, run.submissions, run.batch, *(f for p in parts for f in (p.root, p.events))}
    folders |= {p.attempt(n).root for p in parts for n in case.numbered("owner", p.attempts)}
    for folder in sorted(folders):
        for name in case.names("owner", folder):
            try:
                found = os.lstat(folder / name).st_uid
            except OSError:
                continue
            if found != uid:
                case.tampered("owner", folder / name, f"belongs to uid {found}, the run to uid {uid}")
