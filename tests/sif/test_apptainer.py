from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from hpc.errors import Refusal
from hpc.sif.apptainer import Apptainer, needs_fakeroot, plain
from hpc.sif.definitions import parse_definition, read_definition
from tests.sif.sifs import small_sif

DEFINITION = "Bootstrap: docker\nFrom: debian:trixie-slim\n"


def fake(tmp_path: Path, body: str, **options: str) -> Apptainer:
    """An Apptainer whose program is a script."""
    program = tmp_path / "apptainer"
    program.write_text(f"#!/bin/bash\n{body}\n", "utf-8")
    program.chmod(0o755)
    return Apptainer(str(program), **options)


def test_the_program_is_found_once_by_its_absolute_path(tmp_path: Path) -> None:
    fake(tmp_path, "echo apptainer version 1.4.5-debian")
    apptainer = Apptainer("apptainer", search=str(tmp_path))
    assert apptainer.path() == str(tmp_path / "apptainer")
    assert apptainer.version() == "1.4.5-debian"


@pytest.mark.parametrize("program", ["apptainer", "/nowhere/apptainer"])
def test_a_machine_without_apptainer_is_a_refusal(tmp_path: Path, program: str) -> None:
    with pytest.raises(Refusal) as caught:
        Apptainer(program, search=str(tmp_path)).version()
    assert caught.value.code == "E-SIF-001"


def test_a_program_that_is_no_program_is_a_refusal(tmp_path: Path) -> None:
    apptainer = fake(tmp_path, "")
    Path(apptainer.path()).write_text("no interpreter line", "utf-8")
    with pytest.raises(Refusal) as caught:
        apptainer.run(["--version"])
    assert caught.value.code == "E-SIF-001"


def test_the_callers_environment_does_not_reach_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("APPTAINER_BIND", "SINGULARITY_BIND", "APPTAINERENV_X", "LD_PRELOAD", "BASH_ENV", "HF_TOKEN"):
        monkeypatch.setenv(name, "/secret")
    done = fake(tmp_path, "env", home="/home/of/alice").run(["x"])
    seen = dict(line.split("=", 1) for line in done.out.splitlines())
    expected = {"PATH", "HOME", "LC_ALL", "APPTAINER_TMPDIR", "APPTAINER_DISABLE_CACHE"}
    assert seen.keys() - {"PWD", "SHLVL", "_"} == expected
    assert seen["HOME"] == "/home/of/alice"


def test_p53_cache_and_temp_folders_are_named_or_the_cache_is_off(tmp_path: Path) -> None:
    apptainer = fake(tmp_path, "")
    assert "APPTAINER_CACHEDIR" not in apptainer.environment()
    assert apptainer.environment()["APPTAINER_DISABLE_CACHE"] == "true"
    env = apptainer.environment(cache_dir=tmp_path / "c", tmp_dir=tmp_path / "t")
    assert (env["APPTAINER_CACHEDIR"], env["APPTAINER_TMPDIR"]) == (str(tmp_path / "c"), str(tmp_path / "t"))
    assert "APPTAINER_DISABLE_CACHE" not in env


def test_colour_and_bytes_that_are_no_text_do_no_harm(tmp_path: Path) -> None:
    assert plain(b"\x1b[33mWARNING:\x1b[0m \xff\xfe") == "WARNING: \ufffd\ufffd"
    done = fake(tmp_path, r"printf '\033[31mFATAL\033[0m \xe9\n' >&2; exit 3").run(["x"])
    assert (done.rc, done.err, done.ok) == (3, "FATAL \ufffd\n", False)


def test_a_failure_carries_the_last_lines(tmp_path: Path) -> None:
    with pytest.raises(Refusal) as caught:
        fake(tmp_path, "for i in 1 2 3 4 5 6 7; do echo line $i >&2; done; exit 255").checked(["inspect", "x"])
    assert caught.value.code == "E-SIF-003"
    assert caught.value.found == "line 3\nline 4\nline 5\nline 6\nline 7"


def test_past_the_deadline_the_whole_group_gets_term(tmp_path: Path) -> None:
    body = f"trap 'echo asked >{tmp_path}/term; exit 9' TERM; sleep 60 & echo $! >{tmp_path}/child; wait"
    with pytest.raises(Refusal) as caught:
        fake(tmp_path, body).checked(["build"], deadline_s=0.5)
    assert (caught.value.code, caught.value.exit) == ("E-SIF-002", 75)
    assert (tmp_path / "term").read_text("utf-8") == "asked\n"
    child = int((tmp_path / "child").read_text("utf-8"))
    for _ in range(100):
        if not Path(f"/proc/{child}").exists() or "Z" in Path(f"/proc/{child}/stat").read_text("utf-8").split()[2]:
            return
        time.sleep(0.05)
    os.kill(child, signal.SIGKILL)
    raise AssertionError("a process of the command outlived its deadline")


