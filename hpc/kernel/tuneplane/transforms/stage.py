"""The folder that the provider fills: beside the output, so that publishing it is one rename."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from tuneplane.record.files import fsync_dir, publish_dir
from tuneplane.transforms.outputs import Output, seal_outputs
from tuneplane.transforms.stop import broken, failed, refused

PREFIX = ".transform-"


def check_destination(output: Path, allowed: str) -> Path:
    """The output's absolute path, links in its parents resolved. `allowed`: the folder it must lie in, "" for anywhere. Raises Stop E-JOB-041."""
    text = os.path.abspath(output)
    path = Path(os.path.realpath(os.path.dirname(text))) / os.path.basename(text)
    if not path.parent.is_dir():
        raise refused("E-JOB-041", f"the output's folder {path.parent} is not there")
    if allowed:
        base = os.path.realpath(allowed)
        if not str(path).startswith(base + os.sep):
            raise refused("E-JOB-041", f"the output {path} is outside of TUNEPLANE_OUT_DIR, {base}")
    if os.path.lexists(path):
        raise refused("E-JOB-041", f"the output {path} exists already; it must be new")
    return path


class Stage:
    """One private, empty folder beside the output. Raises Stop E-JOB-047 where it cannot be made."""

    def __init__(self, output: Path) -> None:
        self.output = output
        self.path = output.with_name(PREFIX + secrets.token_hex(6))
        try:
            os.mkdir(self.path, 0o700)
            self._fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as exc:
            raise broken(f"{self.path} cannot be made", exc) from exc

    def seal(self, files: Sequence[str], check: Callable[[], None]) -> list[Output]:
        """Everything in the folder, as `seal_outputs` promises. Raises Stop E-JOB-044 or E-JOB-047."""
        try:
            mine, there = os.fstat(self._fd), os.lstat(self.path)
            if (mine.st_dev, mine.st_ino) != (there.st_dev, there.st_ino):
                raise failed("E-JOB-044", "the output folder was replaced by another")
            outputs = seal_outputs(self._fd, files, check)
            os.fchmod(self._fd, 0o755)
            os.fsync(self._fd)
        except OSError as exc:
            raise broken("the output cannot be read back", exc) from exc
        return outputs

    def publish(self) -> None:
        """One rename. Raises Stop E-JOB-041 when something has taken the name meanwhile, E-JOB-047."""
        try:
            publish_dir(self.path, self.output)
        except FileExistsError as exc:
            raise refused("E-JOB-041", f"the output {self.output} exists already; it must be new") from exc
        except OSError as exc:
            raise broken(f"the output {self.output} cannot be put in place", exc) from exc

    def remove(self) -> str:
        """Drop the folder if it was not published; returns what stayed behind and why, "" for nothing."""
        os.close(self._fd)
        if not os.path.lexists(self.path):
            return ""
        try:
            if os.path.isdir(self.path) and not os.path.islink(self.path):
                _open_up(str(self.path))
                shutil.rmtree(self.path)
            else:
                os.unlink(self.path)
            fsync_dir(self.path.parent)
        except OSError as exc:
            return f"{self.path} stayed behind: {exc.strerror or exc}"
        return ""


def _open_up(path: str) -> None:
    """Make every folder of a tree one that can be emptied: a provider may have shut its own. Links are not followed."""
    os.chmod(path, 0o700)
    with os.scandir(path) as entries:
        below = [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
    for folder in below:
        _open_up(folder)
