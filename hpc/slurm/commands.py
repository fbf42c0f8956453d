"""Starts Slurm's commands, and nothing else does.

Every command has an absolute path, a scrubbed environment, no terminal, a session of its own and a deadline after
which its whole process group is ended. What a failed command's words mean is decided in `hpc.slurm.verdicts`.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from hpc.errors import Refusal

READERS: Final = frozenset({"squeue", "sacct", "sinfo", "sprio", "sshare"})
"""Commands that only print; their clock is UTC, so that times need no guess. sbatch keeps the user's zone."""
TOOLS: Final = READERS | {"sbatch", "scancel", "scontrol", "srun", "sacctmgr"}

KEPT: Final = frozenset({"HOME", "USER", "LOGNAME", "SHELL", "LANG", "TZ", "KRB5CCNAME"})
"""All that a Slurm command may inherit. Whatever else it needs is set here."""
SLURMS_OWN: Final = (
    *("SLURM_", "SLURMD_", "SBATCH_", "SRUN_", "SALLOC_", "SQUEUE_", "SACCT_", "SCANCEL_", "SCONTROL_", "SINFO_"),
    *("SPANK_", "PMI", "OMPI_"),
)
_TERM_WAIT_S: Final = 1.0


@dataclass(frozen=True)
class Completed:
    """How a command ended: exit code (negative: signal), decoded output, and whether it was ended by its deadline."""

    rc: int
    out: str
    err: str
    timed_out: bool
    tool: str = ""


@dataclass(frozen=True)
class Scrubbed:
    """The environment of a Slurm command, and the names of what was inherited, steers Slurm, and was left out.

    Names only: a value may be a secret.
    """

    env: dict[str, str]
    removed: tuple[str, ...] = ()


def scrub(inherited: Mapping[str, str], *, conf: str = "", reader: bool = False) -> Scrubbed:
    """Keep the allow-list of `inherited`, set the rest. Pure."""
    env = {k: v for k, v in inherited.items() if k in KEPT}
    env |= {"PATH": "/usr/bin:/bin", "LC_ALL": "C"}
    if reader:
        env |= {"TZ": "UTC", "SLURM_TIME_FORMAT": "standard"}
    if conf:
        env["SLURM_CONF"] = conf
    removed = sorted(k for k in inherited if k.startswith(SLURMS_OWN) and env.get(k) != inherited[k])
    return Scrubbed(env, tuple(removed))


@dataclass(frozen=True)
class Slurm:
    """One fleet's Slurm: where its commands lie, its configuration ("" = Slurm's default), seconds a command may take.

    `cluster` is the name for `-M` on sites with several; "" asks the default one. `environ` is what commands would
    inherit if nothing were scrubbed.
    """

    bin_dir: str = "/usr/bin"
    conf: str = ""
    deadline_s: float = 30.0
    cluster: str = ""
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ), compare=False, repr=False)

    def scrubbed(self, tool: str = "sbatch") -> Scrubbed:
        """The environment that `run` gives to `tool`, with the record of what was removed."""
        return scrub(self.environ, conf=self.conf, reader=tool in READERS)

    def path(self, tool: str) -> str:
        """Absolute path of a command. Raises Refusal E-SLURM-001 when it is not an executable file."""
        if tool not in TOOLS:
            raise ValueError(f"{tool} is not a Slurm command")
        path = os.path.join(self.bin_dir, tool)
        if not os.path.isabs(path) or not (os.path.isfile(path) and os.access(path, os.X_OK)):
            raise Refusal(
                "E-SLURM-001",
                f"{path} is not an executable file",
                field="site.yaml: fleets.<name>.bin_dir",
                found=self.bin_dir,
            )
        return path

    def run(
        self,
        tool: str,
        args: Sequence[str],
        *,
        stdin: str | bytes | None = None,
        deadline_s: float | None = None,
        cwd: str | os.PathLike[str] = "/",
    ) -> Completed:
        """Run `tool` to its end or its deadline; never prompts. Does not judge the result.

        A command that was ended by the deadline may have done its work: the caller looks before it repeats anything.
        Raises Refusal E-SLURM-001 when the command is not there.
        """
        path = self.path(tool)
        data = stdin.encode() if isinstance(stdin, str) else stdin
        child = subprocess.Popen(
            [path, *args],
            stdin=subprocess.PIPE if data is not None else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self.scrubbed(tool).env,
            cwd=cwd,
            start_new_session=True,
        )
        timed_out = False
        try:
            out, err = child.communicate(data, timeout=self.deadline_s if deadline_s is None else deadline_s)
        except subprocess.TimeoutExpired:
            timed_out = True
            out, err = _end(child)
        except BaseException:
            _end(child)
            raise
        return Completed(child.returncode, _text(out), _text(err), timed_out, tool)


def _end(child: subprocess.Popen[bytes]) -> tuple[bytes, bytes]:
    """TERM, then KILL, to the whole session; what was printed until then. A pipe that is held on is left."""
    out = err = b""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(child.pid, number)
        except ProcessLookupError:
            pass
        try:
            return child.communicate(timeout=_TERM_WAIT_S)
        except subprocess.TimeoutExpired as exc:
            out, err = exc.output or b"", exc.stderr or b""
    child.wait()
    for pipe in (child.stdout, child.stderr, child.stdin):
        if pipe is not None:
            pipe.close()
    return out, err


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")
