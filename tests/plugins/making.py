"""Makes package folders, PNGs and wheels for the tests, byte for byte."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

VECTORS = Path(__file__).parents[1] / "data" / "vectors"
ALGORITHM = "schema: tuneplane/plugin/v1\nname: x\nversion: 1.0.0\ncapability: algorithm\nentrypoint: patch:install\n"
WHEEL_NAME = "my_company_cleaner-1.0.0-py3-none-any.whl"
CLEANER = (
    "schema: tuneplane/plugin/v1\nname: cleaner\nversion: 1.0.0\ncapability: data-prep\nexecution: job\napi: '1'\n"
    f"wheel: {WHEEL_NAME}\nprovider: clean\n"
)
INSTALL = "def install(params, **ctx):\n    pass\n"
Content = str | bytes | Mapping[str, str]


def cases(name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((VECTORS / f"{name}_cases.json").read_text("utf-8"))["cases"]
    return found


def build(
    folder: Path,
    files: Mapping[str, Content],
    *,
    symlinks: Mapping[str, str] | None = None,
    empty_dirs: tuple[str, ...] | list[str] = (),
    modes: Mapping[str, str] | None = None,
) -> Path:
    """Lay out a folder as the vectors describe one."""
    folder.mkdir(parents=True, exist_ok=True)
    for path, content in files.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, Mapping):
            content = base64.b64decode(content["b64"])
        target.write_bytes(content.encode() if isinstance(content, str) else content)
    for path, to in (symlinks or {}).items():
        (folder / path).symlink_to(to)
    for path in empty_dirs:
        (folder / path).mkdir(parents=True)
    for path, mode in (modes or {}).items():
        os.chmod(folder / path, int(str(mode), 8))
    return folder


def build_case(folder: Path, case: Mapping[str, Any]) -> Path:
    keys = ("symlinks", "empty_dirs", "modes")
    return build(folder, case["files"], **{key: case[key] for key in keys if case.get(key)})


def algorithm(folder: Path, files: Mapping[str, Content] | None = None, *, manifest: str = "") -> Path:
    """A sound algorithm package with more lines in its manifest and more files."""
    return build(folder, {"plugin.yaml": ALGORITHM + manifest, "patch.py": INSTALL, **(files or {})})


def chunk(kind: bytes, body: bytes = b"", crc: int | None = None) -> bytes:
    return (
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body) if crc is None else crc)
    )


SIGNATURE = b"\x89PNG\r\n\x1a\n"
IEND = chunk(b"IEND")


def ihdr(width: int, height: int, depth: int = 8, colour: int = 0, tail: bytes = b"\0\0\0") -> bytes:
    return chunk(b"IHDR", struct.pack(">IIBB", width, height, depth, colour) + tail)


def png(width: int = 4, height: int = 4, *, extra: bytes = b"", pixels: bytes | None = None) -> bytes:
    """A grey PNG; `extra` chunks stand before the image data."""
    raw = bytes(height * (width + 1)) if pixels is None else pixels
    return SIGNATURE + ihdr(width, height) + extra + chunk(b"IDAT", zlib.compress(raw, 9)) + IEND


Member = tuple[str, bytes]


def record_of(members: list[Member], path: str) -> bytes:
    """A complete RECORD of the members and itself."""
    rows = [
        f"{name},sha256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip('=')},{len(data)}"
        for name, data in members
    ]
    return "\n".join([*rows, f"{path},,", ""]).encode()


def wheel_members(
    *, name: str = "my_company_cleaner", version: str = "1.0.0", code: str = "def transform(request):\n    return None\n",
    group: str = "tuneplane.transforms", point: str = "clean = my_company_cleaner:transform", metadata: str = "", wheel: str = "",
    more: Mapping[str, str] | None = None,
) -> list[Member]:  # fmt: skip
    """The members of a sound wheel, RECORD last."""
    info = f"{name}-{version}.dist-info"
    members = [
        (f"{name}.py", code.encode()),
        *((path, text.encode()) for path, text in (more or {}).items()),
        (
            f"{info}/METADATA",
            f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: {version}\n{metadata}".encode(),
        ),
        (
            f"{info}/WHEEL",
            (wheel or "Wheel-Version: 1.0\nGenerator: hand\nRoot-Is-Purelib: true\nTag: py3-none-any\n").encode(),
        ),
        (f"{info}/entry_points.txt", f"[{group}]\n{point}\n".encode()),
    ]
    return [*members, (f"{info}/RECORD", record_of(members, f"{info}/RECORD"))]


def local(name: bytes, data: bytes, *, flags: int = 0, method: int = 0, packed: bytes | None = None, crc: int | None = None,
          size: int | None = None, extra: bytes = b"") -> bytes:  # fmt: skip
    """One local header with its data."""
    body = data if packed is None else packed
    head = struct.pack("<HHHHHIIIHH", 20, flags, method, 0, 0x5021, zlib.crc32(data) if crc is None else crc, len(body),
                       len(data) if size is None else size, len(name), len(extra))  # fmt: skip
    return b"PK\3\4" + head + name + extra + body


def central(name: bytes, data: bytes, at: int, *, flags: int = 0, method: int = 0, packed: bytes | None = None, crc: int | None = None,
            size: int | None = None, mode: int = 0o100644, extra: bytes = b"", comment: bytes = b"", made_by: int = 3) -> bytes:  # fmt: skip
    """One entry of the central directory."""
    body = data if packed is None else packed
    head = struct.pack("<BBHHHHHIIIHHHHHII", 20, made_by, 20, flags, method, 0, 0x5021, zlib.crc32(data) if crc is None else crc,
                       len(body), len(data) if size is None else size, len(name), len(extra), len(comment), 0, 0, mode << 16, at)  # fmt: skip
    return b"PK\1\2" + head + name + extra + comment


def end_record(count: int, size: int, at: int, comment: bytes = b"", here: int | None = None) -> bytes:
    return (
        b"PK\5\6"
        + struct.pack("<HHHHIIH", 0, 0, count if here is None else here, count, size, at, len(comment))
        + comment
    )


def zipped(members: list[Member], *, deflate: bool = True) -> bytes:
    """A sound zip of the members, in their order."""
    body, directory = b"", b""
    for name, data in members:
        engine = zlib.compressobj(9, zlib.DEFLATED, -15)
        packed = engine.compress(data) + engine.flush() if deflate else data
        method, raw = (8 if deflate else 0), name.encode()
        directory += central(raw, data, len(body), method=method, packed=packed)
        body += local(raw, data, method=method, packed=packed)
    return body + directory + end_record(len(members), len(directory), len(body))


def cleaner(
    folder: Path,
    members: list[Member] | None = None,
    *,
    manifest: str = CLEANER,
    name: str = WHEEL_NAME,
    data: bytes = b"",
) -> Path:
    """The page's cleaner package around a wheel of these members, or of exactly `data`."""
    return build(
        folder, {"plugin.yaml": manifest, name: data or zipped(members if members is not None else wheel_members())}
    )
