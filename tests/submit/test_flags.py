"""Every flag of `tp submit` reaches jobspec.json, at its own place, with its own value."""

from __future__ import annotations

from typing import Any

import click
import pytest

from hpc.cli.submit import FLAG_NAMES, SLURM_FLAGS, SLURM_SWITCHES, read_flags, submit
from hpc.errors import Refusal
from hpc.spec.jobspec import parse
from hpc.spec.profiles import ProfileShape, place
from hpc.spec.settings import parse_settings
from hpc.submit.flags import Flags, Locked, document

REGISTRY = {"h200": ProfileShape("h200", 1, 8), "h100": ProfileShape("h100", 1, 8)}
LOCKED = Locked(
    "exp", "experiments/exp", "lab", {"name": "nemo-rl/grpo", "version": "1", "digest": "sha256:aa"}, {"kind": "nemo-rl", "version": "0.7.0"}, (), (),
    {"core_version": "0.4.0", "git_commit": "abc", "git_dirty": True, "config_sha": "0123"},
)  # fmt: skip

REACHES: list[tuple[list[str], str, Any]] = [
    (
        ["--profile", "h200:16"],
        "spec.resources.pools",
        [{"name": "all", "series": "h200", "nodes": 2, "gpus_per_node": 8}],
    ),
    (
        ["--profile", "actor=h200:8", "--profile", "rollout=h100:2"],
        "spec.resources.roles",
        {"actor": "actor", "rollout": "rollout"},
    ),
    (["-s", "a.lr=1e-5", "--set", "n=2"], "spec.hyperparams", {"a.lr": 1e-5, "n": 2}),
    (["--model", "/models/m"], "spec.model.base", "/models/m"),
    (["--model", "/models/m"], "provenance.model_name", "/models/m"),
    (["--init-from", "run/run-4f2a/checkpoint@step=5"], "spec.model.init_from", "run/run-4f2a/checkpoint@step=5"),
    (
        ["--peft", "kind=lora", "--peft", "dim=8", "--peft", "alpha=16"],
        "spec.model.peft",
        {"kind": "lora", "dim": 8, "alpha": 16},
    ),
    (["--train-data", "/d/t.jsonl"], "spec.data.train.path", "/d/t.jsonl"),
    (["--validation-data", "/d/v.jsonl"], "spec.data.validation.path", "/d/v.jsonl"),
    (["--train-dataset", "alice/x@v1"], "spec.data.train.dataset", "alice/x@v1"),
    (["--validation-dataset", "alice/x@v2"], "spec.data.validation.dataset", "alice/x@v2"),
    (["--output-dataset", "alice/y@v1"], "spec.data.output_dataset", "alice/y@v1"),
    (["--volume", "a/x", "--volume", "a/y"], "spec.data.volumes", ["a/x", "a/y"]),
    (["--environment", "a/e@v1"], "spec.data.environment", "a/e@v1"),
    (["--taskset", "a/t@v1"], "spec.data.taskset", "a/t@v1"),
    (["--quality", "max_duplicate_ratio=0.1"], "spec.data.quality.max_duplicate_ratio", 0.1),
    (["--image", "reg.example/x:1"], "spec.framework.image", "reg.example/x:1"),
    (["--observability-url", "https://o.example"], "spec.framework.observability_url", "https://o.example"),
    (["--then", "export", "--then", "eval"], "spec.lifecycle.on_success", ["export", "eval"]),
    (["--network", "transport=tcp", "--network", "interface=ib0"], "spec.resources.network.interface", "ib0"),
    (["--lease", "vcs=2"], "spec.resources.leases", [{"tool": "vcs", "seats": 2}]),
    (["--label", "team=x"], "metadata.labels", {"team": "x"}),
    (["--display-name", "My run"], "metadata.display_name", "My run"),
    (["--requeue-on", "error"], "spec.lifecycle.requeue_on", ["error"]),
    (["--max-attempts", "7"], "spec.lifecycle.max_attempts", 7),
    (["--time", "12:00:00"], "spec.slurm.time", "12:00:00"),
    (["--partition", "gpu"], "spec.slurm.partition", "gpu"),
    (["--account", "lab"], "spec.slurm.account", "lab"),
    (["--qos", "high"], "spec.slurm.qos", "high"),
    (["--constraint", "a&b"], "spec.slurm.constraint", "a&b"),
    (["--reservation", "r1"], "spec.slurm.reservation", "r1"),
    (["--dependency", "afterok:12"], "spec.slurm.dependency", "afterok:12"),
    (["--array", "0-3%2"], "spec.slurm.array", "0-3%2"),
    (["--signal", "B:USR2@300"], "spec.slurm.signal", "B:USR2@300"),
    (["--nice", "10"], "spec.slurm.nice", 10),
    (["--mail-type", "END"], "spec.slurm.mail_type", "END"),
    (["--mail-user", "a@b.example"], "spec.slurm.mail_user", "a@b.example"),
    (["--comment", "hello"], "spec.slurm.comment", "hello"),
    (["--exclude", "n[1-2]"], "spec.slurm.exclude", "n[1-2]"),
    (["--nodelist", "n3"], "spec.slurm.nodelist", "n3"),
    (["--mem", "16G"], "spec.slurm.mem", "16G"),
    (["--mem-per-gpu", "8G"], "spec.slurm.mem_per_gpu", "8G"),
    (["--cpus-per-task", "4"], "spec.slurm.cpus_per_task", 4),
    (["--licenses", "x:1"], "spec.slurm.licenses", "x:1"),
    (["--switches", "2"], "spec.slurm.switches", "2"),
    (["--begin", "now+1hour"], "spec.slurm.begin", "now+1hour"),
    (["--clusters", "c1"], "spec.slurm.clusters", "c1"),
    (["--gpu-bind", "closest"], "spec.slurm.gpu_bind", "closest"),
    (["--exclusive"], "spec.slurm.exclusive", True),
    (["--requeue"], "spec.slurm.requeue", True),
    (["--no-requeue"], "spec.slurm.requeue", False),
    (["--kill-on-invalid-dep"], "spec.slurm.kill_on_invalid_dep", True),
]


