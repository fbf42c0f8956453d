"""How runs look on a terminal and in JSON. Pure text; `hpc.cli.job` and `hpc.cli.runs` print it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from tuneplane.contract.layout import RunPaths
from tuneplane.record.times import utc_text

from hpc.cli.context import table
from hpc.runs.metrics import is_number
from hpc.runs.state import RunState
from hpc.spec.text import escaped


def utc(moment: float | None) -> str | None:
    """Seconds since 1970 as record text."""
    from datetime import datetime, timezone

    return utc_text(datetime.fromtimestamp(moment, timezone.utc)) if moment else None


def local(moment: float | None) -> str:
    """Seconds since 1970 as a person's clock shows it."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(moment)) if moment else "-"


def span(seconds: float | None) -> str:
    """`0:42`, `12:31`, `3:12:31`, `2d 03:12`; `-` for nothing."""
    if seconds is None or seconds < 0:
        return "-"
    minutes, second = divmod(int(seconds), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    if days:
        return f"{days}d {hour:02d}:{minute:02d}"
    return f"{hours}:{minute:02d}:{second:02d}" if hours else f"{minute}:{second:02d}"


def lasted(state: RunState, now: float) -> float | None:
    """Seconds that the newest attempt has run or ran."""
    if state.started_at is None or state.cls in ("queued", "requeued"):
        return None
    return (state.ended_at or now) - state.started_at


def note(state: RunState) -> str:
    """The few words that a list has room for."""
    if state.dead:
        return f"will never start: {state.reason}"
    if state.stop_requested and state.active:
        return "stop requested"
    if state.cls in ("queued", "requeued") and state.reason not in ("", "None"):
        return state.reason
    if state.end_class in ("refused", "no_progress"):
        return state.end_class
    return state.message if state.cls in ("unknown", "vanished") else ""


def run_json(run: RunPaths, state: RunState) -> dict[str, Any]:
    """A run's state for programs; times are UTC text."""
    return {
        "run_id": run.run_id,
        "owner": run.owner,
        "exp": run.exp,
        "path": str(run.root),
        "state": state.cls,
        "active": state.active,
        "final": state.final,
        "end_class": state.end_class or None,
        "evidence": state.evidence,
        "message": state.message,
        "attempt": state.attempt,
        "attempts": state.attempts,
        "element": state.element,
        "job_id": state.job_id or None,
        "kind": state.kind or None,
        "fleet": state.fleet or None,
        "submitted_at": utc(state.submitted_at),
        "started_at": utc(state.started_at),
        "ended_at": utc(state.ended_at),
        "step": state.step,
        "reason": state.reason or None,
        "outlook": state.outlook if state.reason else None,
        "hosts": state.hosts or None,
        "stop_requested": state.stop_requested,
    }


def runs_table(rows: list[tuple[RunPaths, RunState]], now: float, *, with_owner: bool = False) -> str:
    """One line a run, newest first."""
    lines = []
    for run, state in rows:
        line = [
            run.run_id,
            run.exp,
            state.cls,
            "-" if state.attempt is None else str(state.attempt),
            state.job_id or "-",
        ]
        line += [local(state.submitted_at), span(lasted(state, now)), note(state)]
        lines.append(([run.owner] if with_owner else []) + line)
    headers = ["RUN", "EXPERIMENT", "STATE", "ATTEMPT", "JOB", "SUBMITTED", "TIME", "NOTE"]
    return table(lines, ["OWNER", *headers] if with_owner else headers)


def _facts(state: RunState, now: float, age_s: float | None) -> list[tuple[str, str]]:
    place = f" on {state.hosts}" if state.hosts else ""
    rows = [("job", f"{state.job_id} ({state.kind}{', ' + state.fleet if state.fleet else ''}){place}")]
    if state.attempt is not None:
        rows.append(
            (
                "attempt",
                f"{state.attempt}, for {span(lasted(state, now))}" if lasted(state, now) else str(state.attempt),
            )
        )
    rows.append(("submitted", local(state.submitted_at)))
    if state.started_at:
        rows.append(("starts about" if state.cls in ("queued", "requeued") else "started", local(state.started_at)))
    if state.ended_at and not state.active:
        rows.append(("ended", local(state.ended_at)))
    if state.step is not None:
        rows.append(("checkpoint", f"step {state.step}"))
    if state.reason:
        rows.append(("waits for", state.reason))
    if state.stop_requested and state.active:
        rows.append(("stop", "requested"))
    known = state.evidence
    if age_s is not None and state.evidence in ("squeue", "sacct", "age"):
        known += f", {span(age_s)} ago"
    rows.append(("known from", known))
    return rows


def _progress(metrics: dict[str, Any]) -> str:
    step, total = (
        n if type(n := metrics.get(key)) is int and abs(n) < 2**63 else None for key in ("step", "total_steps")
    )
    parts = [f"step {'?' if step is None else step}{f' of {total}' if total else ''}"]
    for key, label in (("loss", "loss"), ("tokens_per_s", "tokens/s")):
        if is_number(metrics.get(key)):
            parts.append(f"{label} {metrics[key]:.4g}")
    if is_number(metrics.get("mfu")):
        parts.append(f"mfu {metrics['mfu'] * 100:.1f} %")
    return ", ".join(parts)


def output_text(report: Mapping[str, Any]) -> str:
    """What became of the data set that the run was to publish, "" if there was none."""
    output = report.get("output_dataset")
    if not isinstance(output, dict):
        return ""
    ref, state, message = (str(output.get(key, "")) for key in ("ref", "state", "message"))
    return escaped(
        f"{ref}: {state}" + ("" if state == "published" else f"; {message}; `tp dataset publish-output` does it later")
    )


def run_text(
    run: RunPaths, state: RunState, now: float, *, age_s: float | None, metrics: dict[str, Any] | None, output: str = "",
    more: Sequence[tuple[str, str]] = (),
) -> str:  # fmt: skip
    """A run's paragraph: what it is, where it stands, what to type next."""
    head = f"{run.run_id}  {run.exp}  {state.cls}" + (f": {state.message}" if state.message else "")
    rows = _facts(state, now, age_s) if state.job_id else [("known from", state.evidence)]
    if metrics:
        rows.insert(-1, ("progress", _progress(metrics)))
    if output:
        rows.insert(-1, ("data set", output))
    rows[-1:-1] = more
    rows.append(("next", _next(run, state)))
    return "\n".join([head, *(f"  {name:<12} {text}" for name, text in rows)])


def _next(run: RunPaths, state: RunState) -> str:
    if state.dead or state.cls in ("unknown", "vanished"):
        return f"tp job why {run.run_id}"
    if state.active:
        return f"tp job logs -f {run.run_id}" if state.cls == "running" else f"tp job why {run.run_id}"
    return f"tp runs audit {run.run_id}" if state.cls == "done" else f"tp job why {run.run_id}"
