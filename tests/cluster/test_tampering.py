"""What was edited between submission and start does not run, and the job says why."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from lab import Lab, Person, Run
from labsites import Sites

pytestmark = pytest.mark.cluster

HELD = ("--begin", "now+1hour")
RUNS = 'touch "$TUNEPLANE_CHECKPOINT_DIR/ran"; echo "it ran"'


def unlock(run: Run) -> Path:
    """Make the package writable, as its owner can; its folder."""
    for folder, _, names in os.walk(run.paths.work):
        for name in (folder, *(os.path.join(folder, n) for n in names)):
            os.chmod(name, os.stat(name).st_mode | 0o200)
    return run.paths.work


def edit_script(run: Run) -> None:
    script = unlock(run) / "experiments" / "victim" / "train.sh"
    script.write_text(script.read_text() + "echo more\n")


def add_file(run: Run) -> None:
    (unlock(run) / "common" / "sitecustomize.py").write_text("print('planted')\n")


def swap_for_link(run: Run) -> None:
    script = unlock(run) / "experiments" / "victim" / "train.sh"
    script.rename(run.paths.root / "train.sh")
    script.symlink_to(run.paths.root / "train.sh")


def edit_consistently(run: Run) -> None:
    """The script and the list that names its digest: what no longer fits is the admission."""
    from tuneplane.record.digest import digest_bytes

    edit_script(run)
    data = (run.paths.work / "experiments" / "victim" / "train.sh").read_bytes()
    listing = json.loads(run.paths.package.read_text())
    (row,) = [f for f in listing["files"] if f["path"] == "experiments/victim/train.sh"]
    row |= {"sha256": digest_bytes(data), "size": len(data)}
    run.paths.package.write_text(json.dumps(listing))


def edit_admission(run: Run, **changes: object) -> None:
    value = json.loads(run.paths.admission.read_text()) | changes
    run.paths.admission.unlink()
    run.paths.admission.write_text(json.dumps(value))


def edit_image(run: Run) -> None:
    """One byte of the SIF; its size and times are put back."""
    image = Path(run.read("work", ".tuneplane", "launch.json")["runtime"]["sif"])
    before = image.stat()
    with open(image, "r+b") as stream:
        stream.seek(before.st_size // 2)
        byte = stream.read(1)
        stream.seek(-1, os.SEEK_CUR)
        stream.write(bytes([byte[0] ^ 1]))
    os.utime(image, ns=(before.st_atime_ns, before.st_mtime_ns))


def edit_rows(run: Run) -> None:
    path = Path(run.read("work", ".tuneplane", "launch.json")["inputs"]["train"]["path"])
    path.write_text(path.read_text().replace("1", "2", 1))


CASES: dict[str, tuple[str, Callable[[Run], None]]] = {
    "edited": ("E-JOB-002", edit_script),
    "added": ("E-JOB-002", add_file),
    "linked": ("E-JOB-002", swap_for_link),
    "consistent": ("E-JOB-004", edit_consistently),
    "unadmitted": ("E-JOB-003", lambda run: run.paths.admission.unlink()),
    "refused": ("E-JOB-003", lambda run: edit_admission(run, verdict="refused")),
    "borrowed": ("E-JOB-004", lambda run: edit_admission(run, run_id="run-0000beef")),
    "another": ("E-JOB-005", lambda run: edit_admission(run, uid=os.getuid())),
    "image": ("E-JOB-015", edit_image),
    "rows": ("E-JOB-009", edit_rows),
}


@pytest.fixture(scope="module")
def victims(lab: Lab, alice: Person, images: dict[str, Path], scratch: Path) -> dict[str, Run]:
    """One held job a case; all are edited, then all are let go."""
    copy, rows = scratch / "victim.sif", scratch / "rows.jsonl"
    copy.write_bytes(images["general-1"].read_bytes())
    rows.write_text('{"prompt": "1", "completion": "1"}\n')
    lab.admin("runtime", "add", "victim-1", copy, "--source", "images.example/victim:1")
    lab.experiments(alice, {"victim": RUNS})
    special = {"image": ("--image", "images.example/victim:1"), "rows": ("--train-data", str(rows))}
    runs = {}
    for name, (_, tamper) in CASES.items():
        runs[name] = lab.submit(alice, "victim", *HELD, "--label", f"case={name}", *special.get(name, ()))
        tamper(runs[name])
    for run in runs.values():
        lab.slurm(alice, "scontrol", "update", f"JobId={run.job_id}", "StartTime=now")
    return runs


@pytest.mark.parametrize("name", CASES)
def test_an_edited_job_is_refused_and_nothing_of_the_user_runs(
    lab: Lab, alice: Person, victims: dict[str, Run], name: str
) -> None:
    run, code = victims[name], CASES[name][0]
    end = run.wait_end()
    assert (end["class"], end["requeue"], end["message"].split()[0]) == ("refused", False, code)
    assert run.log(0) == []
    assert not (run.paths.checkpoints / "ran").exists()
    assert (lab.cluster.job_state(run.job_id), lab.cluster.job(run.job_id)["Restarts"]) == ("FAILED", "0")
    assert code in lab.tp(alice, "job", "why", run.id).out


@pytest.mark.parametrize("name", ["edited", "added", "linked", "consistent"])
def test_the_audit_calls_an_edited_package_tampered(
    lab: Lab, alice: Person, victims: dict[str, Run], name: str
) -> None:
    victims[name].wait_end()
    assert lab.tp(alice, "runs", "audit", victims[name].id, "--json", code=2).json["verdict"] == "tampered"


def test_an_edited_kernel_is_refused(sites: Sites, alice: Person, lab: Lab) -> None:
    """Both halves, on a site of their own: the training half is checked by the verifying half, that one by the batch script."""
    site = sites.new("kernels")
    training = site.submit(alice, "toy", "--profile", "ranks", *HELD)
    verifying = site.submit(alice, "own", *HELD)
    kernel = verifying.read("work", ".tuneplane", "launch.json")["kernel"]
    for run, half, code in ((training, "training", "E-JOB-010"), (verifying, "verifier", "E-JOB-014")):
        with open(kernel[half], "ab") as stream:
            stream.write(b"more")
        lab.slurm(alice, "scontrol", "update", f"JobId={run.job_id}", "StartTime=now")
        end = run.wait_end()
        assert (end["class"], end["message"].split()[0], run.log(0)) == ("refused", code, [])
    refused = site.tp(alice, "submit", "own", "--json", code=1)
    assert refused.codes == ["E-SUBMIT-002"]
    assert site.runs(alice, "own") == [verifying.id]


def test_a_missing_train_sh_is_refused_before_anything_is_packed(lab: Lab, alice: Person) -> None:
    lab.experiments(alice, {"empty": "true"})
    lab.sh(alice, "git rm -q experiments/empty/train.sh && git commit -q -m 'No train.sh'")
    assert lab.tp(alice, "submit", "empty", "--json", code=1).codes == ["E-SUBMIT-035"]
    assert lab.runs(alice, "empty") == []
    assert lab.cluster.jobs_named("empty.") == []
