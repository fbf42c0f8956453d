"""What each fake command does. Started by the generated executables, with `-IS`: standard library only."""

from __future__ import annotations

import os
import pwd
import re
import signal
import subprocess
import sys
import time
from typing import Any

from fakeslurm import render, world
from fakeslurm.options import parse_options, split_script
from fakeslurm.texts import words


def main(tool: str, folder: str, argv: list[str]) -> int:
    with world.opened(folder) as state:
        fault = world.next_fault(state, tool)
    entry = {"tool": tool, "args": argv, "cwd": os.getcwd(), "env": sorted(os.environ), "time": time.time()}
    world.log_call(folder, entry | {"fault": fault["action"] if fault else ""})
    action, argument = (fault["action"], fault["argument"]) if fault else ("", "")
    if action == "fail":
        return _say_error(argument, tool)
    if action == "hang":
        time.sleep(float(argument))
        return 1
    if action == "crash":
        os.kill(os.getppid(), signal.SIGKILL)
        return 1
    if action in ("garbage", "empty"):
        print(argument, end="\n" if argument else "")
        return 0
    if action == "slow":
        time.sleep(float(argument))
    if action == "banner":
        print(argument)
        print(argument, file=sys.stderr)
    if action == "warn":
        print(f"{tool}: warning: {argument}", file=sys.stderr)
    if action.startswith("accept-then"):
        return _accept_then(action, argument, tool, folder, argv)
    return COMMANDS[tool](folder, argv, fault)


def _say_error(name: str, tool: str) -> int:
    text, code = words(name, tool)
    print(text, file=sys.stderr)
    return code


def _accept_then(action: str, argument: str, tool: str, folder: str, argv: list[str]) -> int:
    visible = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    code = COMMANDS[tool](folder, argv, None)
    sys.stdout.flush()
    os.dup2(visible, 1)
    if code:
        return code
    if action == "accept-then-hang":
        time.sleep(float(argument))
    if action == "accept-then-crash":
        os.kill(os.getppid(), signal.SIGKILL)
    return _say_error(argument, tool) if action == "accept-then" else 1


def me() -> str:
    return pwd.getpwuid(os.getuid()).pw_name


def sbatch(folder: str, argv: list[str], fault: dict[str, Any] | None) -> int:
    options, rest, bad = parse_options("sbatch", argv)
    if bad:
        print(f'sbatch: {bad}\nTry "sbatch --help" for more information', file=sys.stderr)
        return 255
    if "version" in options:
        return _version(folder)
    if "wrap" in options:
        script = "#!/bin/sh\n" + options["wrap"] + "\n"
    elif rest:
        try:
            with open(rest[0], encoding="utf-8", errors="surrogateescape") as stream:
                script = stream.read()
        except OSError:
            print(f"sbatch: error: Unable to open file {rest[0]}", file=sys.stderr)
            return 1
    else:
        script = sys.stdin.read()
    if not script.startswith("#!"):
        print("sbatch: error: This does not look like a batch script.  The first", file=sys.stderr)
        return 1
    components, bad = split_script(script)
    if bad:
        print(f"sbatch: {bad}", file=sys.stderr)
        return 255
    components[0] |= options
    if "test-only" in options:
        print(
            "sbatch: Job 1 to start at 2030-01-01T00:00:00 using 1 processors on nodes f1 in partition batch",
            file=sys.stderr,
        )
        return 0
    job_id = _submit(folder, components, script, fault)
    print(job_id if "parsable" in components[0] else f"Submitted batch job {job_id}")
    return 0


