"""The shape of recipe.yaml. Pure: a parsed value goes in, a typed manifest or all of its refusals come out.

Keys that we do not know are kept and named (`unknown_keys`), not refused: packs written for a later contract stay
readable, and the digest covers them anyhow. Values that we do know are strict.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError
from tuneplane.contract.schemas import ARTIFACTS
from tuneplane.record.digest import is_relative

from hpc.catalog.params import Param, check_params
from hpc.errors import Refusal, Refusals

ACTIONS = ("export", "eval")
CUSTOM = "custom"
USER_MANAGED = "user-managed"
DEFAULT_CORE = ">=0.1,<1"

Segment = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
Semver = Annotated[str, StringConstraints(pattern=r"^(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)$")]
Category = Literal[
    "supervised", "sft", "preference", "reward-model", "representation", "rl", "distillation", "evaluation", "custom"
]
Modality = Literal["text", "image", "video", "audio"]
Text = Annotated[str, StringConstraints(min_length=1, strip_whitespace=True)]
EXACT_VERSION = re.compile(r"^(\d+\.\d+\.\d+[A-Za-z0-9.+-]*|[0-9a-f]{40})$")


class _Part(BaseModel):
    model_config = ConfigDict(extra="allow", frozen=True, strict=True, defer_build=True)


class Entrypoint(_Part):
    """What the job starts: a file of the experiment folder, a file of the framework, or a module (`python -m`)."""

    kind: Literal["module", "file", "experiment"]
    value: Text
    experiment_override: str = ""


class AdapterOptions(_Part):
    observability: Literal["platform", "external"]
    orchestrator: Literal["process-group", "ray"] | None = None
    integration: str = ""
    required_inputs: list[Literal["model", "train", "validation"]] = []


class Source(_Part):
    kind: Literal["oci"]
    reference: Text


class RuntimeVersion(_Part):
    """One supported framework version: what it needs installed, and the runtime that has it."""

    requires: list[str] = []
    runtime_id: Segment | None = None
    source: Source | None = None
    deployment_artifact: bool = False
    entrypoint: Entrypoint | None = None
    status: Literal["supported", "deprecated"] = "supported"
    sunset: str = ""


class RuntimeMatrix(_Part):
    default_version: Text
    versions: Annotated[dict[str, RuntimeVersion], Field(min_length=1)]


class Metrics(_Part):
    primary: list[str] = []
    aliases: dict[str, list[str]] = {}
    objective: list[Any] = []
    semantics: dict[str, Any] = {}
    equivalences: list[Any] = []


class Formats(_Part):
    checkpoint: str = ""
    log: str = ""
    hf_export: str = ""
    eval_report: str = ""


class Artifacts(_Part):
    """Globs of what a run leaves, relative to its out folder."""

    version: Literal["tuneplane/artifacts/v1"] = ARTIFACTS
    checkpoints: list[str] = []
    logs: list[str] = []
    exports: list[str] = []
    evaluations: list[str] = []
    formats: Formats = Field(default_factory=Formats)


class Validation(_Part):
    sample_kind: Literal["conversation", "preference", "completion", "none"] = "none"
    reward_semantics: Literal["scalar", "binary", "margin", "none"] = "none"
    observer_versions: list[str] = []


class Requires(_Part):
    core: str = DEFAULT_CORE


class Manifest(_Part):
    name: Segment
    version: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]*$")]
    contract_version: Semver = "1.0.0"
    title: str = ""
    summary: str = ""
    framework: Segment
    category: Category = "custom"
    modalities: list[Modality] = ["text"]
    template: Text
    adapter_options: AdapterOptions
    entrypoint: Entrypoint
    lifecycle: dict[str, Entrypoint]
    lifecycle_resources: dict[str, Annotated[int, Field(ge=0)]]
    roles: list[Segment] = []
    plugins: list[Segment] = []
    metrics: Metrics
    validation: Validation = Field(default_factory=Validation)
    artifacts: Artifacts
    runtime: RuntimeMatrix
    params: dict[str, Param] = {}
    requires: Requires = Field(default_factory=Requires)
    config_section: str = ""
    i18n: dict[str, Any] = {}

    def unknown_keys(self) -> list[str]:
        """Paths of keys that this core does not know, sorted. A typo shows up here."""
        return sorted(_extras(self, ""))


# Open by design: how a framework adapter reads them is the adapter's business.
_OPEN = {
    "adapter_options." + k
    for k in ("config_mode", "launcher", "bindings", "topology", "fixed_overrides", "fixed_flags",
              "integration_engine", "integration_capabilities")
}  # fmt: skip


def _extras(part: BaseModel, prefix: str) -> Iterator[str]:
    for key in part.model_extra or {}:
        if prefix + key not in _OPEN:
            yield prefix + key
    for key in type(part).model_fields:
        value = getattr(part, key)
        if isinstance(value, BaseModel):
            yield from _extras(value, f"{prefix}{key}.")
        elif isinstance(value, dict):
            for name, item in value.items():
                if isinstance(item, BaseModel):
                    yield from _extras(item, f"{prefix}{key}.{name}.")


def parse_manifest(value: object) -> Manifest:
    """The typed manifest of a parsed recipe.yaml. Raises Refusals: every fault at once, with its field."""
    if not isinstance(value, dict):
        raise Refusals([_bad("", value, "a mapping", "recipe.yaml is no mapping")])
    try:
        manifest = Manifest.model_validate(value)
    except ValidationError as exc:
        raise Refusals([_from_pydantic(e) for e in exc.errors(include_url=False)]) from None
    faults = [*_check_paths(manifest), *_check_lifecycle(manifest), *_check_runtime(manifest), *_check_core(manifest)]
    faults += check_params(manifest.params, manifest.runtime.versions)
    if faults:
        raise Refusals(faults)
    return manifest


def _bad(field: str, found: Any, allowed: str, message: str) -> Refusal:
    return Refusal("E-CATALOG-004", message, field=field, found=found, allowed=allowed)


def _from_pydantic(error: Any) -> Refusal:
    field = ".".join(str(part) for part in error["loc"])
    if error["type"] == "missing":
        return Refusal("E-CATALOG-003", "is missing", field=field, allowed="a value")
    allowed = str((error.get("ctx") or {}).get("expected") or (error.get("ctx") or {}).get("pattern") or "")
    hint = "write versions in quotes, or YAML reads them as numbers" if "version" in field else ""
    return Refusal("E-CATALOG-004", error["msg"], field=field, found=error["input"], allowed=allowed, hint=hint)


def _check_paths(m: Manifest) -> Iterator[Refusal]:
    if not is_relative(m.template):
        yield _bad("template", m.template, "a folder inside the pack", "is no relative path")
    for field, entry in [("entrypoint", m.entrypoint), *((f"lifecycle.{k}", e) for k, e in m.lifecycle.items())]:
        if entry.kind != "module" and not is_relative(entry.value):
            yield _bad(f"{field}.value", entry.value, "a relative path", "leaves its folder")
    for kind in ("checkpoints", "logs", "exports", "evaluations"):
        for index, glob in enumerate(getattr(m.artifacts, kind)):
            if not is_relative(glob):
                yield _bad(f"artifacts.{kind}[{index}]", glob, "a glob below the out folder", "leaves the out folder")


def _check_lifecycle(m: Manifest) -> Iterator[Refusal]:
    if m.lifecycle.keys() != m.lifecycle_resources.keys():
        yield _bad(
            "lifecycle_resources",
            sorted(m.lifecycle_resources),
            f"the same keys as lifecycle: {sorted(m.lifecycle)}",
            "its actions are not those of lifecycle",
        )
    for action in m.lifecycle.keys() - set(ACTIONS):
        yield _bad(f"lifecycle.{action}", action, " or ".join(ACTIONS), "is no known action")


def _check_runtime(m: Manifest) -> Iterator[Refusal]:
    versions, custom, seen = m.runtime.versions, m.framework == CUSTOM, dict[str, str]()
    if m.runtime.default_version not in versions:
        default = m.runtime.default_version
        yield _bad("runtime.default_version", default, ", ".join(versions), "is not in runtime.versions")
    for version, row in versions.items():
        field = f"runtime.versions.{version}"
        if not (EXACT_VERSION.match(version) or (custom and version == USER_MANAGED)):
            yield _bad(field, version, "x.y.z or 40 hexadecimal digits", "is no exact version")
        if "image" in (row.model_extra or {}):
            yield _bad(f"{field}.image", row.model_extra, "source or deployment_artifact", "is no longer in the format")
        if row.source is not None and row.deployment_artifact:
            yield _bad(field, "both", "one of source and deployment_artifact", "names its artefact twice")
        if custom:
            continue
        if row.source is None and not row.deployment_artifact:
            yield _bad(field, "neither", "source, or deployment_artifact: true", "names no artefact")
        if not row.runtime_id:
            yield Refusal("E-CATALOG-003", "is missing", field=f"{field}.runtime_id", allowed="an id")
        elif row.runtime_id in seen:
            message = f"stands at {seen[row.runtime_id]} too"
            yield _bad(f"{field}.runtime_id", row.runtime_id, "an id of its own", message)
        else:
            seen[row.runtime_id] = version


def _check_core(m: Manifest) -> Iterator[Refusal]:
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    try:
        SpecifierSet(m.requires.core)
    except InvalidSpecifier:
        yield _bad("requires.core", m.requires.core, "a range such as >=0.4,<1", "is no version range")
