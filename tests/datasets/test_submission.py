"""Data from the command line to the end of a job, on the embedded fleet for real; and gates that refuse before anything is queued."""

from __future__ import annotations

import getpass
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.datasets.conftest import clear, rows, write_rows

TP = Path(sys.executable).parent / "tp"
ME = getpass.getuser()
GIT = {f"GIT_{who}_{what}": "t@example.invalid" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
SCRIPT = """
set -euo pipefail
test "$TUNEPLANE_TRAIN_DATA" = "$PLANTED_DATA_DIR/train.jsonl"
cat "$VOLUMES_DIR/ref/a.txt" > "$TUNEPLANE_OUT_DIR/seen.txt"
head -n 7 "$TUNEPLANE_TRAIN_DATA" > "$TUNEPLANE_DATASET_OUT_DIR/train.jsonl"
"""


class Lab:
    """A storage root with data on its shelves, and a project."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.storage, self.project = folder, folder / "storage", folder / "lab"
        self.env = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "LC_ALL": "C.UTF-8",
            "TUNEPLANE_STORAGE_ROOT": str(self.storage),
            **GIT,
        }

    def tp(self, *words: str, code: int = 0) -> str:
        cwd = self.project if self.project.exists() else self.folder
        done = subprocess.run(
            [TP, *words], cwd=cwd, env=self.env, text=True, capture_output=True, timeout=120, check=False
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout

    def json(self, *words: str, code: int = 0) -> dict[str, Any]:
        value: dict[str, Any] = json.loads(self.tp(*words, "--json", code=code))
        return value

    def runs(self) -> list[Path]:
        base = self.storage / "runs" / ME / "job"
        return sorted(base.iterdir()) if base.exists() else []


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    yield from laid_out()


def laid_out() -> Iterator[Lab]:
    """A lab with planted data, gone after use."""
    folder = Path(tempfile.mkdtemp(prefix="tp-data-lab-"))
    lab = Lab(folder)
    lab.tp("site", "init", str(lab.storage), "--name", "lab")
    lab.tp("init", "lab")
    lab.tp("new", "job", "--method", "custom/custom")
    (lab.project / "experiments/job/train.sh").write_text(SCRIPT)
    for words in (("add", "-A"), ("commit", "-q", "-m", "x")):
        subprocess.run(["git", *words], cwd=lab.project, env=lab.env, check=True, capture_output=True)
    base = [{**row, "group": n % 20} for n, row in enumerate(rows(95))]
    held = [{**row, "group": n + 16} for n, row in enumerate(rows(10, 500))]
    write_rows(folder / "planted/train.jsonl", [*base, *base[:5], *held[:3]])
    write_rows(folder / "planted/validation.jsonl", held)
    write_rows(folder / "eval/test.jsonl", held)
    (folder / "volume").mkdir()
    (folder / "volume/a.txt").write_text("from the volume")
    lab.tp("dataset", "push", "planted", "1", str(folder / "planted"))
    lab.tp("dataset", "push", "bench", "1", str(folder / "eval"))
    lab.tp("volume", "create", "ref")
    lab.tp("volume", "push", "ref", str(folder / "volume"))
    yield lab
    clear(folder)
    shutil.rmtree(folder, ignore_errors=True)


DATA = ("--train-dataset", f"{ME}/planted@1", "--validation-dataset", f"{ME}/planted@1")


def quality(**gates: object) -> list[str]:
    return [word for key, value in gates.items() for word in ("--quality", f"{key}={value}")]


def test_every_gate_refuses_before_anything_is_queued(lab: Lab) -> None:
    gates = quality(
        max_duplicate_ratio=0.04,
        overlap_with=f"{ME}/bench@1",
        max_overlap_ratio=0.2,
        group_key="group",
        max_group_leak_ratio=0.3,
    )
    said = lab.json("submit", "job", *DATA, *gates, code=1)
    errors = {e["code"]: e["message"] for e in said["errors"]}
    assert errors == {
        "E-DATA-050": "5 of 103 training rows repeat an earlier row (0.0485437)",
        "E-DATA-051": "3 of 10 evaluation rows stand in the training rows (0.3)",
        "E-DATA-052": "4 of 10 validation rows have a group that the training rows have, too (0.4)",
    }
    assert lab.runs() == []
    assert (
        not list((lab.storage / "state" / ME / "intents").glob("*"))
        if (lab.storage / "state" / ME / "intents").exists()
        else True
    )


def test_data_volume_and_output_of_one_job(lab: Lab) -> None:
    gates = quality(
        max_duplicate_ratio=0.05,
        overlap_with=f"{ME}/bench@1",
        max_overlap_ratio=0.3,
        group_key="group",
        max_group_leak_ratio=0.4,
    )
    lab.tp("submit", "job", *DATA, "--volume", f"{ME}/ref", "--output-dataset", f"{ME}/half@1", *gates, "--json")
    run = lab.runs()[-1]
    until = time.monotonic() + 60
    while (
        not (run / "report.json").exists() and time.monotonic() < until and not (run / "attempts/0/end.json").exists()
    ):
        time.sleep(0.1)
    report = json.loads((run / "report.json").read_text())
    assert report["output_dataset"]["state"] == "published"
    assert (run / "attempts/0/out/seen.txt").read_text() == "from the volume"
    launch = json.loads((run / "work/.tuneplane/launch.json").read_text())
    figures = {kind: (value["ratio"], value["passed"]) for kind, value in launch["quality"].items()}
    assert figures == {"duplicates": (5 / 103, True), "overlap": (0.3, True), "groups": (0.4, True)}
    made = lab.json("dataset", "show", f"{ME}/half@1")
    assert (made["facts"]["rows"], made["facts"]["produced_by"]["run_id"]) == (7, run.name)
    assert made["facts"]["produced_by"]["inputs"] == [f"{ME}/planted@1", f"{ME}/planted@1"]
    assert lab.json("dataset", "publish-output", run.name)["state"] == "published"
    assert f"{ME}/half@1: published" in lab.tp("job", "status", run.name)
    assert lab.json("job", "status", run.name)["runs"][0]["output_dataset"]["digest"] == made["digest"]
    assert lab.json("runs", "audit", run.name)["verdict"] == "verified"
    named = lab.json("dataset", "rm", f"{ME}/planted@1", code=1)
    assert named["errors"][0]["code"] == "E-DATA-020"


def test_references_that_cannot_be_had_stop_before_the_queue(lab: Lab) -> None:
    before = lab.runs()

    def refused(*words: str) -> list[str]:
        return [e["code"] for e in lab.json("submit", "job", *words, code=1)["errors"]]

    assert refused("--train-dataset", f"{ME}/none@1") == ["E-REG-002"]
    assert refused("--train-dataset", f"{ME}/planted@1", "--volume", f"{ME}/none") == ["E-DATA-030"]
    assert refused("--train-dataset", f"{ME}/planted@1", "--output-dataset", "nobody/x@1") == ["E-DATA-040"]
    assert refused("--train-dataset", f"{ME}/planted@1", *quality(group_key="group", max_group_leak_ratio=0)) == [
        "E-DATA-054"
    ]
    assert refused("--train-dataset", f"{ME}/planted@1", "--volume", f"{ME}/ref", "--volume", "bob/ref") == [
        "E-SPEC-022"
    ]
    assert refused("--train-dataset", f"{ME}/planted@1", "--volume", "/data/ref") == ["E-SPEC-027"]
    assert refused("--train-dataset", f"{ME}/planted@1", "--volume", f"{ME}/ref@1") == ["E-SPEC-027"]
    assert lab.runs() == before


def test_the_commands_say_what_is_there(lab: Lab) -> None:
    listed = {d["id"]: d["newest"]["facts"]["rows"] for d in lab.json("dataset", "ls")["datasets"]}
    assert listed[f"{ME}/planted"] == 113
    shown = lab.json("dataset", "show", f"{ME}/planted", "--sample", "2", "--split", "validation")
    assert [row["group"] for row in shown["sample"]] == [16, 17]
    assert lab.json("dataset", "verify", f"{ME}/planted@1")["verdict"] == "verified"
    assert lab.json("volume", "ls")["volumes"][0]["id"] == f"{ME}/ref"
    planted = str(lab.folder / "planted/train.jsonl")
    assert lab.json("dataset", "check", planted, "-a", f"{ME}/bench@1", code=1)["overlapping"] == 3
    assert (
        lab.json("dataset", "check", planted, "-a", str(lab.folder / "volume"), code=1)["errors"][0]["code"]
        == "E-DATA-054"
    )
    (lab.folder / "fp.json").write_text(lab.tp("dataset", "fingerprint", planted, "--json"))
    again = lab.json("dataset", "fingerprint", f"{ME}/planted@1", "--compare", str(lab.folder / "fp.json"))
    assert (again["rows"], again["resemblance"]) == (103, 1.0)
    assert lab.json("dataset", "visibility", "bench", "private")["visibility"] == "private"


def test_admission_reads_what_the_package_says_of_data(lab: Lab) -> None:
    """Each edit of launch.json alone is found, whoever wrote it."""
    from tuneplane.contract.layout import StorageRoot

    from hpc.site.sitefile import load_site
    from hpc.submit.data import admission_refusals

    root = StorageRoot(lab.storage)
    run = next(r for r in lab.runs() if (r / "work/.tuneplane/launch.json").exists())
    spec, launch = (json.loads((run / f"work/.tuneplane/{name}.json").read_text()) for name in ("jobspec", "launch"))

    def fields(edit: Callable[[dict[str, Any]], object]) -> list[str]:
        changed = json.loads(json.dumps(launch))
        edit(changed)
        return [f"{f.code} {f.field}" for f in admission_refusals(root, load_site(root), ME, spec, changed)]

    assert fields(lambda v: None) == []
    assert fields(lambda v: v["inputs"].pop("train")) == ["E-SUBMIT-075 launch.inputs.train.dataset"]
    assert fields(lambda v: v["inputs"]["train"]["dataset"].update(ref=f"{ME}/bench@1")) == [
        "E-SUBMIT-075 launch.inputs.train.dataset"
    ]
    assert fields(lambda v: v["inputs"]["train"]["dataset"].update(dir="/etc")) == [
        "E-SUBMIT-075 launch.inputs.train.dataset"
    ]
    assert fields(lambda v: v["inputs"]["train"]["dataset"].update(digest_v2="x")) == [
        "E-SUBMIT-075 launch.inputs.train.dataset"
    ]
    assert fields(lambda v: v.pop("volumes")) == ["E-SUBMIT-075 launch.volumes"]
    assert fields(lambda v: v["volumes"]["ref"].update(path="/etc")) == ["E-SUBMIT-075 launch.volumes.ref"]
    assert fields(lambda v: v["output_dataset"].update(folder=str(lab.storage))) == [
        "E-SUBMIT-075 launch.output_dataset"
    ]
    assert fields(lambda v: v.pop("output_dataset")) == ["E-SUBMIT-075 launch.output_dataset"]


KILLED = """
import os, sys, signal
import hpc.submit.pipeline as pipeline
pipeline.dispatch_whole = lambda *args, **more: os.kill(os.getpid(), signal.SIGKILL)
from hpc.cli.main import main
main(["submit", "job"])
"""


def test_a_submission_that_was_killed_after_packing_leaves_what_gc_takes(lab: Lab) -> None:
    before = set(lab.runs())
    done = subprocess.run(
        [sys.executable, "-c", KILLED], cwd=lab.project, env=lab.env, capture_output=True, timeout=120, check=False
    )
    assert done.returncode == -9, done.stderr
    (left,) = set(lab.runs()) - before
    assert (left / "admission.json").exists()
    assert lab.json("gc", "--dry-run")["items"] == []  # younger than a day
    os.utime(left, (time.time() - 2 * 86_400,) * 2)
    assert [(i["kind"], i["path"]) for i in lab.json("gc", "--dry-run")["items"]] == [("run", str(left))]
    assert lab.json("gc")["removed"] == 1
    assert set(lab.runs()) == before
