"""Runs the parts of an audit in one process or in several, with as few of them under way as keep every process busy.

Processes are forked, so that what a kind is needs no second form. One that dies (killed, out of memory) costs its parts, which are named.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from hpc.registry.deepcheck import Target, check_bytes
from hpc.registry.kinds import Kind
from hpc.registry.packagecheck import Case, check_package
from hpc.registry.problems import INCOMPLETE, Problem
from hpc.registry.tally import Tally

CHUNK: Final = 16
WINDOW: Final = 4


class Job(NamedTuple):
    """What every part needs; inherited by the processes."""

    case: Case
    kinds: Sequence[Kind]
    core_version: str


class Package(NamedTuple):
    kind: int
    owner: str
    name: str
    uid: int


Work = Callable[[Job, Any], Tally]
_job: Job | None = None


def quick(job: Job, package: Package) -> Tally:
    kind = job.kinds[package.kind]
    where = f"registry/{kind.shelf}/{package.owner}/{package.name}"
    return guarded(where, lambda: check_package(job.case, kind, package.owner, package.name, package.uid))


def deep(job: Job, chunk: Sequence[Target]) -> Tally:
    out = Tally()
    for target in chunk:
        if job.case.over():
            out.stopped = True
            break
        where = "registry/" + "/".join(target.place(job.kinds))
        part = guarded(where, lambda t=target: check_bytes(job.case, job.kinds, t, job.core_version))  # type: ignore[misc]
        out.add(part)
        if part.stopped:
            out.at = part.last
            break
        out.last = part.last
    return out


def guarded(where: str, check: Callable[[], Tally]) -> Tally:
    """The check's tally; what trips over one record is named and hides no other."""
    try:
        return check()
    except Exception as exc:
        return Tally(problems=[Problem(INCOMPLETE, "bug", where, f"our bug, please report: {exc!r:.300}")])


T = TypeVar("T")


def chunks(targets: Iterable[T], most: int = CHUNK) -> Iterator[list[T]]:
    chunk: list[T] = []
    for target in targets:
        chunk.append(target)
        if len(chunk) == most:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


def run(job: Job, work: Work, parts: Iterable[Any], jobs: int) -> Iterator[Tally]:
    """The tally of each part, in the order of the parts. Closing the iterator early stops what has not begun."""
    if jobs <= 1:
        for part in parts:
            yield work(job, part)
        return
    yield from _in_processes(job, work, parts, jobs)


def _in_processes(job: Job, work: Work, parts: Iterable[Any], jobs: int) -> Iterator[Tally]:
    import multiprocessing
    from concurrent.futures import Future, ProcessPoolExecutor
    from concurrent.futures.process import BrokenProcessPool

    global _job
    _job = job
    pool = ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("fork"))
    under_way: deque[Future[Tally]] = deque()
    rest = iter(parts)
    try:
        for part in rest:
            under_way.append(pool.submit(_call, work, part))
            if len(under_way) >= jobs * WINDOW:
                yield under_way.popleft().result()
        while under_way:
            yield under_way.popleft().result()
    except BrokenProcessPool:
        text = (
            f"a process of the audit died; up to {len(under_way) + 1} parts were lost, the rest was judged without help"
        )
        yield Tally(problems=[Problem(INCOMPLETE, "worker-died", "registry", text)])
        for part in rest:
            yield work(job, part)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _call(work: Work, part: Any) -> Tally:
    assert _job is not None
    return work(_job, part)
