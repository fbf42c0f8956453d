"""One element of a sweep in the job: its variant, its end at a rung, and what its report says of where it came from."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tuneplane.contract.sweeps import Stopping, Sweep
from tuneplane.launch.finish import finish
from tuneplane.launch.node import variant_variables
from tuneplane.launch.place import read_place
from tuneplane.launch.verify import LaunchRefused
from tuneplane.record.files import read_json, write_json_new

from hpc.submit.kernelzip import archive

SCRIPT = """\
echo "lr $TUNEPLANE_VARIANT_LR of $TUNEPLANE_VARIANT"
mkdir -p "$TUNEPLANE_RUN_DIR/rungs"
printf '{"step": 5, "value": 2.0, "decision": "%s"}' "$SITE_WORD" > "$TUNEPLANE_RUN_DIR/rungs/5.json"
echo '{"deepspeed_config_sha256": "sha256:d5"}' > "$TUNEPLANE_OUT_DIR/result.json"
"""
SWEEP = Sweep(({"lr": 1}, {"lr": 2}, {"lr": 3}), Stopping("loss", "min", (5,), 2))


@pytest.fixture
def kernel(tmp_path: Path) -> Path:
    path = tmp_path / "verifier.zip"
    path.write_bytes(archive("verifier"))
    return path


class Element:
    """`array/2/` of a run, as the batch script lays it out."""

    def __init__(self, make_run: Callable[..., Any], decision: str = "go on") -> None:
        launch = {"hyperparams": {"lr": 0, "depth": 4}, "env": {"SITE_WORD": decision}, "git_diff_sha256": "sha256:d1"}
        self.made = make_run(SCRIPT, launch_data=launch, records={"variants.json": SWEEP.as_json()})
        self.work, self.run = self.made.run.work, self.made.run.element(2)
        for folder in (self.run.attempts, self.run.checkpoints, self.run.events):
            folder.mkdir(parents=True)
        record = {
            "first_attempt": 0,
            "template": "/t/custom.sbatch.j2",
            "template_parts": {"custom.sbatch.j2": "sha256:t"},
        }
        write_json_new(self.made.run.submissions / "0.json", record)

    def env(self, attempt: int = 0, **more: str) -> dict[str, str]:
        folder = self.run.attempt(attempt)
        for path in (folder.out, folder.logs, folder.nodes):
            path.mkdir(parents=True, exist_ok=True)
        (folder.root / "env-batch.sha256").write_text("e0" * 32 + "\n")
        own = {
            "TP_RUN_DIR": str(self.run.root), "TP_WORK": str(self.work), "TP_ADMISSION": str(self.made.run.admission),
            "TUNEPLANE_ARRAY_INDEX": "2", "TP_JOB_ID": "41_2", "SLURM_CPUS_PER_TASK": "4", "SLURM_MEM_PER_NODE": "2048", "TP_TIME_S": "600",
        }  # fmt: skip
        return self.made.env(attempt) | own | more

    def ended(self, kernel: Path) -> dict[str, Any]:
        command = [sys.executable, "-I", str(kernel), "node"]
        done = subprocess.run(command, env=self.env(), capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        assert finish(read_place(self.env()), self.env()) == "done"
        report: dict[str, Any] = read_json(self.run.report)
        return report


def test_p14_an_element_trains_with_its_own_variant_and_its_report_says_so(
    make_run: Callable[..., Any], kernel: Path
) -> None:
    element = Element(make_run)
    report = element.ended(kernel)
    log = element.run.attempt(0).rank_log(0).read_text()
    assert 'lr 3 of {"lr":3}' in log
    training = report["origin"]["training"]
    assert (training["hyperparams"], training["variant"]) == ({"lr": 3, "depth": 4}, {"lr": 3})
    end = read_json(element.run.attempt(0).end)
    assert (end["class"], end["job_id"], "stopped_at_rung" in end) == ("done", "41_2", False)


def test_an_element_that_a_rung_ended_is_done_and_says_at_which(make_run: Callable[..., Any], kernel: Path) -> None:
    element = Element(make_run, "stop")
    report = element.ended(kernel)
    end = read_json(element.run.attempt(0).end)
    assert (end["class"], end["message"], end["stopped_at_rung"]) == ("done", "stopped at rung 5", 5)
    assert report["attempts"][-1] == end


def test_the_report_says_where_the_run_came_from_and_what_is_not_known(
    make_run: Callable[..., Any], kernel: Path
) -> None:
    origin = Element(make_run).ended(kernel)["origin"]
    assert origin["schema"] == "tuneplane-hpc/provenance/v1"
    slurm = origin["slurm"]
    assert (slurm["job_id"], slurm["restart_count"], slurm["cpus_per_node"], slurm["memory_mb_per_node"]) == (
        "41_2",
        0,
        4,
        2048,
    )
    assert (slurm["partition"], slurm["gpus"], slurm["time_limit_s"]) == (None, 0, 600)
    assert origin["execution"]["template_parts"] == {"custom.sbatch.j2": "sha256:t"}
    assert origin["execution"]["environment"]["batch"] == "sha256:" + "e0" * 32
    assert set(origin["execution"]["environment"]) == {"batch", "rank-0"}
    assert origin["training"]["deepspeed_config_sha256"] == "sha256:d5"
    assert origin["git"] == {"commit": None, "dirty": False, "diff_sha256": "sha256:d1"}
    assert (origin["model"], origin["data"]) == (None, {})
    assert origin["used"]["cpu_s"] >= 0
    assert origin["used"]["largest_process_bytes"] > 1 << 20


def test_an_index_outside_of_the_table_is_refused(make_run: Callable[..., Any]) -> None:
    work = Element(make_run).work
    assert variant_variables(work, {"TUNEPLANE_ARRAY_INDEX": "1"}) == {
        "TUNEPLANE_VARIANT": '{"lr":2}', "TUNEPLANE_VARIANT_LR": "2",
    }  # fmt: skip
    with pytest.raises(LaunchRefused) as caught:
        variant_variables(work, {"TUNEPLANE_ARRAY_INDEX": "3"})
    assert (caught.value.code, caught.value.message) == ("E-JOB-017", "element 3 of a sweep of 3 variants")


def test_outside_of_a_sweep_an_index_is_no_variant(make_run: Callable[..., Any]) -> None:
    assert variant_variables(make_run().run.work, {"TUNEPLANE_ARRAY_INDEX": "7"}) == {}
