"""However a run ends, nothing that the provider started is left, nothing half is published, and the report says how it ended."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
import tuneplane

FORKING = """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
pids = request.inputs["d"].parent / "pids"
pids.mkdir()
def stay(name):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    (pids / name).write_text(str(os.getpid()))
    while True:
        time.sleep(0.05)
def fork(what):
    if os.fork() == 0:
        what()
        os._exit(0)
fork(lambda: fork(lambda: stay("grandchild")))
fork(lambda: (os.setsid(), fork(lambda: stay("daemon"))))
def subreaper():
    import ctypes
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
    os.setsid()
    fork(lambda: fork(lambda: (os.setsid(), stay("below another reaper"))))
    stay("another reaper")
fork(subreaper)
subprocess.Popen([sys.executable, "-I", "-c", "import os, signal, time, pathlib, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    "pathlib.Path(sys.argv[1]).write_text(str(os.getpid())); time.sleep(600)", str(pids / "program")], start_new_session=True)
(pids / "provider").write_text(str(os.getpid()))
while len([p for p in pids.iterdir() if p.read_text()]) < 6:
    time.sleep(0.02)
(o / "data.jsonl").write_text("x")
"""
RETURN = 'return TransformResult(files=("data.jsonl",), records=1)'
NOBODY = 65534
NAMES = {"grandchild", "daemon", "below another reaper", "another reaper", "program", "provider"}


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def started(place: Any) -> dict[str, int]:
    return {p.name: int(p.read_text()) for p in (place.base / "pids").iterdir()}


def wait_for(what: Any, within: float = 30.0) -> None:
    limit = time.monotonic() + within
    while not what():
        assert time.monotonic() < limit, "it did not happen"
        time.sleep(0.02)


def none_left(place: Any) -> None:
    pids = started(place)
    assert set(pids) == NAMES
    assert [name for name, pid in pids.items() if alive(pid)] == []


def test_a_deadline_ends_a_provider_that_forks_and_ignores_term(place: Any) -> None:
    place.body(FORKING + "time.sleep(600)")
    done = place.run(None, "--timeout", "3")
    assert done.returncode == 1, done.stderr
    report = place.report()
    assert (report["status"], report["reason"]["code"]) == ("timeout", "E-JOB-045")
    assert report["reason"]["message"] == "the provider did not end within 3 s"
    none_left(place)
    assert report["worker"]["signal"] == "SIGKILL"
    assert report["worker"]["processes_ended"] >= len(NAMES)
    assert not place.output.exists()
    assert place.stages() == []


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR2])
def test_cancellation_ends_everything_and_is_reported(place: Any, signum: signal.Signals) -> None:
    place.body(FORKING + "time.sleep(600)")
    runner = place.start()
    wait_for(lambda: (place.base / "pids/provider").exists() and len(started_if_whole(place)) == len(NAMES))
    runner.send_signal(signum)
    runner.send_signal(signum)
    _, err = runner.communicate(timeout=60)
    assert runner.returncode == 1
    report = place.report()
    assert (report["status"], report["reason"]["code"]) == ("cancelled", "E-JOB-046")
    assert report["reason"]["message"] == f"cancelled by {signum.name}"
    assert json.loads(err.splitlines()[-1])["status"] == "cancelled"
    none_left(place)
    assert not place.output.exists()
    assert place.stages() == []


def started_if_whole(place: Any) -> list[Path]:
    return [p for p in (place.base / "pids").iterdir() if p.read_text()]


def test_what_a_provider_leaves_behind_is_ended_after_success_too(place: Any) -> None:
    place.body(FORKING + RETURN)
    done = place.run()
    assert done.returncode == 0, done.stderr
    report = place.report()
    assert report["status"] == "succeeded"
    assert report["worker"]["processes_ended"] == len(NAMES) - 1
    none_left(place)
    assert place.entries() == ["data.jsonl"]


def test_a_process_that_is_left_cannot_write_into_what_was_published(place: Any) -> None:
    writes = (
        "pid = os.fork()\nif pid == 0:\n    os.setsid()\n    signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        '    while True:\n        (o / "data.jsonl").open("a").write("late")\n        (o / "extra").write_text("x")\n'
        '(o / "data.jsonl").write_text("x")\n'
    )
    place.body(writes + 'time.sleep(0.3)\nreturn TransformResult(files=("data.jsonl", "extra"), records=1)')
    done = place.run()
    assert done.returncode == 0, done.stderr
    sizes = {row["path"]: row["size"] for row in place.report()["outputs"]}
    time.sleep(0.2)
    assert {name: (place.output / name).stat().st_size for name in place.entries()} == sizes


def test_a_provider_may_end_well_on_term(place: Any) -> None:
    """TERM comes first and there is time to put things in order; the run is cancelled all the same."""
    note = 'request.inputs["d"].parent / "note"'
    place.body(
        f"def tidy(signum, frame):\n    ({note}).write_text('tidied')\n    sys.exit(0)\n"
        f"signal.signal(signal.SIGTERM, tidy)\n({note}).write_text('ready')\ntime.sleep(600)"
    )
    runner = place.start()
    wait_for(lambda: (place.base / "note").exists() and (place.base / "note").read_text() == "ready")
    runner.send_signal(signal.SIGTERM)
    runner.communicate(timeout=60)
    assert (place.base / "note").read_text() == "tidied"
    assert place.report()["status"] == "cancelled"


def test_a_signal_before_the_provider_starts_cancels(place: Any) -> None:
    """While a large input is hashed: a sparse file takes long enough."""
    place.body("open('ran', 'w')\n" + RETURN)
    with open(place.base / "in.jsonl", "wb") as stream:
        stream.truncate(64 << 30)
    runner = place.start()
    wait_for(place.report_path.exists)
    time.sleep(0.2)
    runner.send_signal(signal.SIGUSR2)
    runner.communicate(timeout=60)
    assert place.report()["status"] == "cancelled"
    assert not (place.base / "ran").exists()


def test_a_killed_runner_leaves_a_report_and_no_provider(place: Any) -> None:
    place.body('(request.inputs["d"].parent / "pid").write_text(str(os.getpid()))\ntime.sleep(600)')
    runner = place.start()
    wait_for(lambda: (place.base / "pid").exists() and (place.base / "pid").read_text())
    assert place.report()["reason"]["code"] == "E-JOB-049"
    runner.kill()
    runner.communicate(timeout=60)
    wait_for(lambda: not alive(int((place.base / "pid").read_text())))
    assert (place.report()["status"], place.report()["reason"]["code"]) == ("failed", "E-JOB-049")
    assert not place.output.exists()


def test_processes_that_were_there_before_are_left_alone(place: Any) -> None:
    """A script that execs the runner gives it its background jobs as children."""
    place.body(RETURN.replace("return", '(o / "data.jsonl").write_text("x")\nreturn'))
    script = f'sleep 60 & echo $! > {place.base}/job; exec "$@"'
    done = subprocess.run(
        ["bash", "-c", script, "bash", *place.command()], env=place.env(), cwd=place.base, timeout=60, check=False,
        stdout=subprocess.DEVNULL,
    )  # fmt: skip
    job = int((place.base / "job").read_text())
    try:
        assert done.returncode == 0
        assert alive(job)
    finally:
        os.kill(job, signal.SIGKILL)


def test_a_fork_bomb_of_short_lived_processes_is_ended(place: Any) -> None:
    """Each process forks its successor and ends: whoever looks sees another one."""
    place.body(
        "if os.fork() == 0:\n    os.setsid()\n    while os.fork() == 0:\n        pass\n    os._exit(0)\n"
        '(o / "data.jsonl").write_text("x")\n' + RETURN
    )
    done = place.run()
    assert done.returncode == 0, done.stderr
    assert place.report()["worker"].get("left_running") is None


def test_without_a_subreaper_the_process_group_is_ended(place: Any) -> None:
    """An interpreter without ctypes: what stays in the group goes, and the report says that orphans were not followed."""
    blocked = place.base / "blocked"
    blocked.mkdir()
    (blocked / "ctypes.py").write_text("raise ImportError('none here')\n")
    source = (
        "pid = os.fork()\nif pid == 0:\n    if os.fork() == 0:\n"
        '        (request.inputs["d"].parent / "pid").write_text(str(os.getpid()))\n        time.sleep(600)\n    os._exit(0)\n'
        'while not (request.inputs["d"].parent / "pid").exists():\n    time.sleep(0.02)\n(o / "data.jsonl").write_text("x")\n'
    )
    place.body(source + RETURN)
    done = place.run(env={"PYTHONPATH": f"{blocked}:{place.env()['PYTHONPATH']}"})
    assert done.returncode == 0, done.stderr
    assert place.report()["worker"]["subreaper"] is False
    wait_for(lambda: not alive(int((place.base / "pid").read_text())))


def test_the_worker_needs_no_yaml_and_no_site_packages(place: Any) -> None:
    """What an image may lack: the runner alone, with the record that submission writes."""
    place.body('(o / "data.jsonl").write_text("x")\n' + RETURN)
    spec = json.loads((place.work / ".tuneplane/jobspec.json").read_text())
    manifest = {
        "name": "probe", "version": "1.0.0", "capability": "data-prep", "execution": "job",
        "entrypoint": "probe_mod:transform", "requires": {"python": ">=3.8"},
    }  # fmt: skip
    (triple,) = spec["spec"]["plugins"]
    row = triple | {"leaf": "probe", "digest_v2": "", "facts": {"manifest": manifest}}
    record = {"schema": "tuneplane-hpc/locked-plugins/v1", "plugins": [row]}
    (place.work / ".tuneplane/plugins.json").write_text(json.dumps(record))
    from hpc.submit.kernelzip import archive

    (place.base / "kernel.zip").write_bytes(archive("training"))
    command = place.command()
    command[1:1] = ["-S"]
    done = subprocess.run(
        command, env=place.env(PYTHONPATH=str(place.base / "kernel.zip")), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert sys.version_info >= (3, 10)
    assert tuneplane.__version__ == place.report()["core_version"]


@pytest.mark.two_users
def test_a_process_of_another_user_is_reported_and_nothing_is_published(place: Any) -> None:
    """What a set-uid program became cannot be ended by the user that started it."""
    base = Path(tempfile.mkdtemp(prefix="tp-transforms-"))
    program = base / "becomes-root"
    shutil.copyfile(os.path.realpath(sys.executable), program)
    program.chmod(0o4755)
    place = type(place)(base).body(
        f'child = subprocess.Popen([{str(program)!r}, "-I", "-c", "import os, time; os.setuid(0); os.write(1, bytes([48])); '
        'time.sleep(300)"], env={"PYTHONHOME": sys.base_prefix}, stdout=subprocess.PIPE)\n'
        'assert child.stdout.read(1) == b"0"\n(request.inputs["d"].parent / "pid").write_text(str(child.pid))\n'
        '(o / "data.jsonl").write_text("x")\n' + RETURN
    )
    command = place.command()
    for path in (base, *base.rglob("*")):
        if path != program:
            os.chown(path, NOBODY, NOBODY)
    try:
        # The survivor holds what it inherited open: no pipe that someone reads to its end.
        with open(base / "stderr", "wb") as err:
            code = subprocess.call(command, env=place.env(), cwd=base, user=NOBODY, group=NOBODY, extra_groups=[],
                                   stdout=err, stderr=err, timeout=60)  # fmt: skip
        assert (base / "pid").exists(), (base / "stderr").read_text()
        pid = int((base / "pid").read_text())
        survived = alive(pid)
        os.kill(pid, signal.SIGKILL)
        assert survived
        report = place.report()
        assert (code, report["status"], report["reason"]["code"]) == (1, "failed", "E-JOB-048")
        assert report["worker"]["left_running"] == [pid]
        assert not place.output.exists()
    finally:
        shutil.rmtree(base)
