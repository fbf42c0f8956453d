"""Compilers of framework integrations: what they can reach, how they fail, and what of their answer is believed."""

from __future__ import annotations

import json
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from hpc.errors import Refusal, Refusals
from hpc.plugins import sandbox
from hpc.plugins.compiling import Wanted, compile_plan, yaml_plan
from hpc.plugins.fitting import SEVERAL, Machines, placed

IDENTITY = {"id": "alice/framework-toy", "version": "1.0", "digest": "sha256:" + "0" * 64}
JOB = Wanted(
    framework="toy", methods=("alice/count", "toy/count"), engine="", runtime_id="toy-1.0.0", runtime_digest="", orchestrator="process-group",
    inputs=("model",), pools={"all": Machines(2, 8)}, world_size=16, hyperparams={"to": 3, "rate": 0.5}, paths={"to": "count.to", "rate": "rate"},
    spec={"kind": "TrainingJob"}, recipe={"name": "count"},
)  # fmt: skip
GOOD: dict[str, Any] = {
    "contract_version": 1, "launch_mode": "direct", "argv": ["$PYTHON", "-m", "toy"], "env": {"TOY": "1"},
    "files": {"a/b.json": "{}"}, "summary": "counts",
}  # fmt: skip
PROFILE = {
    "id": "count", "framework": "toy", "method": "toy/count", "runtime_id": "job-selected", "runtime_digest": "job-pinned",
    "capabilities": ["launch"],
}  # fmt: skip


def package(folder: Path, compiler: dict[str, Any], files: dict[str, str] | None = None, **fields: Any) -> Path:
    declared = {
        "contract_version": 1,
        "profiles": [PROFILE | {"compiler": compiler} | fields.pop("profile", {})],
    } | fields
    for name, text in {"integration.json": json.dumps(declared), **(files or {})}.items():
        (folder / name).write_text(text, "utf-8")
    return folder


def compiled(folder: Path, job: Wanted = JOB) -> dict[str, Any]:
    files = {p.name: p.stat().st_size for p in folder.iterdir()}
    return compile_plan(folder, files, IDENTITY, job)


def program(folder: Path, text: str) -> Path:
    return package(folder, {"kind": "provider", "path": "c.py"}, {"c.py": text})


def answer(value: Any, more: str = "") -> str:
    plan = json.dumps(json.dumps(value))
    return f"import json, sys\nrequest = json.load(sys.stdin)\nplan = json.loads({plan})\n{more}\njson.dump(plan, sys.stdout)\n"


def codes(caught: pytest.ExceptionInfo[Refusal | Refusals]) -> list[str]:
    fault = caught.value
    return [fault.code] if isinstance(fault, Refusal) else [r.code for r in fault.items]


def test_a_provider_s_plan_is_recorded_with_the_package_that_made_it(tmp_path: Path) -> None:
    plan = compiled(program(tmp_path, answer(GOOD)))
    assert plan == {
        "schema": "tuneplane-hpc/launch-plan/v1", "integration": IDENTITY | {"profile": "count"}, "launch_mode": "direct",
        "argv": ["$PYTHON", "-m", "toy"], "env": {"TOY": "1"}, "files": {"a/b.json": "{}"}, "summary": "counts",
    }  # fmt: skip


def test_a_provider_learns_the_job_and_no_path_of_the_site(tmp_path: Path) -> None:
    plan = compiled(program(tmp_path, answer(GOOD, "plan['files'] = {'request': json.dumps(request, sort_keys=True)}")))
    assert json.loads(plan["files"]["request"]) == {
        "contract_version": 1, "operation": "launch", "profile": PROFILE, "config": {}, "spec": {"kind": "TrainingJob"},
        "recipe": {"name": "count"}, "hyperparams": {"to": 3, "rate": 0.5}, "paths": {"to": "count.to", "rate": "rate"},
        "shape": {"nodes": 2, "gpus_per_node": 8, "world_size": 16}, "placement": [], "inputs": {"model": "${TUNEPLANE_MODEL_PATH}"},
        "places": {"output": "${TUNEPLANE_CHECKPOINT_DIR}", "out": "${TUNEPLANE_OUT_DIR}", "experiment": "${TUNEPLANE_EXP_DIR}",
                   "generated": "${TUNEPLANE_GENERATED_DIR}", "run_id": "${TUNEPLANE_RUN_ID}"},
    }  # fmt: skip


