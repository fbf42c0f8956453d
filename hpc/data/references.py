"""From a data set's reference in a JobSpec to the folder and the files that the job will read, by digest. Reads only.

What stands on the shelf is believed after a look at names, sizes, owners, modes and the seal. Bytes are hashed where that is bounded: up to
FULL_HASH_LIMIT at submission (by the caller's cache, so once), up to VOUCHED_LIMIT again when the job starts. Above, size, time and owner are
compared, and a file that is newer than its record is hashed whatever its size; so a job starts as fast on a terabyte as on a gigabyte.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from tuneplane.contract.datasets import VALIDATION
from tuneplane.contract.layout import StorageRoot
from tuneplane.record.digest import FileEntry, digest_file

from hpc.data.kinds import DATASET
from hpc.errors.core import Refusal
from hpc.registry.resolve import Version, resolve
from hpc.registry.shelf import RECORD, Ref
from hpc.spec.refs import parse_hub_ref
from hpc.spec.text import leaf_variable
from hpc.store.faults import refusal

if TYPE_CHECKING:
    from hpc.site.sitefile import Site

FULL_HASH_LIMIT: Final = 8 << 30
VOUCHED_LIMIT: Final = 256 << 20
MAX_FILES: Final = 4096
Digest = Callable[[str, os.stat_result], str]


def version_of(root: StorageRoot, site: Site | None, ref: str, field: str = "") -> Version:
    """The version on this platform's shelf that a reference of a spec means. Raises Refusal E-SPEC-026, E-REG-*, E-SITE-*, E-STORE-*."""
    hub = parse_hub_ref(ref, field, kind="dataset")
    return resolve(root, DATASET, Ref(hub.namespace, hub.name, hub.revision), site=site, for_new=True, field=field)


def resolve_dataset(
    root: StorageRoot, site: Site | None, ref: str, split: str, *, path: str = "", validation: bool = False, field: str = "", digest: Digest
) -> dict[str, Any]:  # fmt: skip
    """`{path, files: [{path, size, sha256, …}], dataset: {…}}` as launch.json keeps an input.

    `path` is the one file of the split, or the version's folder where there are several; files are relative to it. `dataset.dir` is always the
    folder. `validation`: without a split, the first of VALIDATION that the version has. Raises Refusal E-DATA-010 … E-DATA-012, E-REG-013 (a byte
    is not the recorded one), and as `version_of`.
    """
    version = version_of(root, site, ref, f"{field}.dataset")
    name, files = choose_files(version, split, path, validation=validation, field=field)
    content = version.content
    single = files[0].path if len(files) == 1 else ""
    try:
        rows = [_row(version, entry, "" if single else entry.path, digest, files) for entry in files]
        record = version.folder / RECORD
        facts = {
            "ref": str(version), "digest": version.digest, "digest_v2": version.digest_v2, "sealed": version.seal is not None,
            "record": {"path": str(record), "sha256": digest_file(record)}, "dir": str(content), "split": name,
            "variable": f"{leaf_variable(version.name)}_DATA_DIR", "rows": version.facts["splits"].get(name, {}).get("rows"),
            "columns": dict(version.facts["manifest"].get("columns", {})),
        }  # fmt: skip
    except OSError as exc:
        raise refusal(exc, exc.filename or content, "read") from exc
    return {"path": str(content / single) if single else str(content), "files": rows, "dataset": facts}


def choose_files(
    version: Version, split: str, path: str, *, validation: bool, field: str
) -> tuple[str, Sequence[FileEntry]]:
    """(split, its files): of the split, of the one path, or of what the source means without naming either. Pure but for the record."""
    splits: Mapping[str, Any] = version.facts["splits"]
    have = {f.path: f for f in version.files}
    if path:
        return _one_path(version, splits, have, split, path, field)
    wanted = split or _meant(splits, validation)
    if wanted not in splits:
        allowed = ", ".join(splits) or "none: give a path"
        message = (
            f"{version} has no split {split!r}" if split else f"{version} has no split that is meant without naming one"
        )
        raise Refusal("E-DATA-010", message, field=f"{field}.split", found=split, allowed=allowed)
    members = splits[wanted]["files"]
    if len(members) > MAX_FILES:
        text = f"split {wanted} of {version} has {len(members)} files"
        raise Refusal("E-DATA-012", text, field=f"{field}.dataset", found=len(members), allowed=f"at most {MAX_FILES}")
    if lost := next((m for m in members if m not in have), None):
        # The owner's record says it: facts are claims, the list of files is not.
        text = f"lists {lost!r:.200} in a split and not among its files"
        raise Refusal("E-REG-012", text, field=str(version.folder / RECORD))
    return wanted, [have[m] for m in members]


def _meant(splits: Mapping[str, Any], validation: bool) -> str:
    if validation:
        return next((name for name in VALIDATION if name in splits), "")
    return "train" if "train" in splits else next(iter(splits), "") if len(splits) == 1 else ""


def _one_path(
    version: Version, splits: Mapping[str, Any], have: Mapping[str, FileEntry], split: str, path: str, field: str
) -> tuple[str, list[FileEntry]]:
    of = next((name for name, facts in splits.items() if path in facts["files"]), "")
    if path not in have or (split and of != split):
        where = f"split {split} of {version}" if split else str(version)
        allowed = ", ".join(list(splits[split]["files"] if split in splits else have)[:10])
        raise Refusal("E-DATA-011", f"{where} has no file {path!r}", field=f"{field}.path", found=path, allowed=allowed)
    return of, [have[path]]


def _row(version: Version, entry: FileEntry, rel: str, digest: Digest, files: Sequence[FileEntry]) -> dict[str, Any]:
    """One file as the job will check it. Raises OSError, Refusal E-REG-013."""
    path = version.content / entry.path
    info = os.stat(path, follow_symlinks=False)
    total = sum(f.size for f in files)
    touched = info.st_mtime_ns > os.lstat(version.folder / RECORD).st_mtime_ns
    if total <= FULL_HASH_LIMIT or touched:
        found = digest(str(path), info)
        if found != entry.sha256:
            text = f"has other bytes: recorded {entry.sha256}, found {found}"
            raise Refusal("E-REG-013", text, field=str(path), found=found, allowed=entry.sha256)
    row: dict[str, Any] = {"path": rel, "size": entry.size, "sha256": entry.sha256}
    if total > VOUCHED_LIMIT:
        row |= {"mtime_ns": info.st_mtime_ns, "uid": info.st_uid}
    return row
