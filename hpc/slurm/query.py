"""Asks Slurm about jobs: squeue for what is queued or fresh, sacct for what is over.

Columns are named, rows have no header, fields end with a separator that Slurm's own texts never hold (ASCII unit separator). Reading is lenient:
a row of another shape (a banner, a broken comment) is left out and counted, never guessed. Times are UTC, in seconds since 1970.
"""

from __future__ import annotations

import calendar
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, Final

from hpc.errors import Refusal
from hpc.slurm.states import ACTIVE, StateClass, canonical, state_class
from hpc.spec.jobids import JobId

if TYPE_CHECKING:
    from hpc.slurm.commands import Completed, Slurm

SEPARATOR: Final = "\x1f"
IDS_PER_CALL: Final = 500
"""Longer lists are asked for in several calls, far below any limit of a command line."""


@dataclass(frozen=True)
class JobRow:
    """One job, array task or heterogeneous component as Slurm told it. Times: seconds since 1970 UTC, None where Slurm has none.

    `submitted_at` moves on a requeue. `started_at` of a pending job is Slurm's estimate. `name` is empty where accounting does not know it yet.
    """

    job_id: str
    raw_id: int
    state: str
    reason: str
    name: str
    comment: str
    submitted_at: int | None
    started_at: int | None
    ended_at: int | None
    nodes: int
    node_list: str
    partition: str
    account: str
    qos: str
    user: str
    cluster: str
    restarts: int | None
    time_limit: str
    dependency: str
    exit_code: int | None
    signal: int | None
    source: str

    @property
    def cls(self) -> StateClass:
        """The state's class; a job that waits after it already ran is `requeued`."""
        found = state_class(self.state)
        return "requeued" if found == "pending" and self.restarts else found

    @property
    def active(self) -> bool:
        return self.cls in ACTIVE

    @property
    def base_id(self) -> int:
        """The id that sbatch printed: of the array, or of the heterogeneous job's leader."""
        return JobId.parse(self.job_id).job

    @property
    def key(self) -> tuple[str, str, int | None, int | None]:
        """What tells two jobs of one id apart: cluster, full id, restarts, submit time."""
        return (self.cluster, self.job_id, self.restarts, self.submitted_at)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: Any) -> JobRow:
        """Raises ValueError for any other shape."""
        names = {f.name for f in fields(cls)}
        if not isinstance(value, dict) or set(value) != names:
            raise ValueError("not a job row")
        return cls(**value)


@dataclass(frozen=True)
class Rows:
    """What a query gave, and how many of its lines were not rows."""

    rows: tuple[JobRow, ...]
    skipped: int = 0


_SQUEUE: Final = (
    ("JobArrayID", "job_id", 64),
    ("JobID", "raw_id", 16),
    ("State", "state", 32),
    ("Reason", "reason", 200),
    ("SubmitTime", "submitted_at", 32),
    ("StartTime", "started_at", 32),
    ("EndTime", "ended_at", 32),
    ("NumNodes", "nodes", 16),
    ("NodeList", "node_list", 2048),
    ("Partition", "partition", 256),
    ("Account", "account", 128),
    ("QOS", "qos", 128),
    ("UserName", "user", 128),
    ("Cluster", "cluster", 64),
    ("RestartCnt", "restarts", 16),
    ("TimeLimit", "time_limit", 32),
    ("Dependency", "dependency", 512),
    ("Name", "name", 256),
    ("Comment", "comment", 512),
)
_SACCT: Final = (
    ("JobID", "job_id"),
    ("JobIDRaw", "raw_id"),
    ("State", "state"),
    ("Reason", "reason"),
    ("Submit", "submitted_at"),
    ("Start", "started_at"),
    ("End", "ended_at"),
    ("NNodes", "nodes"),
    ("NodeList", "node_list"),
    ("Partition", "partition"),
    ("Account", "account"),
    ("QOS", "qos"),
    ("User", "user"),
    ("Cluster", "cluster"),
    ("Timelimit", "time_limit"),
    ("ExitCode", "exit"),
    ("JobName", "name"),
    ("Comment", "comment"),
)


def jobs(slurm: Slurm, user: str, *, name: str = "", deadline_s: float | None = None) -> Rows:
    """All of `user`'s jobs that the controller still knows, ended ones within MinJobAge among them. Raises Refusal E-SLURM-*."""
    columns = ",".join(f"{column}:{size}{SEPARATOR}" for column, _, size in _SQUEUE)
    args = ["--noheader", f"--user={user}", "--states=all", f"--Format={columns}"]
    if name:
        args.append(f"--name={name}")
    done = _asked(slurm, "squeue", _with_cluster(slurm, args), "list your jobs", deadline_s)
    return parse_squeue(done.out)


def history(
    slurm: Slurm,
    *,
    ids: Sequence[str] = (),
    names: Sequence[str] = (),
    user: str = "",
    since: int | None = None,
    incarnations: bool = True,
    steps: bool = False,
    deadline_s: float | None = None,
) -> Rows:
    """What accounting knows of jobs by id or name, earlier incarnations of requeued ones included (oldest first).

    Without `since` (seconds since 1970) sacct is asked from the beginning of time where ids are named. Does not promise freshness: records come
    seconds late, and a running job may still read PENDING. Raises Refusal E-SLURM-*, among them E-SLURM-006 without accounting.
    """
    rows: list[JobRow] = []
    skipped = 0
    base = ["--noheader", "--parsable2", f"--delimiter={SEPARATOR}", f"--format={','.join(c for c, _ in _SACCT)}"]
    base += ["--duplicates"] if incarnations else []
    base += [] if steps else ["--allocations"]
    base += [f"--user={user}"] if user else []
    if since is not None:
        base.append(f"--starttime={time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(since))}")
    elif not ids:
        raise ValueError("history by name or user needs a start time")
    for selection in _selections(ids, names):
        done = _asked(slurm, "sacct", _with_cluster(slurm, base + selection), "read the accounting records", deadline_s)
        found = parse_sacct(done.out)
        rows.extend(found.rows)
        skipped += found.skipped
    return Rows(tuple(rows), skipped)


