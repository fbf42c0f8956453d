"""The site file: strict, every fault at once, and nothing it says is ignored."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from tuneplane.contract.layout import StorageRoot

from hpc.errors import Refusal, Refusals
from hpc.site.model import Site
from hpc.site.sitefile import load_site, parse_site
from hpc.site.starter import starter

SMALLEST = "schema: tuneplane-hpc/site/v1\nname: lab\n"


def faults(text: str, version: str = "0.4.0") -> dict[str, Refusal]:
    """Refusals of a text by field, without the file's name."""
    try:
        parse_site(text, version=version)
    except Refusals as exc:
        return {r.field.removeprefix("site.yaml: "): r for r in exc.items}
    except Refusal as exc:
        return {exc.field.removeprefix("site.yaml: "): exc}
    return {}


def with_keys(**keys: Any) -> str:
    return json.dumps({"schema": "tuneplane-hpc/site/v1", "name": "lab", **keys})


def test_two_lines_are_a_site_with_all_defaults() -> None:
    site = parse_site(SMALLEST)
    assert (site.default_fleet, site.fleets["local"].kind) == ("local", "local")
    assert (site.quota.gpus, site.quota.jobs) == (16, 100)
    assert (site.slurm.poll_interval_s, site.slurm.poll_max_s, site.slurm.signal_lead_s) == (30, 180, 120)
    assert site.slurm.command_timeout_s == 30
    assert (site.runtimes.verify, site.admission.mode, site.packages.max_mb) == ("full", "advisory", 64)


@pytest.mark.parametrize("fleet", ["local", "slurm"])
def test_the_starter_file_is_valid_and_says_what_was_asked(fleet: str) -> None:
    text = starter(name="lab", admin_group="hpcadm", service_user="tp", fleet=fleet, conf="/etc/slurm/slurm.conf")
    site = parse_site(text)
    assert (site.name, site.admin_group, site.service_user) == ("lab", "hpcadm", "tp")
    assert site.fleets[site.default_fleet].kind == fleet
    assert site.slurm_defaults().time == "01:00:00"


def test_the_starter_file_has_every_key_of_the_model() -> None:
    text = starter(name="lab")
    top = {line.partition(":")[0] for line in text.splitlines() if line and line[0].isalpha()}
    assert top == {f.alias or n for n, f in Site.model_fields.items()}


def _takes(field: FieldInfo) -> str:
    """What a key takes, in the words of docs/site-file.md."""
    kind, text = field.annotation, str(field.annotation)
    if (isinstance(kind, type) and issubclass(kind, BaseModel)) or text.startswith("dict"):
        return "object"
    if text.startswith("typing.Literal"):
        return " or ".join(f"`{word}`" for word in get_args(kind))
    if text.startswith("tuple"):
        return "list"
    if kind is int or text == "int | None":
        low, high = (next(getattr(m, n) for m in field.metadata if hasattr(m, n)) for n in ("ge", "le"))
        return f"whole number {low}…{high}" + (" or null" if "None" in text else "")
    return "text"


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if isinstance(value, BaseModel):
        return ""
    if isinstance(value, dict) and value:
        return "`{local: {kind: local}}`"
    return {"": '`""`', "()": "`[]`", "None": "`null`"}.get(str(value), f"`{value}`")


