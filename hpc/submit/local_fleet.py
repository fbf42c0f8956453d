"""The embedded local fleet: submitit's local controller runs the frozen script in a session of its own.

The controller keeps the time limit and sends the warning before it. A local job is known by pid and start time, so that a pid which came back is
never taken for it; its state comes from the run's own records.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from submitit.core.utils import DelayedSubmission
from submitit.local.local import LocalExecutor, LocalJob

from hpc.submit import local_wait

KEPT = ("HOME", "USER", "LOGNAME", "LANG", "TZ", "OPENBLAS_CORETYPE", "OMP_NUM_THREADS")


class TpLocalExecutor(LocalExecutor):  # type: ignore[misc]
    """Runs one frozen script on this machine."""

    def __init__(
        self, folder: Path, *, script: Path, log: Path, timeout_s: int | None, lead_s: int, after: Mapping[str, Any]
    ) -> None:
        super().__init__(folder=folder)
        self._script_path, self._log, self._after, self.started = script, log, after, False
        self.parameters.update(timeout_s=timeout_s or 10 * 365 * 86400, signal_delay_s=lead_s)

    def _internal_process_submissions(self, delayed_submissions: list[DelayedSubmission]) -> list[LocalJob[Any]]:
        (_,) = delayed_submissions
        return [self._submit_command(shlex.join(["/bin/bash", str(self._script_path)]))]

    def _environment(self, command: str) -> dict[str, str]:
        env = {name: os.environ[name] for name in KEPT if name in os.environ}
        return env | {
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "SUBMITIT_EXECUTOR": "local",
            "SUBMITIT_LOCAL_NTASKS": "1",
            "SUBMITIT_LOCAL_COMMAND": command,
            "SUBMITIT_LOCAL_TIMEOUT_S": str(self.parameters["timeout_s"]),
            "SUBMITIT_LOCAL_SIGNAL_DELAY_S": str(self.parameters["signal_delay_s"]),
            "SUBMITIT_LOCAL_NODEID": "0",
            "SUBMITIT_LOCAL_JOB_NUM_NODES": "1",
            "SUBMITIT_STDERR_TO_STDOUT": "1",
            "SUBMITIT_LOCAL_WITH_SHELL": "",
        }

    def _argv(self) -> list[str]:
        controller = [sys.executable, "-m", "submitit.local._local", str(self.folder)]
        if not self._after.get("pid"):
            return controller
        wait = [sys.executable, local_wait.__file__, str(self._after["pid"]), str(self._after["pid_start"])]
        return [*wait, *controller]

    def _submit_command(self, command: str) -> LocalJob[Any]:
        # The mode is ours, whatever the caller's umask.
        with os.fdopen(os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o644), "ab") as log:
            os.fchmod(log.fileno(), 0o644)
            process = subprocess.Popen(
                self._argv(), env=self._environment(command), cwd=self.folder,
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        self.started = True
        return LocalJob(folder=self.folder, job_id=str(process.pid), process=process, tasks=[0])


def start_local(
    folder: Path, *, script: Path, log: Path, timeout_s: int | None, lead_s: int, after: Mapping[str, Any]
) -> tuple[int, int]:
    """(pid, start time in clock ticks) of the controller that now runs the script, or will once the process that `after` names is gone.

    Raises Refusal E-STORE-02x where it certainly was not started, OSError where nobody can tell.
    """
    from hpc.store.faults import refusal
    from hpc.store.owners import start_ticks

    executor: TpLocalExecutor | None = None
    try:
        executor = TpLocalExecutor(folder, script=script, log=log, timeout_s=timeout_s, lead_s=lead_s, after=after)
        job = executor.submit(print)
    except OSError as exc:
        if executor is not None and executor.started:
            raise
        raise refusal(exc, exc.filename or folder, "start the job") from exc
    pid = int(job.job_id)
    return pid, start_ticks(pid) or 0