REACHED = """
import os, socket
found = {"env": sorted(os.environ), "root": sorted(os.listdir("/")), "pid": os.getpid()}
found["etc"] = os.listdir("/etc") if os.path.isdir("/etc") else []
for name, act in {
    "network": lambda: socket.create_connection(("127.0.0.1", 22), 1), "passwd": lambda: open("/etc/passwd"),
    "write": lambda: open("/package/x", "w"), "home": lambda: os.listdir("/root"), "usr": lambda: open("/usr/x", "w"),
    "site": lambda: __import__("pydantic"),
}.items():
    try:
        act()
        found[name] = "reached"
    except Exception as exc:
        found[name] = type(exc).__name__
plan["files"] = {"found": json.dumps(found)}
"""


def test_a_provider_reaches_no_network_no_file_and_no_variable_of_the_submitter(tmp_path: Path) -> None:
    found = json.loads(compiled(program(tmp_path, answer(GOOD, REACHED)))["files"]["found"])
    assert found["env"] == ["LC_ALL", "PYTHONHASHSEED", "TZ"]
    assert set(found["root"]) <= {"bin", "etc", "lib", "lib64", "package", "usr"}
    assert found["etc"] in ([], ["ld.so.cache"])
    assert found["pid"] == 1
    assert {k: found[k] for k in ("network", "passwd", "write", "home", "usr", "site")} == {
        "network": "OSError", "passwd": "FileNotFoundError", "write": "OSError", "home": "FileNotFoundError", "usr": "OSError",
        "site": "ModuleNotFoundError",
    }  # fmt: skip


def test_a_provider_that_does_not_end_is_ended_with_everything_it_started(tmp_path: Path) -> None:
    text = "import subprocess, time\nsubprocess.Popen(['/bin/sleep', '98765'])\ntime.sleep(98765)\n"
    folder = program(tmp_path, text)
    with pytest.raises(Refusal) as caught:
        sandbox.run_isolated(folder, "c.py", b"{}", seconds=1.0)
    assert (caught.value.code, caught.value.message) == ("E-FRAME-005", "the compiler did not end in 1 s")
    deadline = time.monotonic() + 10
    while (
        _sleeping() and time.monotonic() < deadline
    ):  # the kernel ends the rest of a process namespace a moment after its first
        time.sleep(0.02)
    assert not _sleeping()


def _sleeping() -> bool:
    return subprocess.run(["pgrep", "-f", "sleep 98765"], check=False, capture_output=True).returncode == 0


def test_no_compiler_is_run_where_it_cannot_be_isolated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "_UNSHARE", ("/bin/sh", "-c", "echo unshare: Operation not permitted >&2; exit 1"))
    with pytest.raises(Refusal) as caught:
        compiled(program(tmp_path, answer(GOOD)))
    assert (caught.value.code, caught.value.found) == ("E-FRAME-006", "unshare: Operation not permitted")


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        ("import sys\nprint('first')\nsys.exit('no such option')\n", "E-FRAME-004", "alice/framework-toy: no such option"),
        ("x = []\nwhile True:\n    x.append(bytearray(1 << 27))\n", "E-FRAME-004", "alice/framework-toy: MemoryError"),
        ("print('x' * (5 << 20))\n", "E-FRAME-005", "c.py wrote more than 4 MiB"),
        (answer(GOOD, "print('hello')"), "E-FRAME-004", "the answer is no JSON document"),
        (answer(GOOD, "import os; plan['env'] = {'A': os.urandom(4).hex()}"), "E-FRAME-007", "two runs gave two plans"),
    ],
    ids=["error", "memory", "output", "not JSON", "not deterministic"],
)  # fmt: skip
def test_a_failing_provider_is_named_and_quoted(tmp_path: Path, text: str, code: str, words: str) -> None:
    with pytest.raises(Refusal) as caught:
        compiled(program(tmp_path, text))
    assert caught.value.code == code
    assert caught.value.message.startswith(words)


