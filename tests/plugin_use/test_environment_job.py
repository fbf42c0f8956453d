"""An environment from the command line to the end of a job, on the embedded fleet for real."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tuneplane.contract.layout import StorageRoot

from hpc.site.sitefile import load_site
from hpc.submit.data import admission_refusals
from tests.datasets.test_submission import ME, Lab, laid_out
from tests.plugin_use.test_environments import TASKS, write

NAMES = ("DIR", "ID", "SPLIT", "PORT")
SCRIPT = (
    "".join(f'echo "$TUNEPLANE_JOB_ENVIRONMENT_{name}"\n' for name in NAMES)
    + 'wc -l <"$TUNEPLANE_JOB_ENVIRONMENT_DIR/tasks.jsonl"\n'
)


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    yield from laid_out()


def submitted(lab: Lab, *flags: str) -> Path:
    """The folder of a run that ended."""
    (lab.project / "experiments/job/train.sh").write_text(SCRIPT)
    run = Path(lab.json("submit", "job", "--allow-dirty", "--again", *flags)["run_dir"])
    until = time.monotonic() + 60
    while not (run / "attempts/0/end.json").exists() and time.monotonic() < until:
        time.sleep(0.1)
    assert json.loads((run / "attempts/0/end.json").read_text())["class"] == "done"
    return run


def test_a_job_is_told_its_environment_and_its_record_holds_the_digest(lab: Lab) -> None:
    pushed = lab.json("env", "push", "sums", "1", str(write(lab.folder / "env")))
    run = submitted(lab, "--environment", f"{ME}/sums")
    lines = [line.partition(" ")[2] for line in (run / "attempts/0/logs/rank-00000.log").read_text().splitlines()]
    assert lines == [f"{pushed['path']}/content", f"{ME}/sums@1", "train", "8900", "3"]
    launch = json.loads((run / "work/.tuneplane/launch.json").read_text())
    assert launch["inputs"]["environment"]["environment"]["digest"] == pushed["digest"]
    assert lab.json("runs", "audit", run.name)["verdict"] == "verified"
    refused = lab.json("env", "rm", f"{ME}/sums@1", code=1)
    assert refused["errors"][0]["code"] == "E-DATA-020"
    admission_reads_it(lab, run, launch)


def admission_reads_it(lab: Lab, run: Path, launch: dict[str, Any]) -> None:
    root, spec = StorageRoot(lab.storage), json.loads((run / "work/.tuneplane/jobspec.json").read_text())

    def faults(edit: Callable[[dict[str, Any]], object]) -> list[str]:
        changed = json.loads(json.dumps(launch))
        edit(changed["inputs"])
        return [f"{f.code} {f.field}" for f in admission_refusals(root, load_site(root), ME, spec, changed)]

    wrong = ["E-SUBMIT-075 launch.inputs.environment.environment"]
    assert faults(lambda inputs: None) == []
    assert faults(lambda inputs: inputs.pop("environment")) == wrong
    assert faults(lambda inputs: inputs["environment"]["environment"].update(dir="/etc")) == wrong


def test_an_environment_that_cannot_serve_the_operation_stops_before_the_queue(lab: Lab) -> None:
    lab.json("env", "push", "held", "1", str(write(lab.folder / "held", TASKS[2:])))
    before = lab.runs()
    for ref, code in ((f"{ME}/held@1", "E-DATA-061"), (f"{ME}/held@2", "E-REG-002"), (f"{ME}/none@1", "E-REG-002")):
        said = lab.json("submit", "job", "--allow-dirty", "--environment", ref, code=1)
        assert [e["code"] for e in said["errors"]] == [code]
    assert lab.runs() == before
