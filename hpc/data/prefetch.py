"""A repository of the hub into the shared cache, once for everybody.

    revision → one commit → choose files → claim the commit → fetch what is not there, four files at a time → check what is → link → ref → record

Every file is compared with the digest that the hub announces for the commit, also one that another user fetched. A prefetch that dies leaves whole
files and partial ones; the next takes both over. Does not promise that a later reader finds the same bytes: jobs compare them with the lock.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tuneplane.record.files import fsync_dir

from hpc.data.hub_choice import Choice, RemoteFile, choose
from hpc.data.hub_claims import Claim, claim
from hpc.data.hub_client import Hub
from hpc.data.hub_fetch import Stopped, Way, content_digest, fetch
from hpc.data.hub_manifest import Manifest, write
from hpc.data.hub_names import MAIN, HubCache, Repo, blob_name, check_revision, is_commit
from hpc.data.hub_store import LAG_S, NOT_SEEN, link, open_cache, open_repo, set_ref
from hpc.data.retry import patiently
from hpc.errors.core import Refusal
from hpc.store.faults import refusal

AT_ONCE = 4
TICK_S = 0.2
TRIES = 3
AGAIN_S = 5.0


@dataclass(frozen=True)
class Clockwork:
    """Time from outside: a monotonic clock in seconds, a sleep, and now as UTC text."""

    clock: Callable[[], float]
    sleep: Callable[[float], None]
    now: str


@dataclass(frozen=True)
class Progress:
    """Bytes that are there, of all, and how many of them this command fetched in `seconds`."""

    done: int
    total: int
    fetched: int
    seconds: float


@dataclass(frozen=True)
class Watch:
    """Who is told: lines worth saying, and how far it is (often)."""

    say: Callable[[str], None] = lambda text: None
    progress: Callable[[Progress], None] = lambda progress: None


@dataclass(frozen=True)
class Prefetched:
    """One commit that is in the cache. `fetched`: bytes that came over the wire now; `adopted`: files that were there already."""

    repo: Repo
    commit: str
    requested: str
    folder: Path
    files: tuple[RemoteFile, ...]
    left_out: dict[str, int]
    fetched: int
    adopted: int
    seconds: float

    def as_json(self) -> dict[str, Any]:
        return {
            "type": self.repo.type, "repo": str(self.repo), "commit": self.commit, "requested": self.requested, "path": str(self.folder),
            "files": {f.path: {"size": f.size, "digest": f.digest} for f in self.files}, "left_out": self.left_out,
            "size": sum(f.size for f in self.files), "fetched_bytes": self.fetched, "adopted_files": self.adopted,
        }  # fmt: skip


@dataclass
class _Count:
    lock: threading.Lock = field(default_factory=threading.Lock)
    done: int = 0
    fetched: int = 0

    def came(self, count: int) -> None:
        with self.lock:
            self.done += count
            self.fetched += count

    def there(self, count: int) -> None:
        with self.lock:
            self.done += count


def prefetch(
    cache: HubCache, hub: Hub, repo: Repo, revision: str = "", *, patterns: Sequence[str] = (), user: str, time: Clockwork,
    watch: Watch | None = None, locks: Sequence[str] = (),
) -> Prefetched:  # fmt: skip
    """Bring `repo` at `revision` (default: main) into the cache, or find that it is there.

    `patterns` narrow the files; `locks` are lock files that will count on the commit. Raises Refusal E-HUB-002 … E-HUB-024, E-STORE-02x; what was
    fetched until then stays and is used by the next try.
    """
    watch = watch or Watch()
    began = time.clock()
    check_revision(revision)
    _when_seen(lambda: open_cache(cache), time, watch)
    listing = patiently(
        lambda: hub.listing(repo, revision), sleep=time.sleep, what=str(repo),
        told=lambda text, wait: watch.say(f"{text}; again in {wait:g} s"),
    )  # fmt: skip
    chosen = choose(repo, listing.files, patterns)
    _when_seen(lambda: open_repo(cache, repo, listing.commit), time, watch)
    held = claim(cache.claim(repo, listing.commit), clock=time.clock, sleep=time.sleep, told=watch.say)
    try:
        for _ in range(TRIES):
            count, adopted = _files(cache, hub, repo, listing.commit, chosen, time, watch, held)
            for file in chosen.files:
                _when_seen(lambda f=file: link(cache, repo, listing.commit, f.path, f.digest), time, watch)  # type: ignore[misc]
            # A clean-up that was at work looks for links after it took a file away; so look for the file after it was linked.
            if all(os.path.lexists(cache.blobs(repo) / blob_name(f.digest)) for f in chosen.files):
                break
    finally:
        held.release()
    requested = revision or MAIN
    if not is_commit(requested):
        _when_seen(lambda: set_ref(cache, repo, requested, listing.commit), time, watch)
    record = Manifest(
        repo, listing.commit, requested, hub.endpoint, user, time.now, chosen.files, chosen.left_out, tuple(locks)
    )
    _when_seen(lambda: write(cache, record), time, watch)
    folder = cache.snapshot(repo, listing.commit)
    return Prefetched(
        repo, listing.commit, requested, folder, chosen.files, dict(chosen.left_out), count.fetched, adopted, time.clock() - began
    )  # fmt: skip


def _when_seen(work: Callable[[], None], time: Clockwork, watch: Watch) -> None:
    """Do `work`, again while folders that another node made are not seen here. Raises what it raises, Refusal E-STORE-023 after LAG_S."""
    for _ in range(round(LAG_S / AGAIN_S)):
        try:
            return work()
        except Refusal as fault:
            if fault.code != NOT_SEEN:
                raise
            watch.say(f"{fault.field} {fault.message}; again in {AGAIN_S:g} s")
            time.sleep(AGAIN_S)
    return work()


def _files(
    cache: HubCache, hub: Hub, repo: Repo, commit: str, chosen: Choice, time: Clockwork, watch: Watch, held: Claim
) -> tuple[_Count, int]:
    """Every chosen file in the blobs, whole and compared; how many were there before."""
    count, stop, began = _Count(), threading.Event(), time.clock()
    way = Way(hub, cache, time.sleep, watch.say, count.came, count.there, stop)
    wanted = {f.digest: f for f in chosen.files}
    total = sum(f.size for f in wanted.values())

    def tell() -> None:
        now = time.clock()
        held.beat(now)
        watch.progress(Progress(count.done, total, count.fetched, now - began))

    def one(file: RemoteFile) -> bool:
        if stop.is_set():
            raise Stopped
        if _standing(cache, repo, file):
            count.there(file.size)
            return True
        fetch(way, repo, commit, file)
        return False

    _require_space(cache, repo, wanted.values())
    pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="prefetch")
    try:
        # Large files first, so that the last minutes are not one long file.
        jobs = [pool.submit(one, f) for f in sorted(wanted.values(), key=lambda f: -f.size)]
        _await(jobs, tell)
    finally:
        stop.set()
        pool.shutdown(wait=True, cancel_futures=True)
    with suppress(OSError):  # a mount that cannot do it loses names, which the next prefetch brings back
        fsync_dir(cache.blobs(repo))
    tell()
    return count, sum(job.result() for job in jobs)


def _await(jobs: list[Future[bool]], tell: Callable[[], None]) -> None:
    """Until all are done or one failed, whose exception is raised."""
    left = set(jobs)
    while left:
        done, left = wait(left, timeout=TICK_S, return_when=FIRST_COMPLETED)
        tell()
        for job in done:
            job.result()


def _standing(cache: HubCache, repo: Repo, file: RemoteFile) -> bool:
    """True if the blob is there with the announced bytes; a damaged one of ours goes. Raises Refusal E-HUB-022 for another user's."""
    path = cache.blobs(repo) / blob_name(file.digest)
    try:
        found = os.lstat(path)
        if found.st_size == file.size and content_digest(path, file.digest) == file.digest:
            return True
        if os.geteuid() not in (0, found.st_uid):
            hint = f"ask uid {found.st_uid} or an admin to remove {path}, then run the command again"
            text = f"another user's copy of {file.path} has other bytes"
            raise Refusal("E-HUB-022", text, field=str(path), found=f"uid {found.st_uid}", hint=hint)
        os.unlink(path)
    except FileNotFoundError:
        pass
    except OSError as exc:
        if exc.errno != errno.ESTALE:  # another node removed it
            raise refusal(exc, path, "read") from exc
    return False


def _require_space(cache: HubCache, repo: Repo, files: Any) -> None:
    """Refuse what cannot fit before any of it is fetched. Raises Refusal E-STORE-020."""
    blobs = cache.blobs(repo)
    need = sum(f.size for f in files if not os.path.lexists(blobs / blob_name(f.digest)))
    with suppress(OSError):
        space = os.statvfs(blobs)
        if need > (free := space.f_bavail * space.f_frsize):
            raise Refusal("E-STORE-020", f"{need} bytes are to come and {free} are free", field=str(blobs), found=free)
