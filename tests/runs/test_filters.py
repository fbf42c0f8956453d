"""`tp runs ls` by what the packages say, and single answers in `tp runs compare`."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from runcommands import Tp

sys.path.append(str(Path(__file__).parents[1] / "evaluate"))

from answered import answered

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def spec(method: str, commit: str = "", **labels: str) -> dict[str, Any]:
    return {
        "apiVersion": "tuneplane/v1", "metadata": {"name": "sft", "labels": labels}, "provenance": {"git_commit": commit},
        "spec": {"recipe": {"name": method, "version": "1"}},
    }  # fmt: skip


@pytest.fixture
def three(tp: Tp) -> Tp:
    tp.make("run-000000aa", "one", spec=spec("deepspeed/sft", COMMIT, team="x")).done()
    tp.make("run-000000bb", "two", spec=spec("deepspeed/dpo", "ffff", team="y", hot="yes")).package().admit().submit()
    third = tp.make("run-000000cc", "two", spec=spec("custom/custom")).done()
    launch = {"inputs": {"train": {"path": "/x", "files": [{"path": "", "size": 1, "sha256": "sha256:abc123"}]}}}
    third.run.launch.write_text(json.dumps(launch))
    return tp


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ((), "abc"),
        (("--method", "deepspeed/sft"), "a"),
        (("-m", "dpo"), "b"),
        (("--state", "done"), "ac"),
        (("--exp", "two"), "bc"),
        (("--label", "team"), "ab"),
        (("--label", "team=y", "--label", "hot"), "b"),
        (("--label", "team=z"), ""),
        (("--commit", "0123"), "a"),
        (("--data", "sha256:ABC"), "c"),
        (("--data", "bc1"), ""),
        (("--since", "now-1days"), "abc"),
        (("--since", "2999-01-01"), ""),
        (("--exp", "two", "--state", "done", "--method", "custom"), "c"),
    ],
)
def test_runs_are_found_by_what_their_packages_say(three: Tp, words: tuple[str, ...], found: str) -> None:
    rows = three("runs", "ls", *words, "--json").json()["runs"]
    assert sorted(row["run_id"][-1] for row in rows) == list(found)


def test_a_package_that_cannot_be_read_fits_no_question_about_it(three: Tp) -> None:
    run = three.root.run(three("runs", "ls", "--json").json()["runs"][0]["owner"], "one", "run-000000aa")
    run.jobspec.write_text("[")
    assert [r["run_id"] for r in three("runs", "ls", "--method", "sft", "--json").json()["runs"]] == []
    assert len(three("runs", "ls", "--json").json()["runs"]) == 3


def test_a_label_without_a_name_is_refused(three: Tp) -> None:
    done = three("runs", "ls", "--label", "=x", "--json")
    assert (done.code, done.json()["errors"][0]["code"]) == (64, "E-SUBMIT-031")


def comparable(tp: Tp, run_id: str, answers: dict[str, tuple[str, str]] | None) -> None:
    maker = tp.make(
        run_id, "eval", spec=spec("evalkit/behaviour") | {"spec": {"recipe": {"name": "e"}, "framework": {}}}
    ).done()
    launch = {
        "hyperparams": {},
        "shape": {"pools": []},
        "runtime": {},
        "kernel": {"verifier_sha256": "v", "training_sha256": "t"},
    }
    maker.run.launch.write_text(json.dumps(launch))
    if answers is not None:
        out = maker.run.attempt(0).out
        made = answered(out / "made", answers)
        for path in made.iterdir():
            shutil.move(path, out / path.name)


def test_single_answers_of_two_evaluated_runs_are_compared(tp: Tp) -> None:
    comparable(tp, "run-000000aa", {"1 + 1": ("2", "3"), "2 + 2": ("4", "4"), "3 + 3": ("6", "6")})
    comparable(tp, "run-000000bb", {"1 + 1": ("2", "2"), "2 + 2": ("4", "5"), "3 + 3": ("6", "6")})
    comparable(tp, "run-000000cc", None)
    found = tp("runs", "compare", "run-000000aa", "run-000000bb", "--json").json()["answers"]
    assert (found["fixed"], found["broken"], found["same"]) == (1, 1, 1)
    assert {(e["change"], e["question"]) for e in found["examples"]} == {("fixed", "1 + 1"), ("broken", "2 + 2")}
    assert "fixed 1, broken 1, same 1" in tp("runs", "compare", "run-000000aa", "run-000000bb").out
    assert tp("runs", "compare", "run-000000aa", "run-000000cc", "--json").json()["answers"] is None
    assert (
        tp("runs", "compare", "run-000000aa", "run-000000bb", "--only", "settings", "--json").json()["answers"] is None
    )
