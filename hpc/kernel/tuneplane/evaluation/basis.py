"""What every evaluation stands on: its folders held alone, the digests that tell two evaluations apart, and finished ones on the same basis."""

from __future__ import annotations

import errno
import fcntl
import os
import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import tuneplane
from tuneplane.contract.evaluation import REPORT_SCHEMA
from tuneplane.evaluation import cache
from tuneplane.evaluation.loading import check_adapter, folder_digest
from tuneplane.record.canonical import pretty_bytes
from tuneplane.record.files import read_json, replace
from tuneplane.training.model import check_folder
from tuneplane.training.refusals import Reason, Refused, refuse

BASIS, LOCK = "evaluation.json", ".evaluation.lock"


def make_folders(folders: Iterable[Path]) -> None:
    """Raises Refused E-EVAL-015 for one that cannot be made."""
    for folder in folders:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as exc:
            raise refuse("E-EVAL-015", f"cannot be made: {exc.strerror}", field="out", found=os.fspath(folder)) from exc


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Hold the folder against a second evaluation, whose answers would stand twice. Raises Refused E-EVAL-014."""
    with open(folder / LOCK, "ab") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as exc:
            raise refuse("E-EVAL-014", "another evaluation is writing there", field=os.fspath(folder)) from exc
        except OSError as exc:
            if exc.errno not in (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS):  # a mount without locks: go on without
                raise
        yield


def basis_of(
    model: Path, adapter: Path | None, files: Sequence[Mapping[str, Any]], data: str, settings: str, packages: Iterable[str] = ()
) -> dict[str, Any]:  # fmt: skip
    """What answers and scores rest on; `packages` beside torch and transformers. Raises Refused for folders that hold no model or adapter."""
    check_folder(model)
    dressed = None if adapter is None else folder_digest(check_adapter(adapter))
    return {
        "schema": REPORT_SCHEMA,
        "model": folder_digest(model, files),
        "adapter": dressed,
        "data": data,
        "settings": settings,
        "versions": versions((*packages, *(("peft",) if dressed else ()))),
    }


def versions(packages: Iterable[str]) -> dict[str, str]:
    """Releases that the numbers depend on."""
    out = {"python": platform.python_version(), "tuneplane": tuneplane.__version__}
    for name in ("torch", "transformers", "tokenizers", *packages):
        try:
            out[name] = version(name)
        except PackageNotFoundError:
            out[name] = ""
    return out


def settle(folder: Path, basis: Mapping[str, Any], answers: Path) -> bool:
    """Whether `answers` of an earlier start are there, on this very basis; else the basis is written down. Raises Refused E-EVAL-013 for another."""
    mark = folder / BASIS
    try:
        before = read_json(mark)
    except FileNotFoundError:
        before = None
    except (OSError, ValueError) as exc:
        raise refuse("E-EVAL-013", f"cannot be read: {exc}", field=os.fspath(mark)) from exc
    if not answers.exists() or not answers.stat().st_size:
        replace(mark, pretty_bytes(dict(basis)))
        return False
    if before is None:
        raise refuse("E-EVAL-013", "there are predictions of nobody knows what", field=os.fspath(answers))
    if before != basis:
        raise Refused(_differences(before, basis, os.fspath(folder)))
    return True


def _differences(before: Any, basis: Mapping[str, Any], folder: str) -> list[Reason]:
    old = before if isinstance(before, dict) else {}
    keys = sorted(k for k in {*old, *basis} if old.get(k) != basis.get(k))
    return [
        Reason("E-EVAL-013", f"other {key} than in {folder}", key, str(basis.get(key)), str(old.get(key)))
        for key in keys
    ]


def earlier_report(
    shelf: cache.Shelf | None, earlier: Iterable[Path], basis: Mapping[str, Any], out: Path
) -> dict[str, Any] | None:
    """A finished evaluation on the same basis, from the shelf or from one of the folders `earlier`, its files copied into `out`."""
    places = [*([shelf.entry(basis)] if shelf else []), *earlier]
    return next((r for p in places if (r := cache.take(p, basis, out, os.getuid())) is not None), None)
