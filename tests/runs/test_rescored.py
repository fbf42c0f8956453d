"""A deep audit scores an evaluation again: a report that does not follow from its answers is tampered, though every digest fits."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from builder import RunMaker
from tuneplane.contract.evaluation import INPUTS, PREDICTIONS, REPORT, SCORES
from tuneplane.evaluation.metrics import Score, Scoring, aggregate
from tuneplane.record.canonical import canonical_bytes, pretty_bytes
from tuneplane.record.digest import digest_bytes, digest_file

from hpc.runs.audit import audit
from tests.evaluated import evaluated

Make = Callable[..., RunMaker]
Files = dict[str, bytes]
ANSWERED = {
    "1 + 1?": ("2", "2"),
    "2 + 2?": ("4", "5"),
    "a pair?": ('{"a": 1, "b": 2}', '{"a": 1, "b": 3}'),
    "who?": ("Ada Lovelace", "it was Ada"),
}
ASKED = {"metrics": "exact_match,token_f1,json_fields", "suite": "behaviour"}


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    return tmp_path / "rows.jsonl"


@pytest.fixture
def files(rows: Path, tmp_path: Path) -> Files:
    """What the evaluator leaves."""
    made = evaluated(tmp_path / "made", rows, ANSWERED, **ASKED)
    return {name: (made / name).read_bytes() for name in (INPUTS, PREDICTIONS, SCORES, REPORT)}


@pytest.fixture
def found(make_run: Make, rows: Path) -> Callable[..., list[tuple[str, str, str]]]:
    """The findings of an audit of a run with these files in out/, whose records all fit them."""
    ids = (f"run-{number:08x}" for number in count())

    def look(files: Files, *, deep: bool = True, folder: str = "", **launch: Any) -> list[tuple[str, str, str]]:
        inputs = {"validation": {"path": str(rows), "files": [{"path": "", "sha256": digest_file(rows)}]}}
        entry = {"kind": "rank", "argv": ["$PYTHON", "-u", "-m", "tuneplane.evaluation"]}
        made = {"inputs": inputs, "entry": entry, "hyperparams": {**ASKED, "max_rows": 0}, **launch}
        run = (
            make_run(next(ids), launch=made, left={f"{folder}{name}": data for name, data in files.items()}).done().run
        )
        return [(f.level, f.path, f.message) for f in audit(run, deep=deep).findings]

    return look


def forged(files: Files, *, report: Callable[[dict[str, Any]], None] = lambda r: None, **changed: bytes) -> Files:
    """The files with other content, and the report's digests of them as they are then."""
    out = {**files, **{f"{name}.jsonl": data for name, data in changed.items()}}
    value = json.loads(files[REPORT])
    value["files"] = {name: digest_bytes(out[name]) for name in value["files"]}
    report(value)
    return {**out, REPORT: pretty_bytes(value)}


def lines(data: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in data.splitlines()]


def put(items: list[dict[str, Any]]) -> bytes:
    return b"".join(canonical_bytes(item) + b"\n" for item in items)


def test_what_the_evaluator_leaves_follows_from_its_answers(files: Files, found: Any) -> None:
    assert found(files) == []


def test_a_metric_that_is_not_the_mean_of_the_scores_is_tampered(files: Files, found: Any) -> None:
    def better(report: dict[str, Any]) -> None:
        report["metrics"]["exact_match"]["value"] = report["metrics"]["score"]["value"] = 0.75

    (one, other) = found(forged(files, report=better))
    assert one[:2] == other[:2] == ("tampered", f"attempts/0/out/{REPORT}")
    assert one[2].startswith("metrics.exact_match says {'value': 0.75, 'n': 4")
    assert "its scores give {'value': 0.25, 'n': 4" in one[2]
    assert found(forged(files, report=better), deep=False) == []


def test_an_interval_that_the_scores_do_not_give_is_tampered(files: Files, found: Any) -> None:
    def surer(report: dict[str, Any]) -> None:
        report["metrics"]["token_f1"]["low"] += 0.2

    ((level, path, text),) = found(forged(files, report=surer), folder="suites/behaviour/")
    assert (level, path) == ("tampered", f"attempts/0/out/suites/behaviour/{REPORT}")
    assert text.startswith("metrics.token_f1 says")


def test_a_better_score_with_means_and_digests_that_fit_it_is_tampered(files: Files, found: Any) -> None:
    """The second answer is wrong; its score says that it is right, and everything above follows from that."""
    scores = lines(files[SCORES])
    scores[1]["passed"] = True
    scores[1]["values"] |= {"exact_match": 1.0, "token_f1": 1.0}

    def follows(report: dict[str, Any]) -> None:
        again = [Score(s["id"], s["passed"], s["values"], s["parts"]) for s in scores]
        report["metrics"] = aggregate(again, Scoring(("exact_match", "token_f1", "json_fields")))

    ((level, path, text),) = found(forged(files, report=follows, scores=put(scores)))
    assert (level, path) == ("tampered", f"attempts/0/out/{SCORES}")
    assert text == f"{scores[1]['id']}: passed is True; the answer gives False"


def test_a_wrong_example_that_is_left_out_everywhere_is_tampered(files: Files, found: Any) -> None:
    fewer = {
        name.split(".")[0]: put(lines(files[name])[:1] + lines(files[name])[2:])
        for name in (INPUTS, PREDICTIONS, SCORES)
    }
    ((level, path, text), *_) = found(forged(files, **fewer))
    assert (level, path) == ("tampered", f"attempts/0/out/{PREDICTIONS}")
    assert "has no prediction" in text


