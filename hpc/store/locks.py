"""One lock for everything: filelock's strict soft lock, with a record of who holds it.

The strict lock publishes claims by hard link, which excludes between hosts where flock and POSIX locks do not (NFS,
Lustre without `-o flock`). It never breaks a claim by itself. Beside it stands `<lock>.owners/`, one small record a
process that holds or waits, written before its claim, so that every claim's owner can be judged. A claim whose owner
is proved gone (`hpc.store.owners.is_gone`) is removed by its unique name, so two rescuers cannot hurt a third's new
claim. A lock guards a mutable pointer for a moment: a broken one may cost time, never data.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tuneplane.record.canonical import canonical_bytes
from tuneplane.record.files import write_new

from hpc.errors.core import Refusal
from hpc.store.faults import refusal
from hpc.store.folders import make_folder, open_record
from hpc.store.owners import JobEnded, Owner, is_gone, parse_owner, this_process

if TYPE_CHECKING:
    from filelock import StrictSoftFileLock

_POLL_S = 0.05
OWNERS_SUFFIX = ".owners"


@dataclass(frozen=True)
class Claim:
    """One claim on a lock: its unique name, what filelock wrote, and the owner record that matches (None: nothing
    provable).
    """

    name: str
    host: str
    pid: int
    owner: Owner | None
    gone: bool

    def __str__(self) -> str:
        who = str(self.owner) if self.owner else f"pid {self.pid} on {self.host}, without an owner record"
        return f"{who}{' (gone)' if self.gone else ''}"


def _lock(path: Path) -> StrictSoftFileLock:
    from filelock import StrictSoftFileLock

    # thread_local off: the hold belongs to the context manager, whatever thread ends it.
    return StrictSoftFileLock(path, thread_local=False, mode=0o644)


def _owner_records(path: Path) -> dict[str, Owner]:
    """Owner records of everybody who holds or waits, by file name; damaged ones are left out."""
    folder = f"{path}{OWNERS_SUFFIX}"
    out: dict[str, Owner] = {}
    try:
        dir_fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return out
    try:
        for name in os.listdir(dir_fd):
            with suppress(Refusal), os.fdopen(open_record(name, dir_fd=dir_fd, where=folder), "rb") as stream:
                if owner := parse_owner(stream.read(1 << 14)):
                    out[name] = owner
    finally:
        os.close(dir_fd)
    return out


def claims(path: str | os.PathLike[str], *, ended: JobEnded | None = None) -> list[Claim]:
    """Every claim on the lock, each with what can be said about its owner. Raises Refusal E-STORE-002, E-STORE-003."""
    from filelock import SoftFileLockProtocolError

    target = Path(path)
    lock = _lock(target)
    try:
        found = lock.claims
        occupant = lock.lock_path_occupant
    except SoftFileLockProtocolError as exc:
        raise _protocol(target, exc) from exc
    if occupant is not None:
        raise Refusal("E-STORE-003", occupant, field=str(target), found=occupant)
    records = list(_owner_records(target).values())
    out = []
    for claim in found:
        # filelock marks a pid namespace after `?`; the same pid, start and host name the same process.
        same = [
            o
            for o in records
            if o.pid == claim.pid
            and claim.hostname.partition("?")[0] == o.host
            and (claim.start is None or claim.start % 2**64 == o.start_ticks)
        ]
        owner = max(same, key=lambda o: o.since) if same else None
        out.append(
            Claim(claim.name, claim.hostname, claim.pid, owner, owner is not None and is_gone(owner, ended=ended))
        )
    return out


def break_claims(path: str | os.PathLike[str], names: list[str]) -> None:
    """Remove these claims by name.

    The caller has proof that their owners are gone, or answers for it. Raises Refusal E-STORE-02x.
    """
    lock = _lock(Path(path))
    for name in names:
        # A name that is gone already was removed by another rescuer.
        with suppress(FileNotFoundError):
            _break(lock, path, name)


def _break(lock: StrictSoftFileLock, path: str | os.PathLike[str], name: str) -> None:
    try:
        lock.force_break(name)
    except FileNotFoundError:
        raise
    except OSError as exc:
        raise refusal(exc, path, "break the lock") from exc


def _protocol(path: Path, exc: OSError) -> Refusal:
    reason = str(getattr(exc, "reason", exc))
    code = "E-STORE-002" if "hard-link" in reason or "hard links" in reason else "E-STORE-003"
    return Refusal(code, reason, field=str(path), found=reason)


def _attempt(lock: StrictSoftFileLock, path: Path) -> bool:
    from filelock import SoftFileLockProtocolError, Timeout

    try:
        lock.acquire(blocking=False)
    except Timeout:
        return False
    except SoftFileLockProtocolError as exc:
        raise _protocol(path, exc) from exc
    except OSError as exc:
        if exc.errno == errno.EPERM:  # what link() says on a file system without hard links
            raise Refusal("E-STORE-002", "hard links are refused", field=str(path), found="EPERM") from exc
        raise refusal(exc, path, "lock") from exc
    return True


def _acquire(
    lock: StrictSoftFileLock, path: Path, timeout_s: float, ended: JobEnded | None, clock: Callable[[], float]
) -> None:
    deadline = clock() + timeout_s
    while not _attempt(lock, path):
        standing = claims(path, ended=ended)
        if stale := [c.name for c in standing if c.gone]:
            break_claims(path, stale)
            continue
        if clock() >= deadline:
            who = "; ".join(str(c) for c in standing) or "an owner who has just left"
            raise Refusal(
                "E-STORE-001",
                f"is locked by {who}",
                field=str(path),
                found=who,
                allowed=f"free within {timeout_s:g} s",
            )
        # Contenders that arrive together must not meet again at each tick.
        time.sleep(_POLL_S * (1 + secrets.randbelow(100) / 100))


@contextmanager
def held(
    path: str | os.PathLike[str],
    *,
    timeout_s: float = 0.0,
    purpose: str = "",
    ended: JobEnded | None = None,
    owner: Owner | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[None]:
    """Hold the lock at `path` for the body; no other process on any host that sees this file system is inside at the
    same time.

    Waits up to `timeout_s` seconds (0: one try). `ended` asks Slurm whether an owner's job is over; without it only
    owners of this machine can be proved gone. Does not promise fairness, nor anything if the body outlives a claim
    that someone broke by hand. The folder of `path` must exist. Raises Refusal E-STORE-001 (busy; exit 75),
    E-STORE-002 (locks do not work here), E-STORE-003 (what stands there is no lock), E-STORE-02x.
    """
    target = Path(path)
    me = owner or this_process(purpose)
    record = _owners_folder(target) / f"{me.pid}-{secrets.token_hex(8)}.json"
    try:
        write_new(record, canonical_bytes(me.as_json()))
    except OSError as exc:
        raise refusal(exc, record, "write") from exc
    try:
        lock = _lock(target)
        _acquire(lock, target, timeout_s, ended, clock)
        try:
            yield
        finally:
            _release(lock, target)
    finally:
        with suppress(OSError):
            os.unlink(record)
        _sweep(target)


def _owners_folder(path: Path) -> Path:
    """`<lock>.owners`, made if missing. An existing one must belong to us or to the owner of the folder around it."""
    folder = Path(f"{path}{OWNERS_SUFFIX}")
    try:
        found, around = os.lstat(folder), os.stat(folder.parent)
    except FileNotFoundError:
        make_folder(folder, 0o755)
        return folder
    if not stat.S_ISDIR(found.st_mode) or found.st_uid not in (os.geteuid(), around.st_uid):
        raise Refusal("E-STORE-003", "is not ours", field=str(folder), found=f"uid {found.st_uid}")
    return folder


def _release(lock: StrictSoftFileLock, path: Path) -> None:
    try:
        lock.release()
    except OSError as exc:
        raise refusal(exc, path, "release the lock") from exc


def _sweep(path: Path) -> None:
    """Remove owner records of processes that are proved gone and have no claim; they would only pile up."""
    try:
        standing = {(c.pid, c.host.partition("?")[0]) for c in claims(path)}
    except Refusal:
        return
    for name, owner in _owner_records(path).items():
        if (owner.pid, owner.host) not in standing and is_gone(owner):
            with suppress(OSError):
                os.unlink(f"{path}{OWNERS_SUFFIX}/{name}")
