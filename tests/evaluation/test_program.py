"""`python -m tuneplane.evaluation`, in a job and by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from known_sums import KNOWN, write_rows
from small_benchmarks import FLEXIBLE, STRICT, sums_benchmark, two_tasks
from tuneplane.contract.followups import report_folders
from tuneplane.evaluation import __main__ as program
from tuneplane.evaluation import job as programs
from tuneplane.evaluation import suites
from tuneplane.training import warning
from tuneplane.training.refusals import Refused


class Left(Exception):  # noqa: N818
    pass


@pytest.fixture
def leave(monkeypatch: pytest.MonkeyPatch) -> None:
    """The program's end as an exception, and no change to this process."""

    def end(code: int) -> None:
        raise Left(code)

    monkeypatch.setattr(programs, "leave", end)
    monkeypatch.setattr(programs.warning, "install", lambda: None)
    monkeypatch.setattr(programs.faulthandler, "register", lambda _: None)
    monkeypatch.setattr(programs.faulthandler, "enable", lambda: None)


@pytest.fixture
def job(tmp_path: Path) -> dict[str, str]:
    """A rank's environment; `launch.json` is written by `launch`."""
    (tmp_path / "work/.tuneplane").mkdir(parents=True)
    numbers = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1", "NODE_RANK": "0"}
    paths = {
        f"TUNEPLANE_{name}_DIR": str(tmp_path / folder)
        for name, folder in (("WORK", "work"), ("RUN", "run"), ("OUT", "out"), ("EXP", "exp"), ("CHECKPOINT", "checkpoints"))
    }  # fmt: skip
    rest = {
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": "29500",
        "TUNEPLANE_RUN_ID": "run-0001",
        "TUNEPLANE_ATTEMPT": "0",
    }
    return numbers | paths | rest


def launch(job: dict[str, str], **changes: Any) -> None:
    shape = {"world_size": 1, "ranks_per_node": 1, "gpus_per_node": 0}
    value = {"shape": shape, "hyperparams": {"max_new_tokens": 4}, "inputs": {}} | changes
    (Path(job["TUNEPLANE_WORK_DIR"]) / ".tuneplane/launch.json").write_text(json.dumps(value))


@pytest.mark.train
def test_a_job_reads_its_package_and_keeps_answers_beside_the_checkpoints(
    taught: Path, tmp_path: Path, job: dict[str, str]
) -> None:
    data = write_rows(tmp_path / "rows.jsonl", KNOWN)
    launch(job, inputs={"model": {"path": str(taught), "files": []}, "validation": {"path": str(data)}})
    program.in_job(job)
    report = json.loads((tmp_path / "out/eval_report.json").read_text())
    assert report["metrics"]["exact_match"]["value"] == 1.0
    result = json.loads((tmp_path / "out/result.json").read_text())
    assert (result["suite"], result["metrics"]["exact_match"]) == ("behaviour", 1.0)
    assert sorted(p.name for p in (tmp_path / "checkpoints/evaluation").iterdir() if p.name[0] != ".") == [
        "evaluation.json",
        "predictions.jsonl",
    ]


def test_a_job_of_several_ranks_or_without_rows_is_refused(job: dict[str, str]) -> None:
    with pytest.raises(Refused, match="E-EVAL-032"):
        program.in_job(job | {"WORLD_SIZE": "2"})
    launch(job, inputs={"model": {"path": "/m"}})
    with pytest.raises(Refused, match=r"E-TRAIN-004 launch.json: inputs.validation.path"):
        program.in_job(job)
    launch(job, inputs={"model": {"path": "/m"}, "validation": {"path": "/d"}}, hyperparams={"max_new_token": 1})
    with pytest.raises(Refused, match="E-EVAL-030 max_new_token"):
        program.in_job(job)


@pytest.mark.train
def test_by_hand_it_prints_the_numbers_or_the_report(
    taught: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], leave: None
) -> None:
    data = write_rows(tmp_path / "rows.jsonl", KNOWN)
    words = [
        "--model",
        str(taught),
        "--data",
        str(data),
        "--out",
        str(tmp_path / "o"),
        "--max-new-tokens",
        "4",
        "--device",
        "cpu",
    ]
    for more in ([], ["--json"]):
        with pytest.raises(Left, match="0"):
            program.main([*words, *more])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["score", "1.0000", "[1.0000,", "1.0000]", "n", "4"]
    assert json.loads(lines[-1])["metrics"]["score"]["value"] == 1.0


