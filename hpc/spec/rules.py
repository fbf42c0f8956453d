"""Rules between fields of a JobSpec. They look at the raw JSON, so that they speak even where single fields are wrong, too.

Each rule is a function of the body (the object under `spec`) and yields refusals; it skips what has not the expected type, because
the models name that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from tuneplane.record.digest import is_relative

from hpc.errors import Refusal
from hpc.spec.model import shown
from hpc.spec.refs import parse_hub_ref
from hpc.spec.slurm_options import exclusive_words
from hpc.spec.text import leaf_variable, visible

Rule = Callable[[dict[str, Any]], Iterator[Refusal]]
MAX_TOTAL = (1 << 31) - 1


def broken_rules(body: dict[str, Any]) -> list[Refusal]:
    """Every rule's refusals, in the order of the fields."""
    return [refusal for rule in RULES for refusal in rule(body)]


def _object(holder: Any, key: str) -> dict[str, Any]:
    value = holder.get(key) if isinstance(holder, dict) else None
    return value if isinstance(value, dict) else {}


def _objects(holder: Any, key: str) -> list[tuple[int, dict[str, Any]]]:
    value = holder.get(key) if isinstance(holder, dict) else None
    return [(i, v) for i, v in enumerate(value) if isinstance(v, dict)] if isinstance(value, list) else []


def _texts(holder: dict[str, Any], key: str) -> list[str]:
    value = holder.get(key)
    return [v for v in value if isinstance(v, str)] if isinstance(value, list) else []


def _twice(names: list[str]) -> list[str]:
    return sorted({n for n in names if names.count(n) > 1})


def _int(value: Any, default: int) -> int:
    return value if type(value) is int else default


def entrypoint(body: dict[str, Any]) -> Iterator[Refusal]:
    value = _object(body, "source").get("entrypoint")
    if isinstance(value, str) and value.strip():
        message = "the recipe owns the entrypoint"
        yield Refusal("E-SPEC-020", message, field="spec.source.entrypoint", found=visible(value), allowed="empty")


def pool_names(body: dict[str, Any]) -> Iterator[Refusal]:
    if _object(body, "resources").get("pools") == []:
        yield Refusal("E-SPEC-015", "must not be empty", field="spec.resources.pools", allowed="at least one pool")
    names = [p["name"] for _, p in _objects(body.get("resources"), "pools") if isinstance(p.get("name"), str)]
    for name in _twice(names):
        yield Refusal(
            "E-SPEC-021", f"pool {visible(name)!r} stands twice", field="spec.resources.pools", allowed="each name once"
        )


def cpu_pools(body: dict[str, Any]) -> Iterator[Refusal]:
    for index, pool in _objects(body.get("resources"), "pools"):
        field = f"spec.resources.pools[{index}]"
        gpus = pool.get("gpus_per_node", 1)
        if gpus != 0 or isinstance(gpus, bool):
            if type(gpus) is int and _int(pool.get("ranks_per_node"), 0) > 0:
                message, found = "a pool with GPUs has one rank a GPU", pool["ranks_per_node"]
                yield Refusal("E-SPEC-034", message, field=f"{field}.ranks_per_node", found=found, allowed="0")
            continue
        if series := pool.get("series"):
            message = "a CPU-only pool has no series"
            yield Refusal("E-SPEC-024", message, field=f"{field}.series", found=shown(series), allowed="empty")
        for key in ("cpus", "memory_gb"):
            if type(amount := pool.get(key, 0)) is not int or amount <= 0:
                message = f"a CPU-only pool states {key} as a whole number"
                yield Refusal("E-SPEC-024", message, field=f"{field}.{key}", found=shown(amount), allowed="1 or more")


def totals(body: dict[str, Any]) -> Iterator[Refusal]:
    sums = {"cards": 0, "CPUs": 0, "GB of memory": 0}
    for _, pool in _objects(body.get("resources"), "pools"):
        nodes = _int(pool.get("nodes", 1), 1)
        sums["cards"] += nodes * _int(pool.get("gpus_per_node", 1), 0)
        sums["CPUs"] += nodes * _int(pool.get("cpus"), 0)
        sums["GB of memory"] += nodes * _int(pool.get("memory_gb"), 0)
    for what, total in sums.items():
        if total > MAX_TOTAL:
            message = f"all pools together ask for {total} {what}"
            yield Refusal(
                "E-SPEC-025", message, field="spec.resources.pools", found=total, allowed=f"at most {MAX_TOTAL}"
            )


def roles(body: dict[str, Any]) -> Iterator[Refusal]:
    resources = _object(body, "resources")
    if not isinstance(resources.get("pools"), list):
        return
    names = [p["name"] for _, p in _objects(resources, "pools") if isinstance(p.get("name"), str)]
    for role, pool in _object(resources, "roles").items():
        field = f"spec.resources.roles.{visible(str(role))}"
        if not str(role).strip():
            yield Refusal(
                "E-SPEC-015", "a role has no name", field="spec.resources.roles", found=role, allowed="a name"
            )
        if isinstance(pool, str) and pool not in names:
            message = f"no pool is called {visible(pool)!r}"
            yield Refusal(
                "E-SPEC-023", message, field=field, found=visible(pool), allowed=", ".join(map(visible, names))
            )


def leases(body: dict[str, Any]) -> Iterator[Refusal]:
    tools = [
        lease["tool"] for _, lease in _objects(body.get("resources"), "leases") if isinstance(lease.get("tool"), str)
    ]
    for tool in _twice(tools):
        yield Refusal(
            "E-SPEC-021",
            f"tool {visible(tool)!r} stands twice",
            field="spec.resources.leases",
            allowed="each tool once",
        )


