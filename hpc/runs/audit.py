"""Judges a run from its files alone: verified, incomplete, or tampered.

`tampered`: something is not what was recorded, or a record is gone that another one names. `incomplete`: nothing contradicts, but the evidence is
not whole; the run is still going, it did not end well, or this user may not read all of it. `verified`: the run is done, every chain is whole, the
joined heads fit, and package, admission, scripts, attempts, report and artifacts are what was recorded.

Does not promise to see a forgery that rewrites every file consistently; an enforced admission narrows that to the bytes of the package and later.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from tuneplane.contract import exits
from tuneplane.contract.layout import RunPaths
from tuneplane.record.events import Chain, merged

from hpc.errors import Refusal
from hpc.runs import checks, continuity, lives
from hpc.runs.continuity import certificates
from hpc.runs.evidence import Case, Finding
from hpc.runs.followed import check_late, unreached
from hpc.runs.records import instant
from hpc.runs.rescored import check_evaluations
from hpc.runs.rungs import check_rungs
from hpc.runs.saved import check_checkpoints
from hpc.spec.arrays import parse_array

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
    listed: int = 0
    hashed: int = 0

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
                c.writer: {"status": c.status, "events": len(c.events), "head": c.head, "unreadable": c.unreadable}
                for c in self.chains
            },
            "timeline": [
                {"stage": s.stage, "started_at": s.started_at, "duration_s": s.duration_s, "events": s.events}
                for s in self.timeline
            ],
            **self.facts,
        }


def audit(run: RunPaths, *, deep: bool = True, stop: Callable[[], bool] = lambda: False) -> Audit:
    """Judge one run. Reads only, never raises for what the run's files hold or for what this user may not read.

    Without `deep` the bytes of package files and artifacts are taken for right where their sizes are. Raises Stopped when `stop` says so.
    """
    case = Case(run, deep=deep, stop=stop)
    chains = case.chains(run.events)
    checks.check_events(case, run.events, chains)
    package = checks.check_package(case)
    admission = checks.check_admission(case, package)
    checks.check_submissions(case, chains, package)
    parts = _parts(case)
    told, every = _lives(case, package, parts, chains, admission)
    checks.check_owner(case, parts)
    facts = {
        "package_digest": package.digest,
        "spec_digest": package.spec_digest,
        "admission": (admission or {}).get("mode"),
        **told,
    }
    order = {"tampered": 0, "incomplete": 1, "note": 2}
    findings = tuple(sorted(case.findings, key=lambda f: order[f.level]))
    return Audit(
        run, verdict_of(findings), findings, tuple(every), tuple(timeline(every)), facts, case.listed, case.hashed
    )  # fmt: skip


def _lives(
    case: Case,
    package: checks.Package,
    parts: list[RunPaths],
    chains: dict[str, Chain],
    admission: dict[str, Any] | None,
) -> tuple[dict[str, Any], list[Chain]]:
    """Follow every part's life; what they tell together, and all chains, an element's under `<index>/<writer>`."""
    every = list(chains.values())
    statuses: set[str] = set()
    attempts = artifacts = 0
    provenance = None
    certified: list[dict[str, Any]] = []
    for part in parts:
        own = chains
        if part != case.run:
            own = case.chains(part.events)
            checks.check_events(case, part.events, own)
            check_rungs(case, part, own)
            every += [replace(c, writer=f"{part.root.name}/{c.writer}") for c in own.values()]
        life = lives.Life(case, part, own, package, admission)
        ends = life.attempts()
        numbered = case.numbered("attempts", part.attempts)
        check_late(case, part, own, numbered)
        continuity.check(case, part, {n: d for n in numbered if (d := life.ending(n))})
        certified += [
            {"attempt": c["attempt"], "verified": c["verified"], "text": c["text"]} for c in certificates(part)
        ]
        report = life.report(ends)
        life.artifacts(report)
        check_evaluations(case, part, report)
        check_checkpoints(case, part, own)
        if status := (report or {}).get("status") or (ends[max(ends)].get("class") if ends else None):
            statuses.add(str(status))
        attempts += len(ends)
        listed = (report or {}).get("artifacts")
        artifacts += len(listed) if isinstance(listed, list) else 0
        provenance = provenance or (report or {}).get("provenance")
    told = {
        "status": ", ".join(sorted(statuses)) or None, "attempts": attempts, "artifacts": artifacts, "provenance": provenance,
        "continuity": certified,
    }  # fmt: skip
    return told, every


def _parts(case: Case) -> list[RunPaths]:
    """The run itself, or the elements of its array; an element that the spec names and that never ran is a finding."""
    run = case.run
    spec = case.json("spec", run.jobspec) or {}
    body = spec.get("spec")
    slurm = body.get("slurm") if isinstance(body, dict) else None
    text = slurm.get("array") if isinstance(slurm, dict) else None
    if not text:
        return [run]
    found = case.numbered("array", run.array)
    try:
        wanted = set(parse_array(str(text)))
    except Refusal as exc:
        case.tampered("spec", run.jobspec, f"its array is none: {exc.message}")
        wanted = set()
    missing = sorted(wanted - set(found))
    excused = unreached(case) if missing else set()
    for index in missing[:20]:
        if index in excused:
            case.note("array", run.element(index).root, "its checkpoint never came: the run's own script cancelled it")
        elif not case.blind(run.array):
            case.incomplete("array", run.element(index).root, "this element has not run")
    return [run.element(index) for index in found]


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