def test_300_kb_on_stderr_do_not_block(tmp_path: Path) -> None:
    done = fake(tmp_path, "head -c 300000 /dev/zero | tr '\\0' x >&2; echo out").run(["x"], deadline_s=30)
    assert (done.rc, len(done.err), done.out) == (0, 300_000, "out\n")


def test_a_program_that_says_no_version_is_not_taken(tmp_path: Path) -> None:
    with pytest.raises(Refusal) as caught:
        fake(tmp_path, "echo hello").version()
    assert caught.value.code == "E-SIF-003"


def test_inspect_refuses_what_is_no_sif_before_it_starts_anything(tmp_path: Path) -> None:
    (tmp_path / "a.sif").write_bytes(b"x")
    with pytest.raises(Refusal) as caught:
        fake(tmp_path, f"touch {tmp_path}/started").inspect(tmp_path / "a.sif")
    assert caught.value.code == "E-SIF-004"
    assert not (tmp_path / "started").exists()


@pytest.mark.parametrize("output", ["", "[]", '{"data": {}}', "FATAL"])
def test_inspect_output_that_is_not_apptainers_is_a_refusal(tmp_path: Path, output: str) -> None:
    with pytest.raises(Refusal) as caught:
        fake(tmp_path, f"echo '{output}'").inspect(small_sif(tmp_path / "a.sif"))
    assert caught.value.code == "E-SIF-003"


def build_in(tmp_path: Path, body: str, need_bytes: int = 0) -> Path:
    (tmp_path / "a.def").write_text(DEFINITION, "utf-8")
    out = tmp_path / "out.sif"
    fake(tmp_path, body).build(
        out, tmp_path / "a.def", cache_dir=tmp_path / "cache", tmp_dir=tmp_path / "tmp", need_bytes=need_bytes
    )
    return out


def test_a_build_uses_the_folders_it_was_given(tmp_path: Path) -> None:
    small_sif(tmp_path / "made.sif")
    script = f'echo "$APPTAINER_CACHEDIR $APPTAINER_TMPDIR" >{tmp_path}/env; cp {tmp_path}/made.sif "${{@: -2:1}}"'
    assert build_in(tmp_path, script).read_bytes() == (tmp_path / "made.sif").read_bytes()
    assert (tmp_path / "env").read_text("utf-8") == f"{tmp_path}/cache {tmp_path}/tmp\n"


@pytest.mark.parametrize("script", ['echo half >"${@: -2:1}"; exit 1', 'echo "no sif" >"${@: -2:1}"'])
def test_a_build_that_fails_leaves_nothing(tmp_path: Path, script: str) -> None:
    with pytest.raises(Refusal) as caught:
        build_in(tmp_path, script)
    assert caught.value.code in ("E-SIF-003", "E-SIF-004")
    assert not (tmp_path / "out.sif").exists()


def test_p53_a_build_without_room_is_refused_before_it_starts(tmp_path: Path) -> None:
    with pytest.raises(Refusal) as caught:
        build_in(tmp_path, f"touch {tmp_path}/started", need_bytes=1 << 60)
    assert (caught.value.code, caught.value.field) == ("E-SIF-008", str(tmp_path / "tmp"))
    assert not (tmp_path / "started").exists()


@pytest.mark.parametrize(
    ("uid", "permitted", "answer"),
    [(0, (1 << 41) - 1, False), (0, (1 << 41) - 1 & ~(1 << 24), True), (1000, 0, False)],
)
def test_fakeroot_is_for_a_root_without_all_capabilities(uid: int, permitted: int, answer: bool) -> None:
    assert needs_fakeroot(uid, permitted) is answer


def test_a_definitions_head_is_read_and_its_runtime_named() -> None:
    found = parse_definition(
        "# runtime_id: general-1\nBootstrap: docker\nFrom: debian:trixie-slim  \n\n%post\n    From: x\n%labels\n",
        "x.def",
    )
    assert found.head == {"bootstrap": "docker", "from": "debian:trixie-slim"}
    assert (found.runtime_ids, found.source, found.sections) == (
        ("general-1",),
        "docker:debian:trixie-slim",
        ("post", "labels"),
    )


def test_of_several_stages_the_first_is_the_source() -> None:
    found = parse_definition(
        "Bootstrap: docker\nFrom: a:1\nStage: one\n\n%post\n\nBootstrap: docker\nFrom: b:1\n", "x.def"
    )
    assert found.source == "docker:a:1"


@pytest.mark.parametrize(
    "text", ["", "%post\n", "Bootstrap: docker\n", "From: a:1\n", "# Bootstrap: docker\n# From: a\n"]
)
def test_a_file_without_a_head_is_no_definition(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.def").write_text(text, "utf-8")
    with pytest.raises(Refusal) as caught:
        read_definition(tmp_path / "a.def")
    assert caught.value.code == "E-SIF-007"
    with pytest.raises(Refusal):
        read_definition(tmp_path / "missing.def")
