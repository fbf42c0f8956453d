"""Recipe packs: `<framework>/<method>/` with recipe.yaml and a template folder.

Three digests. `manifest_digest` covers the parsed recipe.yaml; `digest` is what locks and admission compare and covers
the manifest alone; `template_digest` covers the template's files. Byte code (`__pycache__`, *.pyc) that an installer
leaves beside a template never counts.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tuneplane.record.digest import digest_json, directory_digest_v1, v1_files
from tuneplane.record.files import read_bytes

from hpc.catalog import params
from hpc.catalog.manifest import CUSTOM, Entrypoint, Manifest, RuntimeVersion, parse_manifest
from hpc.errors import Refusal, Refusals
from hpc.spec.yamltext import parse_yaml

MANIFEST_NAME = "recipe.yaml"
MAX_MANIFEST_BYTES = 1 << 20


@dataclass(frozen=True)
class Recipe:
    """One recipe pack as read. `manifest` is recipe.yaml parsed, exactly what the digests cover."""

    folder: Path
    manifest: dict[str, Any]
    typed: Manifest
    owner: str = ""
    """Who published it; empty for the admins' packs."""
    package_version: str = ""
    """The version under which a user published it: recipe.yaml's own tracks the framework's and need not move with the pack."""

    @property
    def id(self) -> str:
        """`<framework>/<method>`, and `<owner>/<method>` of a pack that a user published."""
        return f"{self.owner or self.typed.framework}/{self.typed.name}"

    @property
    def version(self) -> str:
        return self.package_version or self.typed.version

    @property
    def framework(self) -> str:
        return self.typed.framework

    @property
    def is_custom(self) -> bool:
        """True where the user's own program is the framework: an image may be chosen with --image."""
        return self.typed.framework == CUSTOM

    @property
    def template(self) -> Path:
        return self.folder / self.typed.template

    @property
    def observability(self) -> str:
        """`platform` or `external`."""
        return self.typed.adapter_options.observability

    @property
    def orchestrator(self) -> str | None:
        """`process-group`, `ray`, or None."""
        return self.typed.adapter_options.orchestrator

    @property
    def integration(self) -> str:
        """`<owner>/<name>` of the package that compiles its jobs; "" for a recipe that `tp` starts by itself."""
        return self.typed.adapter_options.integration

    @property
    def engine(self) -> str:
        """The integration's engine, where it has several."""
        return str((self.typed.adapter_options.model_extra or {}).get("integration_engine") or "")

    @property
    def roles(self) -> list[str]:
        return self.typed.roles

    @property
    def actions(self) -> list[str]:
        """Lifecycle actions that a job may ask for on success."""
        return sorted(self.typed.lifecycle)

    @property
    def required_inputs(self) -> list[str]:
        """Of `model`, `train`, `validation`: what a job must bring."""
        return list(self.typed.adapter_options.required_inputs)

    @property
    def numbers(self) -> list[str]:
        """What its lines of metrics.jsonl hold, as the recipe declares it: names, and patterns with `*`. Empty where it says nothing."""
        return sorted({name for names in self.typed.metrics.aliases.values() for name in names})

    @property
    def requires_core(self) -> str:
        return self.typed.requires.core

    @property
    def default_version(self) -> str:
        return self.typed.runtime.default_version

    @property
    def versions(self) -> list[str]:
        return list(self.typed.runtime.versions)

    @cached_property
    def manifest_digest(self) -> str:
        return digest_json(self.manifest)

    @cached_property
    def digest(self) -> str:
        return digest_json({"manifest": self.manifest_digest})

    @cached_property
    def template_digest(self) -> str:
        """Reads the template's files. Raises OSError."""
        return directory_digest_v1(self.template)

    def template_files(self) -> list[str]:
        """POSIX paths of the template's files, sorted; what a scaffold copies."""
        return v1_files(self.template)

    def variant(self, version: str = "") -> RuntimeVersion:
        """The runtime matrix's row; the default version for "". Raises Refusal E-CATALOG-014."""
        wanted = version or self.default_version
        if wanted not in self.typed.runtime.versions:
            raise Refusal(
                "E-CATALOG-014",
                f"{self.id} {self.version} has no {self.framework} version {wanted}",
                field="spec.framework.version",
                found=wanted,
                allowed=", ".join(self.versions),
            )
        return self.typed.runtime.versions[wanted]

    def entrypoint(self, version: str = "") -> Entrypoint:
        """What starts, in that framework version. Raises Refusal E-CATALOG-014."""
        return self.variant(version).entrypoint or self.typed.entrypoint

    def runtime_id(self, version: str = "") -> str:
        """The runtime of that framework version; "" where a custom recipe leaves it open. Raises E-CATALOG-014."""
        return self.variant(version).runtime_id or ""

    def configured(self, config: Mapping[str, Any], version: str = "") -> dict[str, Any]:
        """The hyperparameters that a config sets, by name: each parameter's value at its path, unchecked."""
        section = _at(config, self.typed.config_section) if self.typed.config_section else config
        found = {}
        for name, param in self.typed.params.items():
            value = _at(section, param.path_for(name, version or self.default_version))
            if value is not None:
                found[name] = value
        return found

    def resolve(self, hyperparams: Mapping[str, object], version: str = "") -> dict[str, Any]:
        """All hyperparameters of a job, defaults filled in. Raises Refusals E-CATALOG-010…013."""
        self.variant(version)
        return params.resolve(self.typed.params, hyperparams, version or self.default_version, self.id)

    def overrides(self, hyperparams: Mapping[str, object], version: str = "") -> list[str]:
        """`path=value` lines of the resolved hyperparameters. Raises Refusals as `resolve` does."""
        resolved = self.resolve(hyperparams, version)
        return params.overrides(self.typed.params, resolved, version or self.default_version)


