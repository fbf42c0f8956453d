"""The checks of an audit that follow a life: attempts, report, artifacts, of a run or of one element of its array."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tuneplane.contract import schemas
from tuneplane.contract.layout import RunPaths
from tuneplane.record.digest import digest_json, is_relative
from tuneplane.record.events import Chain

from hpc.runs.checks import Package, expect, first_event, numbers_of
from hpc.runs.claims import check_claims
from hpc.runs.evidence import Case

Record = dict[str, Any]
CLOSING_S: Final = 60.0
"""The batch step writes report, end and closing event in far less, and another client of the storage sees them in about that; an audit that comes in
between accuses nobody."""


@dataclass(frozen=True)
class Life:
    """Attempts, events and report in one folder: the run's own, or `array/<index>/` in it."""

    case: Case
    part: RunPaths
    chains: dict[str, Chain]
    package: Package
    admission: Record | None = None

    def ending(self, number: int) -> Record | None:
        """Details of the event with which the batch step closed an attempt."""
        chain = self.chains.get(f"batch-{number}")
        for event in reversed(chain.events if chain else ()):
            details = event.get("details")
            if isinstance(details, dict) and "end_sha256" in details:
                return details
        return None

    def attempts(self) -> dict[int, Record]:
        """Claims, starts, ends and requeue records against each other, their submission and their events; the end records."""
        case, part = self.case, self.part
        ends: dict[int, Record] = {}
        found = case.numbered("attempts", part.attempts)
        firsts = case.numbered("submissions", case.run.submissions, ".json")
        for stated in sorted((numbers_of(self.chains, "launch") | numbers_of(self.chains, "batch")) - set(found)):
            case.gone("attempts", part.attempts / str(stated), "is gone; its events are there")
        for number in found:
            first = max((n for n in firsts if n <= number), default=None)
            if first is None:
                if not case.blind(case.run.submissions):
                    case.tampered("attempts", part.attempts / str(number), "no submission started it")
                continue
            submission = case.json("submissions", case.run.submissions / f"{first}.json") or {}
            self._start(number, self._claim(number, first, submission))
            end = self._end(number)
            if end is not None:
                ends[number] = end
        return ends

    def _claim(self, number: int, first: int, submission: Record) -> list[str]:
        case, path = self.case, self.part.attempt(number).claim
        text = case.text("attempts", path)
        if text is None:
            if not case.blind(path):
                case.incomplete("attempts", path, "the attempt has no claim")
            return []
        words = text.split()
        if len(words) != 3:
            case.tampered("attempts", path, "is not a claim")
            return []
        job = str(submission.get("job_id", "")).partition("_")[0]
        if words[1] != str(number - first):
            case.tampered(
                "attempts", path, f"restart count {words[1]} does not make attempt {number} of submission {first}"
            )
        if submission.get("nonce") and words[2] != submission["nonce"]:
            case.tampered("attempts", path, "another submission's nonce")
        if submission.get("kind") == "slurm" and words[0].partition("_")[0] != job:
            case.tampered("attempts", path, f"job {words[0]} is not the submission's {job}")
        return words

    def _start(self, number: int, claim: list[str]) -> None:
        case, path = self.case, self.part.attempt(number).start
        start, event = case.json("attempts", path), first_event(self.chains, f"launch-{number}")
        if start is None:
            if f"launch-{number}" in self.chains:
                case.gone("attempts", path, "is gone; its events are there")
            return
        wanted: Record = {"run_id": case.run.run_id, "attempt": number}
        if claim:
            wanted |= {"job_id": claim[0], "nonce": claim[2]}
        if self.package.digest:
            wanted["package_digest"] = self.package.digest
        expect(case, "attempts", path, start, wanted)
        if event is not None:
            told = ("job_id", "attempt", "hosts", "previous_end")
            expect(case, "attempts", path, start, {k: event[k] for k in told if k in event})
        elif not case.blind(self.part.events):
            case.incomplete(
                "attempts", self.part.events / f"launch-{number}.jsonl", "the attempt began without an event"
            )

    def _end(self, number: int) -> Record | None:
        case, paths, closing = self.case, self.part.attempt(number), self.ending(number)
        end = case.json("attempts", paths.end)
        following = (case.json("attempts", self.part.attempt(number + 1).start) or {}).get("previous_end")
        if end is None:
            if closing is not None:
                case.gone("attempts", paths.end, "is gone; the attempt's last event is there")
            elif following == "lost":
                case.note("attempts", paths.end, "the attempt left no end, and the next one says so")
            elif not case.blind(paths.end):
                case.incomplete("attempts", paths.end, "the attempt has no end")
            return None
        expect(case, "attempts", paths.end, end, {"run_id": case.run.run_id, "attempt": number})
        if following is not None and following != end.get("class"):
            case.tampered("attempts", paths.end, f"class is {end.get('class')!r}, the next attempt found {following!r}")
        if closing is None and not case.blind(self.part.events):
            # An attempt that dies with its node cannot close itself; the next one adds the end and names its class in its own event.
            if end.get("job_id") is None and following is not None:
                case.note("attempts", paths.end, f"was added by attempt {number + 1}: the node had died")
                return end
            if end.get("job_id") is None:
                case.incomplete("attempts", paths.end, "was added by a next attempt that did not begin")
                return end
            path = self.part.events / f"batch-{number}.jsonl"
            case.incomplete("attempts", path, "the attempt ended without a closing event")
        elif closing is not None and closing["end_sha256"] != digest_json(end):
            case.tampered("attempts", paths.end, "is not what the closing event recorded")
        self._nodes(number, closing)
        self._requeue(number, end)
        return end

    def _nodes(self, number: int, closing: Record | None) -> None:
        """The nodes' records, from which the end was decided, against the closing event; one that came later decided nothing."""
        case, folder = self.case, self.part.attempt(number).nodes
        told = (closing or {}).get("nodes")
        if not isinstance(told, dict):
            return
        for name, sha256 in sorted(told.items()):
            path = folder / name
            found = case.digest("attempts", path) if is_relative(name) else None
            if found is None:
                case.gone("attempts", path, "is gone; the closing event names it")
            elif found != sha256:
                case.tampered("attempts", path, f"was changed: recorded {sha256}, found {found}")
        for name in case.names("attempts", folder):
            if name.endswith(".json") and name not in told:
                case.note("attempts", folder / name, "was written after the attempt was closed")

    def _requeue(self, number: int, end: Record) -> None:
        case, path = self.case, self.part.attempt(number).requeue
        record = case.json("attempts", path)
        if record is not None:
            wanted = {
                "run_id": case.run.run_id,
                "attempt": number,
                "job_id": end.get("job_id"),
                "step": end.get("step"),
            }
            expect(case, "attempts", path, record, wanted)
            if not end.get("requeue"):
                case.tampered("attempts", path, "asks for another attempt, the end does not")
        elif end.get("requeue"):
            case.gone("attempts", path, "is gone; the end asks for another attempt")

    def _stated_report(self) -> set[str]:
        """Digests of the report that events name."""
        details = [e.get("details") for c in self.chains.values() for e in c.events]
        return {str(d["report_sha256"]) for d in details if isinstance(d, dict) and "report_sha256" in d}

    def report(self, ends: dict[int, Record]) -> Record | None:
        """The report against the digest in the completing event, and against the records that it sums up."""
        case, path, stated = self.case, self.part.report, self._stated_report()
        digest = case.digest("report", path)
        if digest is None:
            if stated:
                case.gone("report", path, "is gone; the completing event is there")
            elif not case.blind(path):
                last = ends[max(ends)].get("class") if ends else None
                case.incomplete("report", path, f"the run ended as {last}" if last else "the run has not ended")
            return None
        if not stated:
            # The report is written before the completing event: a log that lacks it was cut, or never seen whole by this user.
            if case.age_s(path) < CLOSING_S:
                case.incomplete("report", path, "the run is being closed at this moment")
            elif not case.blind(self.part.events):
                case.tampered("report", path, "no event says that the run was completed")
        elif stated != {digest}:
            case.tampered("report", path, f"was changed: recorded {', '.join(sorted(stated))}, found {digest}")
        report = case.json("report", path)
        if report is None:
            return None
        wanted: Record = {
            "schema": schemas.REPORT,
            "run_id": case.run.run_id,
            "owner": case.run.owner,
            "status": "done",
        }
        known = {"package_digest": self.package.digest, "spec_digest": self.package.spec_digest}
        wanted |= {key: digest for key, digest in known.items() if digest is not None}
        expect(case, "report", path, report, wanted)
        told = report.get("attempts")
        for entry in told if isinstance(told, list) else ():
            number = entry.get("attempt") if isinstance(entry, dict) else None
            if number in ends and entry != ends[number]:
                case.tampered("report", path, f"tells attempt {number} in another way than its end record")
        self._script(report, max(ends, default=0))
        check_claims(case, self.part, report, self.admission)
        return report

    def _script(self, report: Record, last: int) -> None:
        """The script that ran, by its own digest of itself, is the one that was submitted."""
        case = self.case
        first = max((n for n in case.numbered("submissions", case.run.submissions, ".json") if n <= last), default=0)
        submission = case.json("submissions", case.run.submissions / f"{first}.json") or {}
        ran, frozen = report.get("script_sha256"), submission.get("script_sha256")
        if ran and frozen and ran != frozen:
            case.tampered("script", self.part.report, f"another script ran than was submitted: {ran}, not {frozen}")

    def artifacts(self, report: Record | None) -> None:
        """Every artifact of the report: there, of the size and the SHA-256 that it states."""
        if report is None:
            return
        case = self.case
        try:
            out = self.part.attempt(int(report["attempts"][-1]["attempt"])).out
            rows = [(str(a["path"]), int(a["size"]), str(a["sha256"])) for a in report.get("artifacts") or ()]
        except (KeyError, IndexError, TypeError, ValueError) as exc:
            case.tampered("artifacts", self.part.report, f"the list of artifacts is not one: {exc!r}")
            return
        for name, size, sha256 in rows:
            if is_relative(name):
                self._artifact(out / name, size, sha256)
            else:
                case.tampered("artifacts", self.part.report, f"{name!r} leads out of the run")

    def _artifact(self, path: Path, size: int, sha256: str) -> None:
        try:
            length = os.lstat(path).st_size
            # Another length is a difference without a reading: a file of holes would take for ever.
            found = f"{length} bytes" if length != size else self.case.file_digest(path) if self.case.deep else sha256
            self.case.listed += size if length == size else 0
        except FileNotFoundError:
            self.case.tampered("artifacts", path, "is gone")
        except OSError as exc:
            self.case.failed("artifacts", path, exc)
        else:
            if found != sha256:
                self.case.tampered("artifacts", path, f"was changed: recorded {sha256}, found {found}")
