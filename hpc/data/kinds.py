"""Data sets and volumes as kinds of the registry. Their check streams every row once and runs nothing.

Name and version come from the command, not from the bytes, so a kind is made for one push: `dataset_kind(name, version)`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tuneplane.contract.datarows import MAX_FAULTS, DataFault, DataFaults, FileFacts, count_file
from tuneplane.contract.datasets import CARD, MANIFEST, assign, check_manifest, dataset_facts, folder_files, is_data
from tuneplane.record.digest import digest_file

from hpc.errors.core import Refusal, Refusals
from hpc.registry.kinds import Checked, Kind
from hpc.registry.look import SCHEMA
from hpc.registry.records import RecordError, decode_record, read_raw
from hpc.registry.shapes import TEXTS, Named
from hpc.registry.shelf import RECORD
from hpc.registry.trees import Tick, quiet, skipped
from hpc.spec.text import segment
from hpc.store.faults import refusal

MAX_BYTES: Final = 1 << 44
MAX_FILES: Final = 100_000
_COLUMNS: Final = Named({"types": [str], "rows": int})
DATASET_FACTS: Final = {
    "manifest": {
        **dict.fromkeys(("name?", "description?", "license?", "source?", "produced_by?", "format?"), str),
        "columns?": TEXTS,
    },
    "format": str,
    "splits": Named({"files": [str], "rows": int, "size": int, "columns": _COLUMNS}),
    "rows": int,
    "columns?": _COLUMNS,
    "unassigned?": [str],
    "produced_by?": {"run_id": str, "owner?": str},
}
VOLUME_FACTS: Final = {"files": int, "card": bool}
"""What readers of a record rely on, whoever wrote it."""


def to_refusal(fault: DataFault) -> Refusal:
    return Refusal(fault.code, fault.message, field=fault.field, found=fault.found, allowed=fault.allowed)


def raise_faults(faults: DataFaults) -> None:
    """The same as refusals of the catalogue: one alone, or several at once."""
    items = [to_refusal(fault) for fault in faults.items]
    raise items[0] if len(items) == 1 else Refusals(items)


def read_manifest(folder: Path) -> dict[str, Any]:
    """dataset.yaml of a folder, {} where there is none. Raises Refusal(s) E-DATA-001, E-SPEC-00x (not YAML), E-STORE-02x."""
    from hpc.spec.yamltext import parse_yaml

    try:
        text = (folder / MANIFEST).read_text("utf-8")
    except FileNotFoundError:
        return {}
    except UnicodeDecodeError:
        raise Refusal("E-DATA-001", "is not UTF-8", field=MANIFEST) from None
    except OSError as exc:
        raise refusal(exc, folder / MANIFEST, "read") from exc
    try:
        return check_manifest(parse_yaml(text, origin=MANIFEST))
    except DataFaults as faults:
        raise_faults(faults)
        raise


class DatasetCheck:
    """The check of one push. What was counted is kept by digest: the stored bytes are hashed again, and only other bytes are counted again."""

    def __init__(
        self, name: str, version: str, produced_by: Mapping[str, Any] | None = None, tick: Tick = quiet
    ) -> None:
        self.name, self.version, self.produced_by, self.tick = name, version, produced_by, tick
        self._known: dict[str, FileFacts] = {}

    def __call__(self, folder: Path) -> Checked:
        """Raises Refusal(s) E-DATA-00x, E-STORE-02x."""
        try:
            paths = folder_files(folder, skipped)
        except OSError as exc:
            raise refusal(exc, folder, "read") from exc
        if not set(paths) - {CARD, MANIFEST}:
            raise Refusal("E-DATA-006", "holds no data", field=str(folder), allowed="JSONL, Parquet or other files")
        manifest = read_manifest(folder)
        if (named := manifest.get("name", self.name)) != self.name:
            raise Refusal("E-DATA-006", "is another name", field=f"{MANIFEST}: name", found=named, allowed=self.name)
        try:
            splits = assign([p for p in paths if p not in (CARD, MANIFEST)], manifest)
            facts = dataset_facts(paths, manifest, self._count(folder, paths), splits)
        except DataFaults as faults:
            raise_faults(faults)
            raise
        if self.produced_by:
            facts["produced_by"] = dict(self.produced_by)
        return Checked(self.name, self.version, facts)

    def _count(self, folder: Path, paths: Mapping[str, int]) -> dict[str, FileFacts]:
        out: dict[str, FileFacts] = {}
        faults: list[DataFault] = []
        for path in filter(is_data, paths):
            try:
                out[path] = self._one(path, folder / path)
                self.tick(paths[path])
            except DataFaults as several:
                faults += several.items
                if len(faults) >= MAX_FAULTS:
                    break
            except OSError as exc:
                raise refusal(exc, folder / path, "read") from exc
        if faults:
            raise DataFaults(faults[:MAX_FAULTS])
        return out

    def _one(self, name: str, path: Path) -> FileFacts:
        if self._known and (known := self._known.get(digest_file(path))):
            return known
        counted = count_file(name, path)
        self._known[counted.sha256] = counted
        return counted


class VolumeCheck:
    """The check of one push into a volume: there is something in it."""

    def __init__(self, name: str, generation: str) -> None:
        self.name, self.generation = name, generation

    def __call__(self, folder: Path) -> Checked:
        """Raises Refusal E-DATA-006, E-STORE-02x."""
        try:
            paths = folder_files(folder, skipped)
        except OSError as exc:
            raise refusal(exc, folder, "read") from exc
        if not paths:
            raise Refusal("E-DATA-006", "holds no files", field=str(folder), allowed="a folder with files")
        return Checked(self.name, self.generation, {"files": len(paths), "card": CARD in paths})


def dataset_kind(name: str, version: str, produced_by: Mapping[str, Any] | None = None, tick: Tick = quiet) -> Kind:
    """The kind of one push. Raises Refusal E-SPEC-015, E-SPEC-017 for what cannot be a name or version."""
    segment(name, "NAME")
    segment(version, "VERSION")
    check = DatasetCheck(name, version, produced_by, tick)
    return Kind("dataset", "datasets", check, MAX_BYTES, MAX_FILES, DATASET_FACTS)


def volume_kind(name: str, generation: str) -> Kind:
    segment(name, "NAME")
    return Kind("volume", "volumes", VolumeCheck(name, generation), MAX_BYTES, MAX_FILES, VOLUME_FACTS)


def _standing_dataset(content: Path) -> Checked:
    """A version that stands on the shelf: its place says who it is, its rows what it is, and only its record which run made it."""
    folder = content.parent
    try:
        made_by = decode_record(read_raw(folder / RECORD).data, SCHEMA)["facts"].get("produced_by")
    except OSError as exc:
        raise refusal(exc, folder / RECORD, "read") from exc
    except (RecordError, KeyError, AttributeError) as exc:
        raise Refusal("E-REG-012", f"is no record: {exc}", field=str(folder / RECORD)) from exc
    return DatasetCheck(folder.parent.name, folder.name, made_by)(content)


def _standing_volume(content: Path) -> Checked:
    return VolumeCheck(content.parent.parent.name, content.parent.name)(content)


_NO_PYARROW: Final = frozenset({"E-DATA-004"})
DATASET: Final = Kind("dataset", "datasets", _standing_dataset, MAX_BYTES, MAX_FILES, DATASET_FACTS, _NO_PYARROW)
"""For everything but a push: resolving, listing, auditing."""
VOLUME: Final = Kind("volume", "volumes", _standing_volume, MAX_BYTES, MAX_FILES, VOLUME_FACTS)
