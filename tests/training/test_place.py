from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tuneplane.training.place import Launch, Place, process_age_s
from tuneplane.training.refusals import Refused

ENV = {
    "RANK": "3",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "4",
    "LOCAL_WORLD_SIZE": "2",
    "NODE_RANK": "1",
    "MASTER_ADDR": "10.0.0.1",
    "MASTER_PORT": "23456",
    "TUNEPLANE_WORK_DIR": "/r/work",
    "TUNEPLANE_RUN_DIR": "/r",
    "TUNEPLANE_OUT_DIR": "/r/attempts/2/out",
    "TUNEPLANE_EXP_DIR": "/r/work/experiments/e",
    "TUNEPLANE_CHECKPOINT_DIR": "/r/checkpoints",
    "TUNEPLANE_RUN_ID": "run-4f2a91",
    "TUNEPLANE_ATTEMPT": "2",
}
PLACE = Place.from_env(ENV)
GOOD: dict[str, Any] = {
    "hyperparams": {"seed": 1},
    "config": {},
    "inputs": {"model": {"path": "/models/m"}, "train": {"path": "data/train.jsonl"}},
    "peft": None,
    "shape": {"nodes": 2, "ranks_per_node": 2, "gpus_per_node": 0, "world_size": 4},
    "policies": {"peer_timeout_s": 20, "lead_s": 60, "requeue_on": ["preempted"]},
}


def reasons(value: Any) -> list[tuple[str, str]]:
    with pytest.raises(Refused) as caught:
        Launch.parse(value, PLACE)
    return [(r.code, r.field) for r in caught.value.reasons]


def test_the_rank_contract_is_read() -> None:
    assert (PLACE.rank, PLACE.local_rank, PLACE.world_size, PLACE.local_world_size, PLACE.node_rank) == (3, 1, 4, 2, 1)
    assert (PLACE.master_addr, PLACE.master_port, PLACE.attempt) == ("10.0.0.1", 23456, 2)
    assert PLACE.checkpoint_dir == Path("/r/checkpoints")


def test_every_missing_or_wrong_variable_is_named_at_once() -> None:
    env = {**ENV, "RANK": "first", "TUNEPLANE_ATTEMPT": "-1"}
    del env["MASTER_ADDR"]
    with pytest.raises(Refused) as caught:
        Place.from_env(env)
    assert [r.field for r in caught.value.reasons] == ["RANK", "MASTER_ADDR", "TUNEPLANE_ATTEMPT"]


@pytest.mark.parametrize("change", [{"RANK": "4"}, {"LOCAL_RANK": "2"}])
def test_a_rank_outside_its_world_is_refused(change: dict[str, str]) -> None:
    with pytest.raises(Refused, match="E-TRAIN-002"):
        Place.from_env({**ENV, **change})


def test_launch_json_is_read_and_inputs_are_found_from_the_work_folder() -> None:
    launch = Launch.parse(GOOD, PLACE)
    assert launch.input_path("model", PLACE) == Path("/models/m")
    assert launch.input_path("train", PLACE) == Path("/r/work/data/train.jsonl")
    assert launch.input_path("validation", PLACE) is None
    assert (launch.policies.peer_timeout_s, launch.policies.lead_s, launch.policies.save_timeout_s) == (20, 60, 1800)


def test_p48_another_shape_than_the_package_says_is_refused_with_both_numbers() -> None:
    shape = {"nodes": 4, "ranks_per_node": 4, "gpus_per_node": 0, "world_size": 16}
    assert reasons({**GOOD, "shape": shape}) == [
        ("E-TRAIN-005", "launch.json: shape.world_size"),
        ("E-TRAIN-005", "launch.json: shape.ranks_per_node"),
    ]
    with pytest.raises(Refused, match=r"found    started 4\n.*allowed  16"):
        Launch.parse({**GOOD, "shape": shape}, PLACE)


def test_a_node_of_the_second_pool_may_have_its_own_number_of_ranks() -> None:
    pools = [{"name": "a", "ranks_per_node": 1}, {"name": "b", "ranks_per_node": 2}]
    shape = {"ranks_per_node": 1, "world_size": 4, "gpus_per_node": 0, "pools": pools}
    assert Launch.parse({**GOOD, "shape": shape}, PLACE).gpus_per_node == 0


def test_all_faults_of_launch_json_come_at_once() -> None:
    bad = {**GOOD, "inputs": {"model": {}}, "policies": {"lead_s": "soon", "peer_timeout_s": True}, "peft": ["lora"]}
    assert reasons(bad) == [
        ("E-TRAIN-003", "launch.json: policies.peer_timeout_s"),
        ("E-TRAIN-003", "launch.json: policies.lead_s"),
        ("E-TRAIN-004", "launch.json: inputs.model.path"),
        ("E-TRAIN-004", "launch.json: inputs.train.path"),
        ("E-TRAIN-003", "launch.json: peft"),
    ]


def test_a_missing_or_broken_launch_json_is_refused_by_path(tmp_path: Path) -> None:
    place = Place.from_env({**ENV, "TUNEPLANE_WORK_DIR": str(tmp_path)})
    with pytest.raises(Refused, match=r"E-TRAIN-003 .*launch\.json"):
        Launch.read(place)
    (tmp_path / ".tuneplane").mkdir()
    (tmp_path / ".tuneplane" / "launch.json").write_text(json.dumps(GOOD)[:-1])
    with pytest.raises(Refused, match="cannot be read: not JSON"):
        Launch.read(place)


def test_p72_the_age_of_the_process_counts_from_its_start() -> None:
    code = "import time; time.sleep(0.3); from tuneplane.training.place import process_age_s as age; print(age())"
    began = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert 0.29 <= float(done.stdout) <= time.monotonic() - began + 0.02
    assert process_age_s() > float(done.stdout)
