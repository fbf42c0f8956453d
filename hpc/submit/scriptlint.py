"""Lint of a rendered batch script: what sbatch would silently ignore or read otherwise than the admin meant.

* a directive below the first command (sbatch stops reading there), a directive twice in one component, an option sbatch does not know,
  a line over 1,000 characters, a value with quotes or blanks;
* `$SLURM_NODEID`, `$SLURM_PROCID`, `$SLURM_LOCALID` outside single quotes: the batch host would expand them once for all tasks;
* a missing piece of the flow (the claim, the check, the end), without which a job would run twice or leave no record.
"""

from __future__ import annotations

import re
from pathlib import Path

from hpc.errors import Refusal

# sbatch's long options from 22.05 to 26.05.
KNOWN = frozenset(
    [
        "account",
        "acctg-freq",
        "array",
        "batch",
        "bb",
        "bbf",
        "begin",
        "chdir",
        "cluster-constraint",
        "clusters",
        "comment",
        "constraint",
        "container",
        "contiguous",
        "core-spec",
        "cores-per-socket",
        "cpu-freq",
        "cpus-per-gpu",
        "cpus-per-task",
        "deadline",
        "delay-boot",
        "dependency",
        "distribution",
        "error",
        "exclude",
        "exclusive",
        "export",
        "export-file",
        "extra-node-info",
        "get-user-env",
        "gid",
        "gpu-bind",
        "gpu-freq",
        "gpus",
        "gpus-per-node",
        "gpus-per-socket",
        "gpus-per-task",
        "gres",
        "gres-flags",
        "hold",
        "hint",
        "ignore-pbs",
        "input",
        "job-name",
        "kill-on-invalid-dep",
        "licenses",
        "mail-type",
        "mail-user",
        "mcs-label",
        "mem",
        "mem-bind",
        "mem-per-cpu",
        "mem-per-gpu",
        "mincpus",
        "network",
        "nice",
        "no-kill",
        "no-requeue",
        "nodefile",
        "nodelist",
        "nodes",
        "ntasks",
        "ntasks-per-core",
        "ntasks-per-gpu",
        "ntasks-per-node",
        "ntasks-per-socket",
        "open-mode",
        "output",
        "overcommit",
        "oversubscribe",
        "parsable",
        "partition",
        "power",
        "prefer",
        "priority",
        "profile",
        "propagate",
        "qos",
        "quiet",
        "reboot",
        "requeue",
        "reservation",
        "segment",
        "signal",
        "sockets-per-node",
        "spread-job",
        "stepmgr",
        "switches",
        "test-only",
        "thread-spec",
        "threads-per-core",
        "time",
        "time-min",
        "tmp",
        "tres-bind",
        "tres-per-task",
        "uid",
        "use-min-nodes",
        "verbose",
        "wait",
        "wait-all-nodes",
        "wckey",
        "wrap",
        "container-id",
        "consolidate-segments",
        "oom-kill-step",
        "resv-ports",
        "external-launcher",
        "resume-allowed",
    ]
)
# Options that may not stand in a template: they would break exactly-once submission, the record or the environment.
RESERVED = frozenset({"parsable", "wrap", "test-only", "wait", "uid", "gid", "get-user-env", "export-file", "array"})
MAX_LINE = 1000
FLOW = ("tp_begin", "tp_check", "tp_wait", "tp_decide")
_PER_TASK = re.compile(r"\$\{?(SLURM_NODEID|SLURM_PROCID|SLURM_LOCALID)\b")
_DIRECTIVE = re.compile(r"^#SBATCH\s+(.*?)\s*$")


def _fault(path: Path, number: int, message: str, found: str, allowed: str = "") -> Refusal:
    return Refusal("E-SUBMIT-024", message, field=f"{path}:{number}", found=found[:200], allowed=allowed)


def _option(words: str) -> tuple[str, str | None]:
    name, _, value = words.removeprefix("--").partition("=")
    return name, (value if "=" in words else None)


def _directive_faults(path: Path, number: int, body: str, seen: set[str], *, array_ok: bool) -> list[Refusal]:
    if not body.startswith("--"):
        return [_fault(path, number, "write the long form of the option", body, "#SBATCH --name=value")]
    name, value = _option(body)
    faults = []
    if re.search(r"\s#|\s", body):
        faults.append(
            _fault(path, number, "a blank in a directive: sbatch and bash read it differently", body, "--name=value")
        )
    elif name not in KNOWN:
        faults.append(_fault(path, number, f"sbatch does not know --{name}", body))
    elif name in RESERVED and not (name == "array" and array_ok):
        faults.append(_fault(path, number, f"--{name} is tp's own business", body))
    if value is not None and re.search(r"[\"'\\$`]", value):
        faults.append(_fault(path, number, "a quote, backslash or dollar in a directive value", body))
    if name in seen:
        faults.append(_fault(path, number, f"--{name} stands twice", body, "one line an option"))
    seen.add(name)
    return faults


def _outside_single_quotes(line: str) -> str:
    return re.sub(r"'[^']*'", "''", line)


def lint_script(text: str, path: Path, *, array_ok: bool = True) -> list[Refusal]:
    """Every fault of a rendered sbatch script, with its line. Pure."""
    faults: list[Refusal] = []
    seen: set[str] = set()
    command = 0
    for number, line in enumerate(text.split("\n"), 1):
        if number == 1 and not line.startswith("#!/bin/bash"):
            faults.append(_fault(path, 1, "the first line names no bash", line, "#!/bin/bash"))
        if len(line) > MAX_LINE and line.startswith("#SBATCH"):
            faults.append(_fault(path, number, f"a directive of {len(line)} characters", line, f"at most {MAX_LINE}"))
        match = _DIRECTIVE.match(line)
        if match and match.group(1) == "hetjob":
            seen = set()
        elif match and command:
            faults.append(
                _fault(
                    path,
                    number,
                    f"below the first command (line {command}); sbatch ignores it",
                    line,
                    "above every command",
                )
            )
        elif match:
            faults += _directive_faults(path, number, match.group(1), seen, array_ok=array_ok)
        elif line.strip() and not line.startswith("#"):
            command = command or number
        if not line.lstrip().startswith("#") and (per_task := _PER_TASK.search(_outside_single_quotes(line))):
            faults.append(
                _fault(
                    path,
                    number,
                    f"${per_task.group(1)} is expanded once on the batch host",
                    line.strip(),
                    "inside single quotes",
                )
            )
    lines = text.split("\n")
    for word in FLOW:
        if not any(re.match(rf"\s*{word}\b(?!\(\))", line) for line in lines):
            faults.append(
                _fault(
                    path,
                    len(lines),
                    f"the script never calls {word}",
                    "",
                    f"a line `{word}` as in the shipped template",
                )
            )
    return faults