def _rows(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Every line of the reference page's tables."""
    for name, field in model.model_fields.items():
        key = prefix + (field.alias or name)
        assert field.description, key
        yield f"| `{key}` | {_takes(field)} | {_default(field)} | {field.description} |"
        for inner in [field.annotation, *getattr(field.annotation, "__args__", ())]:
            if isinstance(inner, type) and issubclass(inner, BaseModel):
                yield from _rows(inner, key + (".NAME." if inner is not field.annotation else "."))


def test_the_reference_page_has_one_true_line_for_every_key() -> None:
    page = (Path(__file__).parents[2] / "docs" / "site-file.md").read_text("utf-8")
    told = [line for line in page.splitlines() if line.startswith("| `")]
    assert sorted(told) == sorted(_rows(Site))


def test_the_reference_pages_examples_are_valid() -> None:
    page = (Path(__file__).parents[2] / "docs" / "site-file.md").read_text("utf-8")
    smallest, profiles = page.split("```yaml\n")[1:]
    site = parse_site(smallest.partition("```")[0] + profiles.partition("```")[0])
    assert (site.profiles["h200"].cpus_per_gpu, site.profiles["cpu"].ranks_per_node) == (12, 4)


def test_a_misspelt_key_is_named_with_the_nearest_one() -> None:
    fault = faults(SMALLEST + "quotas: {gpus: 4}\n")["quotas"]
    assert (fault.code, fault.hint) == ("E-SPEC-012", "did you mean 'quota'?")
    inner = faults(with_keys(profiles={"h200": {"series": "h200", "gpus_per_nodes": 8}}))
    assert inner["profiles.h200.gpus_per_nodes"].hint == "did you mean 'gpus_per_node'?"


def test_all_faults_come_at_once() -> None:
    found = faults(
        with_keys(
            fleets={"main": {"kind": "pbs"}},
            profiles={"h200": {"gpus_per_node": "8"}, "a b": {"cpus": 1, "memory_gb": 1}},
            quota={"gpus": -1, "users": {"alice": {"gpu": 1}}},
            slurm={"defaults": {"time": "soon"}, "poll_interval_s": 1.5},
            network={"hcas": ["=mlx5_0"]},
            tp_min="new",
        )
    )
    assert set(found) == {
        "fleets.main.kind",
        "profiles.h200.gpus_per_node",
        "profiles",
        "quota.gpus",
        "quota.users.alice.gpu",
        "slurm.defaults.time",
        "slurm.poll_interval_s",
        "network.hcas[0]",
        "tp_min",
    }


@pytest.mark.parametrize(
    ("keys", "field"),
    [
        ({"profiles": {"p": {"gpus_per_node": 8}}}, "profiles.p.series"),
        ({"profiles": {"p": {"series": "h200", "gpus_per_node": 8, "ranks_per_node": 8}}}, "profiles.p.ranks_per_node"),
        ({"profiles": {"p": {"cpus": 4}}}, "profiles.p.memory_gb"),
        ({"profiles": {"p": {"memory_gb": 4}}}, "profiles.p.cpus"),
        ({"profiles": {"p": {"cpus": 4, "memory_gb": 4, "series": "h200"}}}, "profiles.p.series"),
        ({"profiles": {"p": {"cpus": 4, "memory_gb": 4, "fleet": "x"}}}, "profiles.p.fleet"),
        ({"default_profile": "x"}, "default_profile"),
        ({"default_fleet": "x"}, "default_fleet"),
        ({"fleets": {}}, "fleets"),
        ({"fleets": {"a": {"kind": "local"}, "b": {"kind": "local"}}}, "default_fleet"),
        ({"admission": {"mode": "enforced"}}, "admission.public_key"),
        ({"slurm": {"poll_interval_s": 60, "poll_max_s": 30}}, "slurm.poll_max_s"),
        ({"slurm": {"defaults": {"time": "2-0"}, "limits": {"time": "1-0"}}}, "slurm.defaults.time"),
        ({"slurm": {"defaults": {"time": "UNLIMITED"}, "limits": {"time": "1-0"}}}, "slurm.defaults.time"),
        ({"slurm": {"defaults": {"partition": "gpu"}, "limits": {"partitions": ["cpu"]}}}, "slurm.defaults.partition"),
        ({"slurm": {"defaults": {"comment": "two words"}}}, "slurm.defaults.comment"),
        ({"slurm": {"defaults": {"mem": "1G", "mem_per_gpu": "1G"}}}, "slurm.defaults.mem_per_gpu"),
        ({"tp_min": "0.5", "tp_max": "0.4"}, "tp_min"),
        ({"binds": ["/etc"]}, "binds[0]"),
        ({"binds": ["/apps/../etc"]}, "binds[0]"),
        ({"binds": ["/apps/x:/y"]}, "binds[0]"),
        ({"images": {"allowed_hosts": ["docker://x"]}}, "images.allowed_hosts[0]"),
        ({"name": "a\nb"}, "name"),
        ({"admin_group": "a b"}, "admin_group"),
        ({"fleets": {"m": {"kind": "slurm", "bin_dir": "bin"}}}, "fleets.m.bin_dir"),
    ],
)
def test_a_wrong_value_is_refused_at_its_field(keys: dict[str, Any], field: str) -> None:
    assert field in faults(with_keys(**keys))


def test_p44_interfaces_are_exact_names() -> None:
    site = parse_site(with_keys(network={"nccl_interfaces": ["ib0", "eth1.20"], "hcas": ["mlx5_0:1"]}))
    assert site.network.nccl_interfaces == ("ib0", "eth1.20")
    assert "network.gloo_interfaces[0]" in faults(with_keys(network={"gloo_interfaces": ["^docker0"]}))


def test_p49_the_gpu_dialect_is_the_sites_word() -> None:
    gpu = {"series": "h200", "gpus_per_node": 8, "gpu_dialect": "gpus-per-node", "gres_type": "h200"}
    site = parse_site(with_keys(profiles={"h200": gpu}))
    shape = site.profile_shapes()["h200"]
    assert (shape.series, shape.nodes, shape.gpus_per_node, shape.ranks_per_node) == ("h200", 1, 8, 0)
    assert "profiles.h200.gpu_dialect" in faults(with_keys(profiles={"h200": {**gpu, "gpu_dialect": "gpus-per-task"}}))


@pytest.mark.parametrize("name", ["WANDB_API_KEY", "HF_TOKEN", "my_secret", "DB_PASSWORD"])
def test_a_secret_in_the_readable_site_file_is_refused(name: str) -> None:
    profile = {"cpus": 1, "memory_gb": 1, "env": {name: "canary-123"}}
    found = faults(with_keys(profiles={"p": profile}))
    assert found[f"profiles.p.env.{name}"].code == "E-SITE-006"
    assert "canary-123" not in json.dumps([f.as_json() for f in found.values()])


@pytest.mark.parametrize("name", ["SLURM_JOB_ID", "TUNEPLANE_RUN_DIR", "RANK", "HOME", "A=B", "1A", ""])
def test_variables_that_others_set_are_not_a_profiles(name: str) -> None:
    profile = {"cpus": 1, "memory_gb": 1, "env": {name: "x"}}
    assert faults(with_keys(profiles={"p": profile}))["profiles.p.env"].code == "E-SITE-003"


def test_control_characters_are_refused_everywhere() -> None:
    profile = {"cpus": 1, "memory_gb": 1, "env": {"A": "x\ny"}, "overrides": ["a=1\x85"]}
    found = faults(with_keys(profiles={"p": profile}))
    assert {found["profiles.p.env.A"].code, found["profiles.p.overrides[0]"].code} == {"E-SPEC-016"}


@pytest.mark.parametrize(
    ("low", "high", "version", "allowed"),
    [
        ("", "", "9.9.9", True),
        ("0.4.0", "", "0.4.0", True),
        ("0.4.1", "", "0.4.0", False),
        ("", "0.4", "0.4.9", True),
        ("", "0.4", "0.5.0", False),
        ("", "0.4.0", "0.4.1", False),
        ("0.4", "0.4", "0.4.7", True),
        ("0.10", "", "0.9.0", False),
    ],
)
def test_versions_are_compared_as_numbers(low: str, high: str, version: str, allowed: bool) -> None:
    found = faults(with_keys(tp_min=low, tp_max=high), version)
    assert (not found) is allowed
    if not allowed:
        (fault,) = found.values()
        assert (fault.code, fault.found) == ("E-SITE-005", version)


def test_quota_has_exceptions() -> None:
    site = parse_site(with_keys(quota={"gpus": 8, "users": {"alice": {"gpus": 32}, "bob": {"jobs": 0}}}))
    assert [site.quota.of(n) for n in ("alice", "bob", "carol")] == [(32, 100), (8, 0), (8, 100)]


def test_profile_without_a_fleet_has_the_default_one() -> None:
    fleets = {"main": {"kind": "slurm"}, "here": {"kind": "local"}}
    profiles = {"a": {"cpus": 1, "memory_gb": 1}, "b": {"cpus": 1, "memory_gb": 1, "fleet": "here"}}
    site = parse_site(with_keys(fleets=fleets, default_fleet="main", profiles=profiles))
    assert [site.fleet_of(p) for p in ("", "a", "b")] == ["main", "main", "here"]


def test_loaded_site_knows_its_owner(root: StorageRoot) -> None:
    assert load_site(root).owner_uid == root.site.lstat().st_uid
    assert parse_site(SMALLEST).owner_uid == -1


def test_missing_file_is_a_refusal(root: StorageRoot) -> None:
    root.site_file.unlink()
    with pytest.raises(Refusal) as caught:
        load_site(root)
    assert caught.value.code == "E-SITE-001"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=80, deadline=None)
@given(st.dictionaries(st.sampled_from([f.alias or n for n, f in Site.model_fields.items()]), JSON, max_size=4))
def test_anything_is_a_site_or_a_refusal(keys: dict[str, Any]) -> None:
    text = json.dumps({"schema": "tuneplane-hpc/site/v1", "name": "lab", **keys})
    found = faults(text)
    assert all(r.code.startswith(("E-SITE-", "E-SPEC-")) for r in found.values())
    if not found:
        site = parse_site(text)
        assert parse_site(json.dumps(site.sparse())) == site
