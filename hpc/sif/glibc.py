"""The C library inside an image, and whether the host's GPU driver libraries fit it (P56).

`--nv` binds the host's driver libraries into the container, where they run on the container's C library. If they were built for
a newer one they fail to load, often with a message about something else. Read from bytes; no container is started.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping

from hpc.sif.image import check_sif

PathLike = str | os.PathLike[str]
Version = tuple[int, int]
READ_DEADLINE_S = 60.0
MAX_LIBRARY_BYTES = 256 << 20
PLACES = (
    "usr/lib/x86_64-linux-gnu/libc.so.6",
    "usr/lib/aarch64-linux-gnu/libc.so.6",
    "usr/lib64/libc.so.6",
    "lib64/libc.so.6",
    "lib/x86_64-linux-gnu/libc.so.6",
    "lib/aarch64-linux-gnu/libc.so.6",
)
_RELEASE = re.compile(rb"GNU C Library [^\n]{0,80}?release version (\d+)\.(\d+)")
_SYMBOL = re.compile(rb"\bGLIBC_(\d+)\.(\d+)")
_DRIVER = re.compile(r"^\s*lib(?:cuda|nvidia-[a-z0-9-]+)\.so\S* .*=> (/\S+)$", re.MULTILINE)


def glibc_of_library(data: bytes) -> Version | None:
    """The release that a libc.so.6 says it is. Pure."""
    found = _RELEASE.search(data)
    return (int(found.group(1)), int(found.group(2))) if found else None


def image_glibc(sif: PathLike, *, unsquashfs: str = "") -> Version | None:
    """glibc release inside a SIF; None where it cannot be told (no unsquashfs on this host, another C library, encrypted).

    Raises Refusal as `check_sif`.
    """
    offset = check_sif(sif).root_offset
    program = unsquashfs or shutil.which("unsquashfs", path="/usr/local/bin:/usr/bin:/usr/sbin:/sbin:/bin")
    if offset is None or not program:
        return None
    for place in PLACES:
        try:
            done = subprocess.run(
                [program, "-no-progress", "-o", str(offset), "-cat", os.path.abspath(sif), place],
                env={"PATH": "/usr/bin:/bin", "LC_ALL": "C"},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=READ_DEADLINE_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        if done.returncode == 0 and (found := glibc_of_library(done.stdout)):
            return found
    return None


def needed_glibc(data: bytes) -> Version | None:
    """The newest glibc whose symbols a library asks for. Pure."""
    versions = {(int(m.group(1)), int(m.group(2))) for m in _SYMBOL.finditer(data)}
    return max(versions) if versions else None


def driver_libraries(ldconfig: str) -> list[str]:
    """Paths of the NVIDIA driver libraries in the output of `ldconfig -p`, sorted. Pure."""
    return sorted(set(_DRIVER.findall(ldconfig)))


def host_driver_libraries(ldconfig: str = "/sbin/ldconfig") -> list[str]:
    """The driver libraries of this host, by its loader's cache; [] on a host without a GPU driver."""
    try:
        done = subprocess.run(
            [ldconfig, "-p"],
            env={"PATH": "/usr/bin:/bin", "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=READ_DEADLINE_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    return driver_libraries(done.stdout.decode("utf-8", "replace"))


def parse_version(text: str) -> Version | None:
    """`2.41` as numbers; None for anything else. Pure."""
    major, dot, minor = text.partition(".")
    return (int(major), int(minor)) if dot and major.isdecimal() and minor.isdecimal() else None


def driver_needs(libraries: Iterable[PathLike]) -> dict[str, Version]:
    """What each library needs, for those that can be read and say so."""
    needs = {}
    for library in libraries:
        try:
            with open(library, "rb") as stream:
                found = needed_glibc(stream.read(MAX_LIBRARY_BYTES))
        except OSError:
            continue
        if found:
            needs[os.fspath(library)] = found
    return needs


def glibc_advice(image: Version | None, needs: Mapping[str, Version]) -> str:
    """What to do about driver libraries that the image's C library is too old for; "" where all fit. Pure."""
    if not needs:
        return ""
    if image is None:
        return "the image's glibc could not be read; try `apptainer exec --nv IMAGE nvidia-smi` on a GPU node"
    newest = max(needs.values())
    if newest <= image:
        return ""
    library = min(name for name, need in needs.items() if need == newest)
    return (
        f"{library} needs glibc {newest[0]}.{newest[1]}, the image has {image[0]}.{image[1]}: "
        "--nv will not work; use --nvccli, or build the image on a newer base"
    )
