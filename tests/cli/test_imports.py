"""What a command loads. Every module that it does not need is time that everybody waits, so the heavy ones are named here."""

from __future__ import annotations

import getpass
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = frozenset(
    {"pydantic", "jinja2", "rich", "submitit", "torch", "yaml", "spython", "cryptography", "matplotlib", "filelock", "asyncio", "packaging"}
)  # fmt: skip
LOOK = """
import json, sys
from hpc.cli.main import main
try:
    main(sys.argv[1:])
except SystemExit as end:
    sys.stdout.flush()
    print(json.dumps({"code": end.code, "modules": sorted({name.partition(".")[0] for name in sys.modules})}), file=sys.stderr)
"""


def loaded(*words: str, **env: str) -> set[str]:
    """Top-level modules that a command has loaded when it ends; the command must succeed."""
    bare = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "LC_ALL": "C.UTF-8"}
    done = subprocess.run(
        [sys.executable, "-c", LOOK, *words],
        env={**bare, **env},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    found = json.loads(done.stderr.splitlines()[-1])
    assert found["code"] in (0, None), done.stdout + done.stderr
    return set(found["modules"])


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root whose one run has ended on this machine."""
    root = tmp_path_factory.mktemp("imports") / "storage"
    tp = Path(sys.executable).parent / "tp"
    subprocess.run(
        [tp, "site", "init", str(root), "--name", "lab", "--fleet", "local"], check=True, capture_output=True
    )
    me = getpass.getuser()
    run = root / "runs" / me / "job/run-0001"
    for part in ("submissions", "attempts/0", "work/.tuneplane", "events"):
        (run / part).mkdir(parents=True)
    at = "2026-01-01T00:00:00.000000Z"
    base = {"run_id": "run-0001", "job_id": "local-1", "nonce": "0" * 16}
    sent = {"first_attempt": 0, "fleet": "local", "kind": "local", "job_name": "job.run-0001.0", "submitted_at": at}
    end = {
        "attempt": 0,
        "ended_at": at,
        "class": "done",
        "exit_code": 0,
        "signal": None,
        "message": "",
        "requeue": False,
    }
    (run / "submissions/0.json").write_text(json.dumps({**base, **sent, "pid": 1, "pid_start": 1}))
    (run / "attempts/0/end.json").write_text(json.dumps({**base, **end}))
    (root / "state" / me).mkdir(mode=0o700, exist_ok=True)
    return root


@pytest.mark.parametrize(
    "words", [("--help",), ("--version",), ("job", "--help"), ("job", "status", "--help"), ("submit", "--help")]
)
def test_help_loads_nothing_heavy(words: tuple[str, ...]) -> None:
    assert loaded(*words) & HEAVY == set()


@pytest.mark.parametrize(
    "words", [("job", "ls"), ("job", "status"), ("job", "status", "run-0001"), ("job", "status", "--json")]
)
def test_runs_are_shown_without_the_site_its_models_and_its_commands(root: Path, words: tuple[str, ...]) -> None:
    found = loaded(*words, TUNEPLANE_STORAGE_ROOT=str(root))
    assert found & (HEAVY | {"subprocess", "socket", "tempfile"}) == set()


def test_a_dry_run_of_plain_templates_needs_no_jinja_and_no_submitit(tmp_path: Path) -> None:
    tp = Path(sys.executable).parent / "tp"
    who = {f"GIT_{a}_{b}": "t@example.invalid" for a in ("AUTHOR", "COMMITTER") for b in ("NAME", "EMAIL")}
    env = {**who, "TUNEPLANE_STORAGE_ROOT": str(tmp_path / "storage")}
    for words in (
        ("site", "init", str(tmp_path / "storage"), "--name", "lab", "--fleet", "local"),
        ("init", str(tmp_path / "lab"), "--name", "lab"),
    ):
        subprocess.run([tp, *words], check=True, capture_output=True, env={**os.environ, **env})
    subprocess.run(
        [tp, "new", "job", "--method", "custom/custom"],
        cwd=tmp_path / "lab",
        check=True,
        capture_output=True,
        env={**os.environ, **env},
    )
    code = LOOK.replace("import json, sys", f"import json, os, sys\nos.chdir({str(tmp_path / 'lab')!r})", 1)
    words = ("submit", "job", "--dry-run", "--allow-dirty")
    done = subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, env={**os.environ, **env}, check=True
    )
    found = json.loads(done.stderr.splitlines()[-1])
    assert found["code"] in (0, None), done.stderr
    assert (
        set(found["modules"]) & {"jinja2", "submitit", "rich", "torch", "spython", "cryptography", "asyncio"} == set()
    )
