"""What packs declare is opened: recipe, benchmark, environment and integration, and the one convention of local data preparation."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from hpc.plugins.validate import Report, validate
from tests.plugins.making import VECTORS, build


def head(capability: str, name: str = "x") -> str:
    return f"schema: tuneplane/plugin/v1\nname: {name}\nversion: 1.0.0\ncapability: {capability}\n"


def said(report: Report) -> list[tuple[str, str]]:
    return [(e.code[-3:], e.field) for e in report.declarations]


# Recipes


def recipe(folder: Path, **changes: Any) -> Path:
    toy = VECTORS / "recipe-pack-toy" / "toy-sft"
    value = yaml.safe_load((toy / "recipe.yaml").read_text("utf-8")) | changes
    value = {key: item for key, item in value.items() if item is not ...}
    return build(folder, {
        "plugin.yaml": head("recipe", "toy-sft"), "recipe.yaml": yaml.safe_dump(value),
        "template/train.py": (toy / "template" / "train.py").read_bytes(),
    })  # fmt: skip


def test_a_sound_recipe_pack(tmp_path: Path) -> None:
    report = validate(recipe(tmp_path))
    assert (report.publishable, report.warnings) == (True, [])


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"name": "other"}, [("064", "recipe.yaml: name")]),
        ({"framework": ..., "metrics": ...}, [("064", "recipe.yaml: framework"), ("064", "recipe.yaml: metrics")]),
        ({"template": "nope"}, [("064", "nope")]),
        ({"template": "../.."}, [("064", "recipe.yaml: template")]),
    ],
    ids=str,
)
def test_a_recipe_at_fault_is_accepted_as_a_package_and_not_publishable(
    tmp_path: Path, changes: dict[str, Any], expected: list[tuple[str, str]]
) -> None:
    report = validate(recipe(tmp_path, **changes))
    assert (report.verdict, report.publishable) == ("accept", False)
    assert said(report) == expected


def test_a_recipe_pack_without_a_readable_recipe(tmp_path: Path) -> None:
    assert said(validate(build(tmp_path / "a", {"plugin.yaml": head("recipe")}))) == [("060", "recipe.yaml")]
    assert (
        said(validate(build(tmp_path / "b", {"plugin.yaml": head("recipe"), "recipe.yaml": "a: [\n"})))[0][0] == "064"
    )


def test_a_key_of_a_recipe_that_nobody_knows_is_remarked_on(tmp_path: Path) -> None:
    report = validate(recipe(tmp_path, summry="x"))
    assert (report.publishable, len(report.warnings)) == (True, 1)


# Benchmarks

BENCH: dict[str, Any] = {
    "schema": "tuneplane/benchmark/v1", "name": "x", "runner": "lm-eval", "suites": ["gsm8k"],
    "metrics": [{"key": "exact_match,strict-match", "label": "exact", "direction": "higher", "ratio": True, "primary": True}, {"key": "loss"}],
    "num_fewshot": 5, "batch_size": "auto", "limit": 100, "extra_args": {"trust": True}, "category": "math", "keywords": ["m"], "i18n": {"de": {}},
}  # fmt: skip


def bench(folder: Path, **changes: Any) -> Report:
    value = copy.deepcopy(BENCH) | changes
    text = yaml.safe_dump({key: item for key, item in value.items() if item is not ...})
    return validate(build(folder, {"plugin.yaml": head("benchmark"), "benchmark.yaml": text}))


def test_a_sound_benchmark_pack(tmp_path: Path) -> None:
    assert bench(tmp_path).publishable is True


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"schema": "v2"}, "schema"), ({"name": "y"}, "name"), ({"name": ...}, "name"), ({"runner": "mine"}, "runner"), ({"runner": ...}, "runner"),
        ({"suites": []}, "suites"), ({"suites": "gsm8k"}, "suites"), ({"metrics": []}, "metrics"), ({"metrics": [{"key": "a"}]}, "metrics"),
        ({"metrics": [{"key": "a", "primary": True}, {"key": "b", "primary": True}]}, "metrics"),
        ({"metrics": [{"key": "a", "primary": True}, {"key": "a"}]}, "metrics[1].key"), ({"metrics": [{"primary": True}]}, "metrics[0].key"),
        ({"metrics": [{"key": "a/b", "primary": True}]}, "metrics[0].key"), ({"metrics": [{"key": "a", "primary": "yes"}]}, "metrics[0].primary"),
        ({"metrics": [{"key": "a", "primary": True, "direction": "up"}]}, "metrics[0].direction"),
        ({"metrics": [{"key": "a", "primary": True, "best": 1}]}, "metrics[0].best"), ({"num_fewshot": -1}, "num_fewshot"),
        ({"num_fewshot": True}, "num_fewshot"), ({"batch_size": "big"}, "batch_size"), ({"limit": 0.5}, "limit"), ({"extra_args": "x"}, "extra_args"),
        ({"runner": "judge"}, "rubric"), ({"title": "a\x1bb"}, "title"), ({"suits": []}, "suits"), ({"i18n": []}, "i18n"),
    ],
    ids=str,
)  # fmt: skip
def test_a_benchmark_at_fault_names_the_key(tmp_path: Path, changes: dict[str, Any], field: str) -> None:
    report = bench(tmp_path, **changes)
    assert (report.verdict, report.publishable) == ("accept", False)
    assert f"benchmark.yaml: {field}" in [e.field for e in report.declarations]


def test_a_judge_with_its_rubric_needs_no_suite(tmp_path: Path) -> None:
    assert bench(tmp_path, runner="judge", rubric="Be strict.\nBe fair.\n", suites=...).publishable is True


# Environments

ENV: dict[str, Any] = {
    "schema": "tuneplane/environment/v1", "protocol": "openenv", "deployment": "remote", "endpoint": "https://h/x", "domain": "math",
    "verifier": {"kind": "rubric", "ref": "r"}, "tools": [{"name": "search", "endpoint": "https://h/s", "schema": {}}],
    "harness": {"plugin": "alice/h", "version": "1", "entrypoint": "h.core:Harness", "digest": "sha256:" + "0" * 64},
    "sandbox": {"required": True, "profile": "p"}, "description": "many\nlines",
}  # fmt: skip


def environment(folder: Path, **changes: Any) -> Report:
    value = {key: item for key, item in (copy.deepcopy(ENV) | changes).items() if item is not ...}
    files = {
        "plugin.yaml": head("environment") + "entrypoint: m:make\n",
        "m.py": "def make(): ...\n",
        "manifest.json": json.dumps(value),
    }
    return validate(build(folder, files))


def test_an_environments_own_manifest_is_optional_and_checked_where_there_is_one(tmp_path: Path) -> None:
    assert environment(tmp_path / "a").publishable is True
    files = {"plugin.yaml": head("environment") + "entrypoint: m:make\n", "m.py": "def make(): ...\n"}
    assert validate(build(tmp_path / "b", files)).publishable is True
    assert said(validate(build(tmp_path / "c", {**files, "manifest.json": "[]"}))) == [("061", "manifest.json")]
    assert said(validate(build(tmp_path / "d", {**files, "manifest.json": '{"a": 1, "a": 2}'}))) == [
        ("061", "manifest.json")
    ]


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"schema": ...}, "schema"), ({"protocol": "gym"}, "protocol"), ({"protocol": "nemo-gym"}, "deployment"),
        ({"deployment": "here"}, "deployment"),

        ({"fleet": "f"}, "endpoint"), ({"endpoint": ...}, "endpoint"), ({"deployment": "local"}, "endpoint"), ({"image": "i"}, "image"),
        ({"deployment": "container", "endpoint": ...}, "image"), ({"verifier": ...}, "verifier"), ({"verifier": {"kind": "plugin"}}, "verifier.ref"),
        ({"verifier": {"kind": "oracle", "ref": "x"}}, "verifier.kind"), ({"tools": [{}]}, "tools[0].name"), ({"endpoint": "ssh://x"}, "endpoint"),
        ({"harness": {"plugin": "a/h", "version": "1", "entrypoint": "h"}}, "harness.entrypoint"), ({"sandbox": {"required": 1}}, "sandbox.required"),
        ({"harness": {"plugin": "a/h", "version": "1", "entrypoint": "h:H", "digest": "sha256:x"}}, "harness.digest"), ({"prot": 1}, "prot"),
    ],
    ids=str,
)  # fmt: skip
def test_an_environment_at_fault_names_the_key(tmp_path: Path, changes: dict[str, Any], field: str) -> None:
    report = environment(tmp_path, **changes)
    assert (report.verdict, report.publishable) == ("accept", False)
    assert f"manifest.json: {field}" in [e.field for e in report.declarations]


# Framework integrations: their faults decide the verdict

PROFILE: dict[str, Any] = {
    "id": "a", "framework": "toy", "method": "toy/sft", "engine": "", "runtime_id": "job-selected", "runtime_digest": "job-pinned",
    "capabilities": ["launch", "resume"], "compiler": {"kind": "provider", "path": "run.py"},
}  # fmt: skip
YAML: dict[str, Any] = {
    "kind": "yaml", "argv": ["$PYTHON", "-m", "toy"], "config": "config.yaml", "config_flag": "--config", "bindings": {"model.path": "model"},
    "defaults": {"train.lr": 1e-5, "model": {"name": "x"}}, "launch_mode": "direct", "env": {"TOY_DATA": "${TUNEPLANE_TRAIN_DATA}"},
}  # fmt: skip


def compiled(changes: dict[str, Any]) -> dict[str, Any]:
    return {"compiler": YAML | changes}


def provided(**keys: Any) -> dict[str, Any]:
    return {"compiler": {"kind": "provider"} | keys}


WHOLE: dict[str, Any] = {
    "contract_version": 1, "distribution": "toy", "source_root": "TOY_HOME", "display_name": "Toy", "catalog_order": 5, "required_inputs": ["model"],
    "observations": [], "native_validation": True, "capability_switches": [], "metric_descriptors": [], "algorithm_hook": False, "cpu_only": True,
    "data_prep_jobs": True, "profiles": [PROFILE, PROFILE | {"id": "b", "method": "toy/dpo", "compiler": YAML}],
}  # fmt: skip


def integration(folder: Path, value: Any, **files: str) -> Report:
    text = value if isinstance(value, str) else json.dumps(value)
    return validate(
        build(folder, {"plugin.yaml": head("framework-integration"), "integration.json": text, "run.py": "", **files})
    )


FITTING = {
    "rows": ["parquet", "folder"], "unread": ["model.peft"], "placements": [[["actor", "rollout"]], [["actor"], ["rollout"]]],
    "compiler": YAML | {"bindings": {"n": "rollout.nodes", "g": "rollout.gpus_per_node", "t": "together"}},
}  # fmt: skip


def test_a_profile_says_what_rows_it_reads_and_how_its_roles_can_lie(tmp_path: Path) -> None:
    report = integration(tmp_path, {"contract_version": 1, "profiles": [PROFILE | FITTING]})
    assert (report.publishable, [str(e) for e in report.errors]) == (True, [])


def test_a_sound_integration_with_both_compilers(tmp_path: Path) -> None:
    report = integration(tmp_path, WHOLE)
    assert (report.publishable, [str(e) for e in report.errors]) == (True, [])


PINNED = {"runtime_id": "r1", "runtime_digest": "sha256:" + "1" * 64}


@pytest.mark.parametrize(
    ("value", "field"),
    [
        ({"contract_version": 2, "profiles": [PROFILE]}, "contract_version"), ({"contract_version": True, "profiles": [PROFILE]}, "contract_version"),
        ({"profiles": [PROFILE]}, "contract_version"), ({"contract_version": 1}, "profiles"), ({"contract_version": 1, "profiles": []}, "profiles"),
        ({"contract_version": 1, "profiles": [PROFILE] * 257}, "profiles"), (WHOLE | {"catalog_order": 1001}, "catalog_order"),
        (WHOLE | {"required_inputs": ["tokens"]}, "required_inputs"), (WHOLE | {"source_root": "a b"}, "source_root"),
        (WHOLE | {"algoritm_hook": True}, "algoritm_hook"), (WHOLE | {"cpu_only": "no"}, "cpu_only"),
    ],
)  # fmt: skip
def test_an_integration_at_fault_is_refused(tmp_path: Path, value: dict[str, Any], field: str) -> None:
    report = integration(tmp_path, value)
    assert report.verdict == "refuse"
    assert f"integration.json: {field}" in [e.field for e in report.errors]


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"id": ""}, "id"), ({"framework": 1}, "framework"), ({"method": "toy sft"}, "method"), ({"runtime_id": None}, "runtime_id"),
        ({"runtime_digest": "latest"}, "runtime_digest"), ({"capabilities": ["scalar"]}, "capabilities"),
        ({"capabilities": ["launch", "fly"]}, "capabilities"),
        ({"compiler": None}, "compiler"), ({"compiler": {"kind": "shell"}}, "compiler.kind"), (provided(), "compiler.path"),
        (provided(path="no.py"), "compiler.path"), (provided(path="/bin/sh"), "compiler.path"),
        (provided(path="run.py", argv=[]), "compiler.argv"), (compiled({"argv": []}), "compiler.argv"),
        (compiled({"argv": ["sh", "$PYTHON"]}), "compiler.argv"), (compiled({"argv": ["$PYTHON", "$PYTHON"]}), "compiler.argv"),
        (compiled({"env": {"PATH": "/x"}}), "compiler.env.PATH"), (compiled({"env": {"A": 1}}), "compiler.env.A"),
        (compiled({"env": {"A": "${TUNEPLANE_NOTHING}"}}), "compiler.env.A"), (compiled({"env": ["A"]}), "compiler.env"),
        (compiled({"config": "../c.yaml"}), "compiler.config"), (compiled({"launch_mode": "spmd-process-group"}), "compiler.launch_mode"),
        (compiled({"bindings": {"a": "secret"}}), "compiler.bindings.a"), (compiled({"bindings": {"a..b": "model"}}), "compiler.bindings.a..b"),
        (compiled({"bindings": {"a": "model", "a.b": "output"}}), "compiler.bindings.a.b"),
        (compiled({"defaults": {"model.path": "x"}}), "compiler.defaults.model.path"),
        (compiled({"defaults": {"model": {}}}), "compiler.defaults.model"),
        (compiled({"defaults": {"model": {"path": {"deep": 1}}}}), "compiler.defaults.model.path.deep"), ({"extra": 1}, "extra"),
        (compiled({"bindings": {"a": "rollout.cpus"}}), "compiler.bindings.a"), ({"rows": ["xlsx"]}, "rows"), ({"rows": "csv"}, "rows"),
        ({"row_separators": ["::"]}, "row_separators[0]"),
        ({"unread": "model.peft"}, "unread"),
        ({"placements": "actor"}, "placements"), ({"placements": [["actor"]]}, "placements[0]"),
        ({"placements": [[["actor"]], [["actor"], []]]}, "placements[1]"), ({"placements": [[["actor"], ["actor"]]]}, "placements[0]"),
        ({"placements": [[[1]]]}, "placements[0]"), ({"placements": [[]]}, "placements[0]"),
    ],
    ids=str,
)  # fmt: skip
def test_a_profile_at_fault_is_refused(tmp_path: Path, changes: dict[str, Any], field: str) -> None:
    report = integration(tmp_path, {"contract_version": 1, "profiles": [PROFILE | changes]})
    assert report.verdict == "refuse"
    assert f"integration.json: profiles[0].{field}" in [e.field for e in report.errors]


@pytest.mark.parametrize(
    ("other", "ambiguous"),
    [
        ({"id": "b"}, True), ({"id": "a", "method": "toy/dpo"}, True), ({"id": "b", **PINNED}, True), ({"id": "b", "engine": "fsdp"}, False),
        ({"id": "b", "framework": "other"}, False), ({"id": "b", "method": "toy/dpo"}, False),
    ],
)  # fmt: skip
def test_two_profiles_never_match_one_job(tmp_path: Path, other: dict[str, Any], ambiguous: bool) -> None:
    report = integration(tmp_path, {"contract_version": 1, "profiles": [PROFILE, PROFILE | other]})
    assert [e.field for e in report.errors] == (["integration.json: profiles"] if ambiguous else [])


def test_two_digests_of_one_runtime_are_two_profiles(tmp_path: Path) -> None:
    two = [PROFILE | PINNED, PROFILE | PINNED | {"id": "b", "runtime_digest": "sha256:" + "2" * 64}]
    assert integration(tmp_path, {"contract_version": 1, "profiles": two}).verdict == "accept"


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{", '{"contract_version": 1, "contract_version": 1}', '{"contract_version": NaN}', "[" * 100_000, '{"a":' * 200 + "1" + "}" * 200,
     json.dumps({"display_name": "x" * (1 << 20)})],
    ids=lambda t: t[:20],
)  # fmt: skip
def test_an_integration_that_is_no_strict_json(tmp_path: Path, text: str) -> None:
    report = integration(tmp_path, text)
    assert [e.field for e in report.errors] == ["integration.json"]


def test_an_integration_without_its_declaration(tmp_path: Path) -> None:
    report = validate(build(tmp_path, {"plugin.yaml": head("framework-integration"), "run.py": ""}))
    assert [(e.code, e.field) for e in report.errors] == [("E-PLUGIN-060", "integration.json")]


# Local data preparation


def test_local_data_preparation_is_found_by_its_convention(tmp_path: Path) -> None:
    manifest = head("data-prep") + "execution: local\n"
    good = validate(build(tmp_path / "a", {"plugin.yaml": manifest, "prepare_gsm8k.py": '"""GSM8K."""\n'}))
    assert good.publishable is True
    for name in ("prep.py", "sub/prepare_x.py", "prepare_x.txt", "prepare_.py", "prepare_a-b.py"):
        report = validate(build(tmp_path / name.replace("/", "-"), {"plugin.yaml": manifest, name: ""}))
        assert (report.verdict, report.publishable, said(report)) == ("accept", False, [("060", "package")])
