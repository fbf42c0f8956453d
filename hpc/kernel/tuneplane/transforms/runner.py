"""One transform, from its arguments to its report: check, stage, run the provider, end all it left, validate, publish.

The provider runs in a process of its own and never in this one. The boundary is about life and death, not about rights: a provider can do what
its user can do. Order: the report's place is taken first, so that every later end is in it; the output appears by one rename after every file
in it was hashed and fsynced, and only then does the report say `succeeded`.
"""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tuneplane
from tuneplane.plugins.fault import PluginFault
from tuneplane.plugins.locked import LockedPlugin, read_locked, verify
from tuneplane.plugins.requirements import unmet_core
from tuneplane.record.times import utc_now
from tuneplane.transforms.family import Family
from tuneplane.transforms.limits import GRACE_S, MAX_RESULT_BYTES, POLL_S
from tuneplane.transforms.report import UNFINISHED, Facts, ReportFile
from tuneplane.transforms.request import Described, Request, describe, read_request, unchanged
from tuneplane.transforms.stage import Stage, check_destination
from tuneplane.transforms.stop import CANCELLED, TIMEOUT, Stop, broken, failed, refused
from tuneplane.transforms.worker import BOOT

KERNEL = str(Path(tuneplane.__file__).parents[1])
ENDING_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2)
NOT_BEFORE_START = ("E-JOB-043", "E-JOB-047")
"""A worker's codes for a provider that did run; all others mean that it was refused before."""


@dataclass(frozen=True)
class Arguments:
    """The command line, unread."""

    plugin: str
    request: Path
    output: Path
    report: Path | None
    timeout: str
    work_dir: Path | None


@dataclass
class Runner:
    """`run` may be called once. `env` is the process's environment; `cancelled_by` is set by a signal handler."""

    arguments: Arguments
    env: Mapping[str, str]
    cancelled_by: str = ""
    facts: Facts = field(init=False)

    def __post_init__(self) -> None:
        self.facts = Facts(utc_now(), self.arguments.timeout, self.arguments.plugin)

    def cancel(self, signum: int, frame: object) -> None:
        self.cancelled_by = signal.Signals(signum).name

    def check(self) -> None:
        """Raises Stop E-JOB-046 once a signal has come."""
        if self.cancelled_by:
            raise Stop(CANCELLED, "E-JOB-046", f"cancelled by {self.cancelled_by}")

    def run(self) -> tuple[dict[str, Any], Stop | None]:
        """(the report, why there is no output or None). Never raises but for our own bugs; the report file is written in every case but
        where its own place was refused or its disk takes no more."""
        for signum in ENDING_SIGNALS:
            signal.signal(signum, self.cancel)
        report, begun, stop = ReportFile(self.arguments.report), time.monotonic(), None
        try:
            report.claim(self.arguments.output)
            report.write(self.facts.as_json(utc_now(), UNFINISHED))
        except Stop as no_place:
            return self.facts.as_json(utc_now(), no_place), no_place
        try:
            self._transform()
        except Stop as reason:
            stop = reason
        self.facts.took_ms["total"] = _ms(begun)
        value = self.facts.as_json(utc_now(), stop)
        try:
            report.write(value)
        except Stop as unwritten:
            said = "" if stop else "; the output was published"
            stop = stop or Stop(unwritten.status, unwritten.code, unwritten.message + said)
        return value, stop

    def _transform(self) -> None:
        timeout_s = _seconds(self.arguments.timeout)
        output = check_destination(self.arguments.output, self.env.get("TUNEPLANE_OUT_DIR", ""))
        request = read_request(self.arguments.request)
        self.facts.request_sha256, self.facts.config_digest = request.digest, request.config_digest
        work = self._work()
        plugin = self._plugin(work)
        described = self._inputs(request)
        stage = Stage(output)
        try:
            answer = self._provide(plugin, request, stage, work, timeout_s)
            self._publish(request, described, stage, answer)
        finally:
            if left := stage.remove():
                self.facts.worker["left_behind"] = left

    def _work(self) -> Path:
        if self.arguments.work_dir is None:
            raise refused("E-JOB-042", "neither --work-dir nor TUNEPLANE_WORK_DIR names the job package")
        return Path(os.path.abspath(self.arguments.work_dir))

    def _plugin(self, work: Path) -> LockedPlugin:
        """The locked provider, its bytes recomputed. Raises Stop with the plugin's own code, or E-JOB-042."""
        wanted = self.arguments.plugin
        try:
            locked = {plugin.id: plugin for plugin in read_locked(work)}
            if wanted not in locked:
                known = ", ".join(sorted(locked)) or "none"
                raise refused("E-JOB-042", f"plugin {wanted} is not locked to this job (locked: {known})")
            plugin = locked[wanted]
            self.facts.provider = {"id": plugin.id, "version": plugin.version, "digest": plugin.digest}
            verify(plugin)
            if plugin.capability != "data-prep" or not plugin.runs_code:
                raise refused("E-JOB-042", f"plugin {plugin.label} is no data-prep provider for jobs")
            if unmet := unmet_core(plugin, tuneplane.__version__):
                raise PluginFault("E-JOB-035", unmet)
        except PluginFault as fault:
            raise refused(fault.code, fault.message) from fault
        return plugin

    def _inputs(self, request: Request) -> dict[str, Described]:
        begun, out = time.monotonic(), {}
        for name, path in request.inputs.items():
            out[name] = describe(name, path, self.check)
            self.facts.inputs[name] = out[name].row
        self.facts.took_ms["inputs"] = _ms(begun)
        return out

    def _provide(
        self, plugin: LockedPlugin, request: Request, stage: Stage, work: Path, timeout_s: float
    ) -> dict[str, Any]:
        """Run the provider and end its processes; its answer. Raises Stop."""
        self.check()
        family, begun = Family(), time.monotonic()
        self.facts.worker["subreaper"] = family.subreaper
        job = {
            "plugin": {**vars(plugin), "folder": str(plugin.folder), "facts": dict(plugin.facts)},
            "inputs": {name: str(path) for name, path in request.inputs.items()},
            "output_dir": str(stage.path),
            "config": request.config,
            "path": _image_path(self.env.get("PYTHONPATH", ""), work),
        }
        try:
            result_fd = os.memfd_create("transform-result")
            with open(os.memfd_create("transform-job"), "w+b", buffering=0) as stdin:
                stdin.write(json.dumps(job).encode())
                stdin.seek(0)
                worker = _start(stdin.fileno(), result_fd)
        except OSError as exc:
            raise broken("the provider's process cannot be started", exc) from exc
        timed_out = self._wait(worker, family, begun + timeout_s)
        there, left = family.end(worker, GRACE_S)
        code = worker.returncode
        self.facts.took_ms["provider"] = _ms(begun)
        self.facts.worker |= {"exit_code": code if code is None or code >= 0 else None, "processes_ended": there}
        self.facts.worker["signal"] = signal.Signals(-code).name if code is not None and code < 0 else ""
        if left:
            self.facts.worker["left_running"] = left
            raise failed("E-JOB-048", f"processes of the provider are still there after KILL: {left}")
        self.check()
        if timed_out:
            raise Stop(TIMEOUT, "E-JOB-045", f"the provider did not end within {self.arguments.timeout} s")
        return _answer(result_fd, code, plugin.label)

    def _wait(self, worker: subprocess.Popen[bytes], family: Family, deadline: float) -> bool:
        """Until the worker ends, a signal comes (False), or the deadline passes (True)."""
        while worker.poll() is None:
            if self.cancelled_by:
                return False
            if time.monotonic() > deadline:
                return True
            family.reap(worker)
            time.sleep(POLL_S)
        return False

    def _publish(
        self, request: Request, described: Mapping[str, Described], stage: Stage, answer: Mapping[str, Any]
    ) -> None:
        begun = time.monotonic()
        outputs = stage.seal(answer["files"], self.check)
        for name, path in request.inputs.items():
            if not unchanged(name, path, described[name]):
                raise failed("E-JOB-043", f"inputs.{name}: {path} changed while the provider read it")
        self.check()
        stage.publish()
        self.facts.outputs, self.facts.records = outputs, answer["records"]
        self.facts.took_ms["outputs"] = _ms(begun)


