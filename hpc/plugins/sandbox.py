"""Runs one Python program of a package where it can reach nothing: no network, no file but its own package and the interpreter's, no other process.

New user, mount, network, PID, IPC and UTS namespaces, made by util-linux's `unshare` as an ordinary user; in them a read-only root of the system's
libraries, Python's own folder and a copy of the package. What it says leaves on stdout. It does not protect against a fault of the kernel.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from hpc.errors import Refusal

SECONDS: Final = 30
MEMORY: Final = 2 << 30
OUTPUT: Final = 4 << 20
_SYSTEM: Final = ("/usr", "/lib", "/lib64", "/bin", "/etc/ld.so.cache")
_UNSHARE: Final = (
    "unshare", "--user", "--map-root-user", "--mount", "--net", "--ipc", "--uts", "--pid", "--fork", "--kill-child=KILL",
)  # fmt: skip
_NOT_ISOLATED: Final = 97
# $1 the new root, $2 the package, $3 python, $4 the program in the package, then the folders of the system.
_INSIDE: Final = """
must() { "$@" || exit 97; }
root=$1 package=$2 python=$3 program=$4; shift 4
must mount --make-rprivate /
must mount -t tmpfs -o size=160m,mode=755 none "$root"
for folder in "$@"; do
  [ -e "$folder" ] || continue
  if [ -L "$folder" ]; then must cp -P "$folder" "$root$folder"; continue; fi
  if [ -f "$folder" ]; then must mkdir -p "$root${folder%/*}"; must cp "$folder" "$root$folder"; continue; fi
  must mkdir -p "$root$folder"
  must mount --bind "$folder" "$root$folder"
  must mount -o remount,bind,ro,nosuid,nodev "$root$folder"
done
must mkdir "$root/package"
must cp -R "$package/." "$root/package"
must mount -o remount,bind,ro,nosuid,nodev "$root"
ulimit -v "$TP_MEMORY_KB" && ulimit -t "$TP_CPU_S" && ulimit -f "$TP_OUTPUT_BLOCKS" && ulimit -c 0 && ulimit -n 64 || exit 97
must cd "$root"
exec chroot "$root" /usr/bin/env -i LC_ALL=C.UTF-8 PYTHONHASHSEED=0 TZ=UTC "$python" -I -S -B "/package/$program"
"""


@dataclass(frozen=True)
class Said:
    """What the program wrote, and its exit code; negative for a signal."""

    code: int
    out: bytes
    err: str


def run_isolated(package: Path, program: str, request: bytes, *, seconds: float = SECONDS) -> Said:
    """Run `program` of `package` on the request. Raises Refusal E-FRAME-005 (time, output), E-FRAME-006 (no isolation here)."""
    python = os.path.realpath(sys.executable)
    with tempfile.TemporaryDirectory(prefix="tp-compile-") as scratch:
        root = Path(scratch) / "root"
        root.mkdir()
        places = [*_SYSTEM, *_own_folders(python)]
        argv = [
            *_UNSHARE,
            "/bin/sh",
            "-uc",
            _INSIDE,
            "sh",
            os.fspath(root),
            os.fspath(package),
            python,
            program,
            *places,
        ]
        with open(f"{scratch}/out", "w+b") as out, open(f"{scratch}/err", "w+b") as err:
            code = _run(argv, request, seconds, out, err)
            said = Said(code, _read(out), _read(err)[-4000:].decode("utf-8", "replace"))
    if said.code == _NOT_ISOLATED or said.err.startswith("unshare:"):
        raise Refusal(
            "E-FRAME-006", "a compiler cannot be isolated here", field="integration.json", found=_last(said.err)
        )
    if len(said.out) >= OUTPUT or said.code == -signal.SIGXFSZ or said.code == 128 + signal.SIGXFSZ:
        raise Refusal(
            "E-FRAME-005", f"{program} wrote more than {OUTPUT >> 20} MiB", field="integration.json", found=program
        )
    return said


def _own_folders(python: str) -> list[str]:
    """Where the interpreter and its library lie, if not in the system's folders."""
    found = dict.fromkeys((os.path.realpath(sys.base_prefix), os.path.dirname(python)))
    return [folder for folder in found if not any(folder == s or folder.startswith(s + "/") for s in _SYSTEM)]


def _run(argv: Sequence[str], request: bytes, seconds: float, out: IO[bytes], err: IO[bytes]) -> int:
    env = {
        "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8", "TP_MEMORY_KB": str(MEMORY >> 10),
        "TP_CPU_S": str(int(SECONDS)), "TP_OUTPUT_BLOCKS": str(OUTPUT >> 9),
    }  # fmt: skip
    try:
        child = subprocess.Popen(argv, env=env, stdin=subprocess.PIPE, stdout=out, stderr=err, start_new_session=True)
    except OSError as exc:
        raise Refusal("E-FRAME-006", "util-linux's unshare cannot be started", found=str(exc.strerror)) from exc
    try:
        child.communicate(request, timeout=seconds)
    except subprocess.TimeoutExpired:
        message = f"the compiler did not end in {seconds:g} s"
        raise Refusal("E-FRAME-005", message, field="integration.json", found=f"{seconds:g} s") from None
    finally:
        try:
            os.killpg(child.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        child.wait()
    return child.returncode


def _read(stream: IO[bytes]) -> bytes:
    stream.seek(0)
    return stream.read(OUTPUT + 1)


def _last(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip()[:300] if lines else ""
