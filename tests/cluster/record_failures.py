"""Makes the corpus of failures anew: `python -m pytest tests/cluster/record_failures.py` (as root, three minutes). No test of `make test`.

Every failure of `failures.py` is made on the test cluster, in the SIF. What `tp job why` looks at is kept under tests/data/failures/<label>:
records and logs, the latter cut, without paths of this machine; `seen.json` has what Slurm said of the job. ONLY=label,label makes some of them.
`tests/runs/test_failures.py` judges what is kept.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from dataclasses import asdict
from pathlib import Path

import pytest
from failures import FAILURES, Failure, Maker
from lab import REPO, Lab, Person, Run
from labcluster import until

from hpc.slurm import query
from hpc.slurm.commands import Slurm

pytestmark = [pytest.mark.cluster, pytest.mark.train, pytest.mark.timeout(900)]
CORPUS = REPO / "tests" / "data" / "failures"
KEPT = re.compile(
    r"^(submissions/\d+\.json|batch/\d+\.log|attempts/\d+/(claim|(start|end|requeue)\.json|(nodes|logs)/[^/]+))$"
)
LAST_LINES = 120


def test_record(lab: Lab, alice: Person, scratch: Path) -> None:
    maker = Maker(lab, alice, scratch)
    only = set(os.environ.get("ONLY", "").split(",")) - {""}
    wanted = tuple(f for f in FAILURES if not only or f.label in only)
    maker.experiments(wanted)
    runs = {f.label: maker.submit(f) for f in wanted}
    if "preempted" in runs:
        runs["preempted"].wait_line("ready")
        maker.take_node(3)
    if "node-failure" in runs:
        runs["node-failure"].wait_line("ready")
        lab.cluster.kill_node(lab.cluster.node(4))
    for failure in wanted:
        wait(lab, runs[failure.label])
    time.sleep(3)  # accounting lags
    for failure in wanted:
        keep(lab, failure, runs[failure.label])
    lab.cluster.up()


def wait(lab: Lab, run: Run) -> None:
    """Until Slurm is through with the job."""
    over = ("COMPLETED", "FAILED", "TIMEOUT", "PREEMPTED", "NODE_FAIL", "CANCELLED", "OUT_OF_MEMORY", "")
    try:
        until(f"end of {run.id}", lambda: lab.cluster.job_state(run.job_id) in over, seconds=300)
    except AssertionError as exc:
        raise AssertionError(f"{exc}\n{run.story()}") from None


def keep(lab: Lab, failure: Failure, run: Run) -> None:
    """Copy what is looked at, cut and without this machine's paths."""
    target = CORPUS / failure.label
    shutil.rmtree(target, ignore_errors=True)
    root = run.paths.root
    for path in sorted(p for p in root.rglob("*") if p.is_file()):
        name = str(path.relative_to(root))
        if KEPT.match(name):
            place = target / "run" / name
            place.parent.mkdir(parents=True, exist_ok=True)
            lines = path.read_text("utf-8", "replace").splitlines(keepends=True)
            place.write_text(scrubbed("".join(lines[-LAST_LINES:]), lab), "utf-8")
    slurm = Slurm(bin_dir="/usr/bin", conf=lab.cluster.conf)
    rows = [row.as_json() for row in query.history(slurm, ids=[run.job_id], steps=True).rows]
    (target / "seen.json").write_text(scrubbed(json.dumps(rows, indent=1, sort_keys=True), lab) + "\n", "utf-8")
    label = {k: v for k, v in asdict(failure).items() if k in ("label", "cause", "confidence", "mend", "evidence")}
    (target / "label.json").write_text(
        json.dumps({**label, "run_id": run.id, "job_id": run.job_id}, indent=1, sort_keys=True) + "\n", "utf-8"
    )


def scrubbed(text: str, lab: Lab) -> str:
    for path, name in (
        (lab.root.path, "/storage"),
        (lab.projects, "/projects"),
        (lab.root.path.parent, "/scratch"),
        (REPO, "/checkout"),
    ):
        text = text.replace(str(path), name)
    text = re.sub(r"/var/cache/\S*?/deps-[0-9a-f]+", "/dependencies", text)
    text = re.sub(r"/var/cache/\S*?/(\S+\.sif)", r"/images/\1", text)
    return text.replace(os.uname().nodename, "login")
