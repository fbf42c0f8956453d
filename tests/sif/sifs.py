"""Small files in the SIF format, for tests that need no container."""

from __future__ import annotations

import json
import struct
from pathlib import Path

from hpc.sif.image import DESCRIPTOR, GENERIC_JSON, HEADER, METADATA_NAME, PARTITION

TABLE, META, ROOT = 1024, 4096, 8192


def small_sif(
    path: Path,
    *,
    labels: dict[str, str] | None = None,
    metadata: bytes | None = None,
    root: bytes = b"hsqs" + bytes(4092),
    version: bytes = b"01\0",
    arch: bytes = b"02\0",
) -> Path:
    """A SIF with a labels object and a primary system partition whose bytes are `root`."""
    if metadata is None:
        metadata = json.dumps({"data": {"attributes": {"labels": labels or {}}}, "type": "container"}).encode()

    def descriptor(kind: int, number: int, offset: int, size: int, name: str, extra: bytes) -> bytes:
        return DESCRIPTOR.pack(kind, True, number, 0, 0, offset, size, size, 0, 0, 0, 0, name.encode(), extra)

    table = descriptor(GENERIC_JSON, 1, META, len(metadata), METADATA_NAME, b"")
    table += descriptor(PARTITION, 2, ROOT, len(root), "root", struct.pack("<ii", 1, 2))
    head = HEADER.pack(
        b"#!/usr/bin/env run-singularity\n", b"SIF_MAGIC\0", version, arch, bytes(16),
        0, 0, 0, 2, TABLE, len(table), META, ROOT + len(root) - META,
    )  # fmt: skip
    body = bytearray(ROOT)
    body[: len(head)] = head
    body[TABLE : TABLE + len(table)] = table
    body[META : META + len(metadata)] = metadata
    path.write_bytes(bytes(body) + root)
    return path
