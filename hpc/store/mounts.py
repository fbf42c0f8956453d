"""What is mounted where, from the kernel's own table."""

from __future__ import annotations

import os
from dataclasses import dataclass

# Served to several hosts: what two processes of one host see proves nothing about two hosts.
NETWORK = frozenset(
    {
        "nfs",
        "nfs4",
        "lustre",
        "gpfs",
        "beegfs",
        "cifs",
        "smb3",
        "afs",
        "ceph",
        "glusterfs",
        "pvfs2",
        "wekafs",
        "panfs",
        "9p",
        "virtiofs",
    }
)


@dataclass(frozen=True)
class Mount:
    """One mount: where, its file system type, its source, its options (the mount's and the file system's together)."""

    point: str
    fstype: str
    source: str
    options: tuple[str, ...]

    @property
    def network(self) -> bool:
        """True if other hosts may see the same files. FUSE types count, as most of them are served."""
        return self.fstype in NETWORK or (self.fstype.startswith("fuse.") and self.fstype != "fuse.squashfuse_ll")

    @property
    def kerberos(self) -> bool:
        return any(o.startswith("sec=krb5") for o in self.options)


def _unescape(text: str) -> str:
    for code, char in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, char)
    return text


def parse_mountinfo(text: str) -> list[Mount]:
    """Every mount of a /proc/<pid>/mountinfo text, in its order; lines of another shape are left out."""
    out = []
    for line in text.splitlines():
        left, found, right = line.partition(" - ")
        first, second = left.split(" "), right.split(" ")
        if not found or len(first) < 6 or len(second) < 3:
            continue
        options = tuple(dict.fromkeys([*first[5].split(","), *second[2].split(",")]))
        out.append(Mount(_unescape(first[4]), second[0], _unescape(second[1]), options))
    return out


def mount_of(path: str | os.PathLike[str], text: str | None = None) -> Mount:
    """The mount that holds `path` (resolved). `text`: a mountinfo, read from /proc when absent."""
    if text is None:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as stream:
            text = stream.read()
    real = os.path.realpath(path)
    best = Mount("/", "unknown", "", ())
    for mount in parse_mountinfo(text):
        inside = real == mount.point or real.startswith(mount.point.rstrip("/") + "/")
        # A later mount on the same point hides the earlier one.
        if inside and len(mount.point) >= len(best.point):
            best = mount
    return best
