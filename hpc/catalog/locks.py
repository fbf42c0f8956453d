"""recipe.lock.json: what an experiment was made from, and two verdicts on it.

The **lock's state** says whether the lock still fits the catalogue as far as the experiment itself is concerned: its
parameters and entrypoint are where they were, its framework version is still supported. **Admission** is stricter:
name, version, digest and runtime must be the catalogue's own, and the tp that made the job must be in the range that
the recipe requires.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tuneplane
from tuneplane.contract.schemas import RECIPE_LOCK
from tuneplane.record import files

from hpc.catalog.recipes import Recipe
from hpc.errors import Refusal, Refusals

if TYPE_CHECKING:
    from hpc.catalog.shelf import Catalogue

LOCK_NAME = "recipe.lock.json"
ADMITTING = frozenset({"current", "compatible", "upgrade_advised"})


@dataclass(frozen=True)
class LockState:
    """One of seven states, with reasons.

    current, compatible and upgrade_advised admit; incompatible, sdk_incompatible, runtime_removed and malformed refuse.
    `recipe` is the catalogue's, as it was read for the comparison; None for a malformed lock.
    """

    state: str
    reasons: list[str] = field(default_factory=list)
    recipe: Recipe | None = field(default=None, compare=False, repr=False)

    @property
    def admits(self) -> bool:
        return self.state in ADMITTING


def make_lock(
    recipe: Recipe, *, core_version: str, config: Mapping[str, Any], framework_version: str = ""
) -> dict[str, Any]:
    """The lock of `recipe` for an experiment with that config; bindings name the parameters that the config sets."""
    version = framework_version or recipe.default_version
    entry = recipe.entrypoint(version)
    bound = {
        name: {"path": p.path_for(name, version), "type": p.type}
        for name, p in recipe.typed.params.items()
        if name in recipe.configured(config, version)
    }
    return {
        "apiVersion": RECIPE_LOCK,
        "recipe": {
            "name": recipe.id,
            "version": recipe.version,
            "digest": recipe.digest,
            "manifest_digest": recipe.manifest_digest,
            "template_digest": recipe.template_digest,
        },
        "framework": {"kind": recipe.framework, "version": version, "runtime_id": recipe.runtime_id(version)},
        "created_by": {"core_version": core_version},
        "requires": {"core": recipe.requires_core},
        "bindings": {"params": bound, "entrypoint": {"kind": entry.kind, "value": entry.value}},
    }


def read_lock(folder: Path) -> object:
    """The parsed lock of an experiment folder, unchecked. Raises Refusal E-CATALOG-020 (none), 021 (not JSON)."""
    path = folder / LOCK_NAME
    try:
        return files.read_json(path, limit=1 << 20)
    except FileNotFoundError:
        raise Refusal("E-CATALOG-020", f"{LOCK_NAME} is missing", field=str(path)) from None
    except (OSError, ValueError) as exc:
        raise Refusal("E-CATALOG-021", str(exc), field=str(path)) from exc


def write_lock(folder: Path, lock: Mapping[str, Any]) -> None:
    """Write an experiment's lock: sorted, two-space JSON, whole or not at all. Raises OSError."""
    files.replace_json(folder / LOCK_NAME, dict(lock))


def text_at(lock: object, path: str) -> str:
    """The text at a dotted path, "" where there is none."""
    value: Any = lock
    for part in path.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value if isinstance(value, str) else ""


def malformed_reason(lock: object) -> str:
    """Why the value is no lock, or ""."""
    if not isinstance(lock, Mapping):
        return "is no JSON object"
    if lock.get("apiVersion") != RECIPE_LOCK:
        return f"apiVersion is {lock.get('apiVersion')!r}; this tp reads {RECIPE_LOCK}"
    for part in ("recipe", "framework", "bindings"):
        if not isinstance(lock.get(part), Mapping):
            return f"{part} is no object"
    if not isinstance(lock["bindings"].get("params", {}), Mapping):
        return "bindings.params is no object"
    return "" if text_at(lock, "recipe.name") else "recipe.name is missing"


def lock_state(lock: object, catalogue: Catalogue, core_version: str = tuneplane.__version__) -> LockState:
    """The local lock's state. `lock` is the parsed file; what is no lock is `malformed`, never an exception."""
    if reason := malformed_reason(lock):
        return LockState("malformed", [reason])
    try:
        recipe = catalogue.get(text_at(lock, "recipe.name"), text_at(lock, "recipe.version"))
    except Refusal as exc:
        return LockState("malformed", [str(exc)])
    except Refusals as exc:
        return LockState("malformed", [str(r) for r in exc.items])
    return replace(state_against(lock, recipe, core_version), recipe=recipe)


def state_against(lock: object, recipe: Recipe, core_version: str) -> LockState:
    """The state of a well-formed lock against the catalogue's recipe. Pure but for the template's digest."""
    kind, version, runtime = (text_at(lock, f"framework.{k}") for k in ("kind", "version", "runtime_id"))
    if kind and kind != recipe.framework:
        return LockState("incompatible", [f"framework.kind: locked {kind}, catalogue {recipe.framework}"])
    if version and version not in recipe.versions:
        reason = f"framework.version: {version} is gone; there is {', '.join(recipe.versions)}"
        return LockState("runtime_removed", [reason])
    if runtime and runtime != (now := recipe.runtime_id(version)):
        return LockState("incompatible", [f"framework.runtime_id: locked {runtime}, catalogue {now or '(none)'}"])
    if not admits_core(recipe.requires_core, core_version):
        reason = f"{recipe.id} requires tp {recipe.requires_core}; this is {core_version}"
        return LockState("sdk_incompatible", [reason])
    if broken := list(_broken_bindings(lock, recipe, version)):
        return LockState("incompatible", broken)
    differing = list(_differences(lock, recipe, version))
    if recipe.variant(version).status == "deprecated":
        sunset = recipe.variant(version).sunset
        until = f", ends {sunset}" if sunset else ""
        return LockState("upgrade_advised", [f"{recipe.framework} {version} is deprecated{until}", *differing])
    return LockState("compatible" if differing else "current", differing)


