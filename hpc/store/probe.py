"""What a file system really does: hard links, exclusive creation, rename, fsync, modes, and which kind of lock
excludes.

Used when a root is laid out and by `tp doctor`. The result names the sound locks; `tp` uses the strict soft lock or
none, it never changes to another one by itself.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import stat
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tuneplane.record.files import fsync_dir, publish_dir, replace, write_new

from hpc.store.contest import MECHANISMS, SOUND, UNSOUND, UNSUPPORTED, Mechanism, Outcome, contest
from hpc.store.faults import refusal
from hpc.store.mounts import Mount, mount_of

NEEDED: Final = ("strict_soft", "hard_link", "exclusive", "rename", "fsync", "modes")
"""Checks without which the toolkit must not be used on this file system."""
PREFIX: Final = ".tp-probe-"
"""How the folders of probes begin; one that stays was left by a probe that was killed."""
LEFT_AFTER_S: Final = 600


@dataclass(frozen=True)
class Probe:
    """What was found in `folder`. `skew_s`: the file system's clock minus ours, in seconds (by a new file's mtime)."""

    folder: str
    mount: Mount
    outcomes: Mapping[str, Outcome]
    skew_s: float

    @property
    def sound_locks(self) -> list[str]:
        """Lock mechanisms that excluded. On a network mount this is shown for two processes of one host only."""
        return [n for n in MECHANISMS if n in self.outcomes and self.outcomes[n].sound]

    @property
    def missing(self) -> list[str]:
        """Needed checks that did not come out sound."""
        return [n for n in NEEDED if not self.outcomes[n].sound]

    def as_json(self) -> dict[str, Any]:
        return {
            "folder": self.folder,
            "fstype": self.mount.fstype,
            "mount_point": self.mount.point,
            "network": self.mount.network,
            "one_host_only": self.mount.network,
            "skew_s": f"{self.skew_s:.1f}",
            "sound_locks": self.sound_locks,
            "missing": self.missing,
            "checks": {n: {"verdict": o.verdict, "detail": o.detail} for n, o in sorted(self.outcomes.items())},
        }


def _outcome(exc: OSError) -> Outcome:
    name = errno.errorcode.get(exc.errno or 0, "")
    verdict = (
        UNSUPPORTED
        if exc.errno in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV)
        else UNSOUND
    )
    return Outcome(verdict, f"{name} {exc.strerror or exc}".strip())


def _attempt(check: Callable[[str], Outcome], folder: str) -> Outcome:
    try:
        return check(folder)
    except OSError as exc:
        return _outcome(exc)


def hard_link(folder: str) -> Outcome:
    """A second name for a file, shown by its link count."""
    one, two = os.path.join(folder, "link-1"), os.path.join(folder, "link-2")
    write_new(one, b"x")
    os.link(one, two)
    count = os.stat(one).st_nlink
    return (
        Outcome(SOUND, "two names, link count 2")
        if count == 2
        else Outcome(UNSOUND, f"link count is {count} after link()")
    )


def exclusive(folder: str) -> Outcome:
    """A name is created once."""
    path = os.path.join(folder, "exclusive")
    write_new(path, b"first")
    try:
        write_new(path, b"second")
    except FileExistsError:
        with open(path, "rb") as stream:
            kept = stream.read()
        return (
            Outcome(SOUND, "the second creation was refused")
            if kept == b"first"
            else Outcome(UNSOUND, "the first content was lost")
        )
    return Outcome(UNSOUND, "one name was created twice")


def rename(folder: str) -> Outcome:
    """A file is replaced whole; a folder is published once."""
    path = os.path.join(folder, "pointer")
    for content in (b"old", b"new"):
        replace(path, content)
    with open(path, "rb") as stream:
        if stream.read() != b"new":
            return Outcome(UNSOUND, "the old content stayed after rename")
    for _ in range(2):
        temp = os.path.join(folder, f"temp-{secrets.token_hex(4)}")
        os.mkdir(temp)
        write_new(os.path.join(temp, "member"), b"x")
        try:
            publish_dir(temp, os.path.join(folder, "published"))
        except FileExistsError:
            return Outcome(SOUND, "a file is replaced whole, a folder is published once")
    return Outcome(UNSOUND, "one folder was published twice")


def fsync(folder: str) -> Outcome:
    """Data and names can be made durable."""
    path = os.path.join(folder, "synced")
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.write(fd, b"x")
        os.fsync(fd)
    finally:
        os.close(fd)
    fsync_dir(folder)
    return Outcome(SOUND, "file and folder")


def modes(folder: str) -> Outcome:
    """Modes stay as they were set, setgid and sticky among them."""
    path = os.path.join(folder, "modes")
    os.mkdir(path, 0o700)
    for mode in (0o3775, 0o2755, 0o750, 0o700):
        os.chmod(path, mode)
        if (kept := stat.S_IMODE(os.stat(path).st_mode)) != mode:
            return Outcome(UNSOUND, f"mode {mode:04o} became {kept:04o}")
    return Outcome(SOUND, "3775, 2755, 0750 and 0700 were kept")


CHECKS: Final = {"hard_link": hard_link, "exclusive": exclusive, "rename": rename, "fsync": fsync, "modes": modes}


def _skew(folder: str) -> float:
    path = os.path.join(folder, "clock")
    before = time.time()
    write_new(path, b"x")
    after = time.time()
    changed = os.stat(path).st_mtime
    # The kernel stamps with its last tick, so a file may look a little older than the moment before it was made.
    if before - 0.1 <= changed <= after + 0.1:
        return 0.0
    return changed - (before + after) / 2


def _sweep(folder: str | os.PathLike[str]) -> None:
    """Remove what probes of this user left behind when they were killed."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith(PREFIX) and entry.is_dir(follow_symlinks=False):
                found = entry.stat(follow_symlinks=False)
                if found.st_uid == os.geteuid() and time.time() - found.st_mtime > LEFT_AFTER_S:
                    shutil.rmtree(entry.path, ignore_errors=True)


def probe(
    folder: str | os.PathLike[str],
    *,
    rounds: int = 40,
    limit_s: float = 10.0,
    mechanisms: Mapping[str, Mechanism] = MECHANISMS,
) -> Probe:
    """Try everything in a fresh folder inside `folder`, which is removed again.

    Takes about half a second where locks work, at most `limit_s` seconds a lock where they hang. Raises Refusal
    E-STORE-02x if nothing can be written there at all.
    """
    base = os.path.join(os.fspath(folder), f"{PREFIX}{secrets.token_hex(6)}")
    try:
        _sweep(folder)
        os.mkdir(base, 0o700)
    except OSError as exc:
        raise refusal(exc, folder, "probe") from exc
    try:
        outcomes = {
            n: contest(m, os.path.join(base, f"{n}.lock"), rounds=rounds, limit_s=limit_s)
            for n, m in mechanisms.items()
        }
        outcomes |= {n: _attempt(check, base) for n, check in CHECKS.items()}
        return Probe(os.fspath(folder), mount_of(folder), outcomes, _skew(base))
    finally:
        shutil.rmtree(base, ignore_errors=True)
