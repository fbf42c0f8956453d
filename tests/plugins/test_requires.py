"""What a plugin asks of a job, and which refusal each unmet condition is."""

from __future__ import annotations

from typing import Any

import pytest

from hpc.plugins.requires import JobFacts, collisions, core_range, travels, unmet

CUSTOM = JobFacts("0.4.0", "custom", "user-managed", "custom/custom", "slurm", runs_ranks=False)
SFT = JobFacts("0.4.0", "deepspeed", "0.19.8", "deepspeed/sft", "slurm", runs_ranks=True)


def faults(manifest: dict[str, Any], job: JobFacts) -> list[tuple[str, str]]:
    return [(r.code, r.field) for r in unmet("alice/x@1.0", manifest, job)]


@pytest.mark.parametrize(
    ("requires", "expected"),
    [
        ({}, []),
        ({"core": ">=0.3,<1"}, []),
        ({"core": ""}, []),
        ({"core": ">=1"}, [("E-INSTALL-010", "requires.core")]),
        ({"frameworks": {"deepspeed": ""}}, []),
        ({"frameworks": {"deepspeed": ">=0.19,<0.20"}}, []),
        ({"frameworks": {"deepspeed": "<0.19"}}, [("E-INSTALL-011", "requires.frameworks")]),
        ({"frameworks": {"trl": ""}}, [("E-INSTALL-011", "requires.frameworks")]),
        ({"methods": ["deepspeed/sft", "deepspeed/dpo"]}, []),
        ({"methods": ["deepspeed/dpo"]}, [("E-INSTALL-012", "requires.methods")]),
        ({"backends": ["slurm"]}, []),
        ({"backends": ["local", "kubernetes"]}, [("E-INSTALL-013", "requires.backends")]),
        (
            {"core": ">=1", "methods": ["a/b"]},
            [("E-INSTALL-010", "requires.core"), ("E-INSTALL-012", "requires.methods")],
        ),
    ],
)
def test_each_unmet_condition_is_named(requires: dict[str, Any], expected: list[tuple[str, str]]) -> None:
    assert faults({"capability": "algorithm", "requires": requires}, SFT) == expected


def test_a_version_that_is_no_number_fits_only_an_empty_specifier() -> None:
    assert faults({"capability": "environment", "requires": {"frameworks": {"custom": ""}}}, CUSTOM) == []
    found = faults({"capability": "environment", "requires": {"frameworks": {"custom": ">=1"}}}, CUSTOM)
    assert found == [("E-INSTALL-011", "requires.frameworks")]


@pytest.mark.parametrize(
    ("manifest", "job", "expected"),
    [
        ({"capability": "algorithm"}, CUSTOM, ["E-INSTALL-014"]),
        ({"capability": "algorithm"}, SFT, []),
        ({"capability": "data-prep", "execution": "job"}, CUSTOM, []),
        ({"capability": "data-prep", "execution": "job"}, SFT, ["E-INSTALL-014"]),
        ({"capability": "environment"}, CUSTOM, []),
    ],
)
def test_a_plugin_that_nothing_would_use_is_refused(
    manifest: dict[str, Any], job: JobFacts, expected: list[str]
) -> None:
    assert [code for code, _ in faults(manifest, job)] == expected


def test_the_words_of_an_unmet_core_range_are_the_page_s() -> None:
    refusal = core_range("x@1.2.0", ">=0.3,<1", "0.2.9")
    assert refusal is not None
    assert refusal.message == "plugin x@1.2.0 requires SDK >=0.3,<1, this one is 0.2.9"
    assert core_range("x@1.2.0", ">=0.3,<1", "0.4.0.dev1") is None


@pytest.mark.parametrize(
    ("capability", "execution", "expected"),
    [
        ("algorithm", "job", True), ("environment", "job", True), ("framework-integration", "job", True), ("data-prep", "job", True),
        ("data-prep", "local", False), ("recipe", "none", False), ("benchmark", "none", True), ("playbook", "none", False),
        ("prompt", "none", False),
    ],
)  # fmt: skip
def test_what_travels_with_a_job(capability: str, execution: str, expected: bool) -> None:
    assert travels({"capability": capability, "execution": execution}) is expected


def test_leaf_names_and_import_roots_stand_once() -> None:
    found = list(collisions({
        "alice/x": {"import_roots": ["patch"]}, "bob/x": {"import_roots": ["other"]}, "bob/y": {"import_roots": ["patch", "more"]},
    }))  # fmt: skip
    assert [(r.code, r.found) for r in found] == [("E-INSTALL-003", "x"), ("E-INSTALL-004", "patch")]
    assert "alice/x and bob/y both bring the module patch" in found[1].message
    assert list(collisions({"alice/x": {"import_roots": ["a"]}, "bob/y": {"import_roots": ["b"]}})) == []
