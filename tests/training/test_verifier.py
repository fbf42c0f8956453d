"""Tasks of an environment as prompts, its verifier's answers as rewards: a failure ends the run and is never a reward of 0."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from lessons import Lessons
from tuneplane.training.place import Launch, Policies
from tuneplane.training.refusals import Refused
from tuneplane.training.rewards import score
from tuneplane.training.rows import read_examples
from tuneplane.training.source import source_of
from tuneplane.training.verifier import as_reward, load_verifier, trajectory
from tuneplane.training.watchdog import Watchdog

TASK = {"id": "t1", "prompt": "What is 2 + 3?", "reference": "5", "metadata": {"level": 1}, "split": "train"}
VERIFIER = """
def judge(task, trajectory):
    assert task["split"] in ("train", "eval") and task["metadata"]["kind"] == "sum", task
    assert trajectory["messages"][-1]["role"] == "assistant"
    return sum(ch.isdigit() for ch in trajectory["completion"]) / max(1, len(trajectory["completion"]))

def fails(task, trajectory):
    raise ValueError("no sandbox")
"""


def environment(folder: Path, ref: str = "sumverifier:judge", kind: str = "plugin", held_out: int = 4) -> Path:
    folder.mkdir(parents=True)
    verifier = {"kind": kind, "ref": ref}
    manifest = {
        "schema": "tuneplane/environment/v1",
        "protocol": "openenv",
        "deployment": "local",
        "verifier": verifier,
    }
    (folder / "manifest.json").write_text(json.dumps(manifest))
    splits = ["train"] * 40 + ["eval"] * held_out
    tasks = [
        {
            "id": f"t{n}",
            "prompt": f"What is {n} + 1?",
            "reference": str(n + 1),
            "metadata": {"kind": "sum"},
            "split": split,
        }
        for n, split in enumerate(splits)
    ]
    (folder / "tasks.jsonl").write_text("".join(json.dumps(task) + "\n" for task in tasks))
    return folder


def judged(verifier: Any, completions: list[str]) -> list[float]:
    rows = [TASK for _ in completions]
    return score({"verifier": as_reward("x:y", verifier)}, rows, completions)["verifier"]


def test_a_verifier_gets_the_whole_task_and_what_was_said() -> None:
    seen: list[Any] = []
    assert judged(lambda task, said: seen.append((task, said)) or 0.5, ["5", "six"]) == [0.5, 0.5]
    assert seen[0][0] == TASK
    assert seen[1][1] == {
        "messages": [{"role": "user", "content": "What is 2 + 3?"}, {"role": "assistant", "content": "six"}],
        "completion": "six",
    }
    talk = [{"role": "system", "content": "s"}, {"role": "user", "content": "q"}]
    answered = trajectory(talk, [{"role": "assistant", "content": "a"}])
    assert [m["role"] for m in answered["messages"]] == ["system", "user", "assistant"]


def test_a_verifier_that_fails_is_an_error_and_never_a_reward_of_0() -> None:
    def fails(task: Any, said: Any) -> float:
        raise TimeoutError("the sandbox is gone")

    with pytest.raises(
        Refused, match=r"E-TRAIN-047 verifier x:y: failed: TimeoutError: the sandbox is gone(.|\n)*task t1"
    ):
        judged(fails, ["5"])
    for nothing in (None, "good", math.nan, [1.0]):
        with pytest.raises(Refused, match="E-TRAIN-047"):
            judged(lambda task, said, nothing=nothing: nothing, ["5"])
    assert judged(lambda task, said: True, ["5"]) == [1.0]


def test_each_answer_that_is_judged_and_each_function_shows_that_the_rank_moves() -> None:
    log: list[str] = []

    def moved() -> None:
        log.append("again")

    def judge(task: Any, said: Any) -> float:
        log.append(said["completion"])
        return 1.0

    functions = {"verifier": as_reward("x:y", judge, moved), "more": lambda prompts, **_: [0.0] * len(prompts)}
    score(functions, [TASK, TASK], ["5", "6"], moved)
    assert log == ["again", "again", "5", "again", "6", "again"]


def load(folder: Path | None, work: Path = Path("/nowhere")) -> Any:
    class Launch:
        def input_path(self, name: str, place: Any) -> Path | None:
            return folder if name == "environment" else None

    class Place:
        work_dir = work

    class Job:
        launch, place, watchdog = Launch(), Place(), Watchdog()

    return load_verifier(Job())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("ref", "kind", "why"),
    [
        ("json:loads", "rubric", "of a kind that training does not ask"),
        ("no_such_module_here:judge", "plugin", "cannot be imported"),
        ("json:no_such_function", "plugin", "cannot be imported"),
        ("json:__name__", "plugin", "is no function"),
        ("alice/judge", "plugin", "E-JOB-031"),
    ],
)
def test_a_verifier_that_cannot_be_used_is_refused_with_the_reason(
    tmp_path: Path, ref: str, kind: str, why: str
) -> None:
    with pytest.raises(Refused, match=rf"E-TRAIN-049 data\.environment: verifier: .*{why}"):
        load(environment(tmp_path / "env", ref, kind))


def test_a_locked_plugin_is_named_by_its_id_and_its_entrypoint_is_the_verifier(tmp_path: Path) -> None:
    plugin = tmp_path / "work" / "tuneplane_plugins" / "sum-judge"
    plugin.mkdir(parents=True)
    (plugin / "plugin.yaml").write_text(
        "schema: tuneplane/plugin/v1\nname: sum-judge\nversion: '2'\ncapability: environment\nentrypoint: planted_judge:half\n"
    )
    (plugin / "planted_judge.py").write_text("def half(task, trajectory):\n    return 0.5\n")
    locked = {"id": "alice/sum-judge", "version": "2", "digest": "sha256:" + "0" * 64}
    (tmp_path / "work" / ".tuneplane").mkdir()
    (tmp_path / "work" / ".tuneplane" / "jobspec.json").write_text(json.dumps({"spec": {"plugins": [locked]}}))
    for n, ref in enumerate(("alice/sum-judge", "alice/sum-judge@2")):
        judge = load(environment(tmp_path / f"env-{n}", ref), tmp_path / "work")
        assert judge(prompts=["q"], completions=["a"]) == [0.5]
    with pytest.raises(
        Refused, match=r"E-TRAIN-049 .*no locked plugin(.|\n)*alice/sum-judge@3(.|\n)*alice/sum-judge@2"
    ):
        load(environment(tmp_path / "env-3", "alice/sum-judge@3"), tmp_path / "work")


def test_without_an_environment_or_a_manifest_there_is_no_verifier(tmp_path: Path) -> None:
    with pytest.raises(Refused, match=r"E-TRAIN-049 .*the job has no environment"):
        load(None)
    with pytest.raises(Refused, match=r"E-TRAIN-049 .*manifest\.json does not name it"):
        load(tmp_path)


def grpo(lessons: Lessons, folder: Path, **settings: Any) -> Any:
    groups = {"num_generations": 4, "max_completion_length": 8, "micro_batch_size": 8, "gradient_accumulation": 1}
    made = lessons.run("grpo", **({"max_steps": 2} | groups | settings))
    (made.root / "work" / "sumverifier.py").write_text(VERIFIER)
    made.warm = None  # the verifier is found through PYTHONPATH, as a plugin is
    made.validation, made.inputs = None, {"environment": {"path": str(folder), "files": []}}
    return made


@pytest.mark.train
def test_a_run_learns_from_tasks_that_the_verifier_judges_and_validates_on_eval_tasks_alone(
    tmp_path: Path, lessons: Lessons
) -> None:
    attempt = grpo(lessons, environment(tmp_path / "env")).complete()
    steps = attempt.metrics()
    assert [m["step"] for m in steps] == [1, 2]
    assert all(0 < m["reward_verifier"] < 1 and m["reward"] == m["reward_verifier"] for m in steps)
    result = attempt.result()
    assert result["rows"]["kept"] == 40
    assert 0 <= result["validation_reward_verifier"] <= 1


@pytest.mark.train
def test_a_failing_verifier_ends_the_run(tmp_path: Path, lessons: Lessons) -> None:
    failed = grpo(lessons, environment(tmp_path / "bad", "sumverifier:fails"), max_steps=1).start(1)
    assert failed.wait() == [1]
    assert "E-TRAIN-047 verifier sumverifier:fails: failed: ValueError: no sandbox" in failed.log(0)


def test_an_evaluation_never_falls_back_to_tasks_that_are_trained_on(tmp_path: Path) -> None:
    policies = Policies(1, 1, 1, 1, 1)

    def found(folder: Path, name: str) -> Any:
        class Here:
            work_dir = Path("/")

        inputs = {"environment": {"path": str(folder), "files": []}}
        return source_of(Launch({}, None, inputs, 0, policies), Here(), name)  # type: ignore[arg-type]

    both = environment(tmp_path / "both")
    train, held_out = found(both, "train"), found(both, "validation")
    assert [e.value["id"] for e in read_examples(held_out, "prompt")] == ["t40", "t41", "t42", "t43"]
    assert len(list(read_examples(train, "prompt"))) == 40
    assert train.digest != held_out.digest
    assert found(environment(tmp_path / "none", held_out=0), "validation") is None


def test_a_malformed_task_refuses_the_job_with_its_line(tmp_path: Path) -> None:
    folder = environment(tmp_path / "env")
    with (folder / "tasks.jsonl").open("a") as stream:
        stream.write('{"id": "x", "prompt": "", "split": "train"}\n')

    class Here:
        work_dir = Path("/")

    inputs = {"environment": {"path": str(folder)}}
    with pytest.raises(Refused, match=r"E-DATA-060 tasks\.jsonl:45: prompt: is no prompt"):
        source_of(Launch({}, None, inputs, 0, Policies(1, 1, 1, 1, 1)), Here(), "train")  # type: ignore[arg-type]