def data_sources(body: dict[str, Any]) -> Iterator[Refusal]:
    variables: dict[str, str] = {}
    for key in ("train", "validation"):
        source, field = _object(_object(body, "data"), key), f"spec.data.{key}"
        dataset, path = source.get("dataset", ""), source.get("path", "")
        if source.get("split") and dataset == "" and path == "":
            yield Refusal("E-SPEC-036", "names no data", field=field, allowed="a dataset, a path, or both")
        if not isinstance(dataset, str) or not dataset:
            continue
        if isinstance(path, str) and path and not is_relative(path):
            message, allowed = "not a file inside the data set", "a relative path without . and .."
            yield Refusal("E-SPEC-017", message, field=f"{field}.path", found=visible(path), allowed=allowed)
        try:
            ref = parse_hub_ref(dataset, kind="dataset")
        except Refusal:
            continue  # the model names it
        if (taken := variables.setdefault(leaf_variable(ref.name), str(ref))) != str(ref):
            message = f"both {taken} and {ref} would be {leaf_variable(ref.name)}_DATA_DIR"
            yield Refusal("E-SPEC-022", message, field=f"{field}.dataset", found=visible(dataset))


def volumes(body: dict[str, Any]) -> Iterator[Refusal]:
    yield from _leaves(sorted(set(_texts(_object(body, "data"), "volumes"))), "spec.data.volumes", "$VOLUMES_DIR")


def _leaves(ids: list[str], field: str, place: str) -> Iterator[Refusal]:
    by_leaf: dict[str, list[str]] = {}
    for one in ids:
        by_leaf.setdefault(one.rpartition("/")[2], []).append(visible(one))
    for leaf, same in by_leaf.items():
        if len(same) > 1:
            message = f"{' and '.join(same)} would both be {place}/{visible(leaf)}"
            yield Refusal("E-SPEC-022", message, field=field, found=", ".join(same), allowed="different last parts")


def quality(body: dict[str, Any]) -> Iterator[Refusal]:
    value = _object(_object(body, "data"), "quality")
    for ceiling, partner in (("max_overlap_ratio", "overlap_with"), ("max_group_leak_ratio", "group_key")):
        if value.get(ceiling) is not None and value.get(partner, "") == "":
            message = f"{ceiling} needs {partner}"
            yield Refusal("E-SPEC-030", message, field=f"spec.data.quality.{partner}", found="", allowed="some text")


def gates(body: dict[str, Any]) -> Iterator[Refusal]:
    evaluation = _object(body, "evaluation")
    suites = _texts(evaluation, "suites")
    for index, gate in _objects(evaluation, "gates"):
        field, bounds = f"spec.evaluation.gates[{index}]", [gate.get(k) for k in ("min", "max", "max_regression")]
        if all(bound is None for bound in bounds):
            yield Refusal("E-SPEC-031", "has no bound", field=field, allowed="min, max or max_regression")
        low, high = bounds[:2]
        if type(low) in (int, float) and type(high) in (int, float) and low > high:  # type: ignore[operator]
            yield Refusal("E-SPEC-031", "min is above max", field=field, found=low, allowed=f"at most {high}")
        metric = gate.get("metric")
        if not isinstance(metric, str):
            continue
        benchmark, slash, key = metric.partition("/")
        if not slash or not benchmark or not key.strip() or benchmark not in suites:
            message = "names no benchmark of spec.evaluation.suites"
            allowed = ", ".join(f"{visible(s)}/<metric key>" for s in suites) or "none, as there are no suites"
            yield Refusal("E-SPEC-032", message, field=f"{field}.metric", found=visible(metric), allowed=allowed)


def on_checkpoint(body: dict[str, Any]) -> Iterator[Refusal]:
    value = _object(_object(body, "evaluation"), "on_checkpoint")
    if value and value.get("suites", []) == []:
        field = "spec.evaluation.on_checkpoint.suites"
        yield Refusal(
            "E-SPEC-033", "there are no suites to run", field=field, allowed="suites here or in spec.evaluation"
        )


def plugins(body: dict[str, Any]) -> Iterator[Refusal]:
    ids = [p["id"] for _, p in _objects(body, "plugins") if isinstance(p.get("id"), str)]
    for one in _twice(ids):
        yield Refusal(
            "E-SPEC-021", f"plugin {visible(one)!r} stands twice", field="spec.plugins", allowed="each plugin once"
        )
    yield from _leaves(sorted(set(ids)), "spec.plugins", "tuneplane_plugins")


def slurm(body: dict[str, Any]) -> Iterator[Refusal]:
    value = _object(body, "slurm")
    yield from exclusive_words(value, "spec.slurm")
    pools = [pool for _, pool in _objects(body.get("resources"), "pools")]
    if value.get("array") not in (None, "") and len(pools) > 1:
        message = "Slurm has no array of jobs with several pools"
        yield Refusal("E-SPEC-050", message, field="spec.slurm.array", found=shown(value["array"]), allowed="one pool")
    if pools and all(pool.get("gpus_per_node", 1) == 0 for pool in pools):
        for key in ("mem_per_gpu", "gpu_bind"):
            if value.get(key) not in (None, ""):
                message = "there is no GPU in any pool"
                yield Refusal(
                    "E-SPEC-050", message, field=f"spec.slurm.{key}", found=shown(value[key]), allowed="empty"
                )


RULES: tuple[Rule, ...] = (
    entrypoint,
    pool_names,
    cpu_pools,
    totals,
    roles,
    leases,
    data_sources,
    volumes,
    quality,
    gates,
    on_checkpoint,
    plugins,
    slurm,
)