@pytest.mark.parametrize(
    ("change", "code", "field"),
    [
        ({"argv": []}, "E-FRAME-008", "argv"),
        ({"argv": "python -m toy"}, "E-FRAME-008", "argv"),
        ({"argv": ["toy", 3]}, "E-FRAME-008", "argv[1]"),
        ({"argv": ["toy", "a\nb"]}, "E-FRAME-008", "argv[1]"),
        ({"argv": ["-c", "x"]}, "E-FRAME-008", "argv[0]"),
        ({"argv": ["toy", "$PYTHON"]}, "E-FRAME-008", "argv"),
        ({"argv": ["$PYTHON"]}, "E-FRAME-008", "argv"),
        ({"argv": ["toy", "${TUNEPLANE_TRAIN_DATA}"]}, "E-FRAME-008", "argv[1]"),
        ({"argv": ["toy"] * 3000}, "E-FRAME-008", "argv"),
        ({"env": {"LD_PRELOAD": "x"}}, "E-FRAME-008", "env.LD_PRELOAD"),
        ({"env": {"SLURM_JOB_ID": "1"}}, "E-FRAME-008", "env.SLURM_JOB_ID"),
        ({"env": {"A B": "1"}}, "E-FRAME-008", "env.A B"),
        ({"env": {"A": 1}}, "E-FRAME-008", "env.A"),
        ({"files": {"../x": ""}}, "E-FRAME-009", "files.../x"),
        ({"files": {"/etc/x": ""}}, "E-FRAME-009", "files./etc/x"),
        ({"files": {"a/./b": ""}}, "E-FRAME-009", "files.a/./b"),
        ({"files": {"a": "", "a/b": ""}}, "E-FRAME-008", "files.a/b"),
        ({"files": {"a": "x" * (1 << 21)}}, "E-FRAME-008", "files.a"),
        ({"files": {"a": {}}}, "E-FRAME-008", "files.a"),
        ({"launch_mode": "ray-driver"}, "E-FRAME-008", "launch_mode"),
        ({"launch_mode": "torchrun"}, "E-FRAME-008", "launch_mode"),
        ({"contract_version": 2}, "E-FRAME-008", "contract_version"),
        ({"cwd": "/"}, "E-FRAME-008", "cwd"),
    ],
)
def test_a_plan_of_another_form_is_refused_with_its_field(change: dict[str, Any], code: str, field: str) -> None:
    from hpc.plugins.plans import check_plan

    with pytest.raises(Refusals) as caught:
        check_plan(GOOD | change, origin="plan", orchestrator="process-group", inputs=("model",), total=1000)
    assert [(r.code, r.field) for r in caught.value.items] == [(code, f"plan: {field}")]


def test_words_of_the_framework_s_own_stay() -> None:
    from hpc.plugins.plans import check_plan

    plan = GOOD | {"argv": ["toy", "${policy.lr}", "${oc.env:HOME}", "${TUNEPLANE_MODEL_PATH}/x"]}
    checked = check_plan(plan, origin="plan", orchestrator=None, inputs=("model",), total=1000)
    assert checked["argv"] == plan["argv"]


YAML = {
    "kind": "yaml", "argv": ["$PYTHON", "-m", "toy"], "config": "toy.yaml", "config_flag": "--config", "launch_mode": "direct",
    "bindings": {"model.path": "model", "out": "output", "cluster.nodes": "nodes", "cluster.gpus": "gpus_per_node", "name": "run_id"},
    "defaults": {"count": {"from": 1, "to": 2}, "deep": {"er": {}}}, "env": {"TOY_MODEL": "${TUNEPLANE_MODEL_PATH}"},
}  # fmt: skip


def test_a_yaml_compiler_merges_defaults_parameters_and_bindings_without_running_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hpc.plugins.compiling.run_isolated", None)
    plan = compiled(package(tmp_path, YAML))
    assert plan["argv"] == ["$PYTHON", "-m", "toy", "--config", "${TUNEPLANE_GENERATED_DIR}/toy.yaml"]
    assert plan["env"] == {"TOY_MODEL": "${TUNEPLANE_MODEL_PATH}"}
    assert json.loads(plan["files"]["toy.yaml"]) == {
        "cluster": {"gpus": 8, "nodes": 2}, "count": {"from": 1, "to": 3}, "deep": {"er": {}}, "model": {"path": "${TUNEPLANE_MODEL_PATH}"},
        "name": "${TUNEPLANE_RUN_ID}", "out": "${TUNEPLANE_CHECKPOINT_DIR}", "rate": 0.5,
    }  # fmt: skip


