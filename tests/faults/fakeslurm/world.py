"""The state that all fake commands share: jobs, configuration, fault rules. One JSON file under a lock."""

from __future__ import annotations

import fcntl
import json
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ACTIONS = {
    "accept-then", "accept-then-hang", "accept-then-crash", "crash", "fail", "hang", "banner", "warn", "garbage", "empty",
    "lag", "stall", "id", "slow",
}  # fmt: skip
_RULE = re.compile(r"^(\*|[a-z]+)(?:#(\d+)(-\d+|\+)?)?\s+([a-z-]+)(?:\s+(.*))?$")
FINISHED = {
    "COMPLETED", "FAILED", "TIMEOUT", "OUT_OF_MEMORY", "CANCELLED", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "DEADLINE",
}  # fmt: skip


def fresh() -> dict[str, Any]:
    return {
        "version": "24.05.4",
        "accounting": True,
        "next_id": 100,
        "jobs": [],
        "faults": [],
        "counts": {},
        "config": {
            "ClusterName": "fake", "MaxArraySize": "1001", "PreemptMode": "REQUEUE", "KillWait": "30 sec", "MinJobAge": "300 sec",
            "PreemptType": "preempt/partition_prio", "SchedulerParameters": "(null)", "EnforcePartLimits": "NO",
            "JobRequeue": "1", "MessageTimeout": "10 sec", "SLURM_VERSION": "24.05.4",
        },
        "partitions": [["batch*", "up", "7-00:00:00", "4"], ["short", "up", "10:00", "4"]],
    }  # fmt: skip


@contextmanager
def opened(folder: str | os.PathLike[str]) -> Iterator[dict[str, Any]]:
    """The state, alone, written back at the end."""
    path = Path(folder) / "state.json"
    with open(Path(folder) / "lock", "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        state = json.loads(path.read_text()) if path.exists() else fresh()
        yield state
        temp = path.with_suffix(".new")
        temp.write_text(json.dumps(state))
        temp.rename(path)


def log_call(folder: str, entry: dict[str, Any]) -> None:
    line = (json.dumps(entry) + "\n").encode()
    fd = os.open(os.path.join(folder, "calls.jsonl"), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    os.write(fd, line)
    os.close(fd)


def parse_faults(script: str) -> list[dict[str, Any]]:
    """Rules of a fault script. ValueError names the line that is none."""
    rules = []
    for line in script.splitlines():
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        match = _RULE.match(text)
        if match is None or match.group(4) not in ACTIONS:
            raise ValueError(f"not a fault rule: {text!r}")
        tool, first, more, action, argument = match.groups()
        low = int(first) if first else 1
        high = low if first and not more else int(more[1:]) if more and more != "+" else 1 << 30
        rules.append({"tool": tool, "low": low, "high": high, "action": action, "argument": argument or ""})
    return rules


def next_fault(state: dict[str, Any], tool: str) -> dict[str, Any] | None:
    """Count this call and find the first rule that is meant for it."""
    count = state["counts"][tool] = state["counts"].get(tool, 0) + 1
    for rule in state["faults"]:
        if rule["tool"] in ("*", tool) and rule["low"] <= count <= rule["high"]:
            return dict(rule)
    return None


def now() -> int:
    return int(time.time())


def new_job(state: dict[str, Any], **fields: Any) -> dict[str, Any]:
    job_id = int(fields.pop("id", 0)) or state["next_id"]
    state["next_id"] = max(state["next_id"], job_id + 1)
    job = {
        "id": job_id, "name": "wrap", "comment": "", "user": "nobody", "state": "PENDING", "reason": "Priority",
        "submit": now(), "start": 0, "end": 0, "code": 0, "signal": 0, "restarts": 0, "nodes": "", "num_nodes": 1,
        "partition": "batch", "account": "lab", "qos": "normal", "time_limit": "1:00:00", "dependency": "", "array": "",
        "het": 0, "het_offset": -1, "script": "", "workdir": "/", "hidden": 0, "purged": False, "archived": True,
        "past": [],
    }  # fmt: skip
    job |= fields
    state["jobs"].append(job)
    return job


def newest(state: dict[str, Any], job_id: int) -> dict[str, Any]:
    for job in reversed(state["jobs"]):
        if job["id"] == job_id:
            return job  # type: ignore[no-any-return]
    raise KeyError(job_id)


def start(state: dict[str, Any], job_id: int, nodes: str) -> None:
    newest(state, job_id).update(state="RUNNING", reason="None", start=now(), nodes=nodes)


def finish(state: dict[str, Any], job_id: int, ended: str, code: int, number: int) -> None:
    job = newest(state, job_id)
    reason = "None" if ended == "COMPLETED" else "NonZeroExitCode" if ended == "FAILED" else "None"
    job.update(state=ended, reason=reason, end=now(), code=code, signal=number, start=job["start"] or now())


def requeue(state: dict[str, Any], job_id: int, ended: str) -> None:
    job = newest(state, job_id)
    job["past"].append(
        {"state": ended, "submit": job["submit"], "start": job["start"], "end": now(), "nodes": job["nodes"],
         "code": job["code"], "signal": job["signal"]}
    )  # fmt: skip
    job.update(
        state="PENDING", reason="BeginTime", submit=now(), start=0, end=0, nodes="", restarts=job["restarts"] + 1
    )
