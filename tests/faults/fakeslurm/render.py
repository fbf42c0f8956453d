"""Rows as squeue and sacct print them: -o and -O formats, -P with a delimiter."""

from __future__ import annotations

import re
import time
from typing import Any


def moment(value: int, missing: str) -> str:
    """Local time as Slurm prints it; the caller's TZ counts."""
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(value)) if value else missing


def _shown_id(job: dict[str, Any]) -> str:
    if job["het_offset"] >= 0:
        return f"{job['het']}+{job['het_offset']}"
    return f"{job['id']}_[{job['array']}]" if job["array"] else str(job["id"])


def _queue_fields(job: dict[str, Any]) -> dict[str, str]:
    array = job["array"]
    return {
        "jobid": str(job["id"]), "jobarrayid": _shown_id(job), "arrayjobid": str(job["id"]), "arraytaskid": array or "N/A",
        "hetjobid": str(job["het"]) if job["het"] else "N/A",
        "hetjoboffset": str(job["het_offset"]) if job["het_offset"] >= 0 else "N/A",
        "state": job["state"], "reason": job["reason"], "restartcnt": str(job["restarts"]), "numnodes": str(job["num_nodes"]),
        "submittime": moment(job["submit"], "N/A"), "starttime": moment(job["start"], "N/A"), "endtime": moment(job["end"], "N/A"),
        "timelimit": job["time_limit"], "timeleft": job["time_limit"], "partition": job["partition"], "account": job["account"],
        "qos": job["qos"], "username": job["user"], "cluster": "fake", "nodelist": job["nodes"],
        "dependency": job["dependency"] or "(null)", "name": job["name"], "comment": job["comment"] or "(null)",
        "exit_code": str(job["code"] << 8 | job["signal"]),
    }  # fmt: skip


_PERCENT = {
    "i": "jobarrayid", "A": "jobid", "F": "arrayjobid", "K": "arraytaskid", "T": "state", "r": "reason", "j": "name", "k": "comment",
    "V": "submittime", "S": "starttime", "e": "endtime", "l": "timelimit", "L": "timeleft", "D": "numnodes", "N": "nodelist",
    "P": "partition", "a": "account", "q": "qos", "u": "username", "E": "dependency",
}  # fmt: skip


def squeue_row(job: dict[str, Any], options: dict[str, str]) -> str:
    fields = _queue_fields(job)
    if "Format" in options:
        out = ""
        for item in options["Format"].split(","):
            name, _, rest = item.partition(":")
            match = re.match(r"(\.?)(\d*)(.*)$", rest, re.DOTALL)
            size = int(match.group(2) or 20)
            value = fields.get(name.lower(), "")[:size]
            out += (value.rjust(size) if match.group(1) else value.ljust(size)) + match.group(3)
        return out
    template = options.get("format", "%i %P %j %u %T %D %r")

    def one(match: re.Match[str]) -> str:
        value = fields.get(_PERCENT.get(match.group(3), ""), "")
        size = int(match.group(2) or 0)
        return (value[:size].rjust(size) if match.group(1) else value[:size].ljust(size)) if size else value

    return re.sub(r"%(\.?)(\d*)([A-Za-z])", one, template)


def _history_fields(job: dict[str, Any], life: dict[str, Any], state: str) -> dict[str, str]:
    ended = moment(life["end"], "Unknown")
    return {
        "jobid": _shown_id(job), "jobidraw": str(job["id"]), "jobname": job["name"], "state": state,
        "exitcode": f"{life['code']}:{life['signal']}", "derivedexitcode": f"{life['code']}:0",
        "submit": moment(life["submit"], "Unknown"), "start": moment(life["start"], "Unknown"), "end": ended,
        "elapsedraw": str(max(0, life["end"] - life["start"])) if life["end"] else "0", "timelimit": job["time_limit"],
        "nnodes": str(job["num_nodes"]), "partition": job["partition"], "account": job["account"], "qos": job["qos"],
        "user": job["user"], "cluster": "fake", "nodelist": life["nodes"] or "None assigned", "comment": job["comment"],
        "reason": job["reason"],
    }  # fmt: skip


def sacct_rows(job: dict[str, Any], options: dict[str, str]) -> list[str]:
    """Earlier incarnations first, where -D asks for them; steps where -X does not forbid them."""
    delimiter = options.get("delimiter", "|")
    names = [n.split("%")[0].lower() for n in options.get("format", "jobid,jobname,state,exitcode").split(",")]
    lives = [(past, past["state"]) for past in job["past"]] if "duplicates" in options else []
    state = job["state"]
    if state == "CANCELLED":
        state = "CANCELLED by 1000"
    lives.append((job, state))
    rows = [_history_fields(job, life, shown) for life, shown in lives]
    if "allocations" not in options and job["start"]:
        rows += [rows[-1] | {"jobid": f"{job['id']}.{step}", "jobidraw": f"{job['id']}.{step}", "jobname": name, "user": ""}
                 | job.get("steps", {}).get(step, {}) for step, name in (("batch", "batch"), ("0", "srun"))]  # fmt: skip
    return [delimiter.join(row.get(n, "") for n in names) for row in rows]


def expand(text: str) -> list[str]:
    """Enough of a host list for `scontrol show hostnames`: one bracket a name."""
    out = []
    for name, inside in re.findall(r"([^,\[]+)(?:\[([^\]]*)\])?", text):
        for piece in inside.split(",") if inside else [""]:
            low, _, high = piece.partition("-")
            numbers = range(int(low), int(high or low) + 1) if low else [None]
            out += [name if n is None else f"{name}{n:0{len(low)}d}" for n in numbers]
    return out
