"""The site's playbook: published, activated to the version, rolled back, protected, and read by diagnoses; the last good one stays in force."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tuneplane.contract.layout import StorageRoot

from hpc.plugins.policy import in_force
from tests.plugin_use.conftest import ME, Tp, damage

Make = Callable[..., Path]


@pytest.fixture
def rules(tp: Tp, root: StorageRoot, make: Make) -> str:
    """A playbook package in two versions, published; its id."""
    for version in ("1.1.0", "1.2.0"):
        text = f"schema: tuneplane-hpc/playbook/v1\nname: rules\nends:\n  error: {{headline: 'said by {version}'}}\n"
        folder = make("rules", version, files={"playbook.yaml": text}, capability="playbook", entrypoint=None)
        tp("plugin", "publish", folder)
    return f"{ME}/rules"


def policy(tp: Tp, *words: str, code: int = 0) -> dict[str, Any]:
    found = tp.json("plugin", *words, code=code)["policies"]
    return next(p for p in found if p["capability"] == "playbook")


def test_publishing_activates_nothing(tp: Tp, root: StorageRoot, rules: str) -> None:
    assert policy(tp, "active")["stored"] | {"actor": "", "at": ""} == {
        "id": "", "version": "", "digest": "", "actor": "", "at": "", "generation": 0,
    }  # fmt: skip
    assert in_force(root, "playbook").value is None


def test_activation_roll_back_and_the_defaults(tp: Tp, root: StorageRoot, rules: str) -> None:
    for number, version in enumerate(("1.2.0", "1.1.0"), 1):
        found = policy(tp, "activate", f"{rules}@{version}")
        assert (found["stored"]["version"], found["stored"]["generation"], found["is_applied"]) == (
            version,
            number,
            True,
        )
        assert in_force(root, "playbook").value.end("error").headline == f"said by {version}"
    found = policy(tp, "deactivate", "playbook")
    assert (found["stored"]["id"], found["stored"]["generation"], found["is_applied"]) == ("", 3, True)
    assert in_force(root, "playbook").value is None


def test_only_an_exact_version_of_a_policy_is_activated(tp: Tp, root: StorageRoot, rules: str, make: Make) -> None:
    assert tp.codes("plugin", "activate", rules) == ["E-INSTALL-030"]
    tp("plugin", "publish", make())
    assert tp.codes("plugin", "activate", f"{ME}/patch@1.0") == ["E-INSTALL-031"]
    assert tp.codes("plugin", "activate", f"{rules}@9") == ["E-REG-002"]


def test_a_stale_generation_is_refused(tp: Tp, root: StorageRoot, rules: str) -> None:
    policy(tp, "activate", f"{rules}@1.1.0", "--generation", "0")
    assert tp.codes("plugin", "activate", f"{rules}@1.2.0", "--generation", "0") == ["E-REG-020"]
    assert policy(tp, "active")["stored"]["version"] == "1.1.0"


def test_of_two_updates_with_one_generation_exactly_one_wins(tp: Tp, root: StorageRoot, rules: str) -> None:
    words = [sys.executable, "-m", "hpc.cli.main", "plugin", "activate", "--generation", "0"]
    versions = ("1.1.0", "1.2.0")
    started = [
        subprocess.Popen([*words, f"{rules}@{v}"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for v in versions
    ]
    ends = [(process.wait(), process.communicate()[1]) for process in started]
    assert sorted(code for code, _ in ends) == [0, 1], ends
    assert "E-REG-020" in "".join(err for _, err in ends)
    winner = versions[[code for code, _ in ends].index(0)]
    assert policy(tp, "active")["stored"] | {"actor": "", "at": "", "digest": ""} == {
        "id": rules, "version": winner, "digest": "", "actor": "", "at": "", "generation": 1,
    }  # fmt: skip


def test_the_active_version_is_not_disabled_and_the_way_out_is_named(tp: Tp, root: StorageRoot, rules: str) -> None:
    policy(tp, "activate", f"{rules}@1.2.0")
    for ref in (rules, f"{rules}@1.2.0"):
        said = tp.json("plugin", "disable", ref, code=1)["errors"][0]
        assert (said["code"], "tp plugin deactivate playbook" in said["hint"]) == ("E-REG-023", True)
    tp("plugin", "disable", f"{rules}@1.1.0")
    policy(tp, "deactivate", "playbook")
    tp("plugin", "disable", rules)


def test_a_policy_that_cannot_be_loaded_leaves_the_last_good_one_and_says_so(
    tp: Tp, root: StorageRoot, rules: str
) -> None:
    policy(tp, "activate", f"{rules}@1.1.0")
    policy(tp, "activate", f"{rules}@1.2.0")
    damage(root.shelf("plugins") / ME / "rules/1.2.0/content/playbook.yaml")
    found = policy(tp, "active", code=1)
    assert (found["stored"]["version"], found["applied"]["version"], found["is_applied"]) == ("1.2.0", "1.1.0", False)
    assert "1.2.0 (generation 2) cannot be loaded" in found["problems"][0]
    assert in_force(root, "playbook").value.end("error").headline == "said by 1.1.0"
