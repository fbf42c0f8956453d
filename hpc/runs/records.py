"""Reads a run's own records from its folder. Only reads; what is missing or damaged is a fact, not an error."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

from tuneplane.contract.layout import AttemptPaths, RunPaths
from tuneplane.record.files import read_bytes, read_json
from tuneplane.record.times import parse_utc

from hpc.errors import Refusal
from hpc.spec.arrays import ArraySpec, parse_array
from hpc.spec.text import escaped


@dataclass(frozen=True)
class Submission:
    """`submissions/<n>.json`: one hand-over to a fleet, `first_attempt` the number of the attempt that it starts with."""

    first_attempt: int
    kind: str
    fleet: str
    cluster: str
    job_id: str
    job_name: str
    nonce: str
    submitted_at: float
    pid: int | None = None
    pid_start: int | None = None
    script_sha256: str = ""
    adopted: bool = False
    offset: int = 0
    """What an element's index is above Slurm's own, in a part of a large array."""
    tasks: ArraySpec | None = None
    """Slurm's indices of a part of an array; None where the record does not say, as older ones."""
    after_run: str = ""
    """The run whose job this one waits for, where it follows one."""
    held: bool = False
    """That run's job lets it go: it evaluates a checkpoint."""

    @classmethod
    def from_json(cls, value: Any) -> Submission:
        """Raises KeyError, TypeError, ValueError for what is no submission."""
        at = instant(value["submitted_at"])
        if at is None:
            raise ValueError(f"submitted_at is {value['submitted_at']!r}")
        pid, ticks = value.get("pid"), value.get("pid_start")
        # Without a start time a number names nobody: it may be another process by now, and 0 and -1 are many.
        known = type(pid) is int and type(ticks) is int and pid > 1 and ticks > 0
        return cls(
            first_attempt=int(value["first_attempt"]),
            kind=_word(value["kind"]),
            fleet=_word(value.get("fleet", "")),
            cluster=_word(value.get("cluster", "")),
            job_id=_word(value["job_id"]),
            job_name=_word(value.get("job_name", "")),
            nonce=_word(value.get("nonce", "")),
            submitted_at=at,
            pid=pid if known else None,
            pid_start=ticks if known else None,
            script_sha256=_word(value.get("script_sha256", "")),
            adopted=bool(value.get("adopted", False)),
            offset=int((value.get("array") or {}).get("offset", 0)),
            tasks=_tasks(value.get("array")),
            after_run=_word((value.get("after") or {}).get("run_id", "")),
            held=bool((value.get("after") or {}).get("held", False)),
        )

    def is_of(self, index: int) -> bool:
        """Whether this submission is of an element; of every one where the record does not say."""
        return self.tasks is None or any(index - self.offset in part for part in self.tasks.ranges)


def _tasks(value: Any) -> ArraySpec | None:
    """Raises ValueError for what is no array."""
    if not value:
        return None
    try:
        return parse_array(str(value["tasks"]))
    except Refusal as exc:
        raise ValueError(str(exc)) from exc


@dataclass(frozen=True)
class Attempt:
    """`attempts/<n>/`: what its records say. `claim` is (job id, restart count, nonce)."""

    number: int
    claim: tuple[str, int, str] | None = None
    start: dict[str, Any] | None = None
    end: dict[str, Any] | None = None
    requeue: dict[str, Any] | None = None

    @property
    def restarts(self) -> int:
        """Slurm's restart count of the job when this attempt began."""
        if self.start and isinstance(self.start.get("restart_count"), int):
            return int(self.start["restart_count"])
        return self.claim[1] if self.claim else 0

    @property
    def hosts(self) -> tuple[str, ...]:
        """The nodes that the start record names."""
        named = (self.start or {}).get("hosts")
        return tuple(_word(h) for h in named if isinstance(h, str)) if isinstance(named, list) else ()

    @property
    def started_at(self) -> float | None:
        return instant((self.start or {}).get("started_at"))

    @property
    def ended_at(self) -> float | None:
        return instant((self.end or {}).get("ended_at"))

    @property
    def runs_again(self) -> bool:
        """Whether this attempt ended with the wish to be requeued."""
        return bool((self.end or {}).get("requeue")) or (self.end is None and self.requeue is not None)