def _submit(folder: str, components: list[dict[str, str]], script: str, fault: dict[str, Any] | None) -> int:
    lag = int(fault["argument"]) if fault and fault["action"] == "lag" else 0
    wanted = int(fault["argument"]) if fault and fault["action"] == "id" else 0
    first = 0
    with world.opened(folder) as state:
        for offset, options in enumerate(components):
            job = world.new_job(
                state,
                id=wanted + offset if wanted else 0,
                name=options.get("job-name", "wrap"),
                comment=options.get("comment", ""),
                user=me(),
                partition=options.get("partition", "batch"),
                account=options.get("account", "lab"),
                qos=options.get("qos", "normal"),
                time_limit=options.get("time", "1:00:00"),
                num_nodes=int(re.match(r"\d+", options.get("nodes", "1")).group()),
                dependency=options.get("dependency", ""),
                array=options.get("array", ""),
                workdir=options.get("chdir", os.getcwd()),
                reason="Dependency" if options.get("dependency") else "Priority",
                script=script,
                hidden=lag,
                het=first if offset else 0,
                het_offset=offset if len(components) > 1 else -1,
            )
            first = first or job["id"]
            if len(components) > 1:
                job["het"] = first
    return first


def _visible(state: dict[str, Any]) -> list[dict[str, Any]]:
    """Jobs that a query shows; a lagging job counts one query down."""
    shown = []
    for job in state["jobs"]:
        if job["hidden"] > 0:
            job["hidden"] -= 1
        else:
            shown.append(job)
    return shown


def _chosen(jobs: list[dict[str, Any]], options: dict[str, str]) -> list[dict[str, Any]]:
    users = set(filter(None, options.get("user", "").split(","))) or ({me()} if "me" in options else set())
    names = set(filter(None, options.get("name", "").split(",")))
    ids = {int(re.match(r"\d+", i).group()) for i in filter(None, options.get("jobs", "").split(","))}
    out = []
    for job in jobs:
        if (users and job["user"] not in users) or (names and job["name"] not in names):
            continue
        if ids and job["id"] not in ids and job["het"] not in ids:
            continue
        out.append(job)
    return out


def squeue(folder: str, argv: list[str], fault: dict[str, Any] | None) -> int:
    options, _, bad = parse_options("squeue", argv)
    if bad:
        print(f"squeue: {bad}", file=sys.stderr)
        return 1
    if "version" in options:
        return _version(folder)
    with world.opened(folder) as state:
        jobs = [] if fault and fault["action"] == "stall" else _visible(state)
        states = options.get("states", "")
        jobs = [j for j in jobs if not j["purged"] and (states.lower() == "all" or j["state"] not in world.FINISHED)]
        known = {j["id"] for j in jobs}
    if "jobs" in options and not any(int(re.match(r"\d+", i).group()) in known for i in options["jobs"].split(",")):
        print("slurm_load_jobs error: Invalid job id specified", file=sys.stderr)
        return 1
    if "noheader" not in options:
        print("JOBID PARTITION NAME USER ST TIME NODES NODELIST(REASON)")
    for job in _chosen(jobs, options):
        print(render.squeue_row(job, options))
    return 0


def sacct(folder: str, argv: list[str], fault: dict[str, Any] | None) -> int:
    options, _, bad = parse_options("sacct", argv)
    if bad:
        print(f"sacct: {bad}", file=sys.stderr)
        return 1
    if "version" in options:
        return _version(folder)
    with world.opened(folder) as state:
        if not state["accounting"]:
            return _say_error("no-accounting", "sacct")
        jobs = [] if fault and fault["action"] == "stall" else _visible(state)
        jobs = [j for j in jobs if j["archived"]]
    if not {"user", "jobs", "name", "allusers"} & options.keys():
        options["user"] = me()
    for job in _chosen(jobs, options):
        for row in render.sacct_rows(job, options):
            print(row)
    return 0


def scancel(folder: str, argv: list[str], fault: dict[str, Any] | None) -> int:
    options, rest, bad = parse_options("scancel", argv)
    if bad:
        print(f"scancel: {bad}", file=sys.stderr)
        return 1
    if "version" in options:
        return _version(folder)
    for word in rest:
        if not re.fullmatch(r"\d+([_+]\S+)?", word):
            print(f"scancel: error: Invalid job id {word}", file=sys.stderr)
            return 1
    options["jobs"] = ",".join(rest)
    with world.opened(folder) as state:
        for job in _chosen(state["jobs"], options):
            if job["state"] in world.FINISHED or job["purged"]:
                continue
            if job["user"] != me():
                print(
                    f"scancel: error: Kill job error on job id {job['id']}: Access/permission denied", file=sys.stderr
                )
                return 1
            if "signal" in options:
                job.setdefault("signals", []).append(options["signal"])
            else:
                world.finish(state, job["id"], "CANCELLED", 0, 15)
    return 0


