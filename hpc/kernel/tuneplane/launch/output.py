"""The data set that a run produced, put on its owner's shelf when the run succeeded: in the exact form of the registry, from the standard library.

It is done here, by the batch step that writes the attempt's end, because only the job has the owner's uid without the owner: nobody need log in
again. The same order as everywhere: copy beside the place, fsync, read back, write the record, one rename. Whatever goes wrong never changes how
the run ended; it stands in the report, and `tp dataset publish-output RUN` does it later.
"""

from __future__ import annotations

import os
import secrets
import shutil
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tuneplane import __version__
from tuneplane.contract import schemas
from tuneplane.contract.datarows import DataFault, DataFaults, count_file
from tuneplane.contract.datasets import CARD, MANIFEST, assign, check_manifest, dataset_facts, is_data
from tuneplane.contract.layout import StorageRoot
from tuneplane.record.canonical import CanonicalError, canonical_bytes, parse_json
from tuneplane.record.digest import (
    V1_SKIPPED_NAMES,
    V1_SKIPPED_PARTS,
    V1_SKIPPED_SUFFIXES,
    FileEntry,
    TreeError,
    digest_file,
    digest_json,
    directory_digest_v1,
    scan_tree,
    tree_digest_v2,
)
from tuneplane.record.files import fsync_dir, publish_dir, read_json, write_new

BYTES_PER_S: Final = 50 << 20
"""What copying and reading back manages on a slow mount; where the rest of the time limit is shorter, nothing is begun."""
SPARE_S: Final = 60


def publish_output(
    root: StorageRoot,
    output: Mapping[str, str],
    source: Path,
    made_by: Mapping[str, Any],
    *,
    now: str,
    left_s: float | None,
) -> dict[str, Any]:
    """Publish `source` as `output` says: `{ref, state: published | deferred | refused | failed, message, digest, digest_v2}`. Never raises.

    `made_by` becomes the record's source. `left_s`: seconds until the time limit, None without one. Called again it finds what it published.
    """
    out = {
        "schema": schemas.OUTPUT,
        "ref": output["ref"],
        "state": "refused",
        "message": "",
        "digest": "",
        "digest_v2": "",
    }
    final = Path(output["folder"]) / output["version"]
    temp = final.with_name(f".{final.name}.{secrets.token_hex(6)}.tmp")
    try:
        if not source.is_dir() or not any(source.iterdir()):
            return out | {"message": f"the run left nothing in {source}"}
        size = sum(os.lstat(os.path.join(f, n)).st_size for f, _, names in os.walk(source) for n in names)
        if left_s is not None and left_s < SPARE_S + size / BYTES_PER_S:
            return out | {"state": "deferred", "message": f"{left_s:.0f} s are left, too few for {size} bytes"}
        if (root.seals / "datasets" / output["owner"] / output["name"] / f"{output['version']}.json").exists():
            return out | {"message": "the version stood on the shelf once and was sealed"}
        if final.exists():
            return out | _standing(final, made_by)
        return out | _publish(output, source, final, temp, made_by, now)
    except DataFaults as faults:
        return out | {"message": "; ".join(map(str, faults.items[:5]))}
    except (DataFault, TreeError, CanonicalError) as fault:
        return out | {"message": str(fault)}
    except FileExistsError:
        return out | _standing(final, made_by)
    except Exception as exc:  # the run succeeded, whatever became of its output
        return out | {"state": "failed", "message": f"{type(exc).__name__}: {exc}"}
    finally:
        _drop(temp)


def _standing(final: Path, made_by: Mapping[str, Any]) -> dict[str, Any]:
    try:
        record = read_json(final / "record.json", limit=64 << 20)
    except FileNotFoundError:
        # NFS keeps the names of a folder for up to a minute: the server refused the name, and nobody here can say whose it is.
        return {"state": "deferred", "message": "the version exists, and this node does not see it yet"}
    if record.get("facts", {}).get("produced_by", {}).get("run_id") != made_by["run_id"]:
        return {"message": "the version exists and is another's"}
    return {"state": "published", "digest": record["digest"], "digest_v2": record["digest_v2"]}


