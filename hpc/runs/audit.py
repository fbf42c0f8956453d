"""Judges a run from its files alone: verified, incomplete, or tampered.

`tampered`: something is not what was recorded, or a record is gone that another one names. `incomplete`: nothing contradicts, but the evidence is
not whole; the run is still going, it did not end well, or this user may not read all of it. `verified`: the run is done, every chain is whole, the
joined heads fit, and package, admission, scripts, attempts, report and artifacts are what was recorded.

Does not promise to see a forgery that rewrites every file consistently; an enforced admission narrows that to the bytes of the package and later.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

from tuneplane.contract import exits
from tuneplane.contract.layout import RunPaths
from tuneplane.record.events import Chain, merged

from hpc.runs import checks, lives
from hpc.runs.evidence import Case, Finding
from hpc.runs.records import instant

Verdict = Literal["verified", "incomplete", "tampered"]
SCHEMA: Final = "tuneplane-hpc/audit/v1"


@dataclass(frozen=True)
class Stage:
    """A stretch of events of one stage: when it began, seconds until the next stage (0 for the last)."""

    stage: str
    started_at: str
    duration_s: float
    events: int


@dataclass(frozen=True)
class Audit:
    """The verdict on a run, every finding, and what the verdict rests on."""

    run: RunPaths
    verdict: Verdict
    findings: tuple[Finding, ...]
    chains: tuple[Chain, ...]
    timeline: tuple[Stage, ...]
    facts: dict[str, Any]

    @property
    def exit(self) -> int:
        return exits.TAMPERED if self.verdict == "tampered" else exits.DONE

    def as_json(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "run_id": self.run.run_id,
            "owner": self.run.owner,
            "exp": self.run.exp,
            "verdict": self.verdict,
            "findings": [f.as_json() for f in self.findings],
            "chains": {
                c.writer: {"status": c.status, "events": len(c.events), "head": c.head, "unreadable": c.unreadable} for c in self.chains
            },
            "timeline": [
                {"stage": s.stage, "started_at": s.started_at, "duration_s": s.duration_s, "events": s.events} for s in self.timeline
            ],
            **self.facts,
        }


def audit(run: RunPaths) -> Audit:
    """Judge one run. Reads only, never raises for what the run's files hold or for what this user may not read."""
    case = Case(run)
    chains = case.chains()
    checks.check_events(case, chains)
    package = checks.check_package(case)
    admission = checks.check_admission(case, package)
    lives.check_submissions(case, chains, package)
    ends = lives.check_attempts(case, chains, package)
    report = lives.check_report(case, chains, package, ends)
    lives.check_artifacts(case, report)
    checks.check_owner(case)
    facts = {
        "package_digest": package.digest,
        "spec_digest": package.spec_digest,
        "admission": (admission or {}).get("mode"),
        "status": (report or {}).get("status") or (ends[max(ends)].get("class") if ends else None),
        "attempts": len(ends),
        "artifacts": len((report or {}).get("artifacts") or ()),
        "provenance": (report or {}).get("provenance"),
    }
    order = {"tampered": 0, "incomplete": 1, "note": 2}
    findings = tuple(sorted(case.findings, key=lambda f: order[f.level]))
    return Audit(run, verdict_of(findings), findings, tuple(chains.values()), tuple(timeline(list(chains.values()))), facts)


def verdict_of(findings: tuple[Finding, ...]) -> Verdict:
    """The worst finding decides; notes decide nothing. Pure."""
    levels = {f.level for f in findings}
    return "tampered" if "tampered" in levels else "incomplete" if "incomplete" in levels else "verified"


def timeline(chains: list[Chain]) -> list[Stage]:
    """Events of all writers by time, neighbours of one stage as one entry. Pure."""
    stretches: list[tuple[str, str, int]] = []
    for event in merged(chains):
        stage, at = str(event.get("stage", "")), str(event.get("occurred_at", ""))
        if stretches and stretches[-1][0] == stage:
            stretches[-1] = (stage, stretches[-1][1], stretches[-1][2] + 1)
        else:
            stretches.append((stage, at, 1))
    out = []
    for index, here in enumerate(stretches):
        after = stretches[index + 1] if index + 1 < len(stretches) else None
        begun, ended = instant(here[1]), instant(after[1]) if after else None
        length = ended - begun if begun is not None and ended is not None else 0.0
        out.append(Stage(here[0], here[1], round(length, 6), here[2]))
    return out
