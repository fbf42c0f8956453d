"""Frameworks on the real cluster: one that alice publishes and bob runs, its compiler isolated as an ordinary user; TRL on two nodes in the SIF."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from lab import Lab, Person

from tests.cluster.test_plugins import write

pytestmark = [pytest.mark.cluster, pytest.mark.two_users]

BLOCK = re.compile(r"^`(?P<path>[\w./-]+)`\n\n```\w+\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
PAGE = Path(__file__).parents[2] / "docs" / "frameworks.md"


@pytest.fixture(scope="module")
def published(lab: Lab, alice: Person) -> Lab:
    """The packages of docs/frameworks.md, published by alice."""
    files = {b["path"]: b["text"].replace("alice/", "tpalice/") for b in BLOCK.finditer(PAGE.read_text("utf-8"))}
    folder = write(lab, alice, lab.project(alice) / "frameworks", files)
    for name in ("framework-toy", "count"):
        lab.tp(alice, "plugin", "publish", folder / name)
    return lab


def test_bob_runs_a_framework_of_alice_s_on_two_nodes(published: Lab, bob: Person) -> None:
    lab = published
    lab.tp(bob, "new", "counting", "--method", "tpalice/count")
    lab.sh(bob, "git add -A && git commit -q -m 'Counting'")
    refused = lab.tp(bob, "submit", "counting", "--profile", "ranks", "--json", code=1)
    assert refused.codes == ["E-FRAME-001"]
    lab.tp(bob, "plugin", "install", "tpalice/framework-toy", "--exp", "counting")
    lab.sh(bob, "git add -A && git commit -q -m 'Locked'")
    run = lab.submit(bob, "counting", "--profile", "ranks")
    assert run.wait_end()["class"] == "done", run.story()
    for rank in range(4):
        numbers = [n for n in range(1, 9) if n % 4 == rank]
        assert run.log(rank) == [f"loud rank {rank} of 4 counts {numbers}"], run.story()
    assert lab.tp(bob, "runs", "audit", run.id, "--json").json["verdict"] == "verified"
    plan = run.read("work", ".tuneplane", "plan.json")
    assert plan["integration"]["id"] == "tpalice/framework-toy"


def test_trl_trains_on_two_nodes_in_the_sif(lab: Lab, alice: Person) -> None:
    lab.tp(alice, "new", "trl", "--method", "trl/sft")
    lab.sh(alice, "git add -A && git commit -q -m 'TRL'")
    model, rows = lab.root.cache / "models" / "tiny", lab.root.cache / "sums.jsonl"
    settings = (
        "max_steps=6",
        "max_length=128",
        "learning_rate=0.01",
        "lora_rank=4",
        "micro_batch_size=4",
        "save_steps=3",
    )
    flags = [word for text in settings for word in ("--set", text)]
    run = lab.submit(alice, "trl", "--profile", "cpu", "--model", str(model), "--train-data", str(rows), *flags)
    assert run.wait_end()["class"] == "done", run.story()
    result = run.read("report.json")["result"]
    assert (result["method"], result["steps"], result["world_size"], result["artefact"]["kind"]) == (
        "sft",
        6,
        2,
        "adapter",
    )
    lines = (run.paths.attempt(0).out / "metrics.jsonl").read_text("utf-8").splitlines()
    losses = [row["loss"] for row in map(json.loads, lines) if "loss" in row]
    assert losses[-1] < losses[0] - 0.1
    assert lab.tp(alice, "runs", "audit", run.id, "--json").json["verdict"] == "verified"
    shown = lab.tp(alice, "job", "status", run.id).out
    assert "done" in shown
    registered = lab.tp(alice, "model", "register", run.id, "by-trl", "1.0", "--json").json
    assert (registered["id"], registered["version"]) == ("tpalice/by-trl", "1.0")