@given(st.floats(allow_nan=False, allow_infinity=False))
@example(5e-06)
@example(1e16)
@example(-1e-07)
def test_a_number_of_a_generated_file_is_the_same_number_to_a_reader_of_yaml(number: float) -> None:
    """PyYAML reads YAML 1.1, to which 5e-06 is a text; a text that looks like a number stays a text."""
    names = {"rate": "rate", "words": "words", "5e-06": "5e-06"}
    given = {"rate": number, "words": f'a "{number!r}" \\ 5e-06', "5e-06": "5e-06"}
    plan = yaml_plan(YAML, replace(JOB, hyperparams=given, paths=names), [])
    for read in (yaml.safe_load, json.loads):
        found = read(plan["files"]["toy.yaml"])
        assert {name: found[name] for name in given} == given
        assert type(found["rate"]) is float


@pytest.mark.parametrize(
    ("groups", "found"),
    [
        ([], (True, None, None)),
        ([{"roles": ["actor", "rollout"], "nodes": 3, "gpus_per_node": 8}], (True, None, None)),
        ([{"roles": ["actor"], "nodes": 2, "gpus_per_node": 8}, {"roles": ["rollout"], "nodes": 1, "gpus_per_node": 8}], (False, 1, 8)),
    ],
)  # fmt: skip
def test_a_yaml_compiler_binds_where_a_role_lies(groups: list[dict[str, Any]], found: tuple[Any, ...]) -> None:
    bindings = {"t": "together", "n": "rollout.nodes", "g": "rollout.gpus_per_node"}
    read = json.loads(yaml_plan(YAML | {"bindings": bindings}, JOB, groups)["files"]["toy.yaml"])
    assert (read["t"], read["n"], read["g"]) == found


@pytest.mark.parametrize(
    ("declared", "rows", "found"),
    [
        (None, {"train": "xlsx"}, []),
        (["parquet", "folder"], {"train": "parquet", "validation": "folder"}, []),
        (["parquet"], {"train": "jsonl", "validation": "parquet"}, [("spec.data.train", "jsonl", ".parquet")]),
        (["jsonl", "folder"], {"train": SEVERAL, "validation": ""},
         [("spec.data.train", SEVERAL, ".jsonl, a folder"), ("spec.data.validation", "", ".jsonl, a folder")]),
    ],
)  # fmt: skip
def test_rows_that_a_framework_does_not_read_are_refused_before_the_queue(
    tmp_path: Path, declared: list[str] | None, rows: dict[str, str], found: list[tuple[str, ...]]
) -> None:
    folder = package(tmp_path, YAML, profile={"rows": declared} if declared else {})
    if not found:
        assert compiled(folder, replace(JOB, rows=rows))["launch_mode"] == "direct"
        return
    with pytest.raises(Refusals) as caught:
        compiled(folder, replace(JOB, rows=rows))
    assert codes(caught) == ["E-FRAME-013"] * len(found)
    assert [(f.field, f.found, f.allowed) for f in caught.value.items] == found
    assert ["name one file of the split" in f.hint for f in caught.value.items] == [row[1] == SEVERAL for row in found]


APART = [
    [["actor", "reference", "rollout"]],
    [["actor", "reference"], ["rollout"]],
    [["actor"], ["reference"], ["rollout"]],
]
A, B, C = Machines(2, 8, "h200"), Machines(1, 8, "h200"), Machines(3, 8, "h200")


@pytest.mark.parametrize(
    ("pools", "roles", "found"),
    [
        ({"all": A}, {}, [(["actor", "reference", "rollout"], 2)]),
        ({"actor": A}, {"actor": "actor", "rollout": "actor"}, [(["actor", "reference", "rollout"], 2)]),
        ({"a": A, "b": B}, {"actor": "a", "rollout": "b"}, [(["actor", "reference"], 2), (["rollout"], 1)]),
        ({"a": A, "b": B}, {"rollout": "a", "reference": "b", "actor": "b"}, [(["actor", "reference"], 1), (["rollout"], 2)]),
        ({"a": A, "b": B, "c": C}, {"rollout": "c", "reference": "b", "actor": "a"},
         [(["actor"], 2), (["reference"], 1), (["rollout"], 3)]),
    ],
)  # fmt: skip
def test_roles_lie_where_the_job_puts_them(
    pools: dict[str, Machines], roles: dict[str, str], found: list[tuple[list[str], int]]
) -> None:
    assert placed(PROFILE | {"placements": APART}, pools, roles) == [
        {"roles": group, "nodes": nodes, "gpus_per_node": 8} for group, nodes in found
    ]
    assert placed(PROFILE, pools, roles) == [], "a profile that says nothing of roles judges them itself"


