"""A Slurm cluster of one test session, with its own folder, ports and node names, that ends by its own pid files."""

from __future__ import annotations

import fcntl
import os
import re
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

SCRIPT = Path(__file__).with_name("slurm-cluster")
NODES = 4
PATH = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"

# A dead node is noticed in seconds; a cancelled job has time to write its end even on a busy machine. More partitions keep the long runs away
# from everything else: `calm` never sees node 4, which dies; `doomed` and `last` do; jobs of `spot` and `harsh` can be preempted.
EXTRA = """\
SlurmdTimeout=15
KillWait=30
PartitionName=calm Nodes={n}[1-3] PriorityTier=10 DefaultTime=10 MaxTime=1:00:00 PreemptMode=OFF
PartitionName=spot Nodes={n}[1-2] PriorityTier=1 DefaultTime=10 MaxTime=1:00:00 PreemptMode=REQUEUE GraceTime=90
PartitionName=harsh Nodes={n}3 PriorityTier=1 DefaultTime=10 MaxTime=1:00:00 PreemptMode=REQUEUE GraceTime=0
PartitionName=doomed Nodes={n}[3-4] PriorityTier=30 DefaultTime=10 MaxTime=1:00:00 PreemptMode=OFF
PartitionName=last Nodes={n}4 PriorityTier=30 DefaultTime=10 MaxTime=1:00:00 PreemptMode=OFF
"""


def until(what: str, look: Callable[[], object], *, seconds: float = 120, pause: float = 0.25) -> object:
    """Wait until `look` answers with something true, and return it. The bound is for a machine that does other work, too."""
    deadline = time.monotonic() + seconds
    while True:
        if found := look():
            return found
        if time.monotonic() > deadline:
            raise AssertionError(f"gave up after {seconds:.0f} s: {what}")
        time.sleep(pause)


@contextmanager
def free_place() -> Iterator[tuple[int, str]]:
    """(first port, node name prefix) that no other cluster of this machine uses, held until the end of the block."""
    for number in range(20):
        port = 21817 + 100 * number
        with open(f"{tempfile.gettempdir()}/.tp-cluster-{port}.lock", "a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            if all(_free(p) for p in (*range(port, port + 3), *range(port + 11, port + 11 + NODES))):
                yield port, f"q{chr(ord('a') + number)}"
                return
    raise AssertionError("no free ports from 21817 on")


def _free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


@dataclass
class Cluster:
    """Started by `up`, ended by `down`; raises AssertionError with the script's own words when it does not come up."""

    base: Path
    port: int
    prefix: str
    variables: dict[str, str] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.variables = {
            "PATH": PATH, "HOME": "/root", "SLURM_CLUSTER_DIR": str(self.base), "SLURM_CLUSTER_PORT": str(self.port),
            "SLURM_CLUSTER_PREFIX": self.prefix, "SLURM_CLUSTER_NODES": str(NODES), "SLURM_CLUSTER_ACCOUNTING": "1", "SLURM_CLUSTER_USER": "",
            "SLURM_CLUSTER_EXTRA": EXTRA.format(n=self.prefix), "SLURM_CLUSTER_TIMEOUT": "120",
        }  # fmt: skip

    @property
    def conf(self) -> str:
        return str(self.base / "etc" / "slurm.conf")

    def node(self, number: int) -> str:
        """Name of node 1 … 4."""
        return f"{self.prefix}{number}"

    def _script(self, *words: str) -> None:
        done = subprocess.run(
            [str(SCRIPT), *words], env=self.variables, capture_output=True, text=True, timeout=400, check=False
        )
        if done.returncode:
            raise AssertionError(f"slurm-cluster {words[0]} ended with {done.returncode}:\n{done.stderr[-3000:]}")

    def up(self) -> None:
        """Start whatever of it does not run, and wait for all nodes."""
        self._script("up")

    def down(self) -> None:
        self._script("down", "--wipe")

    def tool(self, name: str, *args: str, check: bool = True) -> str:
        """What one of Slurm's commands prints, as root."""
        env = {"PATH": PATH, "SLURM_CONF": self.conf, "LC_ALL": "C"}
        done = subprocess.run([name, *args], env=env, capture_output=True, text=True, timeout=60, check=False, cwd="/")
        if check and done.returncode:
            raise AssertionError(f"{name} {' '.join(args)} ended with {done.returncode}: {done.stderr}")
        return done.stdout

    def add_account(self, user: str) -> None:
        self.tool("sacctmgr", "-i", "add", "user", f"name={user}", "account=lab")

    def job(self, job_id: str) -> dict[str, str]:
        """scontrol's view of a job (of its first component), or {} when Slurm has forgotten it."""
        lines = self.tool("scontrol", "-o", "show", "job", job_id, check=False).splitlines()
        return dict(re.findall(r"(\S+?)=(\S*)", lines[0])) if lines else {}

    def job_state(self, job_id: str) -> str:
        return self.job(job_id).get("JobState", "")

    def wait_state(self, job_id: str, *states: str, seconds: float = 120) -> str:
        """Wait until the job is in one of `states`; which one."""
        return str(
            until(
                f"job {job_id} in {' or '.join(states)}; it is {self.job_state(job_id)}",
                lambda: (state := self.job_state(job_id)) in states and state,
                seconds=seconds,
            )
        )

    def jobs_named(self, part: str) -> list[str]:
        """Ids of all jobs that Slurm has, ended ones too, whose name contains `part`."""
        rows = (line.split("|") for line in self.tool("squeue", "-h", "--states=all", "-o", "%A|%j").splitlines())
        return sorted({row[0] for row in rows if part in row[1]})

    def kill_node(self, name: str) -> int:
        """SIGKILL everything of one node, as if its power failed: all processes of its UTS namespace. How many there were."""
        pid = int((self.base / "run" / f"slurmd.{name}.own.pid").read_text().split()[0])
        node, mine = os.readlink(f"/proc/{pid}/ns/uts"), os.readlink("/proc/self/ns/uts")
        assert node != mine, "the node shares this machine's UTS namespace: its processes cannot be told from others"
        killed = 0
        for entry in os.listdir("/proc"):
            try:
                if entry.isdigit() and os.readlink(f"/proc/{entry}/ns/uts") == node:
                    os.kill(int(entry), 9)
                    killed += 1
            except OSError:
                continue  # gone, or a kernel thread
        return killed
