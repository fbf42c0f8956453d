"""`tp eval` at the terminal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from answered import answered

from hpc.cli.context import current_user
from hpc.cli.main import main

CONFIG = """\
eval:
  suites: [behaviour]
  baseline: base
  gates:
    - {metric: exact_match, min: 0.5}
    - {metric: token_f1, max_regression: 0.03}
"""


def tp(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str]:
    """Exit code, and stdout with stderr behind it."""
    with pytest.raises(SystemExit) as end:
        main(["eval", *map(str, words)])
    shown = capsys.readouterr()
    return int(end.value.code or 0), shown.out + shown.err


def as_json(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, Any]:
    code, text = tp(capsys, *words, "--json")
    return code, json.loads(text)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "exp").mkdir()
    (tmp_path / "exp/config.yaml").write_text(CONFIG)
    return tmp_path / "exp/config.yaml"


def test_show_prints_numbers_and_complains_about_changed_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = answered(tmp_path / "a", {"q": ("x", "x"), "r": ("x", "no\x1b[31m")})
    code, text = tp(capsys, "show", folder)
    assert code == 0
    assert "exact_match  0.5    0 – 1  2" in text
    assert "rows     2 of 2 in rows.jsonl" in text
    (folder / "predictions.jsonl").write_bytes(b"")
    code, text = tp(capsys, "show", folder / "eval_report.json")
    assert (code, "E-EVAL-045 predictions.jsonl" in text) == (1, True)
    code, value = as_json(capsys, "show", folder)
    assert (code, [c["code"] for c in value["faults"]], value["metrics"]["score"]["value"]) == (1, ["E-EVAL-045"], 0.5)


def test_a_report_may_be_named_by_the_run_that_made_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site/site.yaml").write_text("")
    monkeypatch.setenv("TUNEPLANE_STORAGE_ROOT", str(tmp_path))
    run = tmp_path / "runs" / current_user() / "sums.eval/run-00ab"
    for attempt, text in enumerate(("no", "x")):
        out = run / f"attempts/{attempt}/out"
        out.parent.mkdir(parents=True)
        answered(out, {"q": ("x", text)})
    code, value = as_json(capsys, "show", "run-00ab")
    assert (code, value["folder"]) == (0, str(run / "attempts/1/out"))
    assert value["metrics"]["exact_match"]["value"] == 1.0
    code, value = as_json(capsys, "show", "run-00ac")
    assert (code, value["errors"][0]["code"]) == (1, "E-RUNS-001")


def test_an_evaluation_in_several_suites_shows_all_and_compares_the_named_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site/site.yaml").write_text("")
    monkeypatch.setenv("TUNEPLANE_STORAGE_ROOT", str(tmp_path))
    for number, text in ((1, "no"), (2, "x")):
        out = tmp_path / "runs" / current_user() / f"sums.eval/run-00a{number}/attempts/0/out"
        for suite in ("behaviour", "sums"):
            answered(out / "suites" / suite, {"q": ("x", text)}, suite=suite)
    code, value = as_json(capsys, "show", "run-00a2")
    assert (code, [r["suite"] for r in value["reports"]]) == (0, ["behaviour", "sums"])
    code, value = as_json(capsys, "compare", "run-00a1", "run-00a2")
    assert (code, value["errors"][0]["code"], value["errors"][0]["found"]) == (1, "E-EVAL-046", "behaviour, sums")
    code, value = as_json(capsys, "compare", "run-00a1/sums", "run-00a2/sums")
    assert (code, value["fixed"]) == (0, 1)
    gates = (
        "eval: {suites: [behaviour, sums], gates: [{metric: sums/score, min: 1}, {metric: behaviour/score, min: 1}]}\n"
    )
    (tmp_path / "config.yaml").write_text(gates)
    verdicts = [as_json(capsys, "gate", run, "--config", tmp_path)[1]["verdict"] for run in ("run-00a1", "run-00a2")]
    assert verdicts == ["failed", "passed"]


def test_a_run_without_such_a_report_is_told_from_one_that_is_not_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site/site.yaml").write_text("")
    monkeypatch.setenv("TUNEPLANE_STORAGE_ROOT", str(tmp_path))
    runs = tmp_path / "runs" / current_user() / "sums.eval"
    for name in ("run-00a1/attempts/0/out", "run-00a2/array/1/attempts/0/out", "run-00a2/array/3/attempts/0"):
        (runs / name).parent.mkdir(parents=True)
        (runs / name).mkdir() if name.endswith("/0") else answered(runs / name, {"q": ("x", "x")}, suite="sums")
    (runs / "run-00a3/attempts").mkdir(parents=True)
    assert as_json(capsys, "show", "run-00a1/sums")[1]["folder"] == str(runs / "run-00a1/attempts/0/out")
    assert as_json(capsys, "show", "run-00a2/1")[1]["folder"] == str(runs / "run-00a2/array/1/attempts/0/out")
    for named, found, allowed in (
        ("run-00a1/other", "run-00a1/other", "run-00a1/sums"),
        ("run-00a2", "run-00a2", "run-00a2/1, run-00a2/3"),
        ("run-00a2/2", "run-00a2/2", "run-00a2/1, run-00a2/3"),
        ("run-00a2/3", "run-00a2/3", "the run of an evaluation that is done"),
        ("run-00a3", "run-00a3", "the run of an evaluation that is done"),
    ):
        code, value = as_json(capsys, "show", named)
        (error,) = value["errors"]
        assert (code, error["code"], error["found"], error["allowed"]) == (1, "E-EVAL-040", found, allowed)


def test_compare_prints_changes_without_what_steers_a_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = answered(tmp_path / "a", {"q": ("x", "x"), "r": ("x", "no\x1b[31m")})
    after = answered(tmp_path / "b", {"q": ("x", "no"), "r": ("x", "x")}, basis={"settings": "t"}, max_rows=2)
    code, text = tp(capsys, "compare", before, after)
    assert code == 0
    assert "fixed 1, broken 1, same 0" in text
    assert "\x1b" not in text
    assert "no\\x1b[31m" in text
    assert "note: the settings differ: max_rows None and 2" in text
    code, value = as_json(capsys, "compare", before, after, "--examples", "0")
    assert (code, value["schema"], value["examples"], value["same"]) == (0, "tuneplane-hpc/eval-comparison/v1", [], 0)
    assert value["metrics"]["exact_match"]["verdict"] in ("equal", "unclear")


def test_gate_decides_by_exit_code(tmp_path: Path, config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = answered(tmp_path / "base", {"q": ("x", "no"), "r": ("x", "x")})
    good = answered(tmp_path / "good", {"q": ("x", "x"), "r": ("x", "x")}, basis={"adapter": "l"})
    bad = answered(tmp_path / "bad", {"q": ("x", "no"), "r": ("x", "no")}, basis={"adapter": "l"})
    code, text = tp(capsys, "gate", good, "--config", config, "--baseline", base)
    assert (code, text.splitlines()[-1]) == (0, "passed: all 2 gates passed")
    code, value = as_json(capsys, "gate", bad, "--config", config.parent, "--baseline", base)
    assert (code, value["verdict"], [g["passed"] for g in value["gates"]]) == (1, "failed", [False, False])
    code, value = as_json(capsys, "gate", good, "--config", config)
    assert (code, value["gates"][1]["reason"]) == (1, "there is no baseline")
    code, value = as_json(capsys, "gate", good)
    assert (code, value["verdict"]) == (1, "not evaluated")
    code, value = as_json(capsys, "gate", "--config", config)
    assert (code, value["verdict"]) == (1, "not evaluated")


def test_a_number_that_was_edited_is_shown_and_judged_by_nobody(
    tmp_path: Path, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = answered(tmp_path / "a", {"q": ("x", "no"), "r": ("x", "x")})
    path = folder / "eval_report.json"
    value = json.loads(path.read_text())
    for key, change in (
        ("exact_match", {"value": 0.9}),
        ("pass_rate", {"value": 0.6}),
        ("token_f1", {"n": 3}),
        ("score", {"value": 1.0}),
    ):
        path.write_text(json.dumps(value | {"metrics": value["metrics"] | {key: value["metrics"][key] | change}}))
        code, found = as_json(capsys, "show", folder)
        assert (code, [(f["code"], f["field"]) for f in found["faults"]]) == (1, [("E-EVAL-049", f"metrics.{key}")])
        code, found = as_json(capsys, "gate", folder, "--config", config, "--baseline", folder)
        assert (code, found["errors"][0]["code"]) == (1, "E-EVAL-049")


def test_gate_takes_budgets_and_jobspecs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = answered(tmp_path / "base", {f"q{i}": ("x", "x") for i in range(100)})
    less = answered(tmp_path / "less", {f"q{i}": ("x", "x" if i > 2 else "no") for i in range(100)})
    gate = ("gate", less, "--baseline", base, "--general")
    assert tp(capsys, *gate, "behaviour")[0] == 0
    assert tp(capsys, *gate, "behaviour=0.02,0.05")[0] == 1
    assert tp(capsys, *gate, "behaviour=0.03,0.029")[0] == 1
    code, value = as_json(capsys, *gate, "behaviour=2")
    assert (code, value["errors"][0]["code"]) == (1, "E-EVAL-047")
    spec = tmp_path / "jobspec.json"
    spec.write_text(
        json.dumps({"spec": {"evaluation": {"suites": ["behaviour"], "gates": [{"metric": "score", "min": 0.98}]}}})
    )
    assert tp(capsys, "gate", less, "--config", spec)[0] == 1
    assert tp(capsys, "gate", base, "--config", spec)[0] == 0


def test_a_baseline_that_the_config_does_not_name_is_refused(
    tmp_path: Path, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ours = answered(tmp_path / "ours", {"q": ("x", "x")}, basis={"adapter": "l"})
    dressed = answered(tmp_path / "run-0001/out", {"q": ("x", "x")}, basis={"adapter": "k"})
    foreign = answered(tmp_path / "foreign", {"q": ("x", "x")}, basis={"model": "n"})
    for wrong in (dressed, foreign):
        code, value = as_json(capsys, "gate", ours, "--config", config, "--baseline", wrong)
        assert (code, value["errors"][0]["code"]) == (1, "E-EVAL-044")
    for named, code in (("run/run-0001", 0), ("run/run-0002", 1), ("/models/m", 0), ("/models/n", 1)):
        config.write_text(CONFIG.replace("baseline: base", f"baseline: {named}"))
        assert tp(capsys, "gate", ours, "--config", config, "--baseline", dressed)[0] == code


def test_two_reports_of_one_suite_are_refused(tmp_path: Path, config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ours = answered(tmp_path / "ours", {"q": ("x", "x")})
    code, value = as_json(capsys, "gate", ours, ours, "--config", config)
    assert (code, value["errors"][0]["code"]) == (1, "E-EVAL-046")


@pytest.mark.parametrize("name", ["config.yaml", "spec.json", "folder"])
def test_a_config_that_is_not_there_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    (tmp_path / "folder").mkdir()
    code, value = as_json(capsys, "gate", tmp_path, "--config", tmp_path / name)
    assert (code, value["errors"][0]["code"]) == (1, "E-EVAL-048")


def test_a_list_says_which_evaluation_only_informs() -> None:
    from hpc.cli.evaluate_run import _cell

    assert _cell({"verdict": "passed", "asked": {"limit": 4}}, "verdict") == "(passed) informs only"
    assert _cell({"verdict": "passed", "asked": None}, "verdict") == "passed"
    assert _cell({"verdict": None, "asked": {"limit": 4}}, "verdict") is None


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("./x", "{here}/x"), ("../x", "{above}/x"), ("/models/x", "/models/x"), ("~/x", "{home}/x"), ("base", "base"),
        ("run/run-4f2a91c0", "run/run-4f2a91c0"), ("alice/toy@1", "alice/toy@1"),
    ],
)  # fmt: skip
def test_a_baseline_s_path_is_meant_from_where_it_is_typed(
    typed: str, meant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was taken from the run's package, where nobody has a `./x`."""
    seen: list[dict[str, Any]] = []
    monkeypatch.setattr("hpc.cli.evaluate_run._by_hand", lambda run, action, asked, as_json: seen.append(asked))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    with pytest.raises(SystemExit):
        main(["eval", "run", "run-4f2a91c0", "--baseline", typed])
    here = Path.cwd()
    assert seen == [{"baseline": meant.format(here=here, above=here.parent, home=tmp_path / "home")}]
