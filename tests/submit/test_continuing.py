"""`--init-from run/<id>/checkpoint`: the checkpoint is found, pinned and compared with the new run before anything waits in a queue."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace as Plain
from typing import Any

import pytest
from tuneplane.contract.layout import StorageRoot
from tuneplane.record.digest import digest_bytes

from hpc.errors import Refusals
from hpc.errors.core import Refusal
from hpc.submit.continuing import start_record, start_refusals

SETTINGS = {
    "micro_batch_size": 2,
    "gradient_accumulation": 2,
    "zero_stage": 3,
    "learning_rate": 1e-4,
    "precision": "bf16",
    "lora_rank": 8,
}
RUN = "run-4f2a91c0"


def recipe(framework: str = "deepspeed", name: str = "sft", category: str = "sft") -> Any:
    return Plain(
        id=f"{framework}/{name}",
        framework=framework,
        is_custom=framework == "custom",
        typed=Plain(name=name, category=category),
    )


def spec(text: str, ranks: int = 2, dim: int | None = 8) -> Any:
    peft = Plain(dim=dim, alpha=None) if dim else None
    pools = (Plain(nodes=1, ranks=ranks),)
    return Plain(spec=Plain(model=Plain(init_from=text, peft=peft), resources=Plain(pools=pools)))


@pytest.fixture
def root(tmp_path: Path) -> StorageRoot:
    """A run that ended after attempt 1, with whole checkpoints of steps 20 and 40 and one that was never finished."""
    made = StorageRoot(tmp_path)
    run = made.run("bob", "sums", RUN)
    for step, attempt in ((20, 0), (40, 1)):
        folder = run.checkpoints / f"step-{step:09d}"
        folder.mkdir(parents=True)
        manifest = {
            "schema": "tuneplane-hpc/checkpoint/v1", "step": step, "attempt": attempt, "world_size": 2, "zero_stage": 3,
            "framework": "deepspeed", "method": "sft", "settings": SETTINGS,
        }  # fmt: skip
        (folder / "manifest.json").write_text(json.dumps(manifest))
    (run.checkpoints / "step-000000060").mkdir()
    end(run, 0, requeue=True)
    end(run, 1, requeue=False)
    return made


def end(run: Any, attempt: int, *, requeue: bool) -> None:
    run.attempt(attempt).root.mkdir(parents=True, exist_ok=True)
    run.attempt(attempt).end.write_text(json.dumps({"requeue": requeue}))


def codes(root: StorageRoot, *args: Any) -> list[tuple[str, str, str]]:
    with pytest.raises((Refusal, Refusals)) as caught:
        start_record(root, *args)
    found = caught.value.items if isinstance(caught.value, Refusals) else [caught.value]
    return [(r.code, str(r.found), str(r.allowed)) for r in found]


def test_the_newest_whole_checkpoint_is_pinned_by_its_manifest(root: StorageRoot) -> None:
    folder = root.run("bob", "sums", RUN).checkpoints / "step-000000040"
    assert start_record(root, spec(f"run/{RUN}/checkpoint"), recipe(), SETTINGS) == {
        "start": {
            "run_id": RUN,
            "step": 40,
            "attempt": 1,
            "path": str(folder),
            "manifest_sha256": digest_bytes((folder / "manifest.json").read_bytes()),
            "world_size": 2,
        }
    }


def test_a_step_and_an_attempt_may_be_named(root: StorageRoot) -> None:
    for pick in ("step=20", "attempt=0", "step=20,attempt=0"):
        assert start_record(root, spec(f"run/{RUN}/checkpoint@{pick}"), recipe(), SETTINGS)["start"]["step"] == 20


def test_the_last_step_of_a_run_leaves_nothing_to_train(root: StorageRoot) -> None:
    path = root.run("bob", "sums", RUN).checkpoints / "step-000000040" / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"total_steps": 40}))
    given = (spec(f"run/{RUN}/checkpoint"), recipe(), SETTINGS)
    assert codes(root, *given) == [("E-SUBMIT-104", "step-000000040 of 40 steps", "an earlier step")]
    path.write_text(json.dumps(json.loads(path.read_text()) | {"total_steps": 60}))
    assert start_record(root, *given)["start"]["step"] == 40


def test_what_is_not_there_is_refused_with_what_there_is(root: StorageRoot) -> None:
    allowed = "step=40,attempt=1, step=20,attempt=0"
    assert codes(root, spec(f"run/{RUN}/checkpoint@step=60"), recipe(), SETTINGS) == [
        ("E-SUBMIT-100", f"run/{RUN}/checkpoint@step=60", allowed)
    ]
    assert codes(root, spec("run/run-00000000/checkpoint"), recipe(), SETTINGS)[0][0] == "E-SUBMIT-100"


def test_without_it_and_for_programs_of_the_user_s_own_nothing_is_looked_up(root: StorageRoot) -> None:
    assert start_record(root, spec(""), recipe(), SETTINGS) == {}
    for other in (recipe("custom", "custom"), recipe("evalkit", "behaviour", "evaluation")):
        assert start_record(root, spec("run/run-00000000/checkpoint"), other, {}) == {}


@pytest.mark.parametrize(("text", "framework"), [(f"run/{RUN}/final", "deepspeed"), (f"run/{RUN}/checkpoint", "verl")])
def test_what_a_method_would_ignore_is_refused(root: StorageRoot, text: str, framework: str) -> None:
    ((code, found, _),) = codes(root, spec(text), recipe(framework), SETTINGS)
    assert (code, found) == ("E-SUBMIT-101", text)


def test_trl_goes_on_from_its_own_checkpoints_and_from_no_other_framework_s(root: StorageRoot) -> None:
    assert codes(root, spec(f"run/{RUN}/checkpoint"), recipe("trl"), SETTINGS) == [
        ("E-SUBMIT-102", "trl/sft", "deepspeed/sft")
    ]
    path = root.run("bob", "sums", RUN).checkpoints / "step-000000040" / "manifest.json"
    path.write_text(path.read_text().replace('"deepspeed"', '"trl"'))
    assert start_record(root, spec(f"run/{RUN}/checkpoint"), recipe("trl"), SETTINGS)["start"]["step"] == 40
    assert codes(root, spec(f"run/{RUN}/checkpoint"), recipe(), SETTINGS) == [
        ("E-SUBMIT-102", "deepspeed/sft", "trl/sft")
    ]


def test_a_run_that_goes_on_is_no_start_since_it_removes_its_checkpoints(root: StorageRoot) -> None:
    run = root.run("bob", "sums", RUN)
    end(run, 1, requeue=True)
    assert codes(root, spec(f"run/{RUN}/checkpoint"), recipe(), SETTINGS)[0][:2] == ("E-SUBMIT-103", "attempt 1")
    run.attempt(2).root.mkdir()
    assert codes(root, spec(f"run/{RUN}/checkpoint"), recipe(), SETTINGS)[0][:2] == ("E-SUBMIT-103", "attempt 2")


def test_p34_refuses_another_world_size_before_the_queue_where_a_step_would_take_other_rows(root: StorageRoot) -> None:
    assert codes(root, spec(f"run/{RUN}/checkpoint", ranks=4), recipe(), SETTINGS) == [
        ("E-SUBMIT-102", "16 rows a step on 4 ranks", "8 rows a step, as on 2 ranks")
    ]


def test_p34_takes_another_world_size_where_a_step_takes_the_same_rows(root: StorageRoot) -> None:
    fitting = SETTINGS | {"micro_batch_size": 1}
    assert start_record(root, spec(f"run/{RUN}/checkpoint", ranks=4), recipe(), fitting)["start"]["world_size"] == 2


def test_p34_names_every_setting_that_the_checkpoint_has_otherwise(root: StorageRoot) -> None:
    """`precision: auto` is decided by the GPU, the rank of the adapters may stand in model.peft."""
    other = SETTINGS | {"zero_stage": 2, "learning_rate": 2e-4, "precision": "auto", "lora_rank": 0}
    assert codes(root, spec(f"run/{RUN}/checkpoint"), recipe(name="dpo"), other) == [
        ("E-SUBMIT-102", "deepspeed/dpo", "deepspeed/sft"),
        ("E-SUBMIT-102", "0.0002", "0.0001"),
        ("E-SUBMIT-102", "2", "3"),
    ]
    micro = SETTINGS | {"micro_batch_size": 4, "gradient_accumulation": 1}
    assert [c for c, _, _ in codes(root, spec(f"run/{RUN}/checkpoint"), recipe(), micro)] == ["E-SUBMIT-102"] * 2


def test_admission_compares_the_start_with_the_run_that_the_spec_names(root: StorageRoot) -> None:
    begun = start_record(root, spec(f"run/{RUN}/checkpoint"), recipe(), SETTINGS)
    assert start_refusals(begun, spec(f"run/{RUN}/checkpoint")) == start_refusals({}, spec("")) == []
    for launch, text in (
        (begun, ""),
        (begun, "run/run-00000000/checkpoint"),
        ({"start": "x"}, f"run/{RUN}/checkpoint"),
    ):
        assert [(r.code, r.field) for r in start_refusals(launch, spec(text))] == [("E-SUBMIT-075", "launch.start")]
