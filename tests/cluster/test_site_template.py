"""An admin's copy of a template reaches the real job; a bad edit reaches nobody."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from lab import ROOT, Lab, Person

pytestmark = pytest.mark.cluster


@pytest.fixture
def edited(lab: Lab) -> Iterator[Path]:
    """The site's own copy of the template, made by `tp template show`; gone after the test."""
    path = lab.root.templates / "custom.sbatch.j2"
    path.write_text(lab.admin("template", "show", "custom.sbatch.j2", "--shipped").out, "utf-8")
    yield path
    path.unlink()


def test_an_admins_directive_is_in_the_dry_run_and_in_the_job(lab: Lab, alice: Person, edited: Path) -> None:
    usual = lab.submit(alice, "own", "--begin", "now+1hour", "--label", "template=usual")
    edited.write_text(edited.read_text().replace("{{ directives }}\n", "{{ directives }}\n#SBATCH --exclusive\n", 1))
    before = lab.runs(alice, "own")
    assert "#SBATCH --exclusive\n" in lab.tp(alice, "submit", "own", "--dry-run").out
    assert lab.runs(alice, "own") == before
    run = lab.submit(alice, "own", "--begin", "now+1hour", "--label", "template=edited")
    assert lab.cluster.job(usual.job_id)["OverSubscribe"] == "OK"
    assert lab.cluster.job(run.job_id)["OverSubscribe"] == "NO"
    assert run.read("submissions", "0.json")["template"] == str(edited)
    assert "+#SBATCH --exclusive" in lab.tp(alice, "template", "diff").out
    for job in (usual, run):
        lab.tp(alice, "job", "stop", job.id)


def test_a_bad_edit_is_refused_by_lint_and_by_submit_with_the_line(lab: Lab, alice: Person, edited: Path) -> None:
    edited.write_text(edited.read_text().replace("umask 022\n", "umask 022\n#SBATCH --exclusive\n", 1))
    script = lab.admin("template", "lint", "custom.sbatch.j2", "--json", code=1).json["errors"]
    assert [e["code"] for e in script] == ["E-SUBMIT-024"]
    place, _, line = script[0]["field"].rpartition(":")
    assert (place, line.isdigit()) == (str(edited), True)
    before = lab.runs(alice, "own")
    errors = lab.tp(alice, "submit", "own", "--json", "--label", "template=bad", code=1).json["errors"]
    assert [(e["code"], e["found"]) for e in errors] == [("E-SUBMIT-024", "#SBATCH --exclusive")]
    assert errors[0]["field"].startswith(f"{edited}:")
    assert "sbatch ignores it" in errors[0]["message"]
    assert lab.runs(alice, "own") == before


def test_a_template_that_a_user_could_write_is_not_used(lab: Lab, alice: Person, bob: Person, edited: Path) -> None:
    import os

    os.chown(edited, bob.uid, bob.gid)
    errors = lab.tp(alice, "submit", "own", "--json", "--label", "template=bobs", code=1).json["errors"]
    assert errors[0]["code"].startswith("E-SITE-")
    assert lab.sh(bob, f"touch {lab.root.templates}/train.sbatch.j2", code=1).err.endswith("Permission denied\n")
    os.chown(edited, ROOT.uid, ROOT.gid)