def _ms(begun: float) -> int:
    return round((time.monotonic() - begun) * 1000)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise refused("E-JOB-040", f"--timeout is {text!r}, not a number of seconds above 0")
    return value


def _image_path(pythonpath: str, work: Path) -> list[str]:
    """What the image put on PYTHONPATH: absolute entries outside of the job package and of the kernel."""
    inside, out = os.path.realpath(work), []
    for entry in pythonpath.split(os.pathsep):
        real = os.path.realpath(entry)
        if os.path.isabs(entry) and real not in (inside, KERNEL) and not real.startswith(inside + os.sep):
            out.append(entry)
    return out


def _start(stdin: int, result_fd: int) -> subprocess.Popen[bytes]:
    """The worker in a session of its own; its stdout is our stderr."""
    return subprocess.Popen(
        [sys.executable, "-I", "-B", "-c", BOOT, KERNEL, str(result_fd), str(os.getpid())],
        stdin=stdin,
        stdout=sys.stderr.fileno(),
        stderr=sys.stderr.fileno(),
        pass_fds=(result_fd,),
        start_new_session=True,
    )


def _answer(result_fd: int, code: int | None, label: str) -> dict[str, Any]:
    """The worker's answer. Raises Stop: the worker's own reason, or E-JOB-043 where it left none."""
    with open(result_fd, "rb", closefd=True) as stream:
        stream.seek(0)
        data = stream.read(MAX_RESULT_BYTES + 1)
    how = f"was killed by {signal.Signals(-code).name}" if code and code < 0 else f"ended with exit code {code}"
    try:
        answer = json.loads(data) if len(data) <= MAX_RESULT_BYTES else None
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        raise failed("E-JOB-043", f"the process of plugin {label} {how} and left no result")
    if "code" in answer:
        make: Callable[[str, str], Stop] = failed if answer["code"] in NOT_BEFORE_START else refused
        raise make(str(answer["code"]), str(answer["message"]))
    if code != 0:
        raise failed("E-JOB-043", f"the process of plugin {label} {how} after its provider had returned")
    return answer
