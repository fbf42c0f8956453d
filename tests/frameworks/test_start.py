"""What integrations start before the framework: what it removes of the run's checkpoints, and that the framework sees what it would without it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hpc.catalog.shipped import shipped

MODULE = """
import json, os, sys
print(json.dumps([__name__, __spec__.name, sys.argv[1:], sys.path[0] == os.getcwd(), sys.argv[0] == __file__]))
"""


def started(integration: str, run: Path, *words: str, **env: str) -> tuple[list[str], object]:
    """(What the start program said, what the framework saw) in a run whose folder of checkpoints is `run`/checkpoints."""
    exp = run / "work" / "exp"
    exp.mkdir(parents=True, exist_ok=True)
    (exp / "toyframe.py").write_text(MODULE)
    program = shipped("plugins") / integration / "start.py"
    given = {"PATH": os.environ["PATH"], "TUNEPLANE_CHECKPOINT_DIR": str(run / "checkpoints"), **env}
    done = subprocess.run(
        [sys.executable, "-u", str(program), "toyframe", *words], cwd=exp, env=given, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    *said, saw = done.stdout.splitlines()
    return said, json.loads(saw)


def make(folder: Path, *paths: str) -> None:
    """Files, each with its own path as text; `latest=global_step4` is a file `latest` with that text."""
    for path in paths:
        name, _, text = path.partition("=")
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def tree(folder: Path) -> list[str]:
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())


HALF = ["_actor/global_step4/a", "_actor/zero_to_fp32.py"]
KEPT = ["_actor/global_step20/a", "_actor/global_step40/a", "_actor/latest=global_step40", "_actor/zero_to_fp32.py"]


@pytest.mark.parametrize(
    ("there", "gone"),
    [
        ([], []),
        (HALF, HALF),
        (KEPT, []),
        ([*KEPT, "_actor/global_step100/a", "_actor/global_step60/b", "_actor/best_global_step60/a"],
         ["_actor/global_step100/a", "_actor/global_step60/b"]),
        ([*HALF, "_actor/latest=another_way"], []),
        (["global_step20/a", "latest=global_step20", "global_step40/a"], ["global_step40/a"]),
        (["global_step20/a", "zero_to_fp32.py"], ["global_step20/a"]),
        (["notes/a", "global_step20_hf/a"], []),
    ],
    ids=["none", "a first save", "complete", "later saves", "another latest", "sft", "a first save of sft", "others"],
)  # fmt: skip
def test_openrlhf_does_not_see_what_a_killed_save_left(tmp_path: Path, there: list[str], gone: list[str]) -> None:
    folder = tmp_path / "checkpoints" / "openrlhf"
    folder.mkdir(parents=True)
    make(folder, *there)
    words = ["--actor.adam.lr", "1e-06", "--ckpt.path", str(folder), "--ckpt.load_enable"]
    said, saw = started("framework-openrlhf", tmp_path, *words)
    assert tree(folder) == sorted(p.partition("=")[0] for p in there if p not in gone)
    assert (folder / "_actor").exists() == any(p.startswith("_actor") for p in there if p not in gone)
    assert len(said) == (1 if gone == HALF else len(gone))
    assert all(line.endswith(" is removed: its save did not end") for line in said)
    assert saw == ["__main__", "toyframe", words, True, True], "as with python -m toyframe"


STEPS = [f"global_step_{n}/actor/a" for n in (20, 40, 60, 100)]


@pytest.mark.parametrize("option", ["trainer.max_actor_ckpt_to_keep", "trainer.max_ckpt_to_keep"])
@pytest.mark.parametrize(
    ("tracker", "gone"),
    [(["100"], STEPS[:2]), (["60"], STEPS[:1]), (["20"], []), ([], []), ([""], [])],
    ids=["all", "a save that did not end", "one", "no tracker", "an empty tracker"],
)
def test_verl_begins_with_as_many_checkpoints_as_it_keeps(
    tmp_path: Path, option: str, tracker: list[str], gone: list[str]
) -> None:
    folder = tmp_path / "checkpoints" / "verl"
    make(folder, *STEPS, "global_step_x/a", "notes/a")
    for text in tracker:
        (folder / "latest_checkpointed_iteration.txt").write_text(text)
    before = tree(folder)
    words = [f"{option}=2", f"trainer.default_local_dir='{folder}'", "trainer.logger=[console,file]"]
    said, saw = started("framework-verl", tmp_path, *words)
    assert tree(folder) == sorted(set(before) - set(gone))
    names = [path.partition("/")[0] for path in gone]
    assert said == [f"start: {folder}/{n} is removed: an earlier attempt left more than 2" for n in names]
    assert saw == ["__main__", "toyframe", words, True, True]
    started("framework-verl", tmp_path, f"{option}=1", words[1], RANK="1")
    outside = {"TUNEPLANE_CHECKPOINT_DIR": str(tmp_path / "other")}
    started("framework-verl", tmp_path, f"{option}=1", words[1], **outside)
    assert tree(folder) == sorted(set(before) - set(gone))


def test_only_one_process_removes_and_only_below_the_run_s_own_checkpoints(tmp_path: Path) -> None:
    folder, other = tmp_path / "checkpoints" / "openrlhf", tmp_path / "other"
    for place in (folder, other):
        make(place, *HALF)
    (tmp_path / "checkpoints" / "link").symlink_to(other)
    (folder / "_actor" / "latest").write_text("global_step1")
    (folder / "_actor" / "global_step5").symlink_to(other)
    started("framework-openrlhf", tmp_path, "--ckpt.path", str(folder), RANK="1")
    assert (folder / "_actor" / "global_step4" / "a").exists()
    for path in (other, tmp_path / "checkpoints" / "link"):
        started("framework-openrlhf", tmp_path, "--ckpt.path", str(path))
    started("framework-openrlhf", tmp_path, "--ckpt.path", str(folder), RANK="0")
    assert tree(folder) == ["_actor/latest", "_actor/zero_to_fp32.py"]
    assert tree(other) == sorted(HALF)
