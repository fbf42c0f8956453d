"""Finding runs by the beginning of an id or of an experiment's name."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from builder import RunMaker
from conftest import ME
from tuneplane.contract.layout import StorageRoot

from hpc.errors import Refusal
from hpc.runs.find import all_runs, owners, resolve, scan

Make = Callable[..., RunMaker]


@pytest.fixture
def runs(root: StorageRoot, make_run: Make) -> StorageRoot:
    for at, (run_id, exp) in enumerate(
        [("run-aa01", "sft"), ("run-aa02", "sft"), ("run-bb01", "sft-large"), ("run-cc01", "eval")]
    ):
        make_run(run_id, exp, clock=100.0 * at).package().submit()
    return root


@pytest.mark.parametrize(
    ("typed", "found"),
    [
        ("run-aa01", "run-aa01"),
        ("run-b", "run-bb01"),
        ("bb", "run-bb01"),
        ("eval", "run-cc01"),
        ("ev", "run-cc01"),
        ("sft-l", "run-bb01"),
    ],
)
def test_an_unambiguous_beginning_is_enough(runs: StorageRoot, typed: str, found: str) -> None:
    assert resolve(runs, typed, ME).run_id == found


@pytest.mark.parametrize("typed", ["run-a", "run-", "aa", "sf"])
def test_several_candidates_are_listed(runs: StorageRoot, typed: str) -> None:
    with pytest.raises(Refusal) as caught:
        resolve(runs, typed, ME)
    assert caught.value.code == "E-RUNS-002"
    assert "run-aa01 (sft)" in caught.value.allowed
    assert "run-aa02 (sft)" in caught.value.allowed


def test_an_exact_experiment_wins_over_longer_names(runs: StorageRoot) -> None:
    with pytest.raises(Refusal) as caught:
        resolve(runs, "sft", ME)
    assert caught.value.allowed == "run-aa01 (sft), run-aa02 (sft)"


def test_the_newest_of_one_experiment_where_reading_is_meant(runs: StorageRoot) -> None:
    assert resolve(runs, "sft", ME, newest=True).run_id == "run-aa02"
    assert resolve(runs, "", ME, newest=True).run_id == "run-cc01"
    with pytest.raises(Refusal, match="E-RUNS-002"):
        resolve(runs, "sf", ME, newest=True)  # two experiments
    with pytest.raises(Refusal, match="E-RUNS-002"):
        resolve(runs, "run-aa", ME, newest=True)  # a beginning of ids is not an experiment


def test_experiment_and_id_are_looked_up_where_nothing_may_be_listed(runs: StorageRoot) -> None:
    assert resolve(runs, "sft/run-aa01", ME).run_id == "run-aa01"
    for typed in ("eval/run-aa01", "../sft/run-aa01", "sft/aa01"):
        with pytest.raises(Refusal, match="E-RUNS-001"):
            resolve(runs, typed, ME)


def test_nothing_fits(runs: StorageRoot) -> None:
    with pytest.raises(Refusal, match="E-RUNS-001"):
        resolve(runs, "zz", ME)
    with pytest.raises(Refusal, match="E-RUNS-003"):
        resolve(runs, "", "nobody-here")


def test_very_many_candidates_are_not_all_listed(root: StorageRoot) -> None:
    for n in range(40):
        (root.owner_runs(ME) / "many" / f"run-{n:08x}").mkdir(parents=True)
    with pytest.raises(Refusal) as caught:
        resolve(root, "many", ME)
    assert caught.value.allowed.endswith("and 28 more")


def test_what_is_no_run_is_left_out(runs: StorageRoot) -> None:
    base = runs.owner_runs(ME)
    (base / ".hidden" / "run-dd01").mkdir(parents=True)
    (base / "sft" / ".run-ee01.tmp").mkdir()
    (base / "sft" / "notes").mkdir()
    (base / "sft" / "run-ff01").write_text("a file")
    (base / "sft" / "run-ff02").symlink_to(base / "sft" / "run-aa01")
    assert sorted(s[1] for s in scan(runs, ME)) == ["run-aa01", "run-aa02", "run-bb01", "run-cc01"]
    assert [r.run_id for r in all_runs(runs, ME)] == ["run-cc01", "run-aa01", "run-aa02", "run-bb01"]
    assert owners(runs) == [ME]


def test_nested_experiments_with_one_last_part_are_told_apart_by_their_paths(root: StorageRoot, make_run: Make) -> None:
    """`a/b` and `c/b` share the folder `b`; a bare `b` means whichever was last."""
    for at, (run_id, source) in enumerate(
        [
            ("run-aa01", "experiments/a/b"),
            ("run-aa02", "experiments/c/b"),
            ("run-aa03", "experiments/a/b"),
            ("run-aa04", "smoke/b"),
        ]
    ):
        spec = {"apiVersion": "tuneplane/v1", "metadata": {"name": "b"}, "spec": {"source": {"exp": source}}}
        make_run(run_id, "b", clock=100.0 * at, spec=spec).package().submit()
    for typed, found in (
        ("c/b", "run-aa02"), ("experiments/c/b", "run-aa02"), ("smoke/b", "run-aa04"), ("b/run-aa01", "run-aa01"),
    ):  # fmt: skip
        assert resolve(root, typed, ME).run_id == found
    assert resolve(root, "a/b", ME, newest=True).run_id == "run-aa03"
    with pytest.raises(Refusal) as several:
        resolve(root, "a/b", ME)
    assert (several.value.code, "run-aa02" in several.value.allowed) == ("E-RUNS-002", False)
    with pytest.raises(Refusal) as none:
        resolve(root, "x/b", ME)
    assert none.value.code == "E-RUNS-001"
    assert resolve(root, "b", ME, newest=True).run_id == "run-aa04"
