"""Inputs that another run of the same owner makes: named when the job was packed, found and read when it starts.

Their bytes could not be pinned by digest at submission. What takes the place of that: the other run must have ended well by its own records, its last
event must name the report and the end that are there, its package must be the one that was named, and every file of the artefact must have the digest
that its report states. What was found is written down, so that an audit can compare it with the other run ever after.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tuneplane.contract.followups import ARTEFACTS, CHECKPOINT
from tuneplane.contract.layout import AttemptPaths, RunPaths, StorageRoot
from tuneplane.launch.data import LAG_S
from tuneplane.launch.late_checkpoint import await_published, resolve_checkpoint, step_of
from tuneplane.launch.verify import LaunchRefused
from tuneplane.record.digest import digest_bytes, digest_file, digest_json
from tuneplane.record.events import read_chain
from tuneplane.record.files import read_bytes, read_json


def resolve_late(
    launch: Mapping[str, Any],
    root: StorageRoot,
    owner: str,
    *,
    element: str = "",
    lag_s: float = LAG_S,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> dict[str, dict[str, Any]]:
    """Every late input by name, its files read and compared. `element`: the index of this job in its array, which picks a checkpoint.

    Raises LaunchRefused E-JOB-017 (no such element), E-JOB-051 (not there), E-JOB-052 (not what was recorded).
    """
    out = {}
    for name, named in sorted(launch.get("late", {}).items()):
        run = root.run(owner, named["exp"], named["run_id"])
        if named["artefact"] == CHECKPOINT:
            step = step_of(named, element)
            await_published(run, step, lag_s, sleep, clock)
            out[name] = resolve_checkpoint(name, named, run, step)
            continue
        _await_end(run, lag_s, sleep, clock)
        out[name] = _resolve(name, named, run)
    return out


def _await_end(run: RunPaths, lag_s: float, sleep: Callable[[float], None], clock: Callable[[], float]) -> None:
    """Another node wrote the records a moment ago; a mount may show them late."""
    until = clock() + lag_s
    while run.root.is_dir() and not _closed(run) and clock() < until:
        sleep(1.0)


def _closed(run: RunPaths) -> bool:
    attempt = _last(run)
    return attempt is not None and attempt.end.exists() and _closing(run, attempt.number) is not None


def _last(run: RunPaths) -> AttemptPaths | None:
    try:
        numbers = [int(n) for n in os.listdir(run.attempts) if n.isascii() and n.isdigit()]
    except OSError:
        return None
    return run.attempt(max(numbers)) if numbers else None


def _closing(run: RunPaths, number: int) -> dict[str, Any] | None:
    """Details of the event with which the batch step closed an attempt; None for a chain that is not whole."""
    try:
        chain = read_chain(run.events / f"batch-{number}.jsonl")
    except OSError:
        return None
    details = chain.events[-1].get("details") if chain.events and chain.status == "verified" else None
    return details if isinstance(details, dict) and "end_sha256" in details else None


def _resolve(name: str, named: Mapping[str, Any], run: RunPaths) -> dict[str, Any]:
    def no(code: str, why: str) -> LaunchRefused:
        return LaunchRefused(code, f"input {name}: {named['run_id']} ({named['exp']}) {why}")

    try:
        if os.lstat(run.root).st_uid != os.getuid():
            raise no("E-JOB-052", "belongs to another user")
        attempt = _last(run)
        end = read_json(attempt.end) if attempt else None
    except OSError as exc:
        raise no("E-JOB-051", f"left no end record: {exc.strerror or exc}") from exc
    except ValueError as exc:
        raise no("E-JOB-052", f"has a damaged end record: {exc}") from exc
    if attempt is None or not isinstance(end, dict) or end.get("class") != "done":
        ended = f"ended {end.get('class')}: {end.get('message')}" if isinstance(end, dict) else "has not run"
        raise no("E-JOB-051", ended)
    try:
        data = read_bytes(run.report)
        report = read_json(run.report)
    except (OSError, ValueError) as exc:
        raise no("E-JOB-052", f"has no usable report: {exc}") from exc
    closing = _closing(run, attempt.number) or {}
    if (closing.get("end_sha256"), closing.get("report_sha256")) != (digest_json(end), digest_bytes(data)):
        raise no("E-JOB-052", "has records that are not those of its last event")
    if report.get("package_digest") != named["package_digest"]:
        raise no(
            "E-JOB-052", f"has another package: spec={named['package_digest']} actual={report.get('package_digest')}"
        )
    folder = attempt.out / ARTEFACTS[named["artefact"]]
    rows = _rows(report, ARTEFACTS[named["artefact"]], folder, no)
    return {
        "run_id": named["run_id"], "exp": named["exp"], "attempt": attempt.number, "artefact": named["artefact"], "path": str(folder),
        "files": rows, "digest": digest_json([[r["path"], r["sha256"]] for r in rows]), "report": str(run.report),
        "report_sha256": digest_bytes(data),
    }  # fmt: skip


def _rows(
    report: Mapping[str, Any], inside: str, folder: Path, no: Callable[[str, str], LaunchRefused]
) -> list[dict[str, Any]]:
    """The artefact's files as the report lists them, each read; a file that is not listed could change what is loaded."""
    listed = {
        str(a["path"])[len(inside) + 1 :]: a
        for a in report.get("artifacts", [])
        if str(a["path"]).startswith(f"{inside}/")
    }
    if not listed:
        raise no("E-JOB-051", f"left no {inside}")
    have = {os.path.relpath(os.path.join(top, n), folder) for top, _, names in os.walk(folder) for n in names}
    if odd := sorted(have ^ set(listed)):
        raise no("E-JOB-052", f"has other files in {folder} than its report lists: {', '.join(odd[:5])}")
    rows = []
    for path, recorded in sorted(listed.items()):
        try:
            found = digest_file(folder / path)
        except OSError as exc:
            raise no("E-JOB-052", f"{folder / path}: {exc.strerror or exc}") from exc
        if found != recorded["sha256"]:
            raise no("E-JOB-052", f"{folder / path} changed: spec={recorded['sha256']} actual={found}")
        rows.append({"path": path, "size": recorded["size"], "sha256": found})
    return rows
