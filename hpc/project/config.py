"""config.yaml: `defaults:` first, in their order, then the file's own keys.

`defaults:` is one path or a list of paths, relative to the file that names them, inside the project. Sections merge key by key, lists and
values replace; a section with `_override_: true` replaces the whole section instead. What comes out is plain JSON: nothing of YAML, and no
reference to another file, enters a package.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tuneplane.record.files import read_bytes

from hpc.errors import Refusal, Refusals
from hpc.project.project import MAX_FILE_BYTES, find_root, read_yaml
from hpc.spec.text import control_character, visible

CONFIG_NAME = "config.yaml"
OVERRIDE = "_override_"
MAX_FILES = 64
_WORDS: dict[type, str] = {dict: "a mapping", list: "a list", str: "text"}
_SHAPES: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("data", "eval", "slurm", "lifecycle", "labels", "resources", "framework"), (dict,)),
    **dict.fromkeys(("model.peft", "data.quality", "resources.network"), (dict,)),
    **dict.fromkeys(("model", "data.train", "data.validation"), (dict, str)),
    "data.volumes": (list, str),
    "resources.leases": (list,),
    "display_name": (str,),
}
"""Sections that describe the job, and what they may be besides null; everything finer is the JobSpec's question."""


def load_config(folder: Path) -> dict[str, Any]:
    """The merged config of an experiment folder; {} where it has none.

    Raises Refusal E-PROJECT-010 … 014, or E-SPEC-00x for a file that is no YAML; the field names the file. Raises Refusals
    E-PROJECT-017 for sections of the job that have the wrong shape.
    """
    root = find_root(folder) or folder
    if not os.path.lexists(folder / CONFIG_NAME):
        return {}
    config = _Loader(Path(os.path.realpath(root))).load(Path(os.path.realpath(folder)) / CONFIG_NAME, ())
    if faults := list(_shape_faults(config)):
        raise Refusals(faults)
    return config


def _shape_faults(config: dict[str, Any]) -> Iterator[Refusal]:
    for path, types in _SHAPES.items():
        value: Any = config
        for part in path.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        if value is not None and not isinstance(value, types):
            allowed = " or ".join(_WORDS[t] for t in types)
            found = _WORDS.get(type(value), type(value).__name__)
            message = f"{path} must be {allowed}"
            yield Refusal("E-PROJECT-017", message, field=f"{CONFIG_NAME}: {path}", found=found, allowed=allowed)


def config_sha(folder: Path) -> str:
    """The first 12 hexadecimal digits of the SHA-256 of config.yaml itself, or `none`: `provenance.config_sha`."""
    try:
        return hashlib.sha256(read_bytes(folder / CONFIG_NAME, limit=MAX_FILE_BYTES)).hexdigest()[:12]
    except FileNotFoundError:
        return "none"


class _Loader:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.files = 0

    def load(self, path: Path, chain: tuple[Path, ...]) -> dict[str, Any]:
        origin = path.relative_to(self.root).as_posix()
        self.files += 1
        if self.files > MAX_FILES:
            raise Refusal("E-PROJECT-011", "too many files", field=origin, allowed=f"at most {MAX_FILES} files in all")
        value = read_yaml(path, origin, "E-PROJECT-010")
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise Refusal("E-PROJECT-010", "is no mapping", field=origin, allowed="keys and values")
        entries = value.pop("defaults", [])
        merged: dict[str, Any] = {}
        for entry in [entries] if isinstance(entries, str) else entries if isinstance(entries, list) else [None]:
            target = self.target(entry, path, origin)
            if target in (*chain, path):
                names = [p.relative_to(self.root).as_posix() for p in (*chain, path, target)]
                message = f"{' → '.join(names[names.index(names[-1]) :])} goes in a circle"
                raise Refusal("E-PROJECT-013", message, field=f"{origin}: defaults", found=visible(str(entry)))
            merged = merge(merged, self.load(target, (*chain, path)), origin)
        return merge(merged, value, origin)

    def target(self, entry: Any, path: Path, origin: str) -> Path:
        """The file that an entry names. Raises Refusal E-PROJECT-011, 012."""
        field = f"{origin}: defaults"

        def no(code: str, message: str) -> Refusal:
            found = visible(entry) if isinstance(entry, str) else entry
            return Refusal(
                code, message, field=field, found=found, allowed="a path relative to this file, inside the project"
            )

        if not isinstance(entry, str) or not entry.strip():
            raise no("E-PROJECT-011", "is neither a path nor a list of paths")
        if refusal := control_character(entry, field):
            raise refusal
        if entry.startswith(("/", "~")):
            raise no("E-PROJECT-011", "is not relative")
        named = Path(os.path.normpath(path.parent / entry))
        target = Path(os.path.realpath(named))
        if not (named.is_relative_to(self.root) and target.is_relative_to(self.root)):
            raise no("E-PROJECT-011", "leads out of the project")
        if not target.is_file():
            raise no("E-PROJECT-012", "there is no such file")
        return target


def merge(base: dict[str, Any], own: dict[str, Any], origin: str = "") -> dict[str, Any]:
    """`own` over `base`. Raises Refusal E-PROJECT-014 when a marker is neither true nor false."""
    marker = own.get(OVERRIDE, False)
    if not isinstance(marker, bool):
        field = f"{origin}: {OVERRIDE}"
        raise Refusal(
            "E-PROJECT-014", "is neither true nor false", field=field, found=str(marker), allowed="true or false"
        )
    out = {} if marker else dict(base)
    for key, value in own.items():
        if isinstance(value, dict):
            under = out.get(key)
            out[key] = merge(under if isinstance(under, dict) else {}, value, origin)
        elif key != OVERRIDE:
            out[key] = value
    return out