def by_name(slurm: Slurm, user: str, name: str, *, since: int) -> Rows:
    """Every job of this name, fresh from the controller and, where it knows none, from accounting. For adoption after an unclear sbatch.

    `since` bounds the accounting query (seconds since 1970). Raises Refusal where neither can answer: then nobody knows.
    """
    found = jobs(slurm, user, name=name)
    if found.rows:
        return found
    try:
        return history(slurm, names=[name], user=user, since=since)
    except Refusal as exc:
        if exc.code == "E-SLURM-006":
            return found
        raise


@dataclass(frozen=True)
class Wait:
    """How long one job waited, and its shape: nodes, time limit in seconds (None: none, or not told)."""

    wait_s: int
    nodes: int
    limit_s: int | None


def waits(slurm: Slurm, partition: str, *, since: int, deadline_s: float | None = 10.0) -> list[Wait]:
    """The waits of everybody's jobs in a partition that started since then, as far as the site shows them. Raises Refusal E-SLURM-*."""
    args = [
        "--noheader",
        "--parsable2",
        f"--delimiter={SEPARATOR}",
        "--allocations",
        "--allusers",
        f"--partition={partition}",
    ]
    args += [
        f"--starttime={time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(since))}",
        "--format=Submit,Start,NNodes,TimelimitRaw,NodeList",
    ]
    done = _asked(slurm, "sacct", _with_cluster(slurm, args), "read the waits of earlier jobs", deadline_s)
    out = []
    for line in done.out.splitlines():
        cells = line.split(SEPARATOR)
        if len(cells) != 5 or not _known(cells[4]):
            continue  # cancelled before it had nodes: it did not wait to the end
        submitted, started, nodes, limit = moment(cells[0]), moment(cells[1]), _number(cells[2]), _number(cells[3])
        if submitted is not None and started is not None and nodes and started >= submitted:
            out.append(Wait(started - submitted, nodes, limit * 60 if limit is not None else None))
    return out


def _selections(ids: Sequence[str], names: Sequence[str]) -> Iterable[list[str]]:
    if not ids and not names:
        yield []
    for flag, words in (("--jobs", ids), ("--name", names)):
        for at in range(0, len(words), IDS_PER_CALL):
            yield [f"{flag}={','.join(words[at : at + IDS_PER_CALL])}"]


def _with_cluster(slurm: Slurm, args: list[str]) -> list[str]:
    return [f"--clusters={slurm.cluster}", *args] if slurm.cluster else args


def _asked(slurm: Slurm, tool: str, args: list[str], what: str, deadline_s: float | None) -> Completed:
    from hpc.slurm.verdicts import classify, refusal

    done = slurm.run(tool, args, deadline_s=deadline_s)
    if classify(done) != "ok":
        raise refusal(done, what)
    return done


def parse_squeue(text: str) -> Rows:
    """Rows of our squeue format. Pure."""
    return _parse(text, [attribute for _, attribute, _ in _SQUEUE], "squeue", closed=True)


def parse_sacct(text: str) -> Rows:
    """Rows of our sacct format, steps as rows of their own. Pure."""
    return _parse(text, [attribute for _, attribute in _SACCT], "sacct", closed=False)


def _parse(text: str, names: list[str], source: str, *, closed: bool) -> Rows:
    rows, skipped = [], 0
    for line in text.split("\n"):
        if not line.strip():
            continue
        cells = line.split(SEPARATOR)
        if closed and not cells[-1].strip():
            cells.pop()
        row = _row(dict(zip(names, map(str.strip, cells), strict=True)), source) if len(cells) == len(names) else None
        if row is None:
            skipped += 1
        else:
            rows.append(row)
    return Rows(tuple(rows), skipped)


def _row(cell: dict[str, str], source: str) -> JobRow | None:
    try:
        job = JobId.parse(cell["job_id"])
    except Refusal:
        return None
    ended = cell.get("exit", "").partition(":")
    return JobRow(
        job_id=str(job),
        raw_id=_number(cell["raw_id"].partition(".")[0]) or job.job,
        state=canonical(cell["state"]),
        reason=_known(cell["reason"]),
        # Accounting's word for a job whose name has not reached it yet.
        name="" if source == "sacct" and cell["name"] == "allocation" else cell["name"],
        comment=_known(cell["comment"]),
        submitted_at=moment(cell["submitted_at"]),
        started_at=moment(cell["started_at"]),
        ended_at=moment(cell["ended_at"]),
        nodes=_number(cell["nodes"]) or 0,
        node_list=_known(cell["node_list"]),
        partition=cell["partition"],
        account=cell["account"],
        qos=_known(cell["qos"]),
        user=cell["user"],
        cluster=_known(cell["cluster"]),
        restarts=_number(cell.get("restarts", "")),
        time_limit=cell["time_limit"],
        dependency=_known(cell.get("dependency", "")),
        exit_code=_number(ended[0]),
        signal=_number(ended[2]),
        source=source,
    )


def _known(text: str) -> str:
    return "" if text in ("(null)", "N/A", "None assigned", "Unknown") else text


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() else None


def moment(text: str) -> int | None:
    """Seconds since 1970 of a time that Slurm printed with TZ=UTC; None for N/A, Unknown, NONE and whatever else is no time."""
    try:
        return calendar.timegm(time.strptime(text, "%Y-%m-%dT%H:%M:%S"))
    except ValueError:
        return _number(text)
