"""Enforced admission with a real service user and real sudo: copy, verify, sign; everything else is refused in the job."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from lab import ROOT, Lab, Person, Run
from labsites import Sites

pytestmark = [pytest.mark.cluster, pytest.mark.two_users]

HELD = ("--begin", "now+1hour")


def set_admission(site: Lab, mode: str, key: str) -> None:
    """As the admin does: edit site.yaml, then `tp site sync`."""
    text = site.root.site_file.read_text("utf-8").partition("\nadmission:")[0].rstrip()
    site.root.site_file.write_text(f"{text}\nadmission: {{mode: {mode}, public_key: '{key}'}}\n", "utf-8")
    site.admin("site", "sync")


@pytest.fixture(scope="module")
def sudo(lab: Lab, scratch: Path) -> Iterator[None]:
    """One line of sudoers, as docs/admin.md has it, for the time of these tests."""
    assert Path("/usr/bin/sudo").exists(), "sudo is missing: run `.ci/setup cluster` as root"
    root, program = scratch / "strict", lab.bin / "tp"
    line = f"ALL = (tpservice) NOPASSWD: /usr/bin/env TUNEPLANE_STORAGE_ROOT\\={root} {program} admit --enforce {root}/runs/*"
    path = Path(f"/etc/sudoers.d/{scratch.name}")
    path.write_text(f"tpalice {line}\ntpbob {line}\n", "utf-8")
    path.chmod(0o440)
    try:
        subprocess.run(["visudo", "-c", "-q", "-f", path], check=True)
        yield
    finally:
        path.unlink()


@pytest.fixture(scope="module")
def key(strict: Lab) -> str:
    return json.loads((strict.root.site / "policy.json").read_text())["admission"]["public_key"]


@pytest.fixture(scope="module")
def strict(sites: Sites, lab: Lab, people: dict[str, Person], sudo: None) -> Lab:
    """A site that runs enforced admissions only."""
    site = sites.new("strict", service_user="tpservice")
    public = site.tp(people["tpservice"], "site", "key", cwd=site.bin).out.strip()
    assert len(public) == 64
    set_admission(site, "enforced", public)
    site.admin("site", "check")
    return site


@pytest.fixture(scope="module")
def signed(strict: Lab, alice: Person) -> Run:
    """A run of alice that the service user admitted and that is done."""
    run = strict.submit(alice, "own")
    assert run.wait_end()["class"] == "done"
    return run


def admitted(run: Run) -> Path:
    return run.lab.root.admitted / run.id


def test_an_enforced_admission_runs_and_the_record_says_so(
    strict: Lab, alice: Person, people: dict[str, Person], signed: Run
) -> None:
    record = json.loads((admitted(signed) / "admission.json").read_text())
    assert (record["mode"], record["owner"], record["uid"]) == ("enforced", "tpalice", alice.uid)
    assert len(record["signature"]) == 128
    assert not signed.paths.admission.exists()
    report = signed.read("report.json")
    assert (report["admission"], report["status"]) == ("enforced", "done")
    audit = strict.tp(alice, "runs", "audit", signed.id, "--json").json
    assert (audit["verdict"], audit["admission"]) == ("verified", "enforced")
    owners = {os.lstat(p).st_uid for p in (admitted(signed), *admitted(signed).rglob("*"))}
    assert owners == {people["tpservice"].uid}


def test_the_owner_cannot_touch_what_was_admitted_or_read_the_key(strict: Lab, alice: Person, signed: Run) -> None:
    copy = admitted(signed)
    for script in (
        f"echo x >>{copy}/admission.json", f"chmod u+w {copy}", f"rm -rf {copy}", f"touch {copy}/work/more",
        f"cat {strict.root.keys}/admission.key", f"mkdir {strict.root.admitted}/run-0badbad0",
    ):  # fmt: skip
        done = strict.sh(alice, script, code=None)
        assert done.code != 0, script
        assert "denied" in done.err or "not permitted" in done.err, done.err
    sudo = ("sudo", "-n", "-u", "tpservice")
    for words in ((*sudo, "cat", strict.root.keys / "admission.key"), (*sudo, strict.bin / "tp", "site", "key")):
        assert strict.as_user(alice, *words, code=1).err.startswith("sudo: ")


def test_an_edit_of_the_owners_own_package_after_admission_changes_nothing(strict: Lab, alice: Person) -> None:
    run = strict.submit(alice, "own", *HELD, "--label", "edit=mine")
    script = run.paths.work / "experiments" / "own" / "train.sh"
    strict.sh(alice, f"chmod -R u+w {run.paths.work} && echo 'echo edited' >{script}")
    strict.slurm(alice, "scontrol", "update", f"JobId={run.job_id}", "StartTime=now")
    assert run.wait_end()["class"] == "done"
    assert "edited" not in run.log(0)
    assert run.log(0)[-1] == "node 0 done"
    assert strict.tp(alice, "runs", "audit", run.id, "--json", code=2).json["verdict"] == "tampered"


def test_a_package_edited_before_admission_is_not_signed(strict: Lab, alice: Person, signed: Run) -> None:
    """Her own finished run, copied under a new id and edited, is not admitted."""
    target = strict.root.run("tpalice", "own", "run-0badbad1")
    script = target.work / "experiments" / "own" / "train.sh"
    strict.sh(
        alice, f"cp -r {signed.paths.root} {target.root}; chmod -R u+w {target.root}; echo 'echo edited' >>{script}"
    )
    words = (
        "sudo",
        "-n",
        "-u",
        "tpservice",
        "env",
        f"TUNEPLANE_STORAGE_ROOT={strict.root.path}",
        strict.bin / "tp",
        "admit",
        "--enforce",
    )
    refused = strict.as_user(alice, *words, target.work, code=1)
    assert "E-SUBMIT-071" in refused.err
    assert sorted(os.listdir(strict.root.admitted)) == sorted(
        n for n in os.listdir(strict.root.admitted) if not n.startswith(".")
    )
    assert not (strict.root.admitted / "run-0badbad1").exists()
    strict.sh(alice, f"rm -rf {target.root}")


def forge(run: Run, folder: Path, **changes: object) -> Path:
    """A copy of the admitted package and admission in a folder of the owner's, edited; the admission's path."""
    who = Person.of(run.paths.owner)
    run.lab.sh(
        who,
        f"mkdir -p {folder} && cp -r {admitted(run)}/work {admitted(run)}/admission.json {folder}/ && chmod -R u+w {folder}",
    )
    path = folder / "admission.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return path


@pytest.mark.parametrize(
    ("name", "changes", "code"),
    [
        ("advisory", {"mode": "advisory"}, "E-JOB-007"),
        ("signature", {"signature": "00" * 64}, "E-JOB-008"),
        ("edited", {"admitted_at": "2020-01-01T00:00:00.000000Z", "owner": "tpbob"}, "E-JOB-008"),
        ("package", {"package_digest": "sha256:" + "0" * 64}, "E-JOB-004"),
    ],
)
def test_a_forged_or_edited_admission_is_refused_in_the_job(
    strict: Lab, alice: Person, signed: Run, name: str, changes: dict[str, object], code: str
) -> None:
    """She runs her own copy of the script, with package and admission in a place that she can write."""
    run = strict.submit(alice, "own", *HELD, "--label", f"forged={name}")
    folder = run.paths.root / "forged"
    forge(run, folder, **changes)
    script = run.paths.root / "forged.sh"
    strict.sh(alice, f"sed 's,{admitted(run)},{folder},g' {run.paths.batch}/0.sh >{script}")
    strict.slurm(alice, "scancel", run.job_id)
    job = strict.slurm(alice, "sbatch", "--begin=now", script, cwd=run.paths.root).out.split()[-1]
    strict.cluster.wait_state(job, "FAILED", "COMPLETED")
    end = run.end(0)
    assert (end["class"], end["message"].split()[0], run.log(0)) == ("refused", code, [])


def test_an_advisory_job_that_still_waits_when_the_site_becomes_strict_is_refused(
    strict: Lab, alice: Person, key: str
) -> None:
    set_admission(strict, "advisory", key)
    try:
        run = strict.submit(alice, "own", *HELD, "--label", "from=before")
        assert run.read("admission.json")["mode"] == "advisory"
    finally:
        set_admission(strict, "enforced", key)
    strict.slurm(alice, "scontrol", "update", f"JobId={run.job_id}", "StartTime=now")
    end = run.wait_end()
    assert (end["class"], end["message"].split()[0], run.log(0)) == ("refused", "E-JOB-007", [])


def test_the_quota_is_the_service_users_to_judge(strict: Lab, alice: Person) -> None:
    before = sorted(os.listdir(strict.root.admitted))
    refused = strict.tp(alice, "submit", "own", "--profile", "h200:14", "--json", code=1).json["errors"]
    assert refused[0]["code"] == "E-SUBMIT-084"
    assert "E-SUBMIT-072" in refused[0]["found"]
    assert sorted(os.listdir(strict.root.admitted)) == before
    assert [n for n in strict.runs(alice, "own") if n.startswith(".")] == []


def test_a_policy_that_everybody_can_write_is_not_believed(strict: Lab, alice: Person) -> None:
    policy = strict.root.site / "policy.json"
    run = strict.submit(alice, "own", *HELD, "--label", "policy=open")
    policy.chmod(0o666)
    try:
        strict.slurm(alice, "scontrol", "update", f"JobId={run.job_id}", "StartTime=now")
        end = run.wait_end()
    finally:
        policy.chmod(0o644)
    assert (end["class"], end["message"].split()[0]) == ("refused", "E-JOB-006")
    assert os.stat(policy).st_uid == ROOT.uid
