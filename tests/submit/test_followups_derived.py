"""The spec and launch.json of a follow-up, from its parent's package. Pure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tuneplane.contract.layout import StorageRoot

from hpc.catalog.shelf import Catalogue
from hpc.errors import Refusal
from hpc.spec.jobspec import parse
from hpc.submit.followups import EVALUATOR, Parent, Source, baseline_model, baseline_run, derive, hand_refusals, wanted

ROOT = StorageRoot(Path("/shared/tp"))
RUN, EXPORT = ROOT.run("alice", "sums", "run-0001"), ROOT.run("alice", "sums.export", "run-0002")
CHILD = "/shared/tp/runs/alice/sums.eval/run-0003/work"


def document(**body: Any) -> dict[str, Any]:
    """A JobSpec of two nodes with eight GPUs each."""
    pool = {"name": "all", "series": "h200", "nodes": 2, "gpus_per_node": 8, "cpus": 64, "memory_gb": 512}
    recipe = Catalogue.shipped().get("deepspeed/sft")
    spec = {
        "recipe": {"name": recipe.id, "version": recipe.version, "digest": recipe.digest},
        "source": {"exp": "experiments/sums"},
        "framework": {"kind": "deepspeed", "version": "0.19.8", "runtime_id": "deepspeed-0.19.8"},
        "resources": {"pools": [pool]},
        "model": {"base": "/models/base", "init_from": "run/run-0000/checkpoint"},
        "data": {"train": {"path": "/data/train.jsonl"}, "validation": {"path": "held-out.jsonl"}},
        "hyperparams": {"lora_rank": 8},
        "lifecycle": {"on_success": ["export", "eval"], "max_attempts": 3},
        "evaluation": {"suites": ["behaviour"], "baseline": "base", "limit": 50, "gates": [{"metric": "behaviour/score", "min": 0.5}]},
        "slurm": {"time": "12:00:00", "qos": "high", "dependency": "singleton", "begin": "now+1hour", "exclusive": True},
        **body,
    }  # fmt: skip
    value = {
        "apiVersion": "tuneplane/v1", "kind": "TrainingJob", "metadata": {"name": "sums", "labels": {"team": "nlp"}}, "spec": spec,
        "provenance": {"core_version": "0.4.0", "git_commit": "c0ffee"},
    }  # fmt: skip
    return parse(value).normalised()


def parent(**changes: Any) -> Parent:
    inputs = {
        "model": {"path": "/models/base", "files": [{"path": "config.json", "sha256": "sha256:1"}]},
        "train": {"path": "/data/train.jsonl", "files": [{"path": "", "sha256": "sha256:2"}]},
        "validation": {"path": f"{RUN.work}/experiments/sums/held-out.jsonl", "files": []},
    }
    launch = {"inputs": inputs, "config": {"behaviour": {"max_new_tokens": 8}}}
    works = (str(RUN.work), "/shared/tp/admitted/run-0001/work")
    return Parent(RUN, document(**changes), launch, "sha256:aa", works)


def test_an_export_is_the_parents_recipe_on_one_gpu_with_its_share_of_the_node() -> None:
    derived = derive(parent(), "export", parent().final, None, CHILD)
    spec = parse(derived.document)
    (pool,) = spec.spec.resources.pools
    assert (pool.nodes, pool.gpus_per_node, pool.cpus, pool.memory_gb, pool.series) == (1, 1, 8, 512, "h200")
    assert (spec.spec.recipe.name, spec.spec.hyperparams) == ("deepspeed/sft", {"lora_rank": 8})
    assert spec.spec.slurm is not None
    assert spec.spec.slurm.sparse() == {"time": "12:00:00", "qos": "high"}
    assert (spec.spec.lifecycle.on_success, spec.spec.lifecycle.max_attempts) == ((), 3)
    assert (spec.metadata.name, spec.metadata.labels) == ("sums.export", {"team": "nlp"})
    assert spec.spec.model.init_from == ""
    assert derived.given["late"] == {
        "candidate": {"run_id": "run-0001", "exp": "sums", "artefact": "final", "package_digest": "sha256:aa"},
    }
    assert list(derived.given["inputs"]) == ["model"]


def test_an_evaluation_has_the_parents_rows_settings_and_gates_and_works_on_the_export() -> None:
    evaluator = Catalogue.shipped().get(EVALUATOR)
    derived = derive(parent(), "eval", Source(EXPORT, "export", "sha256:bb"), evaluator, CHILD)
    spec = parse(derived.document)
    assert spec.spec.recipe.name == EVALUATOR
    assert spec.spec.hyperparams == {"suite": "behaviour", "max_new_tokens": 8, "max_rows": 50}
    assert [g.metric for g in spec.spec.evaluation.gates] == ["behaviour/score"]
    assert derived.given["inputs"]["validation"]["path"] == f"{CHILD}/experiments/sums/held-out.jsonl"
    assert derived.given["inputs"]["model"]["path"] == "/models/base"
    assert derived.given["late"]["candidate"]["run_id"] == "run-0002"
    assert derived.given["follows"] == {
        "run_id": "run-0001", "exp": "sums", "action": "eval", "package_digest": "sha256:aa",
    }  # fmt: skip


def test_inputs_in_the_service_users_copy_move_to_the_followups_own_copy() -> None:
    admitted, own = parent(), "/shared/tp/admitted/run-0003/work"
    admitted.launch["inputs"]["validation"]["path"] = f"{admitted.works[1]}/experiments/sums/held-out.jsonl"
    derived = derive(admitted, "eval", admitted.final, Catalogue.shipped().get(EVALUATOR), own)
    assert derived.given["inputs"]["validation"]["path"] == f"{own}/experiments/sums/held-out.jsonl"
    assert derived.given["inputs"]["model"]["path"] == "/models/base"


def test_what_is_asked_for_later_stands_in_the_claim() -> None:
    asked = Parent(RUN, document(), parent().launch, "sha256:aa", parent().works, {"limit": 5, "baseline": ""})
    derived = derive(asked, "eval", asked.final, Catalogue.shipped().get(EVALUATOR), CHILD)
    assert derived.given["follows"]["asked"] == {"limit": 5, "baseline": ""}
    assert derived.document["spec"]["hyperparams"]["max_rows"] == 5


def test_cpu_pools_keep_what_they_state() -> None:
    pool = {"name": "all", "nodes": 4, "gpus_per_node": 0, "cpus": 16, "memory_gb": 64, "ranks_per_node": 4}
    derived = derive(parent(resources={"pools": [pool]}), "export", parent().final, None, CHILD)
    (found,) = parse(derived.document).spec.resources.pools
    assert (found.nodes, found.ranks, found.cpus, found.memory_gb) == (1, 1, 16, 64)


def test_suites_alone_ask_for_an_evaluation() -> None:
    sft, evaluator = Catalogue.shipped().get("deepspeed/sft"), Catalogue.shipped().get(EVALUATOR)
    assert wanted(parse(document()), sft) == ["export", "eval"]
    assert wanted(parse(document(lifecycle={})), sft) == ["eval"]
    assert wanted(parse(document(lifecycle={}, evaluation={})), sft) == []
    assert wanted(parse(document(lifecycle={})), evaluator) == []


@pytest.mark.parametrize(
    ("text", "run", "model"),
    [
        ("", "", ""), ("base", "", ""), ("run/run-0009", "run-0009", ""), ("run/run-0009/final", "run-0009", ""),
        ("alice/toy@1.0", "", "alice/toy@1.0"), ("/models/x", "", "/models/x"),
    ],
)  # fmt: skip
def test_a_baseline_is_base_a_run_or_a_model(text: str, run: str, model: str) -> None:
    assert (baseline_run(text), baseline_model(text)) == (run, model)


def test_a_baseline_that_is_none_is_refused() -> None:
    with pytest.raises(Refusal) as refused:
        baseline_run("run/../x/y/z")
    assert refused.value.code == "E-SPEC-029"


def test_what_can_follow_is_the_recipes_word() -> None:
    shipped = Catalogue.shipped()
    reward = shipped.get("deepspeed/rm")
    spec = parse(document(evaluation={}, lifecycle={}))
    assert [r.code for r in hand_refusals(spec, reward, "eval")] == ["E-SUBMIT-095"]
    assert hand_refusals(spec, reward, "export") == []
    entries = {
        shipped.get(f"deepspeed/{m}").typed.lifecycle["eval"].value for m in ("sft", "dpo", "kto", "grpo", "distill")
    }
    assert entries == {shipped.get(EVALUATOR).entrypoint().value}
