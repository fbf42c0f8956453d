"""The checks of an audit that follow a run's life: submissions, attempts, the report, the artifacts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tuneplane.contract import schemas
from tuneplane.record.digest import digest_file, digest_json, is_relative
from tuneplane.record.events import Chain

from hpc.runs.checks import Package
from hpc.runs.evidence import Case


def check_submissions(case: Case, chains: dict[str, Chain], package: Package) -> None:
    """Each submission against its frozen script and its event."""
    run = case.run
    found = case.numbered("submissions", run.submissions, ".json")
    if not found and not case.blind(run.submissions):
        case.incomplete("submissions", run.submissions, "the run was never submitted")
    for stated in _numbers_of(chains, "submit"):
        if stated not in found:
            case.gone("submissions", run.submissions / f"{stated}.json", "is gone; its event is there")
    for number in found:
        path = run.submissions / f"{number}.json"
        record = case.json("submissions", path)
        if record is None:
            continue
        _expect(case, "submissions", path, record, {"run_id": run.run_id, "first_attempt": number})
        if package.spec_digest and "spec_digest" in record:
            _expect(case, "submissions", path, record, {"spec_digest": package.spec_digest})
        _check_script(case, number, record)
        event = _first_event(chains, f"submit-{number}")
        if event is None:
            if not case.blind(run.events):
                case.incomplete("submissions", run.events / f"submit-{number}.jsonl", "the submission has no event")
            continue
        for key in ("job_id", "fleet", "script_sha256"):
            if key in event and event[key] != record.get(key):
                case.tampered("submissions", path, f"{key} is {record.get(key)!r}, its event says {event[key]!r}")


def _check_script(case: Case, number: int, record: dict[str, Any]) -> None:
    script = case.run.batch / f"{number}.sh"
    if not record.get("script_sha256"):
        case.incomplete("script", script, "the submission recorded no digest of its script")
        return
    digest = case.digest("script", script)
    if digest is None:
        case.gone("script", script, "is gone")
    elif digest != record["script_sha256"]:
        case.tampered("script", script, f"was changed: recorded {record['script_sha256']}, found {digest}")


def _numbers_of(chains: dict[str, Chain], kind: str) -> set[int]:
    """The n of every writer `<kind>-<n>` that wrote something."""
    words = [w.rpartition("-") for w, chain in chains.items() if chain.events]
    return {int(n) for k, _, n in words if k == kind and n.isascii() and n.isdigit()}


def _first_event(chains: dict[str, Chain], writer: str) -> dict[str, Any] | None:
    chain = chains.get(writer)
    for event in chain.events if chain else ():
        if isinstance(details := event.get("details"), dict):
            return details
    return None


def _ending(chains: dict[str, Chain], number: int) -> dict[str, Any] | None:
    """Details of the event with which the batch step closed an attempt."""
    chain = chains.get(f"batch-{number}")
    for event in reversed(chain.events if chain else ()):
        details = event.get("details")
        if isinstance(details, dict) and "end_sha256" in details:
            return details
    return None


def _expect(case: Case, check: str, path: Path, record: dict[str, Any], wanted: dict[str, Any]) -> None:
    for key, value in wanted.items():
        if record.get(key) != value:
            case.tampered(check, path, f"{key} is {record.get(key)!r}, not {value!r}")


def check_attempts(case: Case, chains: dict[str, Chain], package: Package) -> dict[int, dict[str, Any]]:
    """Claims, starts, ends and requeue records of all attempts against each other, their submission and their events; the end records."""
    run = case.run
    ends: dict[int, dict[str, Any]] = {}
    found = case.numbered("attempts", run.attempts)
    firsts = case.numbered("submissions", run.submissions, ".json")
    for stated in sorted((_numbers_of(chains, "launch") | _numbers_of(chains, "batch")) - set(found)):
        case.gone("attempts", run.attempts / str(stated), "is gone; its events are there")
    for number in found:
        paths = run.attempt(number)
        first = max((n for n in firsts if n <= number), default=None)
        if first is None:
            if not case.blind(run.submissions):
                case.tampered("attempts", paths.root, "no submission started it")
            continue
        submission = case.json("submissions", run.submissions / f"{first}.json") or {}
        claim = _check_claim(case, number, first, submission)
        start = case.json("attempts", paths.start)
        if start is not None:
            _check_start(case, chains, number, start, claim, package)
        elif f"launch-{number}" in chains:
            case.gone("attempts", paths.start, "is gone; its events are there")
        end = _check_end(case, chains, number)
        if end is not None:
            ends[number] = end
    return ends


def _check_claim(case: Case, number: int, first: int, submission: dict[str, Any]) -> list[str]:
    path = case.run.attempt(number).claim
    text = case.text("attempts", path)
    if text is None:
        if not case.blind(path):
            case.incomplete("attempts", path, "the attempt has no claim")
        return []
    words = text.split()
    if len(words) != 3:
        case.tampered("attempts", path, "is not a claim")
        return []
    if words[1] != str(number - first):
        case.tampered("attempts", path, f"restart count {words[1]} does not make attempt {number} of submission {first}")
    if submission.get("nonce") and words[2] != submission["nonce"]:
        case.tampered("attempts", path, "another submission's nonce")
    if submission.get("kind") == "slurm" and words[0].partition("_")[0] != str(submission.get("job_id", "")).partition("_")[0]:
        case.tampered("attempts", path, f"job {words[0]} is not the submission's {submission.get('job_id')}")
    return words


def _check_start(
    case: Case, chains: dict[str, Chain], number: int, start: dict[str, Any], claim: list[str], package: Package
) -> None:
    path = case.run.attempt(number).start
    wanted: dict[str, Any] = {"run_id": case.run.run_id, "attempt": number}
    if claim:
        wanted |= {"job_id": claim[0], "nonce": claim[2]}
    if package.digest:
        wanted["package_digest"] = package.digest
    _expect(case, "attempts", path, start, wanted)
    event = _first_event(chains, f"launch-{number}")
    if event is not None:
        _expect(case, "attempts", path, start, {k: event[k] for k in ("job_id", "attempt", "hosts") if k in event})
    elif not case.blind(case.run.events):
        case.incomplete("attempts", case.run.events / f"launch-{number}.jsonl", "the attempt began without an event")


def _check_end(case: Case, chains: dict[str, Chain], number: int) -> dict[str, Any] | None:
    paths, closing = case.run.attempt(number), _ending(chains, number)
    end = case.json("attempts", paths.end)
    if end is None:
        if closing is not None:
            case.gone("attempts", paths.end, "is gone; the attempt's last event is there")
        elif not case.blind(paths.end):
            case.incomplete("attempts", paths.end, "the attempt has no end")
        return None
    _expect(case, "attempts", paths.end, end, {"run_id": case.run.run_id, "attempt": number})
    if closing is None and not case.blind(case.run.events):
        case.incomplete("attempts", case.run.events / f"batch-{number}.jsonl", "the attempt ended without a closing event")
    elif closing is not None and closing["end_sha256"] != digest_json(end):
        case.tampered("attempts", paths.end, "is not what the closing event recorded")
    requeue = case.json("attempts", paths.requeue)
    if requeue is not None:
        wanted = {"run_id": case.run.run_id, "attempt": number, "job_id": end.get("job_id"), "step": end.get("step")}
        _expect(case, "attempts", paths.requeue, requeue, wanted)
        if not end.get("requeue"):
            case.tampered("attempts", paths.requeue, "asks for another attempt, the end does not")
    elif end.get("requeue"):
        case.gone("attempts", paths.requeue, "is gone; the end asks for another attempt")
    return end


def check_report(
    case: Case, chains: dict[str, Chain], package: Package, ends: dict[int, dict[str, Any]]
) -> dict[str, Any] | None:
    """The report against the digest in the completing event, and against the records that it sums up."""
    path = case.run.report
    stated = {
        e["details"]["report_sha256"]
        for c in chains.values()
        for e in c.events
        if isinstance(e.get("details"), dict) and "report_sha256" in e["details"]
    }
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
        if not case.blind(case.run.events):
            case.tampered("report", path, "no event says that the run was completed")
    elif stated != {digest}:
        case.tampered("report", path, f"was changed: recorded {', '.join(sorted(stated))}, found {digest}")
    report = case.json("report", path)
    if report is None:
        return None
    wanted: dict[str, Any] = {"schema": schemas.REPORT, "run_id": case.run.run_id, "owner": case.run.owner, "status": "done"}
    known = {"package_digest": package.digest, "spec_digest": package.spec_digest}
    wanted |= {key: digest for key, digest in known.items() if digest is not None}
    _expect(case, "report", path, report, wanted)
    for entry in report.get("attempts") or ():
        number = entry.get("attempt") if isinstance(entry, dict) else None
        if number in ends and entry != ends[number]:
            case.tampered("report", path, f"tells attempt {number} in another way than its end record")
    return report


def check_artifacts(case: Case, report: dict[str, Any] | None) -> None:
    """Every artifact of the report: there, of the size and the SHA-256 that it states."""
    if report is None:
        return
    try:
        out = case.run.attempt(int(report["attempts"][-1]["attempt"])).out
        rows = [(str(a["path"]), int(a["size"]), str(a["sha256"])) for a in report.get("artifacts") or ()]
    except (KeyError, IndexError, TypeError, ValueError) as exc:
        case.tampered("artifacts", case.run.report, f"the list of artifacts is not one: {exc!r}")
        return
    for name, size, sha256 in rows:
        path = out / name
        if not is_relative(name):
            case.tampered("artifacts", case.run.report, f"{name!r} leads out of the run")
            continue
        try:
            found = digest_file(path)
            length = path.stat().st_size
        except FileNotFoundError:
            case.tampered("artifacts", path, "is gone")
            continue
        except OSError as exc:
            case.failed("artifacts", path, exc)
            continue
        if (length, found) != (size, sha256):
            case.tampered("artifacts", path, f"was changed: recorded {sha256}, found {found}")