def _broken_bindings(lock: object, recipe: Recipe, version: str) -> Iterator[str]:
    bindings = lock["bindings"]  # type: ignore[index]
    for name, bound in sorted(bindings.get("params", {}).items()):
        param = recipe.typed.params.get(name)
        if param is None:
            yield f"bindings.params.{name}: the catalogue has no such parameter"
            continue
        now = {"path": param.path_for(name, version or recipe.default_version), "type": param.type}
        for key, value in now.items():
            if not isinstance(bound, Mapping) or bound.get(key) != value:
                was = bound.get(key) if isinstance(bound, Mapping) else bound
                yield f"bindings.params.{name}.{key}: locked {was!r}, catalogue {value!r}"
    entry = recipe.entrypoint(version)
    for key, value in {"kind": entry.kind, "value": entry.value}.items():
        if (was := text_at(lock, f"bindings.entrypoint.{key}")) and was != value:
            yield f"bindings.entrypoint.{key}: locked {was!r}, catalogue {value!r}"


def _differences(lock: object, recipe: Recipe, version: str) -> Iterator[str]:
    now = {
        "recipe.version": recipe.version,
        "recipe.digest": recipe.digest,
        "recipe.manifest_digest": recipe.manifest_digest,
        "recipe.template_digest": recipe.template_digest,
        "framework.kind": recipe.framework,
        "framework.version": version or "(none)",
        "framework.runtime_id": recipe.runtime_id(version),
        "requires.core": recipe.requires_core,
    }
    for path, value in now.items():
        if (was := text_at(lock, path)) != value:
            yield f"{path}: locked {was or '(none)'}, catalogue {value}"


def admits_core(range_text: str, core_version: str) -> bool:
    """True when the version is in the range; a range that cannot be read admits nothing."""
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    try:
        return SpecifierSet(range_text).contains(core_version, prereleases=True)
    except InvalidSpecifier:
        return False


def admission_refusals(lock_or_spec: Any, recipe: Recipe, core_version: str) -> list[Refusal]:
    """Every reason why admission would refuse a job made from this lock, or this JobSpec; [] admits.

    Takes the parsed lock, or a JobSpec (the model or its normalised dict); `recipe` is the catalogue's; `core_version`
    is the version of the tp that makes the job. A JobSpec of a custom recipe that names an image has its runtime
    chosen by the image, so its runtime_id is not compared here.
    """
    value = lock_or_spec.normalised() if hasattr(lock_or_spec, "normalised") else lock_or_spec
    prefix = "spec." if isinstance(value, Mapping) and "spec" in value else ""
    version = text_at(value, f"{prefix}framework.version")
    out = []

    def compare(code: str, path: str, expected: str) -> None:
        if (found := text_at(value, prefix + path)) != expected:
            message = f"{found or '(none)'} here, {expected or '(none)'} in the catalogue"
            out.append(Refusal(code, message, field=prefix + path, found=found, allowed=expected))

    compare("E-CATALOG-022", "recipe.name", recipe.id)
    compare("E-CATALOG-023", "recipe.version", recipe.version)
    compare("E-CATALOG-024", "recipe.digest", recipe.digest)
    compare("E-CATALOG-025", "framework.kind", recipe.framework)
    if version not in recipe.versions:
        message = f"{recipe.id} {recipe.version} has no {recipe.framework} version {version or '(none)'}"
        where = f"{prefix}framework.version"
        out.append(Refusal("E-CATALOG-014", message, field=where, found=version, allowed=", ".join(recipe.versions)))
    elif not (recipe.is_custom and text_at(value, f"{prefix}framework.image")):
        compare("E-CATALOG-026", "framework.runtime_id", recipe.runtime_id(version))
    out += _core_refusals(value, recipe, core_version)
    return out


def _core_refusals(value: Any, recipe: Recipe, core_version: str) -> list[Refusal]:
    """requires.core of the catalogue's recipe and, in a lock, of the lock; both versions are named."""
    out = []
    sides = {"provenance.core_version": ("the catalogue's", recipe.requires_core)}
    if (locked := text_at(value, "requires.core")) and locked != recipe.requires_core:
        sides["requires.core"] = ("the lock's", locked)
    for path, (whose, wanted) in sides.items():
        if not admits_core(wanted, core_version):
            message = f"this is tp {core_version}; {whose} {recipe.id} {recipe.version} requires tp {wanted}"
            out.append(Refusal("E-CATALOG-027", message, field=path, found=core_version, allowed=wanted))
    return out


def observability_refusal(recipe: Recipe, observability_url: str) -> Refusal | None:
    """The observability rule, both ways: `external` recipes need a URL, `platform` recipes forbid one. Pure."""
    where = "spec.framework.observability_url"
    if recipe.observability == "external" and not observability_url:
        message = f"{recipe.id} reports to a dashboard of its own"
        return Refusal("E-CATALOG-030", message, field=where, found="", allowed="a URL")
    if recipe.observability == "platform" and observability_url:
        message = f"{recipe.id} reports to the platform"
        return Refusal("E-CATALOG-031", message, field=where, found=observability_url, allowed="nothing")
    return None
