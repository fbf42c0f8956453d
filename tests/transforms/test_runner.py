"""One transform from its arguments to its report: what is published, what is refused, and that the report always says which."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from tuneplane import __version__
from tuneplane.record.digest import digest_json

from hpc.submit.kernelzip import archive

WRITE = '(o / "data.jsonl").write_text("x\\n")\n'
GOOD = WRITE + 'return TransformResult(files=("data.jsonl",), records=1)'


NOBODY = 65534


def sha(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def test_the_report_carries_what_went_in_and_what_came_out(place: Any) -> None:
    place.body('(o / "sub").mkdir()\n(o / "sub" / "y").write_bytes(b"yy")\n' + WRITE
               + 'return TransformResult(files=("sub/y", "data.jsonl"), records=7)')  # fmt: skip
    folder = place.base / "docs"
    (folder / "deep").mkdir(parents=True)
    (folder / "deep/a.txt").write_text("a")
    (folder / "link.txt").symlink_to("deep/a.txt")
    inputs = {"docs": "docs", "rows": str(place.base / "in.jsonl")}
    done = place.run({"api": "tuneplane/transform/v1", "inputs": inputs, "config": {"b": 1, "a": [2]}})
    assert done.returncode == 0, done.stderr
    report = place.report()
    assert report["files"] == ["sub/y", "data.jsonl"]
    assert report["outputs"] == [
        {"path": "sub/y", "size": 2, "sha256": sha(b"yy")},
        {"path": "data.jsonl", "size": 2, "sha256": sha(b"x\n")},
    ]
    rows = (place.base / "in.jsonl").read_bytes()
    assert report["inputs"]["rows"] == {
        "path": str(place.base / "in.jsonl"), "type": "file", "size": len(rows), "sha256": sha(rows),
    }  # fmt: skip
    assert report["inputs"]["docs"]["files"] == 2
    assert report["inputs"]["docs"]["digest_v2"].startswith("sha256:")
    assert report["config_digest"] == digest_json({"a": [2], "b": 1})
    assert report["request_sha256"] == sha((place.base / "request.json").read_bytes())
    assert set(report["took_ms"]) == {"inputs", "provider", "outputs", "total"}
    assert report["started_at"] <= report["ended_at"]
    assert report["core_version"] == __version__
    assert report["worker"] == {"exit_code": 0, "signal": "", "subreaper": True, "processes_ended": 0}
    modes = {p.name: p.stat().st_mode & 0o7777 for p in [place.output, *place.output.rglob("*")]}
    assert modes == {"dataset": 0o755, "sub": 0o755, "y": 0o644, "data.jsonl": 0o644}


def test_what_the_provider_prints_is_not_the_runners_json(place: Any) -> None:
    place.body('print("from python")\nos.system("echo from a child")\nos.write(1, b"raw\\n")\n' + GOOD)
    done = place.run()
    assert json.loads(done.stdout)["status"] == "succeeded"
    assert sorted(done.stderr.split("\n")) == ["", "from a child", "from python", "raw"]


def test_the_provider_sees_its_own_files_the_kernel_and_the_image_and_nothing_of_the_job(
    place: Any, tmp_path: Path
) -> None:
    image = tmp_path / "image"
    image.mkdir()
    (image / "from_image.py").write_text("x = 1\n")
    (place.base / "from_cwd.py").write_text("x = 1\n")
    place.body(
        "found = []\nfor name in ('from_image', 'from_cwd', 'from_work'):\n"
        "    try:\n        __import__(name)\n        found.append(name)\n    except ImportError:\n        pass\n"
        '(o / "data.jsonl").write_text(json.dumps([found, sys.path, sys.flags.isolated, sys.stdin.read()]))\n'
        'return TransformResult(files=("data.jsonl",), records=1)'
    )
    (place.work / "from_work.py").write_text("x = 1\n")
    env = place.env()
    done = place.run(env={"PYTHONPATH": f"{env['PYTHONPATH']}:{place.work}:{image}"})
    assert done.returncode == 0, done.stderr
    found, path, isolated, stdin = json.loads((place.output / "data.jsonl").read_text())
    assert found == ["from_image"]
    assert path[:2] == [str(place.folder), env["PYTHONPATH"]]
    assert path[-1] == str(image)
    assert (isolated, stdin) == (1, "")


def test_it_runs_from_the_kernels_archive(place: Any, tmp_path: Path) -> None:
    kernel = tmp_path / "training.zip"
    kernel.write_bytes(archive("training"))
    done = place.body(GOOD).run(env={"PYTHONPATH": str(kernel)})
    assert done.returncode == 0, done.stderr
    assert place.report()["status"] == "succeeded"


def failure(place: Any, *more: str, request: Any = None, env: Any = None) -> tuple[str, str, str]:
    """(status, code, message) of a run that must publish nothing, leave no stage, and say the same in its report and on stderr."""
    done = place.run(request, *more, env=env)
    assert done.returncode == 1, done.stdout
    assert not place.output.exists()
    assert place.stages() == []
    report = place.report()
    assert report["outputs"] == report["files"] == []
    assert json.loads(done.stderr.splitlines()[-1]) == {
        "api": "tuneplane/transform/v1", "status": report["status"], "reason": report["reason"],
        "error": f"{report['reason']['code']} {report['reason']['message']}",
    }  # fmt: skip
    return report["status"], report["reason"]["code"], report["reason"]["message"]


LISTED = 'return TransformResult(files=("data.jsonl", "x"), records=1)'


@pytest.mark.parametrize(
    ("made", "word"),
    [
        ('(o / "x").symlink_to("/etc/passwd")', "'x' is a link"),
        ('os.link(request.inputs["d"], o / "x")', "hard links"),
        ('os.link(o / "data.jsonl", o / "x")', "hard links"),
        ('os.mkfifo(o / "x")', "no regular file"),
        ('import socket; s = socket.socket(socket.AF_UNIX); os.chdir(o); s.bind("x")', "no regular file"),
        ('(o / "x").mkdir()', "lists x, which is not there"),
        ('(o / "x").write_text(""); (o / ".hidden").write_text("")', "'.hidden' is not listed"),
        ('(o / "x").write_text(""); (o / "new\\nline").write_text("")', "'new\\nline' is not listed"),
        ('(o / "sub").mkdir(); (o / "x").write_text(""); (o / "sub/l").symlink_to("..")', "'sub/l' is a link"),
        ('(o / "x").write_text(""); os.rename(o, str(o) + "2"); os.mkdir(o)', "replaced by another"),
        ('(o / "x").write_text(""); os.rename(o, str(o) + "2"); os.symlink(str(o) + "2", o)', "replaced by another"),
        ('[os.makedirs(o / "/".join(["d"] * n)) for n in (40,)]; (o / "x").write_text("")', "nested deeper than 32"),
    ],
)  # fmt: skip
def test_an_output_that_is_not_exactly_what_was_listed_is_refused(place: Any, made: str, word: str) -> None:
    place.body(f"{WRITE}{made}\n{LISTED}")
    done = place.run()
    report = place.report()
    assert (done.returncode, report["status"], report["reason"]["code"]) == (1, "failed", "E-JOB-044")
    assert word in report["reason"]["message"]
    assert not place.output.exists()
    left = [name for name in place.stages() if not name.endswith("2")]
    assert left == []


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "./data.jsonl", "a//b", "", "a\\b", "a\nb", "sub/"])
def test_a_listed_name_that_is_no_normal_path_is_refused(place: Any, name: str) -> None:
    place.body(f'{WRITE}return TransformResult(files=("data.jsonl", {name!r}), records=1)')
    assert failure(place)[:2] == ("failed", "E-JOB-044")


@pytest.mark.parametrize("files", ["(1,)", '(o / "data.jsonl",)', "None", '"data.jsonl"'])
def test_files_of_another_type_are_refused(place: Any, files: str) -> None:
    place.body(f"{WRITE}return TransformResult(files={files}, records=1)")
    assert failure(place)[:2] == ("failed", "E-JOB-043")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ('raise ValueError("row 7 is bad")', ("raised", "ValueError: row 7 is bad", "probe_mod.py")),
        ("sys.exit(0)", ("raised", "SystemExit: 0")),
        ("os._exit(0)", ("ended with exit code 0 and left no result",)),
        ("os.kill(os.getpid(), signal.SIGSEGV)", ("was killed by SIGSEGV",)),
        ("raise KeyboardInterrupt", ("left no result",)),
        ("import atexit; atexit.register(os._exit, 5)\n" + GOOD, ("exit code 5 after its provider had returned",)),
    ],
)
def test_a_provider_that_fails_is_reported_with_its_own_words(place: Any, body: str, words: tuple[str, ...]) -> None:
    place.body(WRITE + body)
    status, code, message = failure(place)
    assert (status, code) == ("failed", "E-JOB-043")
    assert all(word in message for word in words), message
    assert "\n" not in message


@pytest.mark.two_users
@pytest.mark.parametrize("end", ["raise ValueError", 'return TransformResult(files=("sub/x",), records=0)'])
def test_folders_that_a_provider_shut_are_published_or_removed_all_the_same(place: Any, end: str) -> None:
    """As an ordinary user, whom a mode stops; a link in the folder does not lead the removal outside."""
    base = Path(tempfile.mkdtemp(prefix="tp-transforms-"))
    link = 'os.symlink(request.inputs["d"].parent / "mine", o / "sub/l")\n' if "raise" in end else ""
    place = type(place)(base).body(
        '(o / "sub").mkdir()\n(o / "sub/x").write_text("")\nos.chmod(o / "sub/x", 0)\n'
        + link
        + f'os.chmod(o / "sub", 0)\n{end}'
    )
    (base / "mine").mkdir(mode=0o555)
    command = place.command()
    for path in (base, *base.rglob("*")):
        os.chown(path, NOBODY, NOBODY)
    try:
        done = subprocess.run(command, env=place.env(), cwd=base, user=NOBODY, group=NOBODY, extra_groups=[],
                              capture_output=True, text=True, check=False)  # fmt: skip
        assert done.returncode == ("raise" in end), done.stderr
        assert place.stages() == []
        assert (base / "mine").stat().st_mode & 0o777 == 0o555
        if not link:
            assert (place.output / "sub/x").stat().st_mode & 0o777 == 0o644
    finally:
        shutil.rmtree(base)


@pytest.mark.parametrize(
    ("request_", "word"),
    [
        ({"api": "tuneplane/transform/v2", "inputs": {"d": "in.jsonl"}}, "tuneplane/transform/v1"),
        ({"api": "tuneplane/transform/v1", "inputs": {"d": ""}}, "inputs.d is not a path"),
        ({"api": "tuneplane/transform/v1", "inputs": {"d": 1}}, "inputs.d is not a path"),
        ({"api": "tuneplane/transform/v1", "inputs": {"d": "/dev/null"}}, "neither a file nor a folder"),
        ({"api": "tuneplane/transform/v1", "inputs": ["in.jsonl"]}, "inputs is not an object"),
        ('{"api": "tuneplane/transform/v1", "inputs": {"d": "in.jsonl", "d": "in.jsonl"}}', "stands twice"),
        ("[" * 100_000, "not JSON"),
        ("[]", "not a JSON object"),
        (" " * (1 << 20) + "{}", "larger than"),
    ],
)
def test_a_request_that_is_not_understood_is_refused(place: Any, request_: Any, word: str) -> None:
    status, code, message = failure(place.body(GOOD), request=request_)
    assert (status, code) == ("refused", "E-JOB-040")
    assert word in message


@pytest.mark.parametrize("timeout", ["0", "-1", "nan", "inf", "soon"])
def test_a_timeout_that_is_no_time_is_refused(place: Any, timeout: str) -> None:
    status, code, message = failure(place.body(GOOD), "--timeout", timeout)
    assert (status, code) == ("refused", "E-JOB-040")
    assert repr(timeout) in message


def test_an_output_outside_of_the_jobs_folder_is_refused(place: Any, tmp_path: Path) -> None:
    place.body(GOOD)
    other = tmp_path / "other"
    other.mkdir()
    for allowed in (str(other), str(place.output), str(place.out) + "x"):
        status, code, message = failure(place, env={"TUNEPLANE_OUT_DIR": allowed})
        assert (status, code) == ("refused", "E-JOB-041")
        assert "outside of TUNEPLANE_OUT_DIR" in message
    (place.out / "link").symlink_to(other)
    done = place.run(None, "--output", str(place.out / "link/dataset"), env={"TUNEPLANE_OUT_DIR": str(place.out)})
    assert done.returncode == 1
    assert list(other.iterdir()) == []


@pytest.mark.parametrize("make", [lambda p: p.mkdir(), lambda p: p.write_text(""), lambda p: p.symlink_to("nowhere")])
def test_an_output_that_exists_in_any_form_is_refused_and_left_alone(place: Any, make: Any) -> None:
    place.body(GOOD)
    make(place.output)
    before = os.lstat(place.output)
    assert place.run().returncode == 1
    assert place.report()["reason"]["code"] == "E-JOB-041"
    assert os.lstat(place.output).st_ino == before.st_ino


def test_an_output_that_appears_during_the_run_is_left_alone(place: Any) -> None:
    place.body(f'os.mkdir({str(place.output)!r})\nopen({str(place.output / "mine")!r}, "w")\n' + GOOD)
    assert place.run().returncode == 1
    assert place.report()["reason"]["code"] == "E-JOB-041"
    assert place.entries() == ["mine"]
    assert place.stages() == []


def test_the_output_folder_must_be_there(place: Any) -> None:
    place.body(GOOD)
    done = place.run(None, "--output", str(place.out / "not/there"))
    assert done.returncode == 1
    assert "is not there" in place.report()["reason"]["message"]


def test_a_report_never_overwrites_what_is_no_report(place: Any) -> None:
    place.body(GOOD)
    for path in (place.base / "in.jsonl", place.base / "request.json", place.folder / "probe_mod.py", place.out):
        before = path.read_bytes() if path.is_file() else b""
        done = place.run(None, "--report", str(path))
        assert done.returncode == 1
        assert json.loads(done.stderr)["reason"]["code"] == "E-JOB-041"
        assert path.is_dir() or path.name == "request.json" or path.read_bytes() == before
    assert not place.output.exists()


def test_a_report_inside_the_output_or_in_a_missing_folder_is_refused(place: Any) -> None:
    place.body(GOOD)
    for path in (place.output / "report.json", place.output, place.out / "no/report.json"):
        done = place.run(None, "--report", str(path))
        assert (done.returncode, json.loads(done.stderr)["reason"]["code"]) == (1, "E-JOB-041")
    assert not place.output.exists()


def test_a_second_run_replaces_the_first_ones_report(place: Any) -> None:
    place.body(GOOD)
    assert failure(place, "--timeout", "0")[0] == "refused"
    assert place.run().returncode == 0
    assert place.report()["status"] == "succeeded"


def test_without_report_a_failure_is_said_on_stderr_alone(place: Any) -> None:
    place.body("raise ValueError")
    command = place.command()
    del command[command.index("--report") : command.index("--report") + 2]
    done = subprocess.run(command, env=place.env(), cwd=place.base, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert json.loads(done.stderr.splitlines()[-1])["status"] == "failed"
    assert list(place.out.iterdir()) == []


def test_changed_bytes_of_the_plugin_are_refused_with_both_digests(place: Any) -> None:
    place.body(GOOD)
    (place.folder / "probe_mod.py").write_text("print('ran')\n")
    status, code, message = failure(place)
    assert (status, code) == ("refused", "E-JOB-030")
    assert message.startswith("plugin alice/probe@1.0.0 content digest mismatch: spec=sha256:")


MANIFEST = "schema: tuneplane/plugin/v1\nname: probe\nversion: 1.0.0\n"


@pytest.mark.parametrize(
    ("manifest", "code", "word"),
    [
        (MANIFEST + "capability: algorithm\nentrypoint: probe_mod:transform\n", "E-JOB-042", "no data-prep provider"),
        (MANIFEST + "capability: data-prep\nexecution: local\n", "E-JOB-042", "no data-prep provider"),
        (MANIFEST + "capability: data-prep\nexecution: job\nentrypoint: probe_mod:nobody\n", "E-JOB-036", "no callable nobody"),
        (MANIFEST + "capability: data-prep\nexecution: job\nentrypoint: probe_mod:transform\n"
         "requires: {core: '>=9'}\n", "E-JOB-035", f"requires SDK >=9, this one is {__version__}"),
        (MANIFEST + "capability: data-prep\nexecution: job\nentrypoint: probe_mod:transform\n"
         "requires: {python: '>=3.99'}\n", "E-JOB-033", "requires Python >=3.99 (requires.python)"),
    ],
)  # fmt: skip
def test_a_provider_that_this_job_cannot_use_is_refused_before_it_runs(
    place: Any, manifest: str, code: str, word: str
) -> None:
    place.provider("open('ran', 'w')\ndef transform(request): pass\n", manifest)
    status, found, message = failure(place)
    assert (status, found) == ("refused", code)
    assert word in message
    assert (place.base / "ran").exists() == (code == "E-JOB-036")


def test_an_input_that_changes_under_the_provider_is_a_failure(place: Any) -> None:
    place.body('open(request.inputs["d"], "a").write("more")\n' + GOOD)
    status, code, message = failure(place)
    assert (status, code) == ("failed", "E-JOB-043")
    assert "in.jsonl changed while the provider read it" in message


def test_a_link_to_a_folder_in_an_input_folder_is_refused(place: Any) -> None:
    place.body(GOOD)
    (place.base / "docs").mkdir()
    (place.base / "docs/loop").symlink_to("..")
    status, code, message = failure(place, request={"api": "tuneplane/transform/v1", "inputs": {"d": "docs"}})
    assert (status, code) == ("refused", "E-JOB-040")
    assert "is a link to a folder" in message


@pytest.mark.two_users
def test_a_full_disk_is_said_to_be_one_and_leaves_nothing(place: Any) -> None:
    place.body('(o / "data.jsonl").write_bytes(b"x" * (4 << 20))\n' + GOOD)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", place.out], check=True)
    try:
        status, code, message = failure(place)
        assert (status, code) == ("failed", "E-JOB-047")
        assert "No space left on device" in message
    finally:
        subprocess.run(["umount", place.out], check=True)


def test_wrong_usage_is_64_and_help_is_0(place: Any) -> None:
    for words, code in ((["--plugin", "a/b"], 64), (["--plug", "a/b"], 64), (["--help"], 0)):
        done = subprocess.run(
            [sys.executable, "-m", "tuneplane.transforms", *words],
            env=place.env(),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == code
        assert "python -m tuneplane.transforms" in done.stdout + done.stderr


def test_an_empty_folder_is_published_with_the_rest(place: Any) -> None:
    place.body('(o / "void").mkdir()\n' + GOOD)
    assert place.run().returncode == 0
    assert place.entries() == ["data.jsonl", "void"]


def test_a_report_that_cannot_be_written_at_the_end_is_said_and_the_output_named(place: Any) -> None:
    place.body('import shutil; shutil.rmtree(o.parent / "reports")\n' + GOOD)
    (place.out / "reports").mkdir()
    done = place.run(None, "--report", str(place.out / "reports/r.json"))
    assert done.returncode == 1
    reason = json.loads(done.stderr.splitlines()[-1])["reason"]
    assert reason["code"] == "E-JOB-047"
    assert reason["message"].endswith("; the output was published")
    assert place.entries() == ["data.jsonl"]


@pytest.mark.parametrize(
    "word",
    ['"\\udcff"', '"\\x1b[31mred\\x00"', '"long " * 100_000', 'os.fsdecode(b"\\xff/name")'],
    ids=["half", "esc", "long", "name"],
)
def test_whatever_an_error_says_the_report_is_written(place: Any, word: str) -> None:
    place.body(f"raise ValueError({word})")
    _, code, message = failure(place)
    assert code == "E-JOB-043"
    assert message.isprintable()
    assert len(message) < 3000


def test_a_place_whose_name_is_no_utf8_is_no_reason_to_lose_the_report(place: Any) -> None:
    odd = Path(os.fsdecode(os.fsencode(place.base) + b"/odd\xff"))
    odd.mkdir()
    inner = type(place)(odd).body(GOOD)
    done = inner.run()
    assert done.returncode == 0, done.stderr
    assert "odd\\udcff" in inner.report()["inputs"]["d"]["path"]


@pytest.mark.parametrize("module", ["json.py", "wave/__init__.py", "math.py", "torch.py"])
def test_a_provider_with_a_name_that_is_taken_is_refused_before_it_runs(place: Any, module: str) -> None:
    place.body(GOOD)
    (place.folder / module).parent.mkdir(exist_ok=True)
    (place.folder / module).write_text("raise SystemExit('ran')\n")
    place.lock()
    status, code, message = failure(place)
    assert (status, code) == ("refused", "E-JOB-032")
    assert module.split("/")[0].split(".")[0] in message