def spec_of(words: list[str], config: dict[str, Any] | None = None) -> dict[str, Any]:
    context = submit.make_context("submit", ["exp", *words])
    flags = read_flags(context.params)
    placement = place(list(flags.profile) or ["h200"], REGISTRY)
    return parse(document(flags, config or {}, LOCKED, placement, parse_settings(list(flags.settings)))).normalised()


def at(value: Any, path: str) -> Any:
    for part in path.split("."):
        value = value[part]
    return value


@pytest.mark.parametrize(("words", "path", "value"), REACHES, ids=[" ".join(w) for w, _, _ in REACHES])
def test_a_flag_reaches_the_spec(words: list[str], path: str, value: Any) -> None:
    assert at(spec_of(words), path) == value


def test_every_flag_is_in_the_table_above() -> None:
    tried = {word for words, _, _ in REACHES for word in words if word.startswith("-")}
    # Flags that steer the command itself, or must agree with the lock (tested with the pipeline).
    steering = {
        "--method",
        "--framework-version",
        "--upgrade-recipe",
        "--allow-dirty",
        "--no-validate",
        "--intent",
        "--preview",
        "--commit",
        "--dry-run",
        "--again",
        "--yes",
        "--json",
        "--help",
    }
    options = [p for p in submit.params if isinstance(p, click.Option)]
    for option in options:
        names = {n for n in [*option.opts, *option.secondary_opts] if n.startswith("--")}
        assert names & (tried | steering) or option.opts[0] in tried, names
    assert set(FLAG_NAMES) <= {p.name for p in submit.params}
    assert {f"slurm_{name}" for _, name, _, _ in SLURM_FLAGS} | {f"slurm_{n}" for n, _ in SLURM_SWITCHES} <= {
        p.name for p in submit.params
    }


def test_a_flag_wins_over_the_config() -> None:
    config = {
        "model": {"base": "/models/old"},
        "slurm": {"time": "1:00", "qos": "low"},
        "labels": {"a": "1"},
        "data": {"train": "old.jsonl"},
    }
    spec = spec_of(
        ["--model", "/models/new", "--time", "2:00:00", "--label", "b=2", "--train-data", "new.jsonl"], config
    )
    assert spec["spec"]["model"]["base"] == "/models/new"
    assert (spec["spec"]["slurm"]["time"], spec["spec"]["slurm"]["qos"]) == ("02:00:00", "low")
    assert spec["metadata"]["labels"] == {"a": "1", "b": "2"}
    assert spec["spec"]["data"]["train"] == {"path": "new.jsonl"}


def test_the_owner_is_left_to_admission() -> None:
    assert "owner" not in spec_of([])["metadata"]


def test_an_intent_is_the_same_as_flags_and_typos_are_named() -> None:
    flags = Flags.from_json({"profile": ["h200:8"], "slurm": {"time": "10"}}, "i.json")
    assert flags.profile == ("h200:8",)
    for bad in ({"profil": []}, {"profile": "h200"}, []):
        with pytest.raises(Refusal) as caught:
            Flags.from_json(bad, "i.json")
        assert caught.value.code == "E-SUBMIT-030"


def test_pairs_need_an_equals_sign() -> None:
    with pytest.raises(Refusal) as caught:
        spec_of(["--label", "team"])
    assert (caught.value.code, caught.value.field) == ("E-SUBMIT-031", "--label")
