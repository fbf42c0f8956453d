"""Two Unix users on one storage root: neither can write, overwrite or impersonate the other, whatever they claim."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from lab import Done, Lab, Person, Run

pytestmark = [pytest.mark.cluster, pytest.mark.two_users]

HELD = ("--begin", "now+1hour")


def snapshot(folder: Path) -> dict[str, tuple[int, int, int]]:
    """Every path with its mode, owner and time of change."""
    out = {}
    for parent, folders, names in os.walk(folder):
        for name in (*folders, *names):
            info = os.lstat(os.path.join(parent, name))
            out[os.path.relpath(os.path.join(parent, name), folder)] = (info.st_mode, info.st_uid, info.st_mtime_ns)
    return out


def everything(run: Run) -> dict[str, object]:
    """What bob must not change: her run, what the admins own, and which names there are. Other runs of hers may be at work meanwhile."""
    root = run.lab.root
    names = [
        root.path,
        root.runs,
        root.owner_runs("tpalice"),
        run.paths.root.parent,
        root.user_state("tpalice") / "intents",
    ]
    folders = [run.paths.root, root.site, root.registry, root.admitted]
    return {str(f): snapshot(f) for f in folders} | {f"names in {f}": sorted(os.listdir(f)) for f in names}


def her_runs(lab: Lab) -> dict[str, list[str]]:
    folder = lab.root.owner_runs("tpalice")
    return {exp: sorted(os.listdir(folder / exp)) for exp in sorted(os.listdir(folder))}


@pytest.fixture(scope="module")
def hers(lab: Lab, alice: Person) -> Run:
    """A finished run of alice that nobody but her project may read yet."""
    lab.experiments(alice, {"hers": "echo from alice"})
    run = lab.submit(alice, "hers")
    assert run.wait_end()["class"] == "done"
    return run


def attacks(run: Run) -> dict[str, str]:
    """What bob types, and nothing of which may change a byte."""
    root, mine = run.paths.root, run.lab.root
    return {
        "overwrite a record": f"echo '{{}}' >{root}/attempts/0/end.json",
        "plant a file": f"touch {root}/work/experiments/hers/extra.sh",
        "plant an attempt": f"mkdir {root}/attempts/1",
        "plant a run": f"mkdir {root.parent}/run-0badbad0",
        "plant an experiment": f"mkdir {mine.runs}/tpalice/planted",
        "plant an event": f"echo '{{}}' >>{root}/events/submit-0.jsonl",
        "move her folder away": f"mv {mine.runs}/tpalice {mine.runs}/gone",
        "take her name with a link": f"ln -s /tmp {mine.runs}/tpalice.new",
        "squat the next user": f"mkdir {mine.runs}/tpservice",
        "open her run": f"chmod -R o+w {root}",
        "touch the site": f"echo x >>{mine.site_file}",
        "plant a kernel": f"touch {mine.kernels}/verifier-9.zip",
        "plant a recipe": f"mkdir {mine.recipes}/evil",
        "settle her intents": f"touch {mine.user_state('tpalice')}/intents/run-0badbad0-0.json",
        "plant an admission": f"mkdir {mine.admitted}/{run.id}",
    }


@pytest.mark.parametrize("shared", [False, True])
def test_bob_changes_nothing_of_alice(lab: Lab, alice: Person, bob: Person, hers: Run, shared: bool) -> None:
    if shared:
        lab.tp(alice, "run", "share", hers.id)
    before = everything(hers)
    for what, script in attacks(hers).items():
        done = lab.sh(bob, script, code=None)
        assert done.code != 0, f"bob could {what}"
        assert "denied" in done.err or "not permitted" in done.err or "cannot" in done.err, f"{what}: {done.err}"
    assert everything(hers) == before


def test_a_run_is_for_its_owner_until_it_is_shared(lab: Lab, alice: Person, bob: Person, hers: Run) -> None:
    lab.tp(alice, "run", "share", hers.id, "--undo")
    assert lab.sh(bob, f"cat {hers.paths.report}", code=1).err.endswith("Permission denied\n")
    blind = lab.tp(bob, "runs", "audit", hers.id, "--owner", "tpalice", code=None)
    assert blind.code in (0, 1)
    assert "verified" not in blind.out
    said = lab.tp(alice, "run", "share", hers.id).out
    command = f"tp runs audit hers/{hers.id} --owner tpalice"
    assert command in said
    audit = lab.as_user(bob, *command.split(), "--json").json
    assert (audit["verdict"], audit["owner"]) == ("verified", "tpalice")
    assert lab.sh(bob, f"cat {hers.paths.attempt(0).env}", code=1).err.endswith("Permission denied\n")
    assert lab.tp(bob, "job", "logs", f"hers/{hers.id}", "--owner", "tpalice").out == "[0] from alice\n"


def test_bob_cannot_act_on_a_run_of_alice(lab: Lab, alice: Person, bob: Person) -> None:
    run = lab.submit(alice, "own", *HELD, "--label", "bobs=wish")
    assert lab.tp(bob, "job", "stop", run.id, "--json", code=1).codes[0] in ("E-RUNS-001", "E-RUNS-003")
    denied = lab.slurm(bob, "scancel", run.job_id, code=None)
    assert "denied" in denied.err
    for words in ("Comment=tp:mine", "StartTime=now"):
        assert "Invalid user id" in lab.slurm(bob, "scontrol", "update", f"JobId={run.job_id}", words, code=1).err
    assert lab.cluster.job_state(run.job_id) == "PENDING"
    assert not (run.paths.root / "stop_requested").exists()
    lab.tp(alice, "job", "stop", run.id)


def owner_and_user(lab: Lab, done: Done) -> tuple[str, str, int]:
    """(owner in the admission, user that the job sees, uid of the folder) of a submission that was said with --json."""
    from tuneplane.contract.layout import RunPaths

    run = Run(lab, RunPaths(Path(done.json["run_dir"])), done.json["job_id"])
    run.wait_end()
    return (
        run.read("admission.json")["owner"],
        run.read("attempts", "0", "env.json")["RUN_USER"],
        run.paths.root.stat().st_uid,
    )


def test_the_owner_is_whom_the_kernel_reports_whatever_the_environment_says(
    lab: Lab, alice: Person, bob: Person
) -> None:
    lies = {"USER": "tpalice", "LOGNAME": "tpalice", "HOME": str(alice.home), "SUDO_USER": "tpalice", "TUNEPLANE_USER": "tpalice",
            "RUN_USER": "tpalice", "NRL_SUBMIT_USER": "tpalice", "SUDO_UID": str(alice.uid)}  # fmt: skip
    before = her_runs(lab)
    said = lab.tp(bob, "submit", "own", "--json", env=lies)
    assert said.json["owner"] == "tpbob"
    assert owner_and_user(lab, said) == ("tpbob", "tpbob", bob.uid)
    assert her_runs(lab) == before


def test_what_is_submitted_from_her_folder_is_his(lab: Lab, alice: Person, bob: Person) -> None:
    words = ("submit", "own", "--json", "--label", "from=hers")
    refused = lab.tp(bob, *words, cwd=lab.project(alice), code=1)
    assert refused.codes == ["E-PROJECT-021"]  # git does not trust another user's repository
    trust = refused.json["errors"][0]["hint"].partition(": ")[2]
    assert trust == f"git config --global --add safe.directory {lab.project(alice)}"
    lab.as_user(bob, *trust.split())
    said = lab.tp(bob, *words, cwd=lab.project(alice))
    assert owner_and_user(lab, said) == ("tpbob", "tpbob", bob.uid)


@pytest.mark.parametrize(
    ("name", "code"), [("her-uid", "E-JOB-005"), ("her-admission", "E-JOB-004")]
)  # fmt: skip
def test_a_forged_admission_does_not_run(lab: Lab, alice: Person, bob: Person, hers: Run, name: str, code: str) -> None:
    run = lab.submit(bob, "own", *HELD, "--label", f"forged={name}")
    mine, admission = run.read("admission.json"), hers.read("admission.json")
    forged = mine | {"owner": "tpalice", "uid": alice.uid} if name == "her-uid" else admission
    text = json.dumps(forged).replace("'", "")
    lab.sh(bob, f"rm -f {run.paths.admission} && printf '%s' '{text}' >{run.paths.admission}")
    lab.slurm(bob, "scontrol", "update", f"JobId={run.job_id}", "StartTime=now")
    end = run.wait_end()
    assert (end["class"], end["message"].split()[0], run.log(0)) == ("refused", code, [])


def test_a_copy_of_her_whole_run_is_not_his_run(lab: Lab, alice: Person, bob: Person, hers: Run, scratch: Path) -> None:
    """Her package with her admission under his name, run by her own script with the paths changed."""
    target = lab.root.run("tpbob", "hers", hers.id)
    lab.tp(alice, "run", "share", hers.id)
    lab.sh(
        bob,
        f"mkdir -p {target.root.parent}; cp -r {hers.paths.root} {target.root}; rm -rf {target.root}/attempts/*; chmod -R u+w {target.root}",
    )
    script = target.batch / "0.sh"
    lab.sh(bob, f"sed -i 's,{hers.paths.root},{target.root},g' {script}")
    job = lab.slurm(bob, "sbatch", "--parsable", script, cwd=target.root).out.strip()
    lab.cluster.wait_state(job, "FAILED", "COMPLETED")
    run = Run(lab, target, job)
    assert (run.end(0)["class"], run.end(0)["message"].split()[0], run.log(0)) == ("refused", "E-JOB-005", [])
    audit = lab.tp(bob, "runs", "audit", hers.id, "--json", code=2).json
    assert audit["verdict"] == "tampered"
    shutil.rmtree(target.root)


def test_her_script_run_by_him_leaves_her_run_as_it_is(lab: Lab, alice: Person, bob: Person, hers: Run) -> None:
    lab.tp(alice, "run", "share", hers.id)
    before = snapshot(hers.paths.root)
    job = lab.slurm(
        bob, "sbatch", "--parsable", "--output=/dev/null", "--chdir=/tmp", hers.paths.batch / "0.sh"
    ).out.strip()
    lab.cluster.wait_state(job, "FAILED", "COMPLETED")
    assert lab.cluster.job_state(job) == "FAILED"
    assert snapshot(hers.paths.root) == before
