"""Who fetches a commit at this moment, so that others wait for the same bytes instead of fetching them, too.

A claim saves work and guards nothing: every file is content addressed and appears whole. So a doubtful claim is not broken, it is passed by. It is
removed only when its process is proved gone; one whose holder gives no sign of life for PATIENCE_S is ignored by whoever has waited that long.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from tuneplane.record.canonical import canonical_bytes
from tuneplane.record.files import read_bytes, write_new

from hpc.errors.core import Refusal
from hpc.store.faults import refusal
from hpc.store.owners import is_gone, parse_owner, this_process

BEAT_S: Final = 10.0
"""Seconds between the signs of life of a holder."""
PATIENCE_S: Final = 90.0
POLL_S: Final = 0.5
Told = Callable[[str], None]


class Claim:
    """A claim on one commit. `held` is False where somebody else's silent claim was passed by."""

    def __init__(self, path: Path, data: bytes, *, held: bool) -> None:
        self.path, self._data, self.held = path, data, held
        self._last = 0.0

    def beat(self, now: float) -> None:
        """A sign of life, at most one each BEAT_S seconds of the clock that `now` is of."""
        if self.held and now - self._last >= BEAT_S:
            self._last = now
            with suppress(OSError):
                os.utime(self.path)

    def release(self) -> None:
        if self.held and _read(self.path) == self._data:
            with suppress(OSError):
                os.unlink(self.path)
        self.held = False


def claim(path: Path, *, clock: Callable[[], float], sleep: Callable[[float], None], told: Told) -> Claim:
    """Claim `path`, or wait until whoever has it is done, gone or silent. Raises Refusal E-STORE-02x."""
    data = canonical_bytes(this_process("prefetch").as_json())
    seen, since, spoke = -1, clock(), False
    while True:
        try:
            write_new(path, data)
            return Claim(path, data, held=True)
        except FileExistsError:
            pass
        except OSError as exc:
            raise refusal(exc, path, "claim") from exc
        standing = _read(path)
        owner = parse_owner(standing)
        if owner is not None and is_gone(owner):
            _remove(path, standing)
            continue
        if not spoke:
            told(f"waiting for {owner or 'another user'}, who fetches the same")
            spoke = True
        if (beat := _beat(path)) != seen:
            seen, since = beat, clock()
        elif clock() - since > PATIENCE_S:
            told("no sign of life from the other download: going on beside it")
            return Claim(path, data, held=False)
        sleep(POLL_S)


def is_stale_claim(path: Path) -> bool:
    """True for a claim whose process is proved gone."""
    owner = parse_owner(_read(path))
    return owner is not None and is_gone(owner)


def _read(path: Path) -> bytes:
    try:
        return read_bytes(path, limit=1 << 14)
    except (OSError, ValueError):
        return b""


def _beat(path: Path) -> int:
    try:
        return os.lstat(path).st_mtime_ns
    except OSError:
        return -1


def _remove(path: Path, judged: bytes) -> None:
    """Take away the claim that was judged; one that came in its place meanwhile is put back."""
    aside = path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")
    try:
        os.rename(path, aside)
        if _read(aside) != judged:
            with suppress(OSError):
                os.link(aside, path)
        os.unlink(aside)
    except FileNotFoundError:
        pass  # another waiter was faster
    except OSError as exc:
        raise Refusal("E-STORE-021", "cannot be removed", field=str(path), found=exc.strerror) from exc
