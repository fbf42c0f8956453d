"""What can happen to a training job, made for real on the cluster. Each act strikes a run that trains now and returns what it hit."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

from lab import Lab, Person, Run


def processes(**variables: str) -> Iterator[tuple[int, str]]:
    """(pid, command line) of every process whose environment has these values."""
    wanted = {f"{name}={value}".encode() for name, value in variables.items()}
    for entry in os.listdir("/proc"):
        try:
            if entry.isdigit() and wanted <= set(Path(f"/proc/{entry}/environ").read_bytes().split(b"\0")):
                yield (
                    int(entry),
                    Path(f"/proc/{entry}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"),
                )
        except OSError:
            continue  # gone, or a kernel thread


def kill_rank(lab: Lab, who: Person, run: Run) -> str:
    """SIGKILL to one rank in mid-step."""
    hit = [pid for pid, command in processes(TUNEPLANE_RUN_ID=run.id, RANK="1") if "train.py" in command]
    for pid in hit:
        os.kill(pid, signal.SIGKILL)
    assert hit, f"rank 1 of {run.id} is not there"
    return "rank 1"


def kill_batch(lab: Lab, who: Person, run: Run) -> str:
    """SIGKILL to the batch script's shell: nobody is left who could write the end of the attempt or ask for a requeue."""
    hit = [
        pid for pid, command in processes(SLURM_JOB_ID=run.job_id) if "slurm_script" in command and "bash" in command
    ]
    for pid in hit:
        os.kill(pid, signal.SIGKILL)
    assert hit, f"the batch script of job {run.job_id} is not there"
    return f"{len(hit)} shells"


def kill_slurmd(lab: Lab, who: Person, run: Run) -> str:
    """SIGKILL to the slurmd of the job's last node alone: its ranks live on, and Slurm takes the node for dead."""
    hosts = run.read("attempts", str(run.attempts()[-1]), "start.json")["hosts"]
    pid = int((lab.cluster.base / "run" / f"slurmd.{hosts[-1]}.own.pid").read_text().split()[0])
    os.kill(pid, signal.SIGKILL)
    return str(hosts[-1])


def cancel(lab: Lab, who: Person, run: Run) -> str:
    lab.slurm(who, "scancel", run.job_id)
    return f"job {run.job_id}"


def preempt(lab: Lab, who: Person, run: Run) -> str:
    """A job of a higher partition takes the memory of the run's nodes for a moment."""
    nodes = ",".join(map(lab.cluster.node, (1, 2)))
    lab.slurm(
        who,
        "sbatch",
        "--partition=short",
        "--nodes=2",
        f"--nodelist={nodes}",
        "--mem=8G",
        "--output=/dev/null",
        "--wrap=sleep 1",
    )
    return nodes


def wait_for_the_limit(lab: Lab, who: Person, run: Run) -> str:
    """Nothing: the run was submitted with a limit that it comes to."""
    return "its limit"


class SmallDisk:
    """A file system of its own for a run's checkpoints, too small for all that it keeps; `grow` gives it room."""

    def __init__(self, who: Person, run: Run, kib: int) -> None:
        self.path = run.paths.checkpoints
        self.path.mkdir(exist_ok=True)
        self._mount("-t", "tmpfs", "-o", f"size={kib}k,mode=0755,uid={who.uid},gid={who.gid}", "tmpfs")

    def _mount(self, *words: str) -> None:
        subprocess.run(["mount", *words, str(self.path)], check=True, capture_output=True)

    def grow(self) -> None:
        self._mount("-o", "remount,size=64m")


def unmount(path: Path) -> None:
    """Take a file system away again; nothing where none is."""
    if os.path.ismount(path):
        subprocess.run(["umount", "-l", str(path)], check=True, capture_output=True)
