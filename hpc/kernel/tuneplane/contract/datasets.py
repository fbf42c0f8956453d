"""What a folder is as a data set: its splits, and what streaming its rows once tells. Standard library only; nothing of it is run.

    dataset.yaml   optional: schema tuneplane/dataset/v1, name, splits {train: [globs], …}, format, columns, license, description, source
    README.md      optional: the card
    *.jsonl, *.parquet and anything else; without `splits` a file's split is the first word of its path that names one

Both rooms need this: the login node for `tp dataset push`, a job for the data set that it produced.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from tuneplane.contract.datarows import MAX_FAULTS, DataFault, DataFaults, FileFacts, join_columns

SCHEMA: Final = "tuneplane/dataset/v1"
MANIFEST: Final = "dataset.yaml"
CARD: Final = "README.md"
DATA_SUFFIXES: Final = (".jsonl", ".parquet")
WORDS: Final = {
    "train": "train", "training": "train", "validation": "validation", "valid": "validation", "val": "validation", "dev": "validation",
    "eval": "eval", "evaluation": "eval", "test": "test", "testing": "test",
}  # fmt: skip
"""Words in a path that name its split, as on the Hugging Face hub; `eval` and `test` keep their own names."""
VALIDATION: Final = ("validation", "eval", "test")
"""The splits that a validation source means without naming one, in this order."""
ROLES: Final = ("messages", "input", "output", "prompt", "completion", "chosen", "rejected", "label")
FORMATS: Final = ("jsonl", "parquet", "mixed", "files")
_KEYS: Final = ("schema", "name", "splits", "format", "columns", "license", "description", "source", "produced_by")
_TEXTS: Final = ("name", "format", "license", "description", "source", "produced_by")
_SPLIT: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def check_manifest(value: Any) -> dict[str, Any]:
    """A parsed dataset.yaml without empty values. Raises DataFaults E-DATA-001, everything at once."""
    if not isinstance(value, dict):
        raise DataFaults([DataFault("E-DATA-001", "is no mapping", field=MANIFEST)])
    faults = [
        DataFault("E-DATA-001", f"unknown key {str(key)[:80]!r}", field=f"{MANIFEST}: {str(key)[:80]}", allowed=", ".join(_KEYS))
        for key in value
        if key not in _KEYS
    ]  # fmt: skip
    if value.get("schema") != SCHEMA:
        found = str(value.get("schema"))[:80]
        faults.append(
            DataFault("E-DATA-001", "another schema", field=f"{MANIFEST}: schema", found=found, allowed=SCHEMA)
        )
    for key in _TEXTS:
        if not isinstance(value.get(key, ""), str):
            faults.append(DataFault("E-DATA-001", "is no text", field=f"{MANIFEST}: {key}", allowed="text"))
    if value.get("format", "") not in ("", *FORMATS):
        faults.append(
            DataFault(
                "E-DATA-001", "no such format", field=f"{MANIFEST}: format", found=str(value["format"])[:80], allowed=", ".join(FORMATS)
            )
        )  # fmt: skip
    faults += _split_faults(value.get("splits", {})) + _column_faults(value.get("columns", {}))
    if faults:
        raise DataFaults(faults)
    return {key: value[key] for key in _KEYS if value.get(key) not in (None, "", {}, [])}


def _split_faults(splits: Any) -> list[DataFault]:
    field = f"{MANIFEST}: splits"
    if not isinstance(splits, dict):
        return [DataFault("E-DATA-001", "is no mapping", field=field, allowed="{train: [globs], eval: [globs]}")]
    out = []
    for name, globs in splits.items():
        if not isinstance(name, str) or not _SPLIT.fullmatch(name):
            out.append(
                DataFault(
                    "E-DATA-001",
                    "is no name of a split",
                    field=field,
                    found=str(name)[:80],
                    allowed="letters, digits, . _ -",
                )
            )
        elif not isinstance(globs, list) or not globs or not all(isinstance(g, str) and _plain(g) for g in globs):
            out.append(
                DataFault(
                    "E-DATA-001", "is no list of relative globs", field=f"{field}.{name}", allowed="[train/*.jsonl]"
                )
            )
    return out


def _plain(glob: str) -> bool:
    return bool(glob) and not glob.startswith("/") and all(part not in ("", ".", "..") for part in glob.split("/"))


def _column_faults(columns: Any) -> list[DataFault]:
    field = f"{MANIFEST}: columns"
    if not isinstance(columns, dict):
        return [DataFault("E-DATA-001", "is no mapping", field=field, allowed="{input: question, output: answer}")]
    return [
        DataFault(
            "E-DATA-001",
            "no such role, or its column is no text",
            field=field,
            found=str(role)[:80],
            allowed=", ".join(ROLES),
        )
        for role, column in columns.items()
        if role not in ROLES or not isinstance(column, str) or not column
    ]


def glob_pattern(glob: str) -> re.Pattern[str]:
    """A glob over whole relative paths: `*` and `?` stay within one name, `**` goes through folders."""
    out = ""
    for token in re.split(r"(\*\*/|\*\*|\*|\?)", glob):
        out += {"**/": "(?:[^/]+/)*", "**": ".*", "*": "[^/]*", "?": "[^/]"}.get(token, re.escape(token))
    return re.compile(out, re.DOTALL)


def is_data(path: str) -> bool:
    """True for a file whose rows can be counted."""
    return path.endswith(DATA_SUFFIXES)


def word_split(path: str) -> str:
    """The split that the words of a path name, or "". Pure."""
    words = re.split(r"[^A-Za-z]+", path.rpartition(".")[0].lower())
    return next((WORDS[word] for word in words if word in WORDS), "")


def assign(paths: Sequence[str], manifest: Mapping[str, Any]) -> dict[str, list[str]]:
    """Files of each split, sorted. Raises DataFaults E-DATA-002: a glob that meets nothing, a file in two splits.

    Without `splits` data files go by the words of their paths, and where no path names one, all of them are `train`. Pure.
    """
    if declared := manifest.get("splits"):
        return _declared(sorted(paths), declared)
    out: dict[str, list[str]] = {}
    data = sorted(p for p in paths if is_data(p))
    for path in data:
        if name := word_split(path):
            out.setdefault(name, []).append(path)
    return out or ({"train": data} if data else {})


def _declared(paths: Sequence[str], declared: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    out: dict[str, list[str]] = {}
    taken: dict[str, str] = {}
    faults = []
    for name, globs in declared.items():
        out[name] = []
        for glob in globs:
            pattern = glob_pattern(glob)
            hits = [p for p in paths if pattern.fullmatch(p)]
            if not hits:
                field = f"{MANIFEST}: splits.{name}"
                faults.append(
                    DataFault(
                        "E-DATA-002",
                        "no file is met by the glob",
                        field=field,
                        found=glob[:200],
                        allowed=", ".join(paths[:10]),
                    )
                )
            for path in hits:
                if (other := taken.setdefault(path, name)) != name:
                    faults.append(
                        DataFault(
                            "E-DATA-002", f"is in the splits {other} and {name}", field=path, allowed="one split a file"
                        )
                    )
                elif path not in out[name]:
                    out[name].append(path)
    if faults:
        raise DataFaults(faults[:MAX_FAULTS])
    return {name: sorted(found) for name, found in out.items()}


def dataset_facts(
    paths: Mapping[str, int],
    manifest: Mapping[str, Any],
    files: Mapping[str, FileFacts],
    splits: Mapping[str, Sequence[str]],
) -> dict[str, Any]:
    """What a record keeps of a data set, from what was counted. Raises DataFaults E-DATA-002, E-DATA-005. Pure."""
    faults = []
    told: dict[str, Any] = {}
    for name, members in splits.items():
        counted = [files[p] for p in members if p in files]
        rows = sum(f.rows for f in counted)
        if counted and not rows:
            faults.append(DataFault("E-DATA-002", "has no rows", field=f"split {name}"))
        columns = join_columns([f.columns for f in counted])
        told[name] = {
            "files": list(members), "rows": rows, "size": sum(paths[p] for p in members), "columns": columns,
        }  # fmt: skip
        for role, column in manifest.get("columns", {}).items():
            if counted and column not in columns:
                allowed = ", ".join(list(columns)[:20]) or "none"
                faults.append(
                    DataFault("E-DATA-005", f"split {name} has no column {column!r}", field=f"{MANIFEST}: columns.{role}", found=column,
                              allowed=allowed)
                )  # fmt: skip
    data = sorted({p.rpartition(".")[2] for p in files})
    form = data[0] if len(data) == 1 else "mixed" if data else "files"
    if manifest.get("format", form) != form:
        faults.append(
            DataFault(
                "E-DATA-001",
                "the files say otherwise",
                field=f"{MANIFEST}: format",
                found=manifest["format"],
                allowed=form,
            )
        )
    if faults:
        raise DataFaults(faults[:MAX_FAULTS])
    placed = {p for members in splits.values() for p in members}
    return {
        "manifest": dict(manifest), "format": form, "splits": told, "rows": sum(f.rows for f in files.values()), "card": CARD in paths,
        "columns": join_columns([f.columns for f in files.values()]), "unassigned": sorted(p for p in files if p not in placed)[:100],
    }  # fmt: skip


def folder_files(folder: str | os.PathLike[str], skipped: Callable[[str], bool] = lambda name: False) -> dict[str, int]:
    """Relative path and size of every regular file; links and what is `skipped` by name are left out. Raises OSError."""
    out: dict[str, int] = {}
    base = os.fspath(folder)

    def stop(exc: OSError) -> None:
        raise exc

    for here, folders, names in os.walk(base, onerror=stop):
        folders[:] = sorted(f for f in folders if not skipped(f))
        for name in names:
            full = os.path.join(here, name)
            if not skipped(name) and not os.path.islink(full) and os.path.isfile(full):
                out[os.path.relpath(full, base)] = os.path.getsize(full)
    return dict(sorted(out.items()))
