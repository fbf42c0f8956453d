"""What is known of a transform run, from its first moment on; the report file always says the newest of it."""

from __future__ import annotations

import os
import platform
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tuneplane import __version__
from tuneplane.contract.transforms import API
from tuneplane.record.files import read_json, replace_json
from tuneplane.transforms.outputs import Output
from tuneplane.transforms.stop import FAILED, SUCCEEDED, Stop, broken, refused

UNFINISHED = Stop(FAILED, "E-JOB-049", "the runner has not ended yet, or was ended before it could say how")


@dataclass
class Facts:
    """The report's content. Times are UTC, durations whole milliseconds; what a run never came to know is empty or null."""

    started_at: str
    timeout_s: str
    plugin: str
    provider: dict[str, str] = field(default_factory=dict)
    request_sha256: str = ""
    config_digest: str = ""
    inputs: dict[str, dict[str, Any]] = field(default_factory=dict)
    outputs: list[Output] = field(default_factory=list)
    records: int | None = None
    took_ms: dict[str, int] = field(default_factory=dict)
    worker: dict[str, Any] = field(default_factory=dict)

    def as_json(self, ended_at: str, stop: Stop | None) -> dict[str, Any]:
        """The report of a run that ended by `stop`, or well."""
        value = {
            "api": API,
            "status": stop.status if stop else SUCCEEDED,
            "reason": {"code": stop.code, "message": stop.message} if stop else None,
            "files": [output.path for output in self.outputs],
            "outputs": [output.as_json() for output in self.outputs],
            "records": self.records,
            "provider": self.provider or {"id": self.plugin, "version": "", "digest": ""},
            "request_sha256": self.request_sha256,
            "config_digest": self.config_digest,
            "inputs": self.inputs,
            "started_at": self.started_at,
            "ended_at": ended_at,
            "timeout_s": self.timeout_s,
            "took_ms": self.took_ms,
            "worker": self.worker,
            "core_version": __version__,
            "python": platform.python_version(),
        }
        cleaned: dict[str, Any] = _printable(value)
        return cleaned


def _printable(value: Any) -> Any:
    """The same value with bytes that are no UTF-8 (of a path, of an error's words) written as escapes: a report is never lost to a name."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, dict):
        return {key: _printable(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_printable(item) for item in value]
    return value


@dataclass(frozen=True)
class ReportFile:
    """Where the report goes; None for nowhere."""

    path: Path | None

    def claim(self, output: Path) -> None:
        """Refuse a place where a report would destroy something else. Raises Stop E-JOB-041; then nothing was and nothing will be written there.

        An earlier report of a transform is replaced, so that a job can run again.
        """
        if self.path is None:
            return
        path, target = os.path.realpath(self.path), os.path.realpath(output)
        if path == target or path.startswith(target + os.sep):
            raise refused("E-JOB-041", f"the report {self.path} would lie in the output {output}")
        try:
            mode = os.lstat(self.path).st_mode
        except FileNotFoundError:
            if not os.path.isdir(os.path.dirname(path)):
                raise refused("E-JOB-041", f"the report's folder {os.path.dirname(path)} is not there") from None
            return
        except OSError as exc:
            raise refused("E-JOB-041", f"the report {self.path}: {exc.strerror or exc}") from exc
        if not stat.S_ISREG(mode) or not _is_report(self.path):
            raise refused("E-JOB-041", f"{self.path} is there and is no report of a transform; it is left as it is")

    def write(self, value: dict[str, Any]) -> None:
        """Raises Stop E-JOB-047."""
        if self.path is None:
            return
        try:
            replace_json(self.path, value)
        except OSError as exc:
            raise broken(f"the report {self.path} cannot be written", exc) from exc


def _is_report(path: Path) -> bool:
    try:
        value = read_json(path)
    except (OSError, ValueError):
        return False
    return isinstance(value, dict) and value.get("api") == API and "provider" in value
