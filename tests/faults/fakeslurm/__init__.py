"""A Slurm of files, for tests: real executables with Slurm's names that share one folder and inject faults by script.

    fake = FakeSlurm(tmp_path / "slurm")             # lays out <folder>/bin/{sbatch,squeue,sacct,scancel,scontrol,srun,sinfo}
    slurm = Slurm(bin_dir=str(fake.bin), conf=fake.conf)
    fake.faults("sbatch#1 accept-then timeout")      # the first sbatch is accepted and then says it timed out
    ...
    assert len(fake.calls("sbatch")) == 1

The state lies in <folder>/state.json, every call is a line of <folder>/calls.jsonl (tool, args, cwd, environment names, time, effect). The commands
find their folder by their own path, so that a scrubbed environment changes nothing. Jobs do not run by themselves: a test moves them
(`start`, `finish`, `node_fail`, `requeue`, `preempt`, `purge`, …) or runs a job's script for real with `execute`.

Fault script: one rule a line, first rule that applies wins; `#` at the start of a line is a comment.

    RULE     = TOOL [COUNT] ACTION [ARGUMENT]
    TOOL     = sbatch | squeue | sacct | scancel | scontrol | srun | sinfo | *
    COUNT    = #3 (the third call of that tool) | #2-4 | #2+ (from the second on); without: every call.
               Calls are counted from the moment that `faults()` set the script.
    ACTION
      accept-then ERROR       do the work, print no id, then fail with ERROR
      accept-then-hang S      do the work, print nothing, then hang S seconds (killed by the caller's deadline)
      accept-then-crash       do the work, print nothing, kill the calling process (the parent) with SIGKILL
      crash                   do nothing, kill the calling process with SIGKILL
      fail ERROR              do nothing, fail with ERROR
      hang S                  do nothing, hang S seconds
      banner TEXT             print TEXT on stdout and on stderr, then work as usual
      warn TEXT               print `TOOL: warning: TEXT` on stderr, then work as usual
      garbage TEXT            do nothing, print TEXT on stdout, exit 0
      empty                   print nothing, exit 0, do nothing
      lag N                   (sbatch) work, but the new job stays out of the next N squeue and sacct calls
      stall                   (squeue, sacct) print no rows, exit 0: the query lags behind
      id ID                   (sbatch) work, and give the new job this id
      slow S                  work, but take S seconds more
    ERROR    = a key of `texts.ERRORS` (timeout, refused, busy, rate, standby, database, partition, account, qos, limits, time, nodes,
               feature, dependency, array, reservation, jobid, denied, internal, gibberish, no-accounting) or the text itself

What it does not do: schedule, enforce limits, tell one node from another.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from fakeslurm import world
from fakeslurm.texts import ERRORS

TOOLS = ("sbatch", "squeue", "sacct", "scancel", "scontrol", "srun", "sinfo")
__all__ = ["ERRORS", "TOOLS", "FakeSlurm"]

_LAUNCHER = """#!{python} -IS
import sys
sys.path.insert(0, {source!r})
from fakeslurm.tools import main
sys.exit(main({tool!r}, {folder!r}, sys.argv[1:]))
"""


class FakeSlurm:
    """The test's side: lay out the folder, script faults, move jobs, read the call log."""

    def __init__(self, folder: Path, *, version: str = "24.05.4", accounting: bool = True, **config: str) -> None:
        self.folder = Path(folder)
        self.bin = self.folder / "bin"
        self.bin.mkdir(parents=True)
        self.conf = str(self.folder / "slurm.conf")
        Path(self.conf).write_text("ClusterName=fake\n")
        source = str(Path(__file__).parent.parent)
        for tool in TOOLS:
            path = self.bin / tool
            path.write_text(_LAUNCHER.format(python=sys.executable, source=source, tool=tool, folder=str(self.folder)))
            path.chmod(0o755)
        with world.opened(self.folder) as state:
            state["version"] = version
            state["accounting"] = accounting
            state["config"] |= config

    # Faults and calls

    def faults(self, script: str) -> None:
        """Set the fault script (see the module) and count calls from here. An unknown rule is an error now, not in the job."""
        rules = world.parse_faults(script)
        with world.opened(self.folder) as state:
            state["faults"], state["counts"] = rules, {}

    def calls(self, tool: str = "") -> list[dict[str, Any]]:
        """The call log, one entry a call, oldest first."""
        try:
            lines = (self.folder / "calls.jsonl").read_text().splitlines()
        except FileNotFoundError:
            return []
        entries = [json.loads(line) for line in lines]
        return [e for e in entries if not tool or e["tool"] == tool]

    # Jobs

    def jobs(self) -> list[dict[str, Any]]:
        with world.opened(self.folder) as state:
            return [dict(job) for job in state["jobs"]]

    def job(self, job_id: int | str) -> dict[str, Any]:
        """The newest job with this id. KeyError if there is none."""
        with world.opened(self.folder) as state:
            return dict(world.newest(state, int(job_id)))

    def add(self, **fields: Any) -> int:
        """Put a job there that this test did not submit (another user's, one with a reused id). Its id."""
        with world.opened(self.folder) as state:
            return int(world.new_job(state, **fields)["id"])

    def change(self, job_id: int | str, **fields: Any) -> None:
        with world.opened(self.folder) as state:
            world.newest(state, int(job_id)).update(fields)

    def start(self, job_id: int | str, nodes: str = "f1") -> None:
        with world.opened(self.folder) as state:
            world.start(state, int(job_id), nodes)

    def finish(self, job_id: int | str, state: str = "COMPLETED", code: int = 0, number: int = 0) -> None:
        """End a job: COMPLETED, FAILED, TIMEOUT, OUT_OF_MEMORY, CANCELLED, NODE_FAIL, PREEMPTED, …; exit code and signal."""
        with world.opened(self.folder) as content:
            world.finish(content, int(job_id), state, code, number)

    def requeue(self, job_id: int | str, ended: str = "PREEMPTED") -> None:
        """Slurm takes the job back into the queue: this incarnation ended as `ended`, the same id is PENDING again."""
        with world.opened(self.folder) as state:
            world.requeue(state, int(job_id), ended)

    def node_fail(self, job_id: int | str, *, requeued: bool = True) -> None:
        """A node of the job dies; the job is requeued or ends as NODE_FAIL."""
        if requeued:
            self.requeue(job_id, "NODE_FAIL")
        else:
            self.finish(job_id, "NODE_FAIL", 0, 0)

    def purge(self, job_id: int | str, *, history: bool = False) -> None:
        """Past MinJobAge: squeue forgets the job. With `history` sacct forgets it as well."""
        with world.opened(self.folder) as state:
            for job in state["jobs"]:
                if job["id"] == int(job_id):
                    job["purged"] = True
                    job["archived"] = job["archived"] and not history

    def reset_ids(self, first: int) -> None:
        """The next job gets this id, as after a database reset."""
        with world.opened(self.folder) as state:
            state["next_id"] = first

    def execute(self, job_id: int | str, **kwargs: Any) -> subprocess.Popen[bytes]:
        """Run the job's script for real, as Slurm's batch step would: its directory, SLURM_* of the job, our srun on PATH."""
        with world.opened(self.folder) as state:
            job = dict(world.newest(state, int(job_id)))
            world.start(state, int(job_id), job["nodes"] or "f1")
        script = self.folder / f"script-{job['id']}.sh"
        script.write_text(job["script"])
        script.chmod(0o755)
        env = {
            "PATH": f"{self.bin}:/usr/local/bin:/usr/bin:/bin",
            "HOME": os.environ.get("HOME", "/"),
            "USER": job["user"],
            "SLURM_CONF": self.conf,
            "SLURM_JOB_ID": str(job["id"]),
            "SLURM_JOB_NAME": job["name"],
            "SLURM_JOB_NUM_NODES": str(job["num_nodes"]),
            "SLURM_NNODES": str(job["num_nodes"]),
            "SLURM_JOB_NODELIST": job["nodes"] or "f1",
            "SLURM_CLUSTER_NAME": "fake",
            "SLURM_NODEID": "0",
            "SLURM_SUBMIT_DIR": job["workdir"],
        }
        if job["restarts"]:
            env["SLURM_RESTART_COUNT"] = str(job["restarts"])
        return subprocess.Popen([str(script)], env=env, cwd=job["workdir"], start_new_session=True, **kwargs)
