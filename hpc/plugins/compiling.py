"""From a job to its launch plan: the profile of integration.json that matches, and its compiler, run twice.

A `yaml` compiler is no program: one generated file (JSON, which is YAML) from defaults < hyperparameters < what the platform binds. A `provider` is a
program of the package; it runs isolated (`hpc.plugins.sandbox`) and knows of the job what the request says and nothing else.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tuneplane.contract import plans
from tuneplane.record.canonical import CanonicalError, canonical_bytes, parse_json

from hpc.errors import Refusal, Refusals
from hpc.plugins.fitting import Machines, placed, row_faults, unread_faults
from hpc.plugins.integrations import ANY_DIGEST, ANY_RUNTIME, CONTRACT_VERSION, NAME, ROLE_SOURCE, check_integration
from hpc.plugins.opening import open_form, stored
from hpc.plugins.plans import as_record, check_plan
from hpc.plugins.sandbox import Said, run_isolated

OUTPUT: Final = "${TUNEPLANE_CHECKPOINT_DIR}"
"""Where a framework writes what a later attempt goes on from: one folder for all attempts of a run."""
_BOUND: Final = {"model": "model", "train_data": "train", "validation_data": "validation"}
_POINTLESS = re.compile(r'("(?:[^"\\]|\\.)*")|(?<![\d.])(\d+)(e[+-]\d+)')
"""JSON texts, which stay, and numbers such as 5e-06, which YAML 1.1 reads as text: it wants a point."""


@dataclass(frozen=True)
class Wanted:
    """The job as an integration sees it. `methods` are the names its recipe goes by; `hyperparams` are resolved, by their paths in `paths`.

    `rows`: the form of `train` and `validation`, which lie at `row_paths`; `pools` by name, and the pool of each role in `roles`.
    """

    framework: str
    methods: tuple[str, ...]
    engine: str
    runtime_id: str
    runtime_digest: str
    orchestrator: str | None
    inputs: tuple[str, ...]
    pools: Mapping[str, Machines]
    world_size: int
    hyperparams: Mapping[str, Any]
    paths: Mapping[str, str]
    spec: Mapping[str, Any]
    recipe: Mapping[str, Any]
    rows: Mapping[str, str] = field(default_factory=dict)
    row_paths: Mapping[str, str] = field(default_factory=dict)
    roles: Mapping[str, str] = field(default_factory=dict)

    @property
    def nodes(self) -> int:
        """Of all pools."""
        return sum(pool.nodes for pool in self.pools.values())

    @property
    def gpus_per_node(self) -> int:
        """Of the first pool; where a profile declares placements, of every one."""
        return next(iter(self.pools.values())).gpus_per_node


def compile_plan(folder: Path, files: Mapping[str, int], identity: Mapping[str, str], job: Wanted) -> dict[str, Any]:
    """plan.json of this job by the package in `folder`. `identity`: id, version and digest of the package. Raises Refusal(s) E-FRAME-003 … -015."""
    faults: list[Refusal] = []
    form = open_form(NAME, stored(folder, NAME), faults)
    if form is not None:
        check_integration(form, files)
    if faults or form is None:
        raise Refusals(faults)
    declared = form.value
    if missing := [n for n in declared.get("required_inputs") or [] if _BOUND[n] not in job.inputs]:
        message = f"{identity['id']} needs {', '.join(missing)}"
        raise Refusal("E-FRAME-011", message, field="spec", found=", ".join(job.inputs) or "none")
    profile = _profile(declared["profiles"], identity, job)
    if faults := [*row_faults(profile, job.rows, job.row_paths), *unread_faults(profile, job.spec)]:
        raise Refusals(faults)
    groups = placed(profile, job.pools, job.roles)
    compiler, origin = profile["compiler"], f"{identity['id']}@{identity['version']}: the plan"
    answers = [_answer(folder, profile, groups, identity, job) for _ in range(2)]
    if answers[0] != answers[1]:
        raise Refusal("E-FRAME-007", "two runs gave two plans", field=NAME, found=str(compiler.get("path", "")))
    body = check_plan(
        _parsed(answers[0], origin), origin=origin, orchestrator=job.orchestrator, inputs=job.inputs, total=len(answers[0])
    )  # fmt: skip
    return as_record(body, {**identity, "profile": profile["id"]})


def _profile(profiles: Sequence[dict[str, Any]], identity: Mapping[str, str], job: Wanted) -> dict[str, Any]:
    """The one profile that matches; publishing refuses packages in which two could."""
    for profile in profiles:
        same = profile["framework"] == job.framework and profile["method"] in job.methods
        same = same and (profile.get("engine") or "") == job.engine
        same = same and profile["runtime_id"] in (ANY_RUNTIME, job.runtime_id)
        if same and profile["runtime_digest"] in (ANY_DIGEST, job.runtime_digest):
            return profile
    raise Refusal(
        "E-FRAME-003",
        f"{identity['id']}@{identity['version']} has no profile for {job.methods[0]}",
        field=NAME,
        found=f"{job.framework}, {job.methods[0]}, engine {job.engine!r}, {job.runtime_id}, {job.runtime_digest or 'no digest'}",
        allowed="; ".join(f"{p['framework']}, {p['method']}, {p['runtime_id']}" for p in profiles)[:500],
    )


def _answer(
    folder: Path,
    profile: Mapping[str, Any],
    groups: Sequence[Mapping[str, Any]],
    identity: Mapping[str, str],
    job: Wanted,
) -> bytes:
    compiler = profile["compiler"]
    if compiler["kind"] == "yaml":
        return canonical_bytes(yaml_plan(compiler, job, groups))
    said = run_isolated(folder, compiler["path"], canonical_bytes(request_of(profile, groups, job)))
    if said.code:
        raise Refusal(
            "E-FRAME-004", f"{identity['id']}: {_words(said)}", field=compiler["path"], found=f"exit code {said.code}"
        )
    return said.out


def _words(said: Said) -> str:
    lines = [line.strip() for line in said.err.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "it said nothing"


def _parsed(data: bytes, origin: str) -> Any:
    try:
        return parse_json(data.decode("utf-8"))
    except (UnicodeDecodeError, CanonicalError) as exc:
        raise Refusal("E-FRAME-004", f"the answer is no JSON document: {exc}", field=origin) from exc


def request_of(profile: Mapping[str, Any], groups: Sequence[Mapping[str, Any]], job: Wanted) -> dict[str, Any]:
    """What a provider reads from stdin. It holds no path of the site: places are words that the launcher fills in."""
    return {
        "contract_version": CONTRACT_VERSION,
        "operation": "launch",
        "profile": {k: v for k, v in profile.items() if k != "compiler"},
        "config": profile["compiler"].get("config") or {},
        "spec": dict(job.spec),
        "recipe": dict(job.recipe),
        "hyperparams": dict(job.hyperparams),
        "paths": dict(job.paths),
        "shape": {"nodes": job.nodes, "gpus_per_node": job.gpus_per_node, "world_size": job.world_size},
        "placement": [dict(group) for group in groups],
        "inputs": {name: f"${{{plans.INPUTS[name]}}}" for name in job.inputs if name in plans.INPUTS},
        "places": {
            "output": OUTPUT,
            "out": "${TUNEPLANE_OUT_DIR}",
            "experiment": "${TUNEPLANE_EXP_DIR}",
            "generated": f"${{{plans.GENERATED}}}",
            "run_id": "${TUNEPLANE_RUN_ID}",
        },
    }


def yaml_plan(compiler: Mapping[str, Any], job: Wanted, groups: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The plan of a yaml compiler. Raises Refusal E-FRAME-011 (a binding without its input), E-FRAME-012 (a parameter on a bound path)."""
    bindings: Mapping[str, str] = compiler.get("bindings") or {}
    value: dict[str, Any] = json.loads(json.dumps(compiler.get("defaults") or {}))
    for name, given in job.hyperparams.items():
        path = job.paths.get(name) or name
        if clash := [b for b in bindings if b == path or b.startswith(path + ".") or path.startswith(b + ".")]:
            raise Refusal(
                "E-FRAME-012", f"{name} lies at {path}", field=f"params.{name}", found=path, allowed=f"not {clash[0]}"
            )
        _put(value, path, given, name)
    for path, source in bindings.items():
        _put(value, path, _binding(source, path, job, groups), path)
    config = compiler["config"]
    text = json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False)
    argv = [*compiler["argv"], *([compiler["config_flag"]] if compiler.get("config_flag") else [])]
    return {
        "contract_version": CONTRACT_VERSION,
        "launch_mode": compiler.get("launch_mode") or plans.DIRECT,
        "argv": [*argv, f"${{{plans.GENERATED}}}/{config}"],
        "env": dict(compiler.get("env") or {}),
        "files": {config: _POINTLESS.sub(lambda found: found[1] or f"{found[2]}.0{found[3]}", text) + "\n"},
    }


def _binding(source: str, path: str, job: Wanted, groups: Sequence[Mapping[str, Any]]) -> Any:
    if source in _BOUND:
        if _BOUND[source] not in job.inputs:
            raise Refusal("E-FRAME-011", f"{path} is bound to {source}", field=f"bindings.{path}", found="not given")
        return f"${{{plans.INPUTS[_BOUND[source]]}}}"
    if of := ROLE_SOURCE.fullmatch(source):  # null where the role shares all nodes with the others
        return next((group[of[2]] for group in groups if of[1] in group["roles"] and len(groups) > 1), None)
    others = {
        "together": len(groups) <= 1,
        "output": OUTPUT,
        "run_id": "${TUNEPLANE_RUN_ID}",
        "nodes": job.nodes,
        "gpus_per_node": job.gpus_per_node,
    }
    return others[source]


def _put(value: dict[str, Any], path: str, item: Any, name: str) -> None:
    *parents, leaf = path.split(".")
    at = value
    for part in parents:
        inner = at.setdefault(part, {})
        if not isinstance(inner, dict):
            raise Refusal(
                "E-FRAME-012",
                f"{name} lies below a value at {part}",
                field=name,
                found=path,
                allowed="a path of its own",
            )
        at = inner
    at[leaf] = item
