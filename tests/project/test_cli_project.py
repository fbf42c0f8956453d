"""The commands of a project, as they are typed: text for people, JSON for programs, exit codes, no storage root needed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hpc.catalog.shelf import Catalogue
from hpc.cli.main import main


@pytest.fixture
def tp(capsys: pytest.CaptureFixture[str]) -> Any:
    """`tp(*args)` → exit code, stdout, stderr."""

    def run(*args: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as caught:
            main(list(args))
        out, err = capsys.readouterr()
        return int(caught.value.code or 0), out, err

    return run


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tp: Any) -> Path:
    """A project without git, and the current folder in it."""
    assert tp("init", str(tmp_path / "lab"), "--no-git")[0] == 0
    monkeypatch.chdir(tmp_path / "lab")
    return tmp_path / "lab"


def errors(out: str) -> list[tuple[str, str]]:
    return [(e["code"], e["field"]) for e in json.loads(out)["errors"]]


def test_from_nothing_to_a_valid_experiment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tp: Any) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = tp("init", "my-lab")
    assert (code, err) == (0, "")
    assert out.startswith(f"project my-lab in {tmp_path}/my-lab\n")
    assert out.endswith("next:\n  cd my-lab\n  tp methods\n  tp new my-exp --method deepspeed/sft\n")
    monkeypatch.chdir(tmp_path / "my-lab")
    code, out, err = tp("new", "my-exp", "--method", "deepspeed/sft")
    assert (code, err) == (0, "")
    assert out.endswith("  git add experiments/my-exp && git commit -m 'New experiment my-exp'\n  tp submit my-exp\n")
    code, out, err = tp("validate", "my-exp")
    assert code == 0
    assert out.startswith("my-exp: valid (deepspeed/sft, lock current, 6 files travel; ")
    assert "tp: note: model is not set: give --model at submit, or set it in config.yaml\n" in err
    assert "tp: note: 4 uncommitted changes in the project: commit first, or submit with --allow-dirty\n" in err


def test_init_needs_no_question_and_takes_the_folders_name(lab: Path, tp: Any) -> None:
    code, out, _ = tp("init", str(lab.parent / "second"), "--no-git", "-y", "--json")
    found = json.loads(out)
    assert (code, found["name"], found["notes"]) == (0, "second", [])
    code, out, _ = tp("init", str(lab.parent / "second"), "--json")
    assert (code, errors(out)) == (1, [("E-PROJECT-040", "DIR")])
    code, out, _ = tp("init", str(lab.parent / "a b"), "--json")
    assert (code, errors(out)) == (1, [("E-SPEC-017", "--name")])


def test_new_wants_a_method_or_a_source(lab: Path, tp: Any) -> None:
    for args in (
        ["x"],
        ["x", "--method", "custom/custom", "--from", "y"],
        ["x", "--from", "y", "--framework-version", "1"],
    ):
        code, _, err = tp("new", *args)
        assert code == 64
        assert f"methods: {', '.join(Catalogue.shipped().ids())}" in err
    code, out, _ = tp("new", "x", "--method", "sft", "--json")
    assert (code, errors(out)) == (1, [("E-CATALOG-001", "spec.recipe.name")])


def test_ls_shows_what_each_is_made_from(lab: Path, tp: Any) -> None:
    assert tp("ls")[1] == "project lab has no experiments yet; `tp new my-exp --method F/M` makes one\n"
    tp("new", "b", "--method", "custom/custom")
    tp("new", "a", "--from", "b")
    for name, file, text in (
        ("old", "method", "nemo-rl/grpo\n"),
        ("bare", "config.yaml", ""),
        ("broken", "recipe.lock.json", "{"),
    ):
        (lab / "experiments" / name).mkdir()
        (lab / "experiments" / name / file).write_text(text)
    code, out, _ = tp("ls")
    assert code == 0
    assert [line.split() for line in out.splitlines()] == [
        ["EXPERIMENT", "METHOD", "VERSION", "RUNTIME", "NOTE"],
        ["a", "custom/custom", "1.0.0", "general-1"],
        ["b", "custom/custom", "1.0.0", "general-1"],
        ["bare", "-", "-", "-", "no", "lock"],
        ["broken", "-", "-", "-", "the", "lock", "cannot", "be", "read"],
        ["old", "nemo-rl/grpo", "-", "-", "no", "lock"],
    ]
    rows = json.loads(tp("ls", "--json")[1])["experiments"]
    assert rows[0] == {
        "name": "a",
        "path": "experiments/a",
        "method": "custom/custom",
        "recipe_version": "1.0.0",
        "framework_version": "user-managed",
        "runtime_id": "general-1",
        "note": "",
    }


def test_outside_of_a_project_every_command_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tp: Any) -> None:
    monkeypatch.chdir(tmp_path)
    for args in (["ls"], ["validate", "x"], ["new", "x", "--method", "custom/custom"]):
        code, out, _ = tp(*args, "--json")
        assert (code, errors(out)) == (1, [("E-PROJECT-001", "")])


def test_methods_list_and_one_method(tp: Any) -> None:
    code, out, _ = tp("methods")
    assert code == 0
    shipped = Catalogue.shipped().ids()
    assert [line.split()[0] for line in out.splitlines()[: len(shipped) + 1]] == ["METHOD", *shipped]
    code, out, _ = tp("methods", "deepspeed/sft")
    assert code == 0
    assert "  needs     model, train\n" in out
    row = next(line.split() for line in out.splitlines() if line.startswith("learning_rate"))
    assert row[:2] == ["learning_rate", "0.0001"]
    assert "training.learning_rate" in row
    found = json.loads(tp("methods", "deepspeed/sft", "--json")[1])
    assert found["params"]["lr_schedule"]["choices"] == ["linear", "cosine", "constant"]
    assert [m["id"] for m in json.loads(tp("methods", "--json")[1])["methods"]] == shipped
    assert tp("methods", "custom/custom")[1].endswith("no parameters\n")


def test_an_unknown_method_gets_a_suggestion(tp: Any) -> None:
    code, _, err = tp("methods", "sft")
    assert code == 1
    assert "did you mean deepspeed/sft?" in err


def test_validate_names_every_fault_at_once(lab: Path, tp: Any) -> None:
    tp("new", "e", "--method", "deepspeed/sft")
    folder = lab / "experiments" / "e"
    config = (folder / "config.yaml").read_text().replace("learning_rate: 1.0e-4", "learning_rate: 7\n  epoch: 3")
    (folder / "config.yaml").write_text(
        config + "hyperparams: {lr: 1}\nslurm: {time: 12h, partion: gpu}\neval: {gates: [{metric: x}]}\n"
    )
    (folder / "train.py").unlink()
    (folder / "id_rsa").write_text("")
    (folder / "plugins.lock.json").write_text("[]")
    code, out, _ = tp("validate", "e", "--json")
    assert (code, json.loads(out)["verdict"]) == (1, "refuse")
    assert errors(out) == [
        ("E-PROJECT-030", "experiments/e/id_rsa"),
        ("E-PROJECT-050", "plugins.lock.json"),
        ("E-PROJECT-015", "config.yaml: training.epoch"),
        ("E-PROJECT-015", "config.yaml: hyperparams"),
        ("E-CATALOG-012", "spec.hyperparams.learning_rate"),
        ("E-SPEC-040", "spec.slurm.time"),
        ("E-SPEC-012", "spec.slurm.partion"),
        ("E-SPEC-031", "spec.evaluation.gates[0]"),
        ("E-SPEC-032", "spec.evaluation.gates[0].metric"),
    ]
    (folder / "id_rsa").unlink()
    assert ("E-PROJECT-016", "experiments/e/train.py") in errors(tp("validate", "e", "--json")[1])
    assert "e: 9 faults (deepspeed/sft, lock current, 6 files travel; " in tp("validate", "e")[1]


def test_an_unread_key_is_answered_with_the_nearest_one(lab: Path, tp: Any) -> None:
    tp("new", "e", "--method", "deepspeed/sft")
    config = lab / "experiments" / "e" / "config.yaml"
    config.write_text(config.read_text() + "slrum: {time: 1}\nlearning_rate: 1\n")
    found = {e["field"]: e["hint"] for e in json.loads(tp("validate", "e", "--json")[1])["errors"]}
    assert found == {
        "config.yaml: slrum": "did you mean slurm?",
        "config.yaml: learning_rate": "did you mean training.learning_rate?",
    }


def test_settings_of_what_follows_are_read_where_something_can_follow_and_plugins_stand_in_their_lock(
    lab: Path, tp: Any
) -> None:
    for method, unread in (("sft", ["plugins"]), ("rm", ["behaviour", "plugins"])):
        tp("new", method, "--method", f"deepspeed/{method}")
        config = lab / "experiments" / method / "config.yaml"
        config.write_text(config.read_text() + "behaviour: {max_new_tokens: 64}\nplugins: [alice/x]\n")
        found = errors(tp("validate", method, "--json")[1])
        assert found == [("E-PROJECT-015", f"config.yaml: {key}") for key in unread]


def test_what_columns_mean_is_looked_at_with_the_rest(lab: Path, tp: Any) -> None:
    tp("new", "e", "--method", "deepspeed/sft")
    config = lab / "experiments" / "e" / "config.yaml"
    text = config.read_text()
    config.write_text(text.replace('  train: {path: ""}', '  train: {path: "x", columns: {input: q}, splitt: y}'))
    assert errors(tp("validate", "e", "--json")[1]) == [
        ("E-DATA-005", "config.yaml: data.train.columns"),
        ("E-SPEC-012", "spec.data.train.splitt"),
    ]
    config.write_text(text.replace('  train: {path: ""}', '  train: {path: "x", columns: {input: q, output: a}}'))
    assert errors(tp("validate", "e", "--json")[1]) == []


def test_a_program_of_ones_own_may_have_any_config(lab: Path, tp: Any) -> None:
    tp("new", "e", "--method", "custom/custom")
    (lab / "experiments" / "e" / "config.yaml").write_text("anything: {goes: [1, 2]}\n")
    code, out, err = tp("validate", "e")
    assert (code, err) == (0, "")
    assert out.startswith("e: valid (custom/custom, lock current, 6 files travel; ")


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda lock: lock["recipe"].update(digest="sha256:0"), "E-CATALOG-024"),
        (lambda lock: lock["framework"].update(version="9"), "E-CATALOG-014"),
        (lambda lock: lock["recipe"].update(name="a/b"), "E-CATALOG-001"),
        (lambda lock: lock.update(apiVersion="v9"), "E-CATALOG-021"),
        (lambda lock: lock["bindings"]["entrypoint"].update(value="run.py"), "E-CATALOG-028"),
    ],
)
def test_a_lock_that_does_not_fit_is_a_fault(lab: Path, tp: Any, change: Any, code: str) -> None:
    tp("new", "e", "--method", "custom/custom")
    path = lab / "experiments" / "e" / "recipe.lock.json"
    lock = json.loads(path.read_text())
    change(lock)
    path.write_text(json.dumps(lock))
    exit_code, out, _ = tp("validate", "e", "--json")
    assert exit_code == 1
    assert code in {found for found, _ in errors(out)}


def test_an_experiment_without_a_lock_is_told_how_to_get_one(lab: Path, tp: Any) -> None:
    (lab / "experiments" / "old").mkdir()
    (lab / "experiments" / "old" / "method").write_text("custom/custom\n")
    (lab / "experiments" / "old" / "cluster").write_text("h200\n")
    code, out, _ = tp("validate", "old", "--json")
    found = json.loads(out)
    assert (code, found["method"], errors(out)[0][0]) == (1, "custom/custom", "E-CATALOG-020")
    assert len(found["notes"]) == 2


@pytest.mark.parametrize("command", ["init", "new", "ls", "methods", "validate"])
def test_help(tp: Any, command: str) -> None:
    code, out, _ = tp(command, "-h")
    assert code == 0
    assert "--json" in out
