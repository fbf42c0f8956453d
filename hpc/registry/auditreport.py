"""An audit for programs: one JSON document, and the text format that Prometheus' node exporter collects. Pure but for `write_prometheus`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from tuneplane.record import files
from tuneplane.record.times import parse_utc

from hpc.registry.audit import Report, coverage
from hpc.registry.problems import LEVELS
from hpc.store.faults import refusal

PREFIX: Final = "tuneplane_registry_audit_"


def as_json(report: Report) -> dict[str, Any]:
    """Verdict, exit code, counts, coverage and every problem that was kept."""
    tally = report.tally
    return {
        "verdict": report.verdict,
        "exit": report.exit,
        "started_at": report.started_at,
        "duration_s": f"{report.duration_s:.3f}",
        "complete": {"quick": report.quick_complete, "deep": report.deep_complete if report.deep else None},
        "counts": {
            "owners": report.owners,
            "packages": tally.packages,
            "versions": tally.versions,
            "packs": tally.packs,
            "files": tally.files,
            "bytes": tally.size,
            "generations": tally.generations,
            "seals": tally.seals,
            "unsealed": tally.unsealed,
        },
        "problems_by_level": dict(report.levels),
        "no_ticket": report.no_ticket,
        "coverage": coverage(report) if report.deep else None,
        "problems": [p.as_json() for p in report.problems],
        "problems_not_listed": report.dropped,
    }


def exit_of(reports: Sequence[Report]) -> int:
    """The exit code of one visit with several reports: the worst; 75 where nothing but tickets is missing. Pure."""
    whole = Report(no_ticket=sum(r.no_ticket for r in reports))
    whole.levels = {level: sum(r.levels[level] for r in reports) for level in LEVELS}
    return whole.exit


def prometheus(report: Report, runs: Report | None = None) -> str:
    """Gauges in the text format, one visit a file."""
    return "\n".join([*_lines(report, runs), *(_of_runs(runs) if runs is not None else ())]) + "\n"


def _of_runs(report: Report) -> Iterator[str]:
    tally = report.tally
    for level in LEVELS:
        yield from _gauge(f"runs_problems_{level}", f"what was found {level} in runs", report.levels[level])
    yield from _gauge("runs", "runs that were judged", tally.versions)
    yield from _gauge("runs_bytes", "bytes that the judged runs list", tally.size)
    yield from _gauge(
        "runs_complete",
        "1 if no run was left out for want of time",
        int(report.quick_complete and report.deep_complete),
    )
    if report.deep:
        yield from _gauge("runs_hashed_bytes", "bytes of runs that this visit hashed", tally.hashed)
        yield from _gauge("runs_round_bytes", "bytes of runs hashed since the round began", report.rotation.size)


def _lines(report: Report, runs: Report | None) -> Iterator[str]:
    tally = report.tally
    code = exit_of([report, *([runs] if runs is not None else [])])
    yield from _gauge("exit_code", "0 whole, 1 incomplete, 2 tampered", code)
    yield from _gauge("last_run_timestamp_seconds", "when the audit began", parse_utc(report.started_at).timestamp())
    yield from _gauge("duration_seconds", "how long it took", round(report.duration_s, 3))
    yield f"# HELP {PREFIX}problems what was found, by level"
    yield f"# TYPE {PREFIX}problems gauge"
    for level in LEVELS:
        yield f'{PREFIX}problems{{level="{level}"}} {report.levels[level]}'
    yield from _gauge("no_ticket", "problems for want of a Kerberos ticket", report.no_ticket)
    yield from _gauge("packages", "packages that were judged", tally.packages)
    yield from _gauge("versions", "versions that were judged", tally.versions)
    yield from _gauge("bytes", "bytes that the judged versions record", tally.size)
    yield from _gauge("unsealed", "versions and packs without a seal", tally.unsealed)
    yield from _gauge(
        "complete", "1 if nothing was left out for want of time", int(report.quick_complete and report.deep_complete)
    )
    if report.deep:
        yield from _gauge("hashed_bytes", "bytes that this run hashed", tally.hashed)
        yield from _gauge("round_bytes", "bytes hashed since the round began", report.rotation.size)


def _gauge(name: str, text: str, value: float) -> Iterator[str]:
    yield f"# HELP {PREFIX}{name} {text}"
    yield f"# TYPE {PREFIX}{name} gauge"
    yield f"{PREFIX}{name} {value}"


def write_prometheus(path: Path, report: Report, runs: Report | None = None) -> None:
    """Replace the file whole. Raises Refusal E-STORE-02x."""
    try:
        files.replace(path, prometheus(report, runs).encode("utf-8"))
    except OSError as exc:
        raise refusal(exc, path, "write") from exc
