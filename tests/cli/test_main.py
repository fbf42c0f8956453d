"""The command line's own promises: exit codes, errors as text and as JSON, help without side effects."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest

from hpc.cli.main import COMMANDS, cli

TP = Path(sys.executable).parent / "tp"


def tp(*words: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    clean = {"PATH": os.environ["PATH"], "HOME": str(cwd), "LC_ALL": "C.UTF-8", **env}
    return subprocess.run([TP, *words], cwd=cwd, env=clean, text=True, capture_output=True, timeout=60, check=False)


def every_command() -> list[list[str]]:
    found: list[list[str]] = []

    def walk(command: click.Command, path: list[str]) -> None:
        found.append(path)
        if isinstance(command, click.Group):
            context = click.Context(command)
            for name in command.list_commands(context):
                sub = command.get_command(context, name)
                assert sub is not None
                walk(sub, [*path, name])

    for name in COMMANDS:
        command = cli.get_command(click.Context(cli), name)
        assert command is not None
        walk(command, [name])
    return found


def test_every_command_has_help_and_the_json_flag() -> None:
    prints_text = {("template", "show"), ("jobspec", "schema"), ("job", "logs")}
    for path in every_command():
        command: click.Command = cli
        for name in path:
            assert isinstance(command, click.Group)
            sub = command.get_command(click.Context(command), name)
            assert sub is not None
            command = sub
        assert command.help, path
        if not isinstance(command, click.Group) and tuple(path) not in prints_text:
            assert any("--json" in p.opts for p in command.params), path


@pytest.mark.parametrize("words", [["--help"], ["submit", "--help"], ["job", "logs", "-h"], ["--version"]])
def test_help_has_no_side_effects(words: list[str], tmp_path: Path) -> None:
    done = tp(*words, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert list(tmp_path.iterdir()) == []


def test_wrong_usage_is_64_with_a_code(tmp_path: Path) -> None:
    for words in (["nope"], ["submit", "--nope"], ["job", "ls", "-n", "x"]):
        done = tp(*words, cwd=tmp_path)
        assert (done.returncode, done.stdout) == (64, ""), words
        assert done.stderr.startswith("tp: E-CLI-001 "), words


def test_no_storage_root_is_said_with_both_places(tmp_path: Path) -> None:
    done = tp("job", "ls", cwd=tmp_path)
    assert done.returncode == 64
    assert "E-CLI-002" in done.stderr
    assert "TUNEPLANE_STORAGE_ROOT" in done.stderr
    assert f"{tmp_path}/.config/tuneplane/config.toml" in done.stderr


def test_the_users_config_names_the_root(tmp_path: Path) -> None:
    config = tmp_path / ".config/tuneplane/config.toml"
    config.parent.mkdir(parents=True)
    config.write_text(f'storage_root = "{tmp_path}/none"\n')
    done = tp("job", "ls", cwd=tmp_path)
    assert (done.returncode, f"E-CLI-003 {config}" in done.stderr) == (1, True)
    config.write_text("storage_root = 7\n")
    assert "E-CLI-004" in tp("job", "ls", cwd=tmp_path).stderr
    config.write_text("storage_root = \n")
    assert "E-CLI-004" in tp("job", "ls", cwd=tmp_path).stderr


def test_a_refusal_is_one_object_for_programs(tmp_path: Path) -> None:
    done = tp("job", "ls", "--json", cwd=tmp_path)
    value = json.loads(done.stdout)
    assert value["verdict"] == "refuse"
    assert set(value["errors"][0]) == {"code", "field", "message", "found", "allowed", "hint"}
    assert value["errors"][0]["code"] == "E-CLI-002"


def test_a_bug_is_70_with_a_file_and_no_traceback(tmp_path: Path) -> None:
    program = (
        "import sys, hpc.cli.main as m\n"
        "m.cli.main = lambda **k: 1 / 0\n"
        "m.main(['job', 'ls'])\n"
    )  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        check=False,
    )
    assert done.returncode == 70
    assert done.stderr.startswith("tp: this is our bug: ZeroDivisionError: division by zero\n")
    assert "Traceback" not in done.stderr
    (file,) = tmp_path.glob("tp-bug-*.txt")
    assert "Traceback" in file.read_text()
    assert str(file) in done.stderr


def test_a_closed_pipe_is_no_error_message(tmp_path: Path) -> None:
    done = subprocess.run(
        f"{TP} jobspec schema | head -c 10", shell=True, capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.stderr == ""


def test_what_the_machine_refuses_is_a_refusal_and_no_bug(tmp_path: Path) -> None:
    full = subprocess.run(f"{TP} --help > /dev/full", shell=True, capture_output=True, text=True, check=False)
    assert (full.returncode, full.stderr.splitlines()[0]) == (
        1,
        "tp: E-STORE-020 output: cannot go on: No space left on device",
    )
    closed = subprocess.run(f"{TP} --help >&-", shell=True, capture_output=True, text=True, check=False)
    assert (closed.returncode, closed.stderr) == (0, "")
    gone = subprocess.run(
        f"mkdir d && cd d && rmdir ../d && {TP} ls",
        shell=True,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert (gone.returncode, "E-STORE-025 the current folder" in gone.stderr) == (1, True)
    into = tp("init", "/dev/null", cwd=tmp_path)
    assert (into.returncode, "E-PROJECT-042" in into.stderr) == (1, True)


@pytest.mark.parametrize("json_too", [[], ["--json"]])
def test_an_argument_that_is_no_utf8_is_wrong_usage(tmp_path: Path, json_too: list[str]) -> None:
    done = subprocess.run(
        [TP, "methods", b"x\xff", *json_too], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert (done.returncode, "an argument is not UTF-8" in done.stdout + done.stderr) == (64, True)


def test_nothing_that_is_found_can_steer_the_terminal(tmp_path: Path) -> None:
    done = tp("jobspec", "validate", "\x1b[31mred\x9b", cwd=tmp_path)
    assert (done.returncode, "\x1b" in done.stderr + done.stdout) == (1, False)


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP", "SIGINT"])
def test_a_request_to_end_is_taken_like_ctrl_c(tmp_path: Path, name: str) -> None:
    program = (
        "import os, signal, hpc.cli.main as m\n"
        f"m.cli.main = lambda **k: os.kill(os.getpid(), signal.{name})\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "m.main(['job', 'ls'])\n"
    )  # fmt: skip
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert (done.returncode, "E-CLI-005" in done.stderr) == (130, True)


def test_an_empty_path_is_never_the_current_folder(tmp_path: Path) -> None:
    for words in (
        ("plugin", "publish", ""),
        ("plugin", "validate", ""),
        ("site", "init", ""),
        ("registry", "audit", "--prom", ""),
        ("submit", "job", "--commit", ""),
        ("submit", "job", "--intent", ""),
        ("admit", ""),
        ("verify", ""),
        ("verify", "x.tar", "--witness", ""),
        ("export", "job", "-o", ""),
        ("publish", "job", "--to", ""),
    ):
        done = tp(*words, "--json", cwd=tmp_path)
        assert done.returncode == 64, (words, done)
        assert "is empty" in json.loads(done.stdout)["errors"][0]["message"]
    assert not list(tmp_path.iterdir())


def test_an_empty_argument_is_never_the_newest_run_nor_a_default(tmp_path: Path) -> None:
    for words, before in (
        (("job", "stop", ""), "stop"),
        (("sweep", "stop", " "), "stop"),
        (("run", "share", ""), "share"),
        (("model", "export", ""), "export"),
        (("eval", "run", "run-1", "--baseline", ""), "--baseline"),
        (("eval", "run", "run-1", "--baseline="), "--baseline"),
        (("submit", "job", "--init-from", "", "--dry-run"), "--init-from"),
    ):
        done = tp(*words, "--json", cwd=tmp_path)
        error = json.loads(done.stdout)["errors"][0]
        assert (done.returncode, error["code"]) == (64, "E-CLI-001"), words
        assert error["message"] == f"the argument after {before} is empty; leave it out, or set its variable"


def test_what_goes_to_a_script_of_the_user_may_be_empty() -> None:
    from hpc.cli.main import _empty

    assert _empty(["dataset", "prepare", "rows", "--sep", ""]) is None
    assert _empty(["again", "run-1", "--", ""]) is None
    assert _empty(["submit", "e", "--set=note=", "--set", "note="]) is None
    assert _empty([""]) == "tp"