def test_ends_have_their_codes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], leave: None
) -> None:
    monkeypatch.delenv("TUNEPLANE_WORK_DIR", raising=False)
    with pytest.raises(SystemExit) as usage:
        program.main(["--model", "x"])
    assert usage.value.code == 64
    with pytest.raises(Left, match="1"):
        program.main(["--model", "m", "--data", "d", "--out", "o", "--metrics", "bleu"])
    assert "E-EVAL-031 metrics: no such metric" in capsys.readouterr().err

    def warned(_: object) -> None:
        raise warning.Warned("USR2")

    monkeypatch.setattr(program, "by_hand", warned)
    with pytest.raises(Left, match="85"):
        program.main(["--model", "m"])


def spec_of(job: dict[str, str], **evaluation: Any) -> None:
    path = Path(job["TUNEPLANE_WORK_DIR"]) / ".tuneplane/jobspec.json"
    path.write_text(json.dumps({"spec": {"evaluation": evaluation}}))


@pytest.mark.train
def test_a_job_asks_a_pack_a_benchmark_of_the_experiment_and_rows_and_judges_them_together(
    taught: Path, base: Path, tmp_path: Path, job: dict[str, str]
) -> None:
    write_rows(tmp_path / "work/rows.jsonl", KNOWN)
    two_tasks(tmp_path / "work/tuneplane_plugins/letters")
    sums_benchmark(tmp_path / "exp/benchmarks/sums")
    inputs = {"model": {"path": str(base)}, "validation": {"path": "rows.jsonl"}}
    settings = {"chat_template": True, "limit": 3}
    launch(job, inputs=inputs, hyperparams=settings, config={"behaviour": {"max_new_tokens": 4}})
    late = {"candidate": {"path": str(taught), "files": [], "artefact": "final"}}
    record = {"schema": "tuneplane-hpc/late-inputs/v1", "inputs": late}
    (tmp_path / "late.json").write_text(json.dumps(record))
    gates = [
        {"metric": "sums/exact_match,strict-match", "max_regression": 0},
        {"metric": "behaviour/score", "min": 0.9},
    ]
    spec_of(job, suites=["letters", "sums", "behaviour"], baseline="base", gates=gates)
    suites.in_job(job)
    result = json.loads((tmp_path / "out/result.json").read_text())
    assert (result["suite"], result["verdict"], result["reason"]) == (
        "letters, sums, behaviour", "passed", "all 2 gates passed",
    )  # fmt: skip
    numbers = {key: (result["metrics"][key], result["baseline"][key]) for key in ("sums/score", "behaviour/score")}
    assert numbers["behaviour/score"] == (1.0, 0.0)
    assert numbers["sums/score"][0] > numbers["sums/score"][1] == 0.0
    assert [p.parent.name for p in report_folders(tmp_path / "out")] == ["suites"] * 3
    progress = [json.loads(line) for line in (tmp_path / "out/metrics.jsonl").read_text().splitlines()]
    assert [(p["step"], p["total_steps"]) for p in progress if p["step"] == p["total_steps"]] == [
        (15, 15), (15, 15), (3, 3), (3, 3), (3, 3), (3, 3),
    ]  # fmt: skip
    report = json.loads((tmp_path / "out/suites/letters/baseline/eval_report.json").read_text())
    assert (report["suite"], report["data"]["used"], report["metrics"]["again:acc,none"]["n"]) == ("letters", 5, 2)


def test_a_suite_that_is_not_in_the_package_is_refused_before_a_model_is_loaded(job: dict[str, str]) -> None:
    launch(job, inputs={"model": {"path": "/m"}}, hyperparams={})
    for names, words in (
        ([], "E-EVAL-063 spec.evaluation.suites: names none"),
        (["gsm8k"], "E-EVAL-063 spec.evaluation.suites: is no benchmark of this package"),
        (["behaviour"], "E-EVAL-063 launch.json: inputs.validation: there are no validation rows to ask"),
    ):
        spec_of(job, suites=names)
        with pytest.raises(Refused, match=words):
            suites.in_job(job)


@pytest.mark.train
def test_a_benchmark_by_hand_prints_its_numbers_by_their_whole_names(
    taught: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], leave: None
) -> None:
    folder = sums_benchmark(tmp_path / "sums")
    words = [
        "--model",
        str(taught),
        "--benchmark",
        str(folder),
        "--out",
        str(tmp_path / "o"),
        "--device",
        "cpu",
        "--chat-template",
    ]
    with pytest.raises(Left, match="0"):
        suites.main(words)
    lines = [line.split()[:2] for line in capsys.readouterr().out.splitlines()]
    assert lines == [[key, "0.8000"] for key in ("score", "pass_rate", STRICT, FLEXIBLE)]