def _at(value: Any, path: str) -> Any:
    for part in path.split("."):
        if not isinstance(value, Mapping):
            return None
        value = value.get(part)
    return value


def load_recipe(folder: Path, *, name: str = "", owner: str = "", package_version: str = "") -> Recipe:
    """Read and check one pack. `name` is what the pack must be called; the folder's own name unless it is given.

    Raises Refusals (every fault of recipe.yaml at once, fields prefixed with the file) or Refusal E-CATALOG-002, 005,
    006 or E-SPEC-00x (not YAML).
    """
    name = name or folder.name
    try:
        text = read_bytes(folder / MANIFEST_NAME, limit=MAX_MANIFEST_BYTES).decode("utf-8")
    except (OSError, ValueError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else str(exc)
        raise Refusal("E-CATALOG-002", f"{name}/{MANIFEST_NAME}: {reason}", field=str(folder / MANIFEST_NAME)) from exc
    value = parse_yaml(text, origin=str(folder / MANIFEST_NAME))
    try:
        typed = parse_manifest(value)
    except Refusals as exc:
        raise Refusals([_placed(r, folder) for r in exc.items]) from None
    if typed.name != name:
        message = f"the pack {typed.name!r} lies in {name!r}"
        raise Refusal("E-CATALOG-005", message, field=f"{folder}: name", found=name, allowed=typed.name)
    _check_template(folder / typed.template)
    return Recipe(folder, value, typed, owner, package_version)


def _placed(refusal: Refusal, folder: Path) -> Refusal:
    return Refusal(
        refusal.code,
        refusal.message,
        field=f"{folder / MANIFEST_NAME}: {refusal.field}",
        found=refusal.found,
        allowed=refusal.allowed,
        hint=refusal.hint,
    )


def _check_template(template: Path) -> None:
    """The template exists and holds only files and folders; a link could bring bytes from outside the pack."""
    if not template.is_dir() or template.is_symlink():
        raise Refusal("E-CATALOG-006", "there is no such folder", field=str(template), allowed="a folder")
    for folder, subfolders, names in os.walk(template):
        for name in [*subfolders, *names]:
            mode = os.lstat(os.path.join(folder, name)).st_mode
            if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
                raise Refusal(
                    "E-CATALOG-006",
                    "is no regular file",
                    field=os.path.join(folder, name),
                    found="a link" if stat.S_ISLNK(mode) else "a special file",
                    allowed="files and folders",
                )
