"""What `tp submit` was asked for, as one frozen value; and the JobSpec document that it, the config and the lock make together. Pure.

A flag wins over config.yaml, config.yaml over the profile, the profile over the site's defaults. Every flag has exactly one place in the spec.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from hpc.errors import Refusal
from hpc.spec.profiles import Placement

# config.yaml sections that describe the job; everything else belongs to the recipe's parameters.
JOB_SECTIONS = (
    "model",
    "data",
    "eval",
    "slurm",
    "lifecycle",
    "labels",
    "resources",
    "framework",
    "display_name",
    "sweep",
)


@dataclass(frozen=True)
class Flags:
    """The command line of one submission. Empty means: not given."""

    profile: tuple[str, ...] = ()
    method: str = ""
    settings: tuple[str, ...] = ()
    init_from: str = ""
    model: str = ""
    train_data: str = ""
    validation_data: str = ""
    train_dataset: str = ""
    validation_dataset: str = ""
    output_dataset: str = ""
    volume: tuple[str, ...] = ()
    environment: str = ""
    taskset: str = ""
    image: str = ""
    then: tuple[str, ...] = ()
    observability_url: str = ""
    framework_version: str = ""
    quality: tuple[str, ...] = ()
    peft: tuple[str, ...] = ()
    label: tuple[str, ...] = ()
    network: tuple[str, ...] = ()
    lease: tuple[str, ...] = ()
    display_name: str = ""
    requeue_on: str = ""
    max_attempts: int = 0
    slurm: Mapping[str, Any] = field(default_factory=dict)
    sweep: Mapping[str, Any] = field(default_factory=dict)
    """The table of variants, where the job is a sweep; `slurm` then has its array."""
    allow_dirty: bool = False
    no_validate: bool = False

    @classmethod
    def from_json(cls, value: Any, where: str) -> Flags:
        """Flags from an intent file. Raises Refusal E-SUBMIT-030 for an unknown or mistyped key."""
        known = {f.name: f for f in fields(cls)}
        if not isinstance(value, dict) or set(value) - set(known):
            extra = sorted(set(value) - set(known)) if isinstance(value, dict) else value
            raise Refusal("E-SUBMIT-030", "not an intent", field=where, found=str(extra), allowed=", ".join(known))
        converted: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in value.items()}
        for name, item in converted.items():
            if not isinstance(item, type(getattr(cls(), name))):
                raise Refusal("E-SUBMIT-030", f"{name} has the wrong type", field=where, found=repr(item))
        return cls(**converted)


def pairs(items: tuple[str, ...], flag: str) -> dict[str, str]:
    """`KEY=VALUE` items. Raises Refusal E-SUBMIT-031."""
    out = {}
    for item in items:
        key, sep, value = item.partition("=")
        if not sep or not key.strip():
            raise Refusal("E-SUBMIT-031", f"{flag} takes KEY=VALUE", field=flag, found=item, allowed="KEY=VALUE")
        out[key.strip()] = value.strip()
    return out


def _number(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _model(flags: Flags, config: Mapping[str, Any]) -> dict[str, Any]:
    given = config.get("model") or {}
    out: dict[str, Any] = {"base": given} if isinstance(given, str) else dict(given)
    if flags.model:
        out["base"] = flags.model
    if flags.peft:
        out["peft"] = {**(out.get("peft") or {}), **{k: _number(v) for k, v in pairs(flags.peft, "--peft").items()}}
    if flags.init_from:
        out["init_from"] = flags.init_from
    return out


def _data(flags: Flags, config: Mapping[str, Any]) -> dict[str, Any]:
    out = dict(config.get("data") or {})
    for name, path, dataset in (
        ("train", flags.train_data, flags.train_dataset),
        ("validation", flags.validation_data, flags.validation_dataset),
    ):
        source = out.get(name)
        source = {"path": source} if isinstance(source, str) else dict(source or {})
        if dataset:
            source = {"dataset": dataset}
        if path:
            source["path"] = path
        source.pop("columns", None)  # what they mean is the engine's business: hpc.submit.engine reads it
        if source:
            out[name] = source
        else:
            out.pop(name, None)
    volumes = out.get("volumes", [])
    volumes = [volumes] if isinstance(volumes, str) else list(volumes)
    if volumes or flags.volume:
        out["volumes"] = [*volumes, *flags.volume]
    for key, value in (
        ("output_dataset", flags.output_dataset),
        ("environment", flags.environment),
        ("taskset", flags.taskset),
    ):
        if value:
            out[key] = value
    if flags.quality:
        out["quality"] = {
            **(out.get("quality") or {}),
            **{k: _number(v) for k, v in pairs(flags.quality, "--quality").items()},
        }
    return out


def _resources(flags: Flags, config: Mapping[str, Any], placement: Placement) -> dict[str, Any]:
    extra = dict(config.get("resources") or {})
    out: dict[str, Any] = {"pools": [p.as_json() for p in placement.pools]}
    if placement.roles:
        out["roles"] = dict(placement.roles)
    leases = list(extra.get("leases") or [])
    leases += [{"tool": tool, "seats": _number(seats)} for tool, seats in pairs(flags.lease, "--lease").items()]
    if leases:
        out["leases"] = leases
    network = {**(extra.get("network") or {}), **pairs(flags.network, "--network")}
    if network:
        out["network"] = network
    for key in set(extra) - {"leases", "network"}:  # the parser names what is not known
        out[key] = extra[key]
    return out


def _lifecycle(flags: Flags, config: Mapping[str, Any]) -> dict[str, Any]:
    out = dict(config.get("lifecycle") or {})
    if flags.then:
        out["on_success"] = list(flags.then)
    if flags.requeue_on:
        out["requeue_on"] = [] if flags.requeue_on == "none" else flags.requeue_on.split(",")
    if flags.max_attempts:
        out["max_attempts"] = flags.max_attempts
    return out


@dataclass(frozen=True)
class Locked:
    """What the lock and the project say about an experiment."""

    name: str
    exp: str
    project: str
    recipe: Mapping[str, Any]  # name, version, digest
    framework: Mapping[str, Any]  # kind, version, runtime_id
    recipe_plugins: tuple[str, ...]
    plugins: tuple[Mapping[str, Any], ...]
    provenance: Mapping[str, Any]


def document(
    flags: Flags, config: Mapping[str, Any], locked: Locked, placement: Placement, hyperparams: Mapping[str, Any]
) -> dict[str, Any]:
    """The JobSpec document, owner left empty; `hpc.spec.jobspec.parse` judges it."""
    framework: dict[str, Any] = {**(config.get("framework") or {}), **locked.framework}
    if flags.image:
        framework["image"] = flags.image
    if flags.observability_url:
        framework["observability_url"] = flags.observability_url
    spec: dict[str, Any] = {
        "recipe": {**locked.recipe, "plugins": list(locked.recipe_plugins)},
        "source": {"exp": locked.exp},
        "framework": framework,
        "resources": _resources(flags, config, placement),
        "model": _model(flags, config),
        "data": _data(flags, config),
        "hyperparams": dict(hyperparams),
        "lifecycle": _lifecycle(flags, config),
        "evaluation": config.get("eval") or None,
        "plugins": [dict(p) for p in locked.plugins],
        "slurm": {**(config.get("slurm") or {}), **flags.slurm} or None,
    }
    labels = {**(config.get("labels") or {}), **pairs(flags.label, "--label")}
    provenance = dict(locked.provenance)
    if isinstance(spec["model"].get("base"), str):
        provenance["model_name"] = spec["model"]["base"]
    return {
        "apiVersion": "tuneplane/v1",
        "kind": "TrainingJob",
        "metadata": {
            "name": locked.name,
            "project": locked.project,
            "display_name": flags.display_name or config.get("display_name") or "",
            "labels": labels,
        },
        "spec": {k: v for k, v in spec.items() if v},
        "provenance": provenance,
    }
