"""`tp.lock.json` beside an experiment: which commit, and which bytes, each input from outside is; and which image ran them.

    {schema, inputs: {model | train | validation | …: {hub, type, repo, requested, commit, files: {path: digest}}}, runtime: {runtime_id, sif}}

Prefetching an experiment writes it, the first submission completes it, a dry run never touches it. Digests are the hub's own (`sha256:` of LFS
files, `git-sha1:` of small ones), so that anybody can compare them. Commit the file: it is what makes a second run the same run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tuneplane.record.canonical import CanonicalError, parse_json, pretty_bytes
from tuneplane.record.digest import is_digest, is_relative
from tuneplane.record.files import read_bytes
from tuneplane.record.files import replace as replace_file

from hpc.data.hub_names import MAIN, Repo, is_commit, is_content_digest
from hpc.errors.core import Refusal
from hpc.store.faults import refusal

LOCK_NAME = "tp.lock.json"
SCHEMA = "tuneplane-hpc/inputs-lock/v1"
_ENTRY = {"hub", "type", "repo", "requested", "commit", "files"}


@dataclass(frozen=True)
class Entry:
    """One input: a repository of a hub at one commit, and the digest of each file. `hub` is `hf`, or `tp` for a version of this platform."""

    hub: str
    type: str
    repo: str
    requested: str
    commit: str
    files: Mapping[str, str]

    def as_json(self) -> dict[str, Any]:
        return {**vars(self), "files": dict(sorted(self.files.items()))}


@dataclass(frozen=True)
class Lock:
    """The whole file; empty where there is none."""

    inputs: Mapping[str, Entry] = field(default_factory=dict)
    runtime: Mapping[str, str] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        out: dict[str, Any] = {"schema": SCHEMA, "inputs": {k: self.inputs[k].as_json() for k in sorted(self.inputs)}}
        return {**out, "runtime": dict(self.runtime)} if self.runtime else out

    def completed(self, entries: Mapping[str, Entry], runtime: Mapping[str, str]) -> Lock:
        """With what it lacks; nothing that it says is changed."""
        return Lock({**entries, **self.inputs}, self.runtime or runtime)


def accept_command(exp: str, kind: str = "model") -> str:
    """The command that takes a change into the lock."""
    return f"tp {kind} prefetch {exp} --accept"


def read_lock(folder: Path) -> Lock:
    """The lock of an experiment's folder. Raises Refusal E-LOCK-001 for a file that is none."""
    path = folder / LOCK_NAME
    try:
        data = read_bytes(path, limit=16 << 20)
    except FileNotFoundError:
        return Lock()
    except OSError as exc:
        raise refusal(exc, path, "read") from exc
    except ValueError as exc:
        raise Refusal("E-LOCK-001", str(exc), field=str(path)) from exc
    try:
        return _parse(parse_json(data))
    except (CanonicalError, ValueError, KeyError, TypeError, AttributeError) as exc:
        raise Refusal("E-LOCK-001", f"is not understood: {exc}"[:200], field=str(path)) from exc


def _parse(value: Any) -> Lock:
    if value["schema"] != SCHEMA or set(value) - {"schema", "inputs", "runtime"}:
        raise ValueError(f"not {SCHEMA}")
    runtime = value.get("runtime", {})
    if runtime and (set(runtime) != {"runtime_id", "sif"} or not is_digest(runtime["sif"])):
        raise ValueError("runtime")
    return Lock({role: _entry(role, row) for role, row in value["inputs"].items()}, runtime)


def _entry(role: str, row: Any) -> Entry:
    if set(row) != _ENTRY or not all(isinstance(row[k], str) for k in _ENTRY - {"files"}):
        raise ValueError(f"inputs.{role}")
    if row["hub"] == "hf" and not is_commit(row["commit"]):
        raise ValueError(f"inputs.{role}.commit")
    for path, digest in row["files"].items():
        if not is_relative(path) or not is_content_digest(digest):
            raise ValueError(f"inputs.{role}.files: {path}")
    return Entry(**row)


def write_lock(folder: Path, lock: Lock) -> bool:
    """Write the lock if it differs from what is there; True if it was written. Raises Refusal E-STORE-02x."""
    path, data = folder / LOCK_NAME, pretty_bytes(lock.as_json())
    try:
        if path.exists() and path.read_bytes() == data:
            return False
        replace_file(path, data)
    except OSError as exc:
        raise refusal(exc, path, "write") from exc
    return True


def locked_commit(lock: Lock, role: str, repo: Repo, revision: str, *, field: str, accept: str) -> str:
    """The commit that the lock gives this input, "" where it has none.

    Raises Refusal E-LOCK-002 (another repository), E-LOCK-003 (another revision) with the command that accepts it.
    """
    entry = lock.inputs.get(role)
    if entry is None:
        return ""
    if (entry.hub, entry.type, entry.repo) != ("hf", repo.type, repo.id):
        found, allowed = str(repo), f"{entry.hub}:{entry.repo}"
        text = f"{role} is locked to {allowed}"
        raise Refusal("E-LOCK-002", text, field=field, found=found, allowed=allowed, hint=f"run: {accept}")
    same = revision == entry.commit if is_commit(revision) else (revision or MAIN) in (entry.requested, entry.commit)
    # A lock made from a pin holds for an unpinned reference, too: it says more.
    if not same and not (not revision and is_commit(entry.requested)):
        text = f"{role} is locked to {entry.commit} ({entry.requested})"
        raise Refusal(
            "E-LOCK-003", text, field=field, found=revision or MAIN, allowed=entry.commit, hint=f"run: {accept}"
        )
    return entry.commit


def runtime_refusal(lock: Lock, runtime_id: str, sif: str, *, accept: str) -> Refusal | None:
    """Refusal E-LOCK-007 where the image is another than the locked one; None where it is not, or where either is unknown."""
    if not lock.runtime or not sif or lock.runtime["sif"] == sif:
        return None
    text = f"the lock names the image of {lock.runtime['runtime_id']}"
    field = f"{LOCK_NAME}: runtime.sif"
    return Refusal("E-LOCK-007", text, field=field, found=sif, allowed=lock.runtime["sif"], hint=f"run: {accept}")