def _publish(
    output: Mapping[str, str], source: Path, final: Path, temp: Path, made_by: Mapping[str, Any], now: str
) -> dict[str, Any]:
    os.mkdir(temp, 0o700)
    content = temp / "content"
    os.mkdir(content, 0o700)
    _copy(source, content)
    files = sorted(scan_tree(content), key=lambda e: e.path)
    if differing := _differing(source, files):
        raise TreeError(f"{differing}: is stored otherwise than it was read")
    digest, digest_v2 = directory_digest_v1(content), tree_digest_v2(files)
    record = {
        "schema": schemas.REGISTRY_RECORD, "kind": "dataset", "owner": output["owner"], "name": output["name"], "version": output["version"],
        "digest": digest, "digest_v2": digest_v2, "size": sum(f.size for f in files), "files": [f.as_json() for f in files],
        "facts": _facts(content, files, output["name"]) | {"produced_by": dict(made_by)},
        "published": {
            "method": "run", "actor": made_by["owner"], "uid": os.geteuid(), "at": now, "archive_sha256": "", "core_version": __version__,
        },
        "starts": "enabled",
    }  # fmt: skip
    record["record_digest"] = digest_json(record)
    write_new(temp / "record.json", canonical_bytes(record), mode=0o444)
    os.chmod(temp, 0o555)
    fsync_dir(temp)
    publish_dir(temp, final)
    return {"state": "published", "digest": digest, "digest_v2": digest_v2}


def _facts(content: Path, files: list[FileEntry], name: str) -> dict[str, Any]:
    paths = {f.path: f.size for f in files}
    if not paths.keys() - {CARD, MANIFEST}:
        raise DataFault("E-DATA-006", "holds no data", field=str(content))
    manifest: dict[str, Any] = {}
    if MANIFEST in paths:
        try:
            value = parse_json((content / MANIFEST).read_bytes())
        except CanonicalError as exc:
            raise DataFault("E-DATA-001", f"a job writes it as JSON, which is YAML: {exc}", field=MANIFEST) from exc
        manifest = check_manifest(value)
    if manifest.get("name", name) != name:
        raise DataFault(
            "E-DATA-006", "is another name", field=f"{MANIFEST}: name", found=manifest["name"], allowed=name
        )
    splits = assign([p for p in paths if p not in (CARD, MANIFEST)], manifest)
    counted = {p: count_file(p, content / p) for p in paths if is_data(p)}
    return dataset_facts(paths, manifest, counted, splits)


def _skipped(name: str) -> bool:
    return name in V1_SKIPPED_PARTS or name in V1_SKIPPED_NAMES or name.endswith(V1_SKIPPED_SUFFIXES)


def _copy(source: Path, target: Path) -> None:
    """Every regular file, 0444 or 0555 and fsynced; links and special files are refused. Raises TreeError, OSError."""
    for entry in sorted(os.scandir(source), key=lambda e: e.name):
        if _skipped(entry.name):
            continue
        there = target / entry.name
        if entry.is_dir(follow_symlinks=False):
            os.mkdir(there, 0o700)
            _copy(Path(entry.path), there)
        elif entry.is_file(follow_symlinks=False):
            _copy_file(entry.path, there, bool(entry.stat(follow_symlinks=False).st_mode & stat.S_IXUSR))
        else:
            raise TreeError(f"{entry.path}: {'a link' if entry.is_symlink() else 'not a regular file'}")
    os.chmod(target, 0o555)
    fsync_dir(target)


def _copy_file(source: str, target: Path, executable: bool) -> None:
    with open(source, "rb") as reader, open(target, "xb") as writer:
        shutil.copyfileobj(reader, writer, 1 << 20)
        writer.flush()
        os.fchmod(writer.fileno(), 0o555 if executable else 0o444)
        os.fsync(writer.fileno())


def _differing(source: Path, files: list[FileEntry]) -> str:
    """The first file whose stored bytes are not the source's, or "". Both are read: what the page cache holds is not asked what was meant."""
    return next((f.path for f in files if digest_file(source / f.path) != f.sha256), "")


def _drop(temp: Path) -> None:
    for folder, _, _ in os.walk(temp):
        try:
            os.chmod(folder, 0o700)
        except OSError:
            pass
    shutil.rmtree(temp, ignore_errors=True)
