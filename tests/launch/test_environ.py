"""The documented environment, against the two full mappings of the vectors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tuneplane.launch.environ import OFFLINE, Binding, job_environment

CASES = json.loads((Path(__file__).parents[1] / "data/vectors/env_cases.json").read_text())["cases"]
# What only a server fills; TUNEPLANE_JOB_ENABLED says 0 instead.
SERVER = {
    "TUNEPLANE_JOB_ENDPOINT",
    "TUNEPLANE_JOB_TOKEN",
    "TUNEPLANE_JOB_JUDGE_ENDPOINT",
    "TUNEPLANE_JOB_JUDGE_TOKEN",
    "TUNEPLANE_JOB_ENABLED",
}
FULL = Binding(
    user="alice",
    run_id="run-1",
    attempt=3,
    run_dir="/st/runs/alice/e/run-1",
    out_dir="/st/runs/alice/e/run-1/attempts/0/out",
    storage_root="/st",
    private_home="/tmp/hf",
    profile="h200",
    pin_resource="h200",
    overrides=("a.b=1",),
    profile_env={"NCCL_DEBUG": "WARN", "CLUSTER_PROFILE": "never", "NEMO_RL_DIR": "/opt/nemo-rl"},
    passthrough={"HTTP_PROXY": "http://p", "WANDB_API_KEY": "dummy"},
)


def wanted(case: dict) -> dict[str, str]:
    return {k: v for k, v in case["env"].items() if k not in SERVER}


def found(spec: dict, binding: Binding) -> dict[str, str]:
    return {k: v for k, v in job_environment(spec, binding).items() if k != "TUNEPLANE_JOB_ENABLED"}


def test_a_two_node_gpu_job_has_the_documented_environment() -> None:
    assert found(CASES[0]["spec"], FULL) == wanted(CASES[0])


def test_a_cpu_only_job_states_its_blanks() -> None:
    env = found(CASES[1]["spec"], Binding(user="bob", run_id="r2", attempt=0))
    want = wanted(CASES[1]) | {"TUNEPLANE_JOB_RUN_ID": "r2", "TUNEPLANE_JOB_ATTEMPT": "0"}
    assert env == want


def test_no_server_is_claimed() -> None:
    assert job_environment(CASES[0]["spec"], FULL)["TUNEPLANE_JOB_ENABLED"] == "0"


@pytest.mark.parametrize("name", ["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE"])
def test_p64_jobs_are_offline_by_default(name: str) -> None:
    assert OFFLINE[name] == "1"


def test_the_primary_pool_is_the_one_of_the_first_role() -> None:
    spec = json.loads(json.dumps(CASES[0]["spec"]))
    spec["spec"]["resources"] = {
        "pools": [
            {"name": "roll", "nodes": 3, "gpus_per_node": 4},
            {"name": "act", "series": "h200", "nodes": 1, "gpus_per_node": 8},
        ],
        "roles": {"actor": "act", "rollout": "roll"},
    }
    env = job_environment(spec, FULL)
    assert env["TUNEPLANE_CLUSTER_NUM_NODES"] == "1"
    topology = json.loads(env["TUNEPLANE_POOL_TOPOLOGY"])
    assert [(p["name"], p["nodes"], p["roles"]) for p in topology] == [("act", 1, ["actor"]), ("roll", 3, ["rollout"])]
