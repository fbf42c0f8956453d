"""Model and data files a job reads from outside its package: absolute paths, and a digest a file so that the job can check them.

A full SHA-256 up to FULL_HASH_LIMIT bytes an input; above that the record says size, mtime and owner, and the job compares those.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tuneplane.contract.layout import StorageRoot
from tuneplane.record.digest import digest_file
from tuneplane.record.files import read_object, replace_json

from hpc.errors import Refusal
from hpc.spec.refs import is_path, parse_hub_ref
from hpc.submit.hub import Pins, dataset_input, model_input

if TYPE_CHECKING:
    from hpc.site.sitefile import Site

FULL_HASH_LIMIT = 8 << 30
MAX_FILES = 4096
Digest = Callable[[str, os.stat_result], str]


class DigestCache:
    """SHA-256 by (path, size, mtime, inode), kept in the user's private state, so that a second submission does not read a model again."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[str, str] = read_object(path) or {}
        self._new = False

    def digest(self, path: str, info: os.stat_result) -> str:
        key = f"{path}\t{info.st_size}\t{info.st_mtime_ns}\t{info.st_ino}"
        if key not in self._known:
            self._known[key] = digest_file(path, follow=True)
            self._new = True
        return self._known[key]

    def save(self) -> None:
        """Keep what is new; the newest 20,000 entries."""
        if self._new and self._path.parent.is_dir():
            replace_json(self._path, dict(list(self._known.items())[-20000:]), mode=0o600)


def _files(path: str) -> list[str]:
    if not os.path.isdir(path):
        return [""]
    found = []
    for folder, subfolders, names in os.walk(path):
        subfolders.sort()
        found += [os.path.relpath(os.path.join(folder, n), path) for n in sorted(names)]
        if len(found) > MAX_FILES:
            raise Refusal(
                "E-SUBMIT-033",
                f"{path} holds more than {MAX_FILES} files",
                found=path,
                allowed=f"at most {MAX_FILES} files",
            )
    return found


def record(name: str, path: str, digest: Digest) -> dict[str, Any]:
    """`{path, files: [{path, size, sha256} | {path, size, mtime_ns, uid}]}` of a file or folder. Raises Refusal E-SUBMIT-032/033."""
    rows: list[dict[str, Any]] = []
    try:
        infos = [(rel, os.stat(os.path.join(path, rel) if rel else path)) for rel in _files(path)]
        dear = sum(i.st_size for _, i in infos) > FULL_HASH_LIMIT
        for rel, info in infos:
            if not stat.S_ISREG(info.st_mode):
                raise Refusal(
                    "E-SUBMIT-033", f"{os.path.join(path, rel)} is not a regular file", field=name, found=path
                )
            row: dict[str, Any] = {"path": rel, "size": info.st_size}
            if dear:
                row |= {"mtime_ns": info.st_mtime_ns, "uid": info.st_uid}
            else:
                row["sha256"] = digest(os.path.join(path, rel) if rel else path, info)
            rows.append(row)
    except OSError as exc:
        raise Refusal(
            "E-SUBMIT-032",
            f"{exc.filename}: {exc.strerror}",
            field=name,
            found=path,
            allowed="a readable file or folder",
        ) from exc
    if not rows:
        raise Refusal("E-SUBMIT-033", f"{path} is empty", field=name, found=path)
    return {"path": path, "files": rows}


def locate(value: str, field: str, *, experiment: Path, work_exp: str, cwd: Path) -> tuple[str, bool]:
    """(absolute path, is in the package) of a path as a user writes it: in the experiment, else from here. Raises Refusal E-SUBMIT-032."""
    expanded = os.path.expanduser(value)
    if not os.path.isabs(expanded):
        inside = experiment / expanded
        if inside.exists() and ".." not in Path(expanded).parts:
            return os.path.normpath(f"{work_exp}/{expanded}"), True
        expanded = os.path.normpath(cwd / expanded)
    if not os.path.exists(expanded):
        raise Refusal(
            "E-SUBMIT-032",
            f"{expanded} is not there",
            field=field,
            found=value,
            allowed="a file or folder on shared storage",
        )
    return os.path.realpath(expanded), False


def resolve_inputs(
    spec: Mapping[str, Any],
    *,
    root: StorageRoot,
    site: Site,
    experiment: Path,
    work_exp: str,
    cwd: Path,
    digest: Digest,
    pins: Pins,
    split: str = "train",
) -> dict[str, Any]:
    """The `inputs` of launch.json for a spec document: model, train, validation, environment; paths, and references to shelves and to hubs.

    `split`: which tasks of an environment the operation reads.
    What the experiment's lock lacks is added to `pins`. Raises Refusal E-SUBMIT-032, -033, E-DATA-01x, E-HUB-*, E-LOCK-*, E-MODEL-*, E-REG-*.
    """
    out: dict[str, Any] = {}
    base = spec["spec"].get("model", {}).get("base", "")
    if base:
        if is_path(base) or os.path.isdir(os.path.expanduser(base)):
            out["model"] = _one("spec.model.base", base, experiment, work_exp, cwd, digest)
        else:
            out["model"] = model_input(root, site, base, pins, digest)
    for name in ("train", "validation"):
        source = spec["spec"].get("data", {}).get(name) or {}
        if source.get("dataset"):
            out[name] = _dataset(name, source, root, site, digest, pins)
        elif source.get("path"):
            out[name] = _one(f"spec.data.{name}.path", source["path"], experiment, work_exp, cwd, digest)
    if ref := spec["spec"].get("data", {}).get("environment", ""):
        from hpc.plugins.environment_shelf import environment_input

        out["environment"] = environment_input(root, site, ref, split, digest)
    _refuse_shared(out)
    return out


def _dataset(
    name: str, source: Mapping[str, Any], root: StorageRoot, site: Site, digest: Digest, pins: Pins
) -> dict[str, Any]:
    field = f"spec.data.{name}"
    if parse_hub_ref(source["dataset"], f"{field}.dataset", kind="dataset").hub != "tp":
        return dataset_input(root, name, source, pins, digest)
    from hpc.data.references import resolve_dataset

    return resolve_dataset(
        root, site, source["dataset"], source.get("split", ""), path=source.get("path", ""), validation=name == "validation", field=field,
        digest=digest,
    )  # fmt: skip


def _refuse_shared(inputs: Mapping[str, Any]) -> None:
    """Where a data set is named, no file of the training split may be one of the validation split. Raises Refusal E-DATA-013."""
    train, validation = inputs.get("train", {}), inputs.get("validation", {})
    if not ("dataset" in train or "dataset" in validation):
        return
    known = {row.get("sha256"): row["path"] or train["path"] for row in train.get("files", [])}
    for row in validation.get("files", []):
        if row.get("sha256") in known and row.get("sha256"):
            text = "the same file trains and validates"
            raise Refusal("E-DATA-013", text, field="spec.data.validation", found=known[row["sha256"]])


def _one(field: str, value: str, experiment: Path, work_exp: str, cwd: Path, digest: Digest) -> dict[str, Any]:
    path, packed = locate(value, field, experiment=experiment, work_exp=work_exp, cwd=cwd)
    return {"path": path, "files": []} if packed else record(field, path, digest)