def scontrol(folder: str, argv: list[str], fault: dict[str, Any] | None) -> int:
    words_ = [a for a in argv if not a.startswith("-")]
    if "--version" in argv or "-V" in argv:
        return _version(folder)
    with world.opened(folder) as state:
        if words_[:2] == ["show", "config"]:
            print("Configuration data as of 2026-01-01T00:00:00")
            for key, value in state["config"].items():
                print(f"{key:<23} = {value}")
            return 0
        if words_[:1] == ["ping"]:
            print("Slurmctld(primary) at fake is UP")
            return 0
        if words_[:2] == ["show", "hostnames"]:
            print("\n".join(render.expand(words_[2])))
            return 0
        if words_[:1] in (["requeue"], ["hold"], ["release"]) and len(words_) == 2:
            try:
                job = world.newest(state, int(re.match(r"\d+", words_[1]).group()))
            except KeyError:
                print(f"Invalid job id specified for job {words_[1]}", file=sys.stderr)
                return 1
            if words_[0] == "requeue":
                world.requeue(state, job["id"], "REQUEUED")
            else:
                job["reason"] = "JobHeldUser" if words_[0] == "hold" else "Priority"
            return 0
    print(f"scontrol: error: invalid command: {' '.join(words_)}", file=sys.stderr)
    return 1


def sinfo(folder: str, argv: list[str], fault: dict[str, Any] | None) -> int:
    options, _, bad = parse_options("sinfo", argv)
    if bad or "version" in options:
        return _version(folder) if not bad else 1
    with world.opened(folder) as state:
        for row in state["partitions"]:
            text = options.get("format", "%P %a %l %D")
            for letter, value in zip("PalDTN", [*row, "idle", "f[1-4]"], strict=True):
                text = re.sub(rf"%\.?\d*{letter}", value, text)
            print(text)
    return 0


def srun(folder: str, argv: list[str], fault: dict[str, Any] | None) -> int:
    """Start the command once a task on this machine, with the variables that tell the tasks apart; the worst exit code."""
    options, rest, bad = parse_options("srun", argv)
    if bad or not rest:
        print(f"srun: {bad or 'no command'}", file=sys.stderr)
        return 1
    nodes = int(options.get("nodes", os.environ.get("SLURM_JOB_NUM_NODES", "1")).split("-")[0])
    tasks = int(options.get("ntasks", nodes * int(options.get("ntasks-per-node", "1"))))
    children: list[subprocess.Popen[bytes]] = []
    received: list[int] = []

    def forward(number: int, frame: object) -> None:
        received.append(number)
        for child in children:
            child.send_signal(number)

    # Before the first task: a signal that comes early must not end srun itself, and reaches the tasks that are still to come.
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, forward)
    for rank in range(tasks):
        local = rank % max(1, tasks // nodes)
        env = os.environ | {
            "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(local), "SLURM_NODEID": str(rank * nodes // tasks),
            "SLURM_NTASKS": str(tasks), "SLURM_STEP_ID": "0", "SLURMD_NODENAME": f"f{rank * nodes // tasks + 1}",
        }  # fmt: skip
        children.append(subprocess.Popen(rest, env=env))
        for number in received:
            children[-1].send_signal(number)
    return max(abs(c.wait()) for c in children)


def _version(folder: str) -> int:
    with world.opened(folder) as state:
        print(f"slurm {state['version']}")
    return 0


COMMANDS = {
    "sbatch": sbatch, "squeue": squeue, "sacct": sacct, "scancel": scancel, "scontrol": scontrol, "sinfo": sinfo, "srun": srun,
}  # fmt: skip