def test_easier_scoring_than_the_package_asks_for_is_tampered(files: Files, found: Any, rows: Path) -> None:
    def easier(report: dict[str, Any]) -> None:
        report["settings"]["metrics"] = "token_f1,exact_match,json_fields"

    said = found(forged(files, report=easier))
    assert ("tampered", f"attempts/0/out/{REPORT}") == said[0][:2]
    assert "the package asks for 'exact_match,token_f1,json_fields'" in said[0][2]


def test_other_rows_than_the_package_names_are_tampered(files: Files, found: Any) -> None:
    def elsewhere(report: dict[str, Any]) -> None:
        report["basis"]["data"] = "sha256:" + "0" * 64

    ((level, path, text),) = found(forged(files, report=elsewhere))
    assert (level, path) == ("tampered", f"attempts/0/out/{REPORT}")
    assert text.startswith("rests on rows sha256:0000")


def test_rows_that_are_gone_or_changed_since_accuse_nobody_and_are_said(files: Files, found: Any, rows: Path) -> None:
    inputs = {"validation": {"path": str(rows), "files": [{"path": "", "sha256": digest_file(rows)}]}}
    rows.write_text("{}\n")
    ((level, _, text),) = found(files, inputs=inputs)
    assert (level, text) == ("note", f"is not scored again: {rows} was changed since")


def test_without_the_rows_scores_of_other_answers_are_still_seen(files: Files, found: Any) -> None:
    scores = lines(files[SCORES])
    scores[0]["values"]["cut_rate"] = 1.0
    said = found(forged(files, scores=put(scores)), inputs={})
    assert [level for level, *_ in said] == ["tampered", "tampered", "note"]
    assert said[-1][2] == "is not scored again: the package names no validation rows"


def test_an_evaluation_by_another_release_is_not_called_tampered(files: Files, found: Any) -> None:
    def better(report: dict[str, Any]) -> None:
        report["metrics"]["exact_match"]["value"] = 0.75

    said = found(forged(files, report=better), kernel={"verifier": "k", "version": "0.0.1"})
    ((level, text),) = [(level, text) for level, path, text in said if path.endswith(REPORT)]
    assert level == "incomplete"
    assert "scored by tp 0.0.1, again by" in text


def test_a_benchmark_s_means_are_those_of_its_scores_and_its_answers_are_lm_eval_s_word(
    files: Files, found: Any
) -> None:
    def a_benchmark(report: dict[str, Any]) -> None:
        report |= {"suite": "sums", "settings": {"num_fewshot": 0}}

    suites = {"kind": "rank", "argv": ["$PYTHON", "-u", "-m", "tuneplane.evaluation.suites"]}
    asked = {"entry": suites, "hyperparams": {"limit": 0}, "config": {"behaviour": {**ASKED}}}
    assert found(forged(files, report=a_benchmark), **asked) == []
    assert found(files, **asked) == []
    scores = lines(files[SCORES])
    scores[1]["values"]["exact_match"] = 1.0
    assert [p for _, p, _ in found(forged(files, report=a_benchmark, scores=put(scores)), **asked)] == [
        f"attempts/0/out/{REPORT}"
    ] * 2
    (only,) = found(forged(files, report=a_benchmark, predictions=put(lines(files[PREDICTIONS])[1:])), **asked)
    assert only[1:] == (f"attempts/0/out/{SCORES}", f"are of other examples than {PREDICTIONS}")


def test_a_file_that_only_has_the_name_of_a_report_is_an_artifact_like_any_other(files: Files, found: Any) -> None:
    assert found({REPORT: b"not JSON"}) == []
    assert found({REPORT: b'{"schema": "mine/v1"}'}) == []


def test_a_report_cannot_pass_for_a_benchmark_s_where_behaviour_was_asked(files: Files, found: Any) -> None:
    def without_scoring(report: dict[str, Any]) -> None:
        report["settings"] = {"num_fewshot": 0}

    for launch in ({}, {"entry": {"argv": ["tuneplane.evaluation.suites"]}}):
        assert found(forged(files, report=without_scoring), **launch) == [
            ("tampered", f"attempts/0/out/{REPORT}", "has no settings of its scoring")
        ]


@pytest.mark.parametrize(
    "settings", [[], {"metrics": 1}, {"metrics": []}, {"metrics": "exact_match", "max_rows": "x"}, {"metrics": None}]
)
@pytest.mark.parametrize("values", [{"exact_match": 10**400}, [["exact_match", 1]], {"exact_match": "1"}, {}, None])
def test_whatever_an_owner_writes_is_a_finding_and_no_crash(
    files: Files, found: Any, settings: Any, values: Any
) -> None:
    scores = put([{"id": "x", "passed": True, "values": values, "parts": {}}])
    for changed in ({}, {"scores": scores}):
        said = found(forged(files, report=lambda r: r.update(settings=settings), **changed), kernel="k")
        assert ("tampered", f"attempts/0/out/{REPORT}") in [s[:2] for s in said] or changed or settings == []
        assert not changed or "tampered" in [level for level, *_ in said]


def test_inputs_of_another_form_are_a_finding_and_no_crash(files: Files, found: Any) -> None:
    for validation in ({"path": 1, "files": 3}, {"path": "\0", "files": []}, {"files": [1]}, 7):
        assert [level for level, path, _ in found(files, inputs={"validation": validation}) if path.endswith(REPORT)]
