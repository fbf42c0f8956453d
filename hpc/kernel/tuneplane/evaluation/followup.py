"""An evaluation that follows a run: the candidate and what it is compared with, asked the same in every suite, and the gates' verdict on both.

The candidate lies in another run, which the launcher has read and compared; its digests are in late.json. It is a whole model, or an adapter for the
model that the run began with. `base` as the baseline is that model. All reports have one shape, whoever asked; the verdict stands beside them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tuneplane.contract.evaluation import REPORT
from tuneplane.contract.followups import (
    BASELINE,
    BASELINE_FOLDER,
    CANDIDATE,
    SUITES_FOLDER,
    VERDICT,
    VERDICT_SCHEMA,
)
from tuneplane.contract.gates import Bounds, Verdict, judge, suite_of
from tuneplane.evaluation.loading import ADAPTER_CONFIG
from tuneplane.record.files import write_json_new
from tuneplane.record.times import utc_now
from tuneplane.training.refusals import refuse

PROGRESS: Final = "metrics.jsonl"
"""In an out folder: how far a job is, by which `tp job status` shows it."""


@dataclass(frozen=True)
class Subject:
    """A model that is asked: its folder, an adapter or None, and the digests of the folder's files."""

    model: Path
    adapter: Path | None
    files: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True)
class Where:
    """Where one suite's report of one subject goes, what a later start goes on with, and finished reports that may stand in for it.

    `log`: where the progress of all of a job's suites goes, one behind the other; None: into `out`.
    """

    out: Path
    keep: Path
    earlier: tuple[Path, ...] = ()
    log: Path | None = None


@dataclass(frozen=True)
class Suite:
    """One suite: its name, and how a subject is asked. `ask` returns the report; raises Refused, or Warned with every answer kept."""

    name: str
    ask: Callable[[Subject, Where], dict[str, Any]]


def subject(late: Mapping[str, Any] | None, given: Mapping[str, Any] | None, what: str) -> Subject:
    """What is asked: an artefact of a run (`late`), where it is an adapter on the model `given`; or that model. Raises Refused E-EVAL-050."""
    folder = Path(late["path"]) if late else None
    if late and folder and not (folder / ADAPTER_CONFIG).is_file():
        return Subject(folder, None, tuple(late["files"]))
    if given is None:
        raise refuse("E-EVAL-050", "has no model to stand on", field=what, found=os.fspath(folder or ""))
    return Subject(Path(given["path"]), folder, tuple(given.get("files", ())))


def subjects(
    wanted: Mapping[str, Any], late: Mapping[str, Mapping[str, Any]], inputs: Mapping[str, Mapping[str, Any]]
) -> tuple[Subject, Subject | None]:
    """Candidate and baseline of a follow-up, by its late inputs and the others. Raises Refused E-EVAL-050."""
    candidate = subject(late[CANDIDATE], inputs.get("model"), CANDIDATE)
    if not wanted.get("baseline"):
        return candidate, None
    return candidate, subject(late.get(BASELINE), inputs.get("baseline") or inputs.get("model"), BASELINE)


def evaluate_all(
    suites: Sequence[Suite],
    candidate: Subject,
    baseline: Subject | None,
    wanted: Mapping[str, Any],
    say: Callable[[str], None],
    *,
    out: Path,
    kept: Path,
    earlier: Callable[[str], Iterable[Path]] = lambda _: (),
) -> dict[str, Any]:
    """Ask both in every suite and write the verdict of `wanted`, which is `spec.evaluation`; returns `{reports, baselines, verdict}`.

    `earlier`: a suite's folders of finished reports: one on the same basis stands in for the baseline's. Raises Refused, or Warned with every
    answer kept.
    """
    reports: list[dict[str, Any]] = []
    baselines: list[dict[str, Any]] = []
    for suite in suites:
        folder, keep = place_of(suite.name, suites, out), place_of(suite.name, suites, kept)
        say(f"{suite.name}: {_named(candidate)}")
        reports.append(suite.ask(candidate, Where(folder, keep / CANDIDATE, log=out / PROGRESS)))
        if baseline is not None:
            say(f"{suite.name}: {BASELINE} {_named(baseline)}")
            place = Where(folder / BASELINE_FOLDER, keep / BASELINE, tuple(earlier(suite.name)), out / PROGRESS)
            baselines.append(suite.ask(baseline, place))
    verdict = verdict_of(wanted, reports, baselines)
    record = {
        "schema": VERDICT_SCHEMA, "at": utc_now(), "evaluation": dict(wanted), **verdict.as_json(),
        "candidate": {r["suite"]: r["basis"] for r in reports}, "baseline": {r["suite"]: r["basis"] for r in baselines},
    }  # fmt: skip
    write_json_new(out / VERDICT, record)
    return {"reports": reports, "baselines": baselines, "verdict": record}


def _named(one: Subject) -> str:
    return f"{one.adapter or one.model}" + (f" on {one.model}" if one.adapter else "")


def place_of(name: str, suites: Sequence[Suite], folder: Path) -> Path:
    """A suite's own folder below `folder`: one of its name where there are several, else that folder."""
    return folder / SUITES_FOLDER / name if len(suites) > 1 else folder


def verdict_of(
    wanted: Mapping[str, Any], candidate: Iterable[Mapping[str, Any]], baseline: Iterable[Mapping[str, Any]] = ()
) -> Verdict:
    """The verdict of `spec.evaluation` on reports. Pure."""
    gates = [Bounds(**gate) for gate in wanted.get("gates", ())]
    before = {report["suite"]: suite_of(report) for report in baseline}
    return judge(gates, {report["suite"]: suite_of(report) for report in candidate}, before or None)


def result_of(done: Mapping[str, Any]) -> dict[str, Any]:
    """What result.json says of reports and verdict: a single suite's numbers by their keys, several suites' as `<suite>/<key>`."""
    reports, more = done["reports"], {}
    if verdict := done.get("verdict"):
        before = _numbers(done["baselines"]) or None
        more = {"verdict": verdict["verdict"], "reason": verdict["reason"], "baseline": before}
    return {"suite": ", ".join(r["suite"] for r in reports), "metrics": _numbers(reports), **more}


def _numbers(reports: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    several = len(reports) > 1
    return {
        f"{r['suite']}/{key}" if several else key: metric["value"]
        for r in reports
        for key, metric in r["metrics"].items()
    }


def finished_baselines(run_dir: Path, suite: str) -> list[Path]:
    """Folders of baseline reports of the same experiment's earlier evaluations that may be of a suite, newest first.

    What is used of them is compared byte by byte, so that a report of another suite is none.
    """
    found = [(report.stat().st_mtime_ns, report.parent) for report in _reports(run_dir, suite)]
    return [folder for _, folder in sorted(found, reverse=True)[:20]]


def _reports(run_dir: Path, suite: str) -> list[Path]:
    places = (BASELINE_FOLDER, f"{SUITES_FOLDER}/{suite}/{BASELINE_FOLDER}")
    listed = (p for place in places for p in run_dir.parent.glob(f"run-*/attempts/*/out/{place}/{REPORT}"))
    return [p for p in listed if run_dir not in p.parents]
