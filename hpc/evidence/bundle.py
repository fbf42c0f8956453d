"""What an evidence bundle is: one folder in one archive, with a list of every file in it. Standard library only.

    <run_id>/verify.py  README.txt  bundle.json
    <run_id>/runs/<owner>/<exp>/<run_id>/…        the run's records and its package, as they lie in a storage root
    <run_id>/admitted/<run_id>/admission.json     the service user's admission, where there is one
    <run_id>/site/policy.json                     the key that signed it
    <run_id>/log/checkpoint  <index>.tlog-proof   the log's signed head, and a proof for every entry about the run
    <run_id>/verifier/…                           the sources that verify.py runs

bundle.json is signed by nobody. What ties a bundle to anything outside is the log's signature and the admission's, under keys that the reader has
from elsewhere.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tuneplane.contract.layout import RunPaths, StorageRoot
from tuneplane.record.canonical import parse_json, pretty_bytes
from tuneplane.record.digest import FileEntry, TreeError, is_digest, is_relative
from tuneplane.record.files import read_bytes

SCHEMA: Final = "tuneplane-hpc/evidence/v1"
LIST: Final = "bundle.json"
VERIFIER: Final = "verifier"
LOG: Final = "log"
NOT_TAKEN: Final = (
    "artifacts, checkpoints and other output (digests only)",
    "logs of ranks, nodes and the batch script",
    "attempts/*/env.json: the job's environment, which is the owner's alone",
)
"""What never enters a bundle, as it is told."""


class BundleError(ValueError):
    """The folder is no bundle; the message says why."""


@dataclass(frozen=True)
class LeftOut:
    """An artifact that the report lists and the bundle does not hold: path relative to the run, size in bytes, SHA-256."""

    path: str
    size: int
    sha256: str

    def as_json(self) -> dict[str, Any]:
        return {"path": self.path, "size": self.size, "sha256": self.sha256}


@dataclass(frozen=True)
class Manifest:
    """bundle.json. `keys`: public keys as they stood at export, by `log` and `admission` ("" for none)."""

    run_id: str
    owner: str
    exp: str
    exported_as: str
    files: tuple[FileEntry, ...]
    left_out: tuple[LeftOut, ...]
    keys: dict[str, str]

    def as_json(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA, "run_id": self.run_id, "owner": self.owner, "exp": self.exp, "exported_as": self.exported_as,
            "files": [f.as_json() for f in sorted(self.files, key=lambda f: f.path)],
            "left_out": {"artifacts": [a.as_json() for a in self.left_out], "never": list(NOT_TAKEN)},
            "keys": self.keys,
        }  # fmt: skip


def run_of(folder: Path, manifest: Manifest) -> RunPaths:
    """The run's folder inside of an unpacked bundle."""
    return StorageRoot(folder).run(manifest.owner, manifest.exp, manifest.run_id)


def run_prefix(run: RunPaths) -> str:
    """Where a run's files lie in its bundle."""
    return f"runs/{run.owner}/{run.exp}/{run.run_id}"


def read_manifest(folder: Path) -> Manifest:
    """Read bundle.json of an unpacked bundle. Raises BundleError for anything but the bytes that an export writes, OSError."""
    try:
        data = read_bytes(folder / LIST)
        value = parse_json(data)
        if value["schema"] != SCHEMA:
            raise BundleError(f"{LIST} has schema {value['schema']!r:.80}, not {SCHEMA}")
        names = [value[k] for k in ("run_id", "owner", "exp")]
        if not all(isinstance(n, str) and is_relative(n) and "/" not in n for n in names):
            raise BundleError(f"{LIST} names no run")
        files = tuple(map(FileEntry.from_json, value["files"]))
        left = tuple(LeftOut(a["path"], a["size"], a["sha256"]) for a in value["left_out"]["artifacts"])
        keys = {k: value["keys"][k] for k in ("log", "admission")}
        shapes = all(is_relative(a.path) and is_digest(a.sha256) for a in left) and all(
            isinstance(k, str) for k in keys.values()
        )
        manifest = Manifest(names[0], names[1], names[2], str(value["exported_as"]), files, left, keys)
    except BundleError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, TreeError) as exc:
        raise BundleError(f"{LIST} cannot be used: {exc}"[:300]) from exc
    if not shapes or pretty_bytes(manifest.as_json()) != data:
        raise BundleError(f"{LIST} is not as an export writes it")
    return manifest


def files_of(folder: Path) -> set[str]:
    """Paths of everything in a folder that is no folder, links among them."""
    out = set()
    for parent, names, files in os.walk(folder):
        links = [n for n in names if os.path.islink(os.path.join(parent, n))]
        out |= {os.path.relpath(os.path.join(parent, n), folder).replace(os.sep, "/") for n in (*files, *links)}
    return out
