"""git's facts: commit, dirty paths, and a git that refuses, hangs or is not there."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from hpc.errors import Refusal
from hpc.project.git import GitFacts, facts, listed
from tests.project.conftest import Make, git


def fake(folder: Path, script: str) -> str:
    program = folder / "fake-git"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return str(program)


def test_a_clean_tree_has_a_commit_and_no_dirt(make: Make) -> None:
    found = facts(make({"experiments/a/x": ""}, use_git=True).root)
    assert (len(found.commit), found.dirty, found.dirty_paths) == (40, False, ())


def test_changed_added_deleted_and_untracked_files_are_dirt(make: Make) -> None:
    root = make(
        {"common/a b.py": "", "common/gone.py": "", "common/staged.py": "", ".gitignore": "*.log\n"}, use_git=True
    ).root
    (root / "common/a b.py").write_text("changed")
    (root / "common/gone.py").unlink()
    (root / "common/staged.py").write_text("changed")
    git(root, "add", "common/staged.py")
    (root / "common/new\nline.py").write_text("")
    (root / "common/ignored.log").write_text("")
    assert facts(root).dirty_paths == ("common/a b.py", "common/gone.py", "common/new\\nline.py", "common/staged.py")


def test_only_the_project_counts_inside_a_larger_repository(make: Make) -> None:
    outer = make({"proj/tuneplane.yaml": "name: p\n", "proj/common/a.py": "", "other.txt": ""}, use_git=True).root
    (outer / "other.txt").write_text("changed")
    assert not facts(outer / "proj").dirty
    (outer / "proj/common/a.py").write_text("changed")
    assert facts(outer / "proj").dirty_paths == ("common/a.py",)
    assert listed(outer / "proj", ["common"]) == ["common/a.py"]


def test_a_repository_without_a_commit(make: Make) -> None:
    root = make({"common/a": ""}).root
    git(root, "init", "-q")
    assert facts(root) == GitFacts("", True, ("common/a", "tuneplane.yaml"))


def test_p79_no_repository_and_no_git_are_no_errors(make: Make, tmp_path: Path) -> None:
    root = make({"common/a": ""}).root
    assert facts(root) == GitFacts()
    assert listed(root, ["common"]) is None
    (root / ".git").mkdir()
    assert facts(root, program=str(tmp_path / "no-such-git")) == GitFacts()
    assert listed(root, ["common"], program=str(tmp_path / "no-such-git")) is None


def test_a_repository_that_git_does_not_trust_is_refused_with_the_mend(make: Make, tmp_path: Path) -> None:
    root = make(use_git=True).root
    program = fake(tmp_path, f"echo \"fatal: detected dubious ownership in repository at '{root}'\" >&2; exit 128")
    for call in (lambda: facts(root, program=program), lambda: listed(root, ["common"], program=program)):
        with pytest.raises(Refusal) as caught:
            call()
        assert caught.value.code == "E-PROJECT-021"
        assert f"--add safe.directory {root}" in caught.value.hint


def test_a_broken_git_is_refused_and_not_worked_around(make: Make, tmp_path: Path) -> None:
    root = make(use_git=True).root
    with pytest.raises(Refusal) as caught:
        facts(root, program=fake(tmp_path, "echo 'fatal: index file corrupt' >&2; exit 128"))
    assert (caught.value.code, caught.value.found) == ("E-PROJECT-022", "fatal: index file corrupt")


def test_a_git_that_cannot_be_started_is_refused(make: Make, tmp_path: Path) -> None:
    (tmp_path / "git").write_bytes(b"\x7fELF and nothing more")
    (tmp_path / "git").chmod(0o755)
    root = make(use_git=True).root
    with pytest.raises(Refusal) as refused:
        facts(root, program=str(tmp_path / "git"))
    assert (refused.value.code, "cannot be started" in refused.value.message) == ("E-PROJECT-022", True)


def test_p24_a_git_that_hangs_is_left_with_try_again_later(make: Make, tmp_path: Path) -> None:
    root = make(use_git=True).root
    with pytest.raises(Refusal) as caught:
        facts(root, program=fake(tmp_path, "exec sleep 60"), deadline_s=0.2)
    assert (caught.value.code, caught.value.exit) == ("E-PROJECT-020", 75)


def test_p78_git_is_never_asked_to_prompt_and_the_outer_git_does_not_leak_in(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = make(use_git=True).root
    monkeypatch.setenv("GIT_DIR", "/nowhere")
    monkeypatch.setenv("GIT_WORK_TREE", "/nowhere")
    assert len(facts(root).commit) == 40
    program = fake(tmp_path, f"env >{tmp_path}/env; cat >{tmp_path}/stdin")
    facts(root, program=program)
    lines = (tmp_path / "env").read_text().splitlines()
    assert {"GIT_TERMINAL_PROMPT=0", "GIT_OPTIONAL_LOCKS=0"} <= set(lines)
    assert not [line for line in lines if line.startswith(("GIT_DIR", "GIT_WORK_TREE"))]
    assert (tmp_path / "stdin").read_bytes() == b""
