"""Compilers of framework integrations: what they can reach, how they fail, and what of their answer is believed."""

from __future__ import annotations

import json
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hpc.errors import Refusal, Refusals
from hpc.plugins import sandbox
from hpc.plugins.compiling import Wanted, compile_plan

IDENTITY = {"id": "alice/framework-toy", "version": "1.0", "digest": "sha256:" + "0" * 64}
JOB = Wanted(
    framework="toy", methods=("alice/count", "toy/count"), engine="", runtime_id="toy-1.0.0", runtime_digest="", orchestrator="process-group",
    inputs=("model",), nodes=2, gpus_per_node=8, world_size=16, hyperparams={"to": 3, "rate": 0.5}, paths={"to": "count.to", "rate": "rate"},
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
        "shape": {"nodes": 2, "gpus_per_node": 8, "world_size": 16}, "inputs": {"model": "${TUNEPLANE_MODEL_PATH}"},
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
    "defaults": {"count": {"from": 1, "to": 2}, "deep": {"er": {}}},
}  # fmt: skip


def test_a_yaml_compiler_merges_defaults_parameters_and_bindings_without_running_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hpc.plugins.compiling.run_isolated", None)
    plan = compiled(package(tmp_path, YAML))
    assert plan["argv"] == ["$PYTHON", "-m", "toy", "--config", "${TUNEPLANE_GENERATED_DIR}/toy.yaml"]
    assert json.loads(plan["files"]["toy.yaml"]) == {
        "cluster": {"gpus": 8, "nodes": 2}, "count": {"from": 1, "to": 3}, "deep": {"er": {}}, "model": {"path": "${TUNEPLANE_MODEL_PATH}"},
        "name": "${TUNEPLANE_RUN_ID}", "out": "${TUNEPLANE_CHECKPOINT_DIR}", "rate": 0.5,
    }  # fmt: skip


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
