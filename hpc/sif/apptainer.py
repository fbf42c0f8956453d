"""Apptainer's command, started in one way only: absolute path, clean environment, a deadline, explicit cache and temp folders.

spython is used for what it does soundly (`parse_labels`). Its command runner is not: it finds `singularity` by name in the
caller's environment, knows no deadline, and raises on output that is not UTF-8.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpc.errors import Refusal
from hpc.sif.definitions import read_definition
from hpc.sif.image import check_sif

PathLike = str | os.PathLike[str]
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
DEADLINE_S = 60.0
BUILD_DEADLINE_S = 4 * 3600.0
GRACE_S = 5.0
BUILD_BYTES = 4 << 30
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_VERSION = re.compile(r"version (\d+\.\d+\.\d+\S*)")
# What `apptainer build` as root needs for %post and %test; a root without them builds with --fakeroot.
_CAP_SYS_RESOURCE = 24


@dataclass(frozen=True)
class Completed:
    """What a command left: exit code (negative: ended by that signal), decoded text without colour, and whether time ran out."""

    rc: int
    out: str
    err: str
    timed_out: bool = False

    @property
    def ok(self) -> bool:
        return self.rc == 0 and not self.timed_out


def plain(data: bytes) -> str:
    """Text of a command's output: whatever the bytes are, and without colour codes."""
    return _COLOUR.sub("", data.decode("utf-8", "replace"))


