"""Certified base models: which commit of a hub's model this site stands behind, what its configuration must say, how much memory it takes.

`site/models.yaml` belongs to the admins and is laid over the table that ships here; an entry of `null` takes a shipped one away. Any other model
needs a pinned commit (in the reference or in the lock), weights as safetensors, and none of its own code is ever run.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tuneplane.contract.layout import StorageRoot
from tuneplane.record.files import read_bytes, read_json

from hpc.data.hub_names import MAIN, is_commit
from hpc.errors.core import Refusal
from hpc.site.trust import require_admin_owned
from hpc.store.faults import refusal

if TYPE_CHECKING:
    from hpc.site.sitefile import Site

FILE_NAME = "models.yaml"
SCHEMA = "tuneplane-hpc/models/v1"
ALL_LINEAR = "all-linear"
MAX_BYTES = 1 << 20


@dataclass(frozen=True)
class CertifiedModel:
    """One entry. `architecture`: values of config.json; `memory_gib`: disk, infer, train; `lora_targets`: module names or `all-linear`."""

    id: str
    revision: str
    architecture: Mapping[str, Any] = field(default_factory=dict)
    lora_targets: str | tuple[str, ...] = ALL_LINEAR
    memory_gib: Mapping[str, float] = field(default_factory=dict)
    max_seq_length: int = 0
    learning_rate: float = 0.0
    origin: str = "shipped"

    def as_json(self) -> dict[str, Any]:
        targets = self.lora_targets if isinstance(self.lora_targets, str) else list(self.lora_targets)
        numbers = {"memory_gib": dict(self.memory_gib), "learning_rate": self.learning_rate}
        return {**vars(self), "architecture": dict(self.architecture), "lora_targets": targets, **numbers}


SHIPPED = (
    CertifiedModel(
        "Qwen/Qwen3.5-2B",
        "15852e8c16360a2fea060d615a32b45270f8a8fc",
        memory_gib={"disk": 8, "infer": 8, "train": 16},
        max_seq_length=2048,
        learning_rate=1e-5,
    ),
    CertifiedModel(
        "nvidia/NVIDIA-Nemotron-3.5-Lightning-30B-A3B-BF16",
        "ce38b6ab8b252b4b8ee7165b4605e93191cafd73",
        lora_targets=("q_proj", "k_proj", "v_proj", "o_proj", "in_proj"),
        memory_gib={"disk": 80, "infer": 80, "train": 96},
        max_seq_length=1024,
        learning_rate=1e-5,
    ),
    CertifiedModel(
        "meta-models/Muse-Glimmer-30B",
        "a4e59da52a7bc87ae7251dd5545c0dd437c44b68",
        memory_gib={"disk": 80, "infer": 80, "train": 96},
        max_seq_length=2048,
        learning_rate=1e-5,
    ),
)


@dataclass(frozen=True)
class Certified:
    """The table in force, by lower-case id."""

    models: Mapping[str, CertifiedModel]

    @classmethod
    def load(cls, root: StorageRoot, *, site: Site | None = None) -> Certified:
        """Raises Refusal E-MODEL-001 (the file is not right), E-SITE-01x (others could have written it), E-SPEC-00x."""
        table = {m.id.lower(): m for m in SHIPPED}
        path = root.site / FILE_NAME
        if not os.path.lexists(path):
            return cls(table)
        require_admin_owned(root, path, site=site)
        from hpc.spec.yamltext import parse_yaml

        try:
            value = parse_yaml(read_bytes(path, limit=MAX_BYTES).decode("utf-8"), origin=FILE_NAME)
        except OSError as exc:
            raise refusal(exc, path, "read") from exc
        except (UnicodeDecodeError, ValueError) as exc:
            raise Refusal("E-MODEL-001", str(exc), field=str(path)) from exc
        for name, row in _entries(value):
            table.pop(name.lower(), None)
            if row is not None:
                table[name.lower()] = _model(name, row)
        return cls(table)

    def find(self, repo: str) -> CertifiedModel | None:
        return self.models.get(repo.lower())

    def revision(self, repo: str, revision: str, *, field: str) -> str:
        """The revision to take: the certified commit where there is one, else as asked. Raises Refusal E-MODEL-010."""
        entry = self.find(repo)
        if entry is None:
            return revision
        if revision in ("", MAIN, entry.revision):
            return entry.revision
        text = f"{entry.id} is certified at another commit"
        raise Refusal("E-MODEL-010", text, field=field, found=revision, allowed=entry.revision)

    def require_pin(self, repo: str, revision: str, *, locked: bool, field: str, command: str) -> None:
        """Return for what may be trained from: certified, pinned, or locked. Raises Refusal E-MODEL-012 with the command that locks it."""
        if locked or is_commit(revision) or self.find(repo) is not None:
            return
        text = f"{repo} is not certified here, so its commit must be pinned"
        found = revision or MAIN
        allowed = "a commit of 40 digits, or a lock"
        raise Refusal("E-MODEL-012", text, field=field, found=found, allowed=allowed, hint=f"run: {command}")

    def require_architecture(self, repo: str, config: Path) -> None:
        """Return if config.json says what the table asserts. Raises Refusal E-MODEL-011."""
        entry = self.find(repo)
        if entry is None or not entry.architecture:
            return
        try:
            found = read_json(config) if not config.is_symlink() else read_json(Path(os.path.realpath(config)))
        except (OSError, ValueError) as exc:
            raise Refusal("E-MODEL-011", f"config.json cannot be read: {exc}", field=str(config)) from exc
        for key, want in sorted(entry.architecture.items()):
            have: Any = found
            for part in key.split("."):
                have = have.get(part) if isinstance(have, dict) else None
            if have != want:
                text = f"{entry.id}: {key} is not what is certified"
                raise Refusal("E-MODEL-011", text, field=f"config.json: {key}", found=have, allowed=str(want))


def _entries(value: Any) -> list[tuple[str, Any]]:
    models = value.get("models") if isinstance(value, dict) else None
    if not isinstance(value, dict) or value.get("schema") != SCHEMA or not isinstance(models, dict):
        raise Refusal("E-MODEL-001", "is no table of models", field=FILE_NAME, allowed=f"schema: {SCHEMA}, models: …")
    if extra := sorted(set(value) - {"schema", "models"}):
        raise Refusal("E-MODEL-001", f"unknown key {extra[0]!r}", field=FILE_NAME, allowed="schema, models")
    return list(models.items())


_SHAPES: dict[str, tuple[type, ...]] = {
    "revision": (str,), "architecture": (dict,), "lora_targets": (str, list), "memory_gib": (dict,), "max_seq_length": (int,),
    "learning_rate": (int, float),
}  # fmt: skip


def _model(name: str, row: Any) -> CertifiedModel:
    where = f"{FILE_NAME}: models.{name}"
    if not isinstance(row, dict) or not is_commit(str(row.get("revision", ""))):
        raise Refusal("E-MODEL-001", "needs a revision of 40 hexadecimal digits", field=where)
    for key, value in row.items():
        if key not in _SHAPES or not isinstance(value, _SHAPES[key]) or isinstance(value, bool):
            text, allowed = "is unknown or has another shape", ", ".join(_SHAPES)
            raise Refusal("E-MODEL-001", text, field=f"{where}.{key}", found=value, allowed=allowed)
    memory = row.get("memory_gib", {})
    if set(memory) - {"disk", "infer", "train"} or not all(type(v) in (int, float) and v > 0 for v in memory.values()):
        raise Refusal("E-MODEL-001", "takes disk, infer and train in GiB", field=f"{where}.memory_gib", found=memory)
    targets = row.get("lora_targets", ALL_LINEAR)
    if isinstance(targets, list):
        if not targets or not all(isinstance(t, str) and t for t in targets):
            raise Refusal("E-MODEL-001", "is a list of module names", field=f"{where}.lora_targets")
        row = {**row, "lora_targets": tuple(targets)}
    return CertifiedModel(name, **row, origin=FILE_NAME)
