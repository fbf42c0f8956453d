"""Suites of an evaluation: benchmarks of the experiment and published packs, from the config to the follow-up's package, and what is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from hpc.catalog.shelf import Catalogue
from hpc.errors import Refusal
from hpc.submit import suites
from tests.submit.test_followups import Lab

sys.path.insert(0, str(Path(__file__).parents[1] / "evaluation"))
from small_benchmarks import FLEXIBLE, STRICT, choice, choice_rows, sums_benchmark, two_tasks, write_benchmark


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    """A site where the pack `letters` is published, and `scope`, which no method here runs."""
    lab = Lab(tmp_path_factory.mktemp("suites"))
    packs = lab.storage.parent / "packs"
    scope = write_benchmark(packs / "scope", [choice("pick")], {"pick": choice_rows()}, "acc", runner="evalscope")
    for folder in (two_tasks(packs / "letters"), scope):
        manifest = {"schema": "tuneplane/plugin/v1", "name": folder.name, "version": "1.0.0", "capability": "benchmark"}
        (folder / "plugin.yaml").write_text(yaml.safe_dump(manifest))
        lab.tp("plugin", "publish", str(folder))
    return lab


@pytest.fixture
def lab(shared: Lab) -> Lab:
    """An experiment whose own benchmark is `sums`."""
    lab = shared.begin(f"job{len(list((shared.project / 'experiments').iterdir()))}")
    sums_benchmark(lab.project / "experiments" / lab.exp / "benchmarks" / "sums")
    lab.write("held.jsonl", '{"prompt": "1+1", "completion": "2"}\n')
    return lab


def config(lab: Lab, evaluation: dict[str, Any], **more: Any) -> None:
    held = str(lab.project / "experiments" / lab.exp / "held.jsonl")
    whole = {"data": {"validation": {"path": held}}, "eval": evaluation, **more}
    lab.write("config.yaml", yaml.safe_dump(whole))


def test_a_pack_is_locked_by_digest_and_travels_with_the_run_and_its_evaluation(lab: Lab) -> None:
    gates = [{"metric": f"sums/{STRICT}", "min": 0.5}, {"metric": "letters/pick:acc", "max_regression": 0.1}]
    asked = {"suites": ["letters", "sums", "behaviour"], "limit": 3, "baseline": "/models/base", "gates": gates}
    base = lab.storage.parent / "base"
    base.mkdir(exist_ok=True)
    (base / "config.json").write_text("{}")
    config(lab, {**asked, "baseline": str(base)}, benchmark={"seed": 3}, behaviour={"max_new_tokens": 4})
    lab.write("seconds", "60")
    done = lab.json("submit", lab.exp)
    (followed,) = done["followups"]
    parent, child = lab.run(done), lab.run(followed)
    lab.tp("job", "stop", done["run_id"])
    (pack,) = json.loads(parent.jobspec.read_text())["spec"]["plugins"]
    assert (pack["id"].rpartition("/")[2], pack["version"]) == ("letters", "1.0.0")
    spec, launch = json.loads(child.jobspec.read_text())["spec"], json.loads(child.launch.read_text())
    assert (spec["recipe"]["name"], spec["plugins"]) == (suites.BENCHMARK, [pack])
    assert (spec["hyperparams"], spec["framework"]["runtime_id"]) == ({"seed": 3, "limit": 3}, "lm-eval-0.4.13")
    assert [g["metric"] for g in spec["evaluation"]["gates"]] == [g["metric"] for g in gates]
    assert launch["entry"]["argv"][-2:] == ["-m", "tuneplane.evaluation.suites"]
    assert (sorted(launch["inputs"]), launch["config"]["behaviour"]) == (
        ["baseline", "validation"],
        {"max_new_tokens": 4},
    )
    listed = {entry["path"] for entry in json.loads(child.package.read_text())["files"]}
    assert {
        "tuneplane_plugins/letters/tasks/pick.jsonl",
        f"experiments/{lab.exp}/benchmarks/sums/tasks/sums.yaml",
    } <= listed
    assert [row["id"] for row in json.loads((child.work / ".tuneplane/plugins.json").read_text())["plugins"]] == [
        pack["id"]
    ]
    script = (child.batch / "0.sh").read_text()
    assert str(child.work) in script
    lab.tp("admit", "--check", str(child.work))


def test_benchmarks_alone_need_no_rows_and_rows_alone_no_lm_eval(lab: Lab) -> None:
    lab.write("config.yaml", yaml.safe_dump({"eval": {"suites": ["letters"]}}))
    said = lab.json("submit", lab.exp, "--dry-run")
    assert [p["id"].rpartition("/")[2] for p in said["jobspec"]["spec"]["plugins"]] == ["letters"]
    lab.write("config.yaml", yaml.safe_dump({"eval": {"suites": ["letters", "behaviour"]}}))
    assert lab.refused("--dry-run") == [("E-SUBMIT-061", "spec.data.validation")]
    assert [suites.evaluator_of(s) for s in (["behaviour"], [], ["a"], ["behaviour", "a"])] == [
        suites.EVALUATOR, suites.EVALUATOR, suites.BENCHMARK, suites.BENCHMARK,
    ]  # fmt: skip


def test_what_no_suite_gives_and_no_gate_can_mean_is_refused_before_the_training(lab: Lab) -> None:
    def refused(gate: dict[str, Any], suite: str = "sums", **more: Any) -> list[tuple[str, str]]:
        config(lab, {"suites": [suite], "gates": [gate], **more})
        return lab.refused("--dry-run")

    at = "spec.evaluation.gates[0]"
    assert refused({"metric": "exact_match", "min": 0.5}) == [("E-EVAL-064", f"{at}.metric")]
    errors = lab.json("submit", lab.exp, "--dry-run", ok=False)["errors"]
    assert errors[0]["allowed"] == f"sums/{STRICT}, sums/{FLEXIBLE}"
    assert refused({"metric": STRICT, "min": 60}) == [("E-EVAL-065", f"{at}.min")]
    config(lab, {"suites": ["letters"], "gates": [{"metric": "letters/again:acc_norm", "min": 0.1}]})
    lab.tp("submit", lab.exp, "--dry-run")
    assert refused({"metric": "acc", "max_regression": 0.1}, "letters") == [
        ("E-SUBMIT-096", "spec.evaluation.baseline")
    ]
    own = lab.project / "experiments" / lab.exp / "benchmarks" / "plain"
    task = choice("pick", metric_list=[{"metric": "acc"}])
    write_benchmark(own, [task], {"pick": choice_rows()}, "acc", metrics=[{"key": "acc", "primary": True}])
    assert refused({"metric": "score", "max_regression": 0.1}, "plain", baseline="base") == [
        ("E-EVAL-065", f"{at}.max_regression")
    ]


def test_a_suite_that_cannot_be_asked_is_refused_before_the_training(lab: Lab) -> None:
    def refused(name: str) -> list[tuple[str, str]]:
        config(lab, {"suites": [name]})
        return lab.refused("--dry-run")

    where = "spec.evaluation.suites"
    assert refused("nowhere") == [("E-SUBMIT-096", where)]
    config(lab, {"suites": ["sums", "sums"]})
    assert lab.refused("--dry-run") == [("E-SUBMIT-096", where)]
    assert [code for code, _ in refused("scope")] == ["E-SUBMIT-096"]
    experiment = lab.project / "experiments" / lab.exp
    two_tasks(experiment / "benchmarks" / "letters")
    lab.tp("plugin", "install", f"{owner(lab)}/letters", "--exp", lab.exp)
    assert refused("letters") == [("E-SUBMIT-096", where)]
    lock = experiment / "plugins.lock.json"
    whole = lock.read_text()
    digest = json.loads(whole)["plugins"][0]["digest"]
    lock.write_text(whole.replace(digest, f"sha256:{'0' * 64}"))
    assert refused("letters") == [("E-INSTALL-005", "spec.plugins[0].digest")]
    lock.write_text(whole)
    task = experiment / "benchmarks/sums/tasks/sums.yaml"
    task.write_text(task.read_text().replace("dataset_path: json", "dataset_path: openai/gsm8k"))
    base = f"experiments/{lab.exp}/benchmarks/sums"
    assert refused("sums") == [("E-EVAL-061", f"{base}/tasks/sums.yaml: dataset_path")]
    task.write_text(task.read_text().replace("dataset_path: openai/gsm8k", "dataset_path: json"))
    config(lab, {"suites": ["sums"]}, benchmark={"num_fewshot": 2})
    assert lab.refused("--dry-run") == [("E-EVAL-061", f"{base}/tasks/sums.yaml: fewshot_split")]
    lab.write(".gitignore", "*.jsonl\n")
    subprocess.run(["git", "rm", "-rq", "--cached", base], cwd=lab.project, env=lab.env, check=True)
    assert refused("sums") == [("E-EVAL-062", f"{base}/tasks/sums.jsonl")]


def owner(lab: Lab) -> str:
    (found,) = [c["id"] for c in lab.json("plugin", "ls")["plugins"] if c["id"].endswith("/letters")]
    return str(found).partition("/")[0]


class Pack:
    def __init__(self, ident: str) -> None:
        self.id, self.version, self.digest = ident, "1.0", "sha256:1"


def test_of_two_packs_of_one_name_the_experiment_says_which(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suites, "_published", lambda *_: [Pack("alice/x"), Pack("bob/x")])
    experiment, root, site = lab.project / "experiments" / lab.exp, Path(), None
    with pytest.raises(Refusal) as refused:
        suites.bound(root, site, experiment, ["x"], [])  # type: ignore[arg-type]
    assert (refused.value.code, refused.value.found) == ("E-SUBMIT-096", "alice/x, bob/x")
    assert f"tp plugin install alice/x --exp {lab.exp}" in refused.value.hint
    locked = [{"id": "bob/x", "version": "1.0", "digest": "sha256:1"}]
    assert suites.bound(root, site, experiment, ["x", "behaviour", "sums"], locked) == locked  # type: ignore[arg-type]


def test_an_evaluation_is_one_process_and_a_shape_of_several_is_refused_before_the_queue() -> None:
    def faults(method: str, ranks: int) -> list[tuple[str, str]]:
        pools = (SimpleNamespace(nodes=2, ranks=ranks),)
        spec: Any = SimpleNamespace(spec=SimpleNamespace(resources=SimpleNamespace(pools=pools)))
        return [(f.code, str(f.found)) for f in suites.shape_refusals(spec, Catalogue.shipped().get(method))]

    assert faults(suites.BENCHMARK, 2) == faults(suites.EVALUATOR, 2) == [("E-EVAL-032", "4 ranks")]
    assert faults("deepspeed/sft", 2) == []
