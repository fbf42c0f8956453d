"""SIF files by their bytes: header, data objects, labels, digest. Starts no program and no container.

Layout, from the SIF specification: a global header (launch line, magic, version, architecture, offsets), a table of
descriptors, then the data objects, among them the root file system and a JSON object with the image's labels.
"""

from __future__ import annotations

import json
import os
import platform
import stat
import struct
from dataclasses import dataclass

from tuneplane.record.digest import digest_fd

from hpc.errors import Refusal

PathLike = str | os.PathLike[str]
HEADER = struct.Struct("<32s10s3s3s16s8q")
DESCRIPTOR = struct.Struct("<i?IIIqqqqqqq128s384s")
MAGIC = b"SIF_MAGIC\0"
VERSION = b"01\0"
MAX_DESCRIPTORS = 4096
MAX_METADATA_BYTES = 1 << 20
PARTITION, GENERIC_JSON = 0x4004, 0x4006
SYSTEM_PARTITIONS = (1, 2)  # a system partition, the primary system partition
METADATA_NAME = "inspect-metadata.json"
ARCHITECTURES = {b"02\0": "amd64", b"04\0": "arm64", b"06\0": "ppc64le", b"11\0": "s390x", b"12\0": "riscv64"}
MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass(frozen=True)
class DataObject:
    """One used descriptor: type number, name, where its bytes are, and the type's own fields."""

    kind: int
    name: str
    offset: int
    size: int
    extra: bytes


@dataclass(frozen=True)
class Sif:
    """A SIF file as its header describes it; `size` in bytes."""

    architecture: str
    size: int
    objects: tuple[DataObject, ...]

    @property
    def root_offset(self) -> int | None:
        """Where the root file system starts in the file; None for a SIF that has none."""
        for item in self.objects:
            if item.kind == PARTITION and struct.unpack_from("<i", item.extra, 4)[0] in SYSTEM_PARTITIONS:
                return item.offset
        return None


def architecture(machine: str = "") -> str:
    """SIF's word for a machine kind (`uname -m`); for this host when empty."""
    name = machine or platform.machine()
    return MACHINES.get(name, name)


def check_sif(path: PathLike, *, machine: str = "") -> Sif:
    """Read and check a SIF's header, for a host of kind `machine` (`uname -m`; this host when empty).

    Does not promise that the file system inside is sound. Raises Refusal E-SIF-004 (no SIF), 005 (cut short), 006
    (another architecture or SIF version).
    """
    where = os.fspath(path)
    fd = _open(where)
    try:
        return _read(fd, where, architecture(machine))
    finally:
        os.close(fd)


def _open(where: str) -> int:
    try:
        fd = os.open(where, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as exc:
        raise Refusal("E-SIF-004", exc.strerror or str(exc), field=where, allowed="a readable SIF file") from exc
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise Refusal("E-SIF-004", "is no regular file", field=where, allowed="a SIF file")
    return fd


def _read(fd: int, where: str, wanted: str) -> Sif:
    size, head = os.fstat(fd).st_size, os.pread(fd, HEADER.size, 0)
    if len(head) < HEADER.size or head[32 : 32 + len(MAGIC)] != MAGIC:
        raise Refusal("E-SIF-004", "has no SIF header", field=where, found=_kind_of(head), allowed="a SIF file")
    _, _, version, arch, _, _, _, _, count, table, table_size, data, data_size = HEADER.unpack(head)
    if version != VERSION:
        found = version.rstrip(b"\0").decode("ascii", "replace")
        raise Refusal("E-SIF-006", "has an unknown SIF version", field=where, found=found, allowed="01")
    if size < (promised := max(data + data_size, table + table_size)):
        message = "is shorter than its header says"
        raise Refusal("E-SIF-005", message, field=where, found=f"{size} bytes", allowed=f"{promised} bytes")
    built_for = ARCHITECTURES.get(arch, arch.rstrip(b"\0").decode("ascii", "replace"))
    if built_for != wanted:
        raise Refusal("E-SIF-006", "was built for another machine", field=where, found=built_for, allowed=wanted)
    return Sif(built_for, size, tuple(_objects(fd, table, count)))


def _kind_of(head: bytes) -> str:
    kinds = {b"hsqs": "a squashfs image", b"\x7fELF": "a program", b"\x1f\x8b": "a gzip archive", b"#!": "a script"}
    return next((name for magic, name in kinds.items() if head.startswith(magic)), "other bytes" if head else "nothing")


def _objects(fd: int, table: int, count: int) -> list[DataObject]:
    found = []
    for index in range(max(0, min(count, MAX_DESCRIPTORS))):
        raw = os.pread(fd, DESCRIPTOR.size, table + index * DESCRIPTOR.size)
        if len(raw) < DESCRIPTOR.size:
            break
        kind, used, _, _, _, offset, length, _, _, _, _, _, name, extra = DESCRIPTOR.unpack(raw)
        if used:
            found.append(DataObject(kind, name.split(b"\0")[0].decode("utf-8", "replace"), offset, length, extra))
    return found


def labels(path: PathLike) -> dict[str, str]:
    """The image's labels, from the SIF itself; {} where it carries none that can be read. Raises as `check_sif`."""
    where = os.fspath(path)
    for item in check_sif(where).objects:
        if item.kind == GENERIC_JSON and item.name == METADATA_NAME and 0 < item.size <= MAX_METADATA_BYTES:
            fd = _open(where)
            try:
                text = os.pread(fd, item.size, item.offset)
            finally:
                os.close(fd)
            return _labels_of(text)
    return {}


def _labels_of(text: bytes) -> dict[str, str]:
    try:
        found = json.loads(text)["data"]["attributes"]["labels"]
    except (ValueError, KeyError, TypeError):
        return {}
    return {k: v for k, v in found.items() if isinstance(v, str)} if isinstance(found, dict) else {}


def sif_digest(path: PathLike) -> str:
    """`sha256:…` of the whole file, read to its end (about half a second a gigabyte from a warm cache). E-SIF-004."""
    fd = _open(os.fspath(path))
    try:
        return digest_fd(fd)[0]
    finally:
        os.close(fd)