@pytest.mark.parametrize(
    ("pools", "roles", "message", "field"),
    [
        ({"a": A}, {"actr": "a"}, "toy/count has no role actr", "spec.resources.roles"),
        ({"a": A, "b": B}, {"actor": "a", "reference": "b"}, "toy/count cannot place its roles so", "spec.resources.roles"),
        ({"a": A, "b": B}, {"reference": "a", "rollout": "a", "actor": "b"}, "toy/count cannot place its roles so", "spec.resources.roles"),
        ({"a": A, "b": B}, {"actor": "a", "rollout": "a"}, "toy/count cannot place its roles so", "spec.resources.roles"),
        ({"a": A, "b": B}, {}, "toy/count cannot place its roles so", "spec.resources.roles"),
        ({"a": A, "b": Machines(1, 4, "h200")}, {"actor": "a", "rollout": "b"},
         "a framework places roles by numbers of nodes, so that all its nodes are of one kind", "spec.resources.pools"),
        ({"a": A, "b": Machines(1, 8, "h100")}, {"actor": "a", "rollout": "b"},
         "a framework places roles by numbers of nodes, so that all its nodes are of one kind", "spec.resources.pools"),
    ],
)  # fmt: skip
def test_a_placement_that_no_option_stands_for_is_refused(
    pools: dict[str, Machines], roles: dict[str, str], message: str, field: str
) -> None:
    with pytest.raises(Refusal) as caught:
        placed(PROFILE | {"placements": APART}, pools, roles)
    assert (caught.value.code, caught.value.message, caught.value.field) == ("E-FRAME-014", message, field)


@pytest.mark.parametrize("path", ["model", "model.path", "model.path.x"])
def test_a_parameter_on_a_bound_path_is_refused(tmp_path: Path, path: str) -> None:
    with pytest.raises(Refusal) as caught:
        compiled(package(tmp_path, YAML), replace(JOB, paths={"to": path}))
    assert (caught.value.code, caught.value.field) == ("E-FRAME-012", "params.to")


def test_a_binding_or_a_declared_input_that_the_job_lacks_is_refused(tmp_path: Path) -> None:
    for fields in ({}, {"required_inputs": ["model"]}):
        with pytest.raises(Refusal) as caught:
            compiled(package(tmp_path, YAML, **fields), replace(JOB, inputs=()))
        assert caught.value.code == "E-FRAME-011"


@pytest.mark.parametrize(
    ("profile", "job"),
    [
        ({"framework": "other"}, JOB),
        ({"method": "toy/other"}, JOB),
        ({"engine": "fast"}, JOB),
        ({"runtime_id": "toy-2.0.0"}, JOB),
        ({"runtime_digest": "sha256:" + "1" * 64}, JOB),
        ({}, replace(JOB, engine="fast")),
    ],
)
def test_a_job_without_a_profile_is_refused(tmp_path: Path, profile: dict[str, Any], job: Wanted) -> None:
    with pytest.raises(Refusal) as caught:
        compiled(package(tmp_path, YAML, profile=profile), job)
    assert caught.value.code == "E-FRAME-003"


def test_a_profile_may_name_the_recipe_as_its_owner_published_it(tmp_path: Path) -> None:
    assert compiled(package(tmp_path, YAML, profile={"method": "alice/count"}))["integration"]["profile"] == "count"


def test_a_forged_declaration_is_read_as_strictly_as_at_publishing(tmp_path: Path) -> None:
    with pytest.raises(Refusals) as caught:
        compiled(package(tmp_path, YAML | {"config": "../x"}))
    assert codes(caught) == ["E-PLUGIN-064"]