@dataclass(frozen=True)
class Facts:
    """Everything that a run's folder says about its life.

    `elements` are the attempts of an array's elements, by index. `problems`: record → why it could not be used.
    """

    run: RunPaths
    submissions: tuple[Submission, ...] = ()
    attempts: tuple[Attempt, ...] = ()
    stop_requested: bool = False
    reported: bool = False
    elements: tuple[tuple[int, tuple[Attempt, ...]], ...] = ()
    problems: dict[str, str] = field(default_factory=dict)

    @property
    def last_submission(self) -> Submission | None:
        return self.submissions[-1] if self.submissions else None

    @property
    def last_attempt(self) -> Attempt | None:
        """The newest attempt of the newest submission; None while that one has not begun."""
        if not self.attempts or not self.submissions:
            return None
        last = self.attempts[-1]
        return last if last.number >= self.submissions[-1].first_attempt else None


def instant(text: Any) -> float | None:
    """Seconds since 1970 of a record's time, None for anything else."""
    try:
        return parse_utc(text).timestamp() if isinstance(text, str) else None
    except (ValueError, OverflowError):
        return None


def _word(value: Any) -> str:
    """A record's text as it may be printed."""
    return escaped(str(value))


def object_of(path: os.PathLike[str]) -> dict[str, Any]:
    """A record, {} where it is missing, cannot be read or is no object."""
    return _record(path, {}) or {}


def mapping_at(value: Any, *path: str) -> dict[str, Any]:
    """The object at a path of keys, {} where another kind of value stands on the way: records are their owner's words."""
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else {}


def numbers(folder: os.PathLike[str], suffix: str = "") -> list[int]:
    """The numbers that name a folder's entries (`0.json`, `1.json`, …), ascending. A folder that cannot be read has none."""
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    stems = [n.removesuffix(suffix) for n in names if n.endswith(suffix)]
    return sorted(int(s) for s in stems if s.isascii() and s.isdigit() and len(s) < 10 and str(int(s)) == s)


def read_facts(run: RunPaths) -> Facts:
    """What the folder says. Does not raise for damaged or unreadable records; they are in `problems`."""
    problems: dict[str, str] = {}
    return Facts(
        run,
        read_submissions(run, problems),
        _attempts(run, problems),
        (run.root / "stop_requested").exists(),
        run.report.exists(),
        tuple((n, _attempts(run.element(n), problems)) for n in numbers(run.array)),
        problems,
    )


def read_submissions(run: RunPaths, problems: dict[str, str]) -> tuple[Submission, ...]:
    """Every submission by its first attempt; what cannot be used goes into `problems`."""
    found = []
    for number in numbers(run.submissions, ".json"):
        path = run.submissions / f"{number}.json"
        value = _record(path, problems)
        try:
            if value is not None:
                found.append(Submission.from_json(value))
        except (AttributeError, KeyError, TypeError, ValueError) as exc:
            problems[str(path)] = f"not a submission: {exc!r}"
    return tuple(found)


def _attempts(part: RunPaths, problems: dict[str, str]) -> tuple[Attempt, ...]:
    return tuple(_attempt(part.attempt(n), problems) for n in numbers(part.attempts))


def _attempt(paths: AttemptPaths, problems: dict[str, str]) -> Attempt:
    return Attempt(
        paths.number,
        _claim(paths, problems),
        _record(paths.start, problems),
        _record(paths.end, problems),
        _record(paths.requeue, problems),
    )


def _record(path: os.PathLike[str], problems: dict[str, str]) -> dict[str, Any] | None:
    try:
        value = read_json(path)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as exc:
        problems[str(path)] = str(exc)
        return None
    if not isinstance(value, dict):
        problems[str(path)] = "not an object"
        return None
    return value


def _claim(paths: AttemptPaths, problems: dict[str, str]) -> tuple[str, int, str] | None:
    try:
        words = read_bytes(paths.claim, limit=4096).decode("utf-8").split()
        return words[0], int(words[1]), words[2]
    except FileNotFoundError:
        return None
    except (OSError, ValueError, IndexError) as exc:
        problems[str(paths.claim)] = f"not a claim: {exc!r}"
        return None
