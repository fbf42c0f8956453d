"""The provider's process: check this interpreter, load, call once, hand back what was returned.

Started as `python -I`: no PYTHON* variable, no user site, no current folder on the path; the kernel comes first, then what the image has, and
the plugin only once its import names are known to be nobody else's. The job arrives as JSON on stdin, the result leaves on a descriptor of
its own; stdout is the runner's stderr, so that whatever the provider prints cannot be taken for a result.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tuneplane.contract.transforms import TransformRequest, TransformResult
from tuneplane.plugins.fault import PluginFault, last_lines
from tuneplane.plugins.locked import LockedPlugin, check_collisions
from tuneplane.plugins.provider import guard, load
from tuneplane.plugins.requirements import require_here
from tuneplane.transforms.family import die_with_parent
from tuneplane.transforms.stop import NO_ROOM

BOOT = (
    "import sys; sys.path.insert(0, sys.argv[1]); "
    "from tuneplane.transforms.worker import main; sys.exit(main(int(sys.argv[2]), int(sys.argv[3])))"
)
"""`python -I -c BOOT KERNEL RESULT_FD PARENT_PID`"""


def main(result_fd: int, parent: int) -> int:
    """0 when the provider returned a result that is one, else 1 with the reason on the result's descriptor."""
    die_with_parent(parent)
    os.set_inheritable(result_fd, False)
    job = json.load(sys.stdin)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.path += [entry for entry in job["path"] if entry not in sys.path]
    answer = _answer(job)
    with os.fdopen(result_fd, "w", encoding="utf-8") as out:
        json.dump(answer, out)
    return 1 if "code" in answer else 0


def _answer(job: dict[str, Any]) -> dict[str, Any]:
    plugin = LockedPlugin(**{**job["plugin"], "folder": Path(job["plugin"]["folder"])})
    try:
        check_collisions([plugin])
        guard(plugin)
        require_here(plugin)
        transform = load(plugin)
    except PluginFault as fault:
        if fault.__cause__ is not None:
            traceback.print_exception(fault.__cause__)
        return {"code": fault.code, "message": fault.message}
    request = TransformRequest(
        MappingProxyType({name: Path(path) for name, path in job["inputs"].items()}),
        Path(job["output_dir"]),
        job["config"],
    )
    try:
        result = transform(request)
    except (Exception, SystemExit) as exc:
        traceback.print_exc()
        code = "E-JOB-047" if _no_room(exc) else "E-JOB-043"
        return {"code": code, "message": f"plugin {plugin.label} raised: {last_lines(exc)}"}
    return _checked(result, f"plugin {plugin.label}")


def _no_room(exc: BaseException | None) -> bool:
    """True when a full disk or quota is at the bottom of it."""
    seen: set[int] = set()
    while exc is not None and id(exc) not in seen:
        seen.add(id(exc))
        if isinstance(exc, OSError) and exc.errno in NO_ROOM:
            return True
        exc = exc.__cause__ or exc.__context__
    return False


def _checked(result: Any, who: str) -> dict[str, Any]:
    if not isinstance(result, TransformResult):
        return _not(who, f"returned {type(result).__name__}, not a TransformResult")
    files, records = result.files, result.records
    if not isinstance(files, tuple) or not all(isinstance(name, str) for name in files):
        return _not(who, f"returned files as {type(files).__name__}, not as a tuple of texts")
    if isinstance(records, bool) or not isinstance(records, int) or records < 0:
        return _not(who, f"returned records={records!r}, not a count")
    return {"files": list(files), "records": records}


def _not(who: str, what: str) -> dict[str, Any]:
    return {"code": "E-JOB-043", "message": f"{who} {what}"}
