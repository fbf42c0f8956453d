"""What a file system probe and the free space of places mean. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hpc.site.findings import Finding, Status
from hpc.store.probe import NEEDED, Probe

GIB = 1 << 30


def judge_file_system(found: Probe) -> list[Finding]:
    """One line about what is needed, one about locks, one about the clock (P61, P62)."""
    where = f"{found.mount.fstype} at {found.mount.point}"
    out = []
    if found.missing:
        details = "; ".join(f"{n}: {found.outcomes[n].verdict}, {found.outcomes[n].detail}" for n in found.missing)
        mend = "move the storage root to another file system"
        out.append(
            Finding("store.file_system", "fail", f"{where} lacks what is needed", details, ", ".join(NEEDED), mend)
        )
    else:
        out.append(Finding("store.file_system", "ok", f"{where}: links, rename, fsync and modes work"))
    out.append(_judge_locks(found))
    if abs(found.skew_s) > 5:
        text = f"the file server's clock differs by {found.skew_s:.0f} s"
        out.append(Finding("store.clock", "warn", text, expect="file times mislead people; tp never orders by them"))
    return out


def _judge_locks(found: Probe) -> Finding:
    unsound = {n: o for n, o in found.outcomes.items() if n in ("flock", "posix") and not o.sound}
    told = "; ".join(f"{n}: {o.verdict}, {o.detail}" for n, o in unsound.items())
    sound = ", ".join(found.sound_locks) or "none"
    if "strict_soft" not in found.sound_locks:
        text = "the lock that tp uses does not exclude, and no other is taken instead"
        return Finding("store.locks", "fail", text, f"sound: {sound}; {told}", "strict_soft")
    scope = "two processes of this host" if found.mount.network else "two processes"
    expect = "other programs' caches may be damaged by flock here; tp does not use it" if unsound else ""
    status: Status = "info" if unsound else "ok"
    return Finding(
        "store.locks", status, f"tp's lock (strict_soft) excludes, tried with {scope}; sound: {sound}", told, expect
    )


@dataclass(frozen=True)
class Room:
    """Bytes of a place: in total and free for ordinary users."""

    path: str
    total: int
    free: int


def judge_places(rooms: Mapping[str, Room], *, needed: int = 10 * GIB) -> list[Finding]:
    """Free space of the root, of caches and temp folders (P53)."""
    out = []
    for name, room in rooms.items():
        found = f"{room.free / GIB:.1f} of {room.total / GIB:.1f} GiB free at {room.path}"
        if room.free < needed:
            mend = "free some space, or name another place"
            out.append(Finding(f"place.{name}", "warn", "little room", found, f"{needed / GIB:.0f} GiB", mend))
        else:
            out.append(Finding(f"place.{name}", "ok", found))
    return out