class Apptainer:
    """The Apptainer of this machine. Raises Refusal E-SIF-001 on first use where there is none."""

    def __init__(self, program: str = "apptainer", *, search: str = "", home: str = "") -> None:
        """`program`: a name, looked up once in `search` (a PATH; the system folders when empty), or an absolute path.

        `home`: HOME of the commands; the account's own when empty.
        """
        self._program, self._search, self._home = program, search or SYSTEM_PATH, home or os.path.expanduser("~")

    def path(self) -> str:
        """Absolute path of the program. Raises Refusal E-SIF-001."""
        found = self._program if os.path.isabs(self._program) else shutil.which(self._program, path=self._search)
        if not found or not os.access(found, os.X_OK):
            raise Refusal(
                "E-SIF-001", f"no {self._program}", field="apptainer", found=self._program, allowed=self._search
            )
        return os.path.abspath(found)

    def environment(self, *, cache_dir: PathLike = "", tmp_dir: PathLike = "") -> dict[str, str]:
        """All that a command sees. Without a cache folder the cache is off, so that nothing lands in a home folder (P53)."""
        env = {
            "PATH": SYSTEM_PATH,
            "HOME": self._home,
            "LC_ALL": "C.UTF-8",
            "APPTAINER_TMPDIR": os.fspath(tmp_dir) or tempfile.gettempdir(),
        }
        if cache_dir:
            return env | {"APPTAINER_CACHEDIR": os.fspath(cache_dir)}
        return env | {"APPTAINER_DISABLE_CACHE": "true"}

    def run(
        self, args: Sequence[str], *, deadline_s: float = DEADLINE_S, env: Mapping[str, str] | None = None
    ) -> Completed:
        """Run `apptainer ARGS` to its end. Past the deadline the whole process group gets TERM, then KILL. E-SIF-001."""
        argv = [self.path(), "--nocolor", *args]
        try:
            process = subprocess.Popen(
                argv,
                env=dict(env if env is not None else self.environment()),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as exc:
            raise Refusal("E-SIF-001", f"{argv[0]}: {exc.strerror}", field="apptainer", found=argv[0]) from exc
        try:
            out, err = process.communicate(timeout=deadline_s)
            return Completed(process.returncode, plain(out), plain(err))
        except subprocess.TimeoutExpired:
            out, err = _end(process)
            return Completed(process.returncode, plain(out), plain(err), timed_out=True)
        except BaseException:
            _end(process)
            raise

    def checked(
        self, args: Sequence[str], *, deadline_s: float = DEADLINE_S, env: Mapping[str, str] | None = None
    ) -> Completed:
        """`run`, where anything but success is a refusal. Raises E-SIF-001, 002 (deadline), 003 (failed)."""
        done = self.run(args, deadline_s=deadline_s, env=env)
        what = "apptainer " + " ".join(args[:2])
        if done.timed_out:
            raise Refusal(
                "E-SIF-002", f"{what} was ended after {deadline_s:g} s", field="apptainer", found=last_lines(done)
            )
        if done.rc != 0:
            raise Refusal("E-SIF-003", f"{what} ended with {done.rc}", field="apptainer", found=last_lines(done))
        return done

    def version(self) -> str:
        """`1.4.5`. Raises E-SIF-001…003; a program that does not say a version is none of ours (E-SIF-003)."""
        done = self.checked(["--version"])
        found = _VERSION.search(done.out)
        if not found:
            raise Refusal("E-SIF-003", f"{self.path()} says no version", field="apptainer", found=done.out[:200])
        return found.group(1)

    def inspect(self, image: PathLike) -> dict[str, Any]:
        """Labels, definition, environment and scripts that the image carries (Apptainer's own names). E-SIF-001…006."""
        from spython.main.inspect import parse_labels

        check_sif(image)
        done = self.checked(["inspect", "--json", "--all", os.path.abspath(image)])
        try:
            data = json.loads(done.out)["data"]
            attributes = parse_labels({"attributes": dict(data["attributes"])})["attributes"]
        except (ValueError, KeyError, TypeError) as exc:
            raise Refusal(
                "E-SIF-003", "apptainer inspect printed no JSON", field=str(image), found=done.out[:200]
            ) from exc
        return dict(attributes)

    def build(
        self,
        out: Path,
        definition: Path,
        *,
        cache_dir: Path,
        tmp_dir: Path,
        deadline_s: float = BUILD_DEADLINE_S,
        need_bytes: int = BUILD_BYTES,
    ) -> None:
        """Build `out` (which must not exist) from a definition; `out` is there whole or not at all.

        Cache and temporary files go to the folders named, both made if missing (P53). Raises E-SIF-001…003, 007, 008.
        """
        read_definition(definition)
        for folder in (cache_dir, tmp_dir):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if (free := shutil.disk_usage(tmp_dir).free) < need_bytes:
            allowed = f"{need_bytes >> 20} MiB free"
            raise Refusal(
                "E-SIF-008", "too little space", field=str(tmp_dir), found=f"{free >> 20} MiB", allowed=allowed
            )
        args = ["build", *(["--fakeroot"] if needs_fakeroot(os.geteuid(), _permitted()) else [])]
        args += ["--mksquashfs-args", "-comp zstd -Xcompression-level 3", str(out), str(definition)]
        try:
            self.checked(args, deadline_s=deadline_s, env=self.environment(cache_dir=cache_dir, tmp_dir=tmp_dir))
            check_sif(out)
        except BaseException:
            out.unlink(missing_ok=True)
            raise


def last_lines(done: Completed, count: int = 5) -> str:
    """The last lines that a command said, errors first."""
    lines = [line for line in (done.err.strip() or done.out.strip()).splitlines() if line.strip()]
    return "\n".join(lines[-count:])


def needs_fakeroot(uid: int, permitted: int) -> bool:
    """True for a root that lacks CAP_SYS_RESOURCE (root of many containers): Apptainer asks for every capability. Pure."""
    return uid == 0 and not permitted >> _CAP_SYS_RESOURCE & 1


def _permitted() -> int:
    for line in Path("/proc/self/status").read_text("ascii", "replace").splitlines():
        if line.startswith("CapPrm:"):
            return int(line.split()[1], 16)
    return 0


def _end(process: subprocess.Popen[bytes]) -> tuple[bytes, bytes]:
    """TERM to the group first: KILL would leave the image's FUSE mount behind."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            pass
        try:
            return process.communicate(timeout=GRACE_S)
        except subprocess.TimeoutExpired:
            continue
    return b"", b""
