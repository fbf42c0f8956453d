"""A second Unix user trusts nobody: audits and replays a run of the first from the files alone, and finds every planted manipulation by name.

The run is a real one of the local fleet. Its owner manipulates with the owner's rights; whoever rewrites the log has the service user's key, too.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from manipulations import BY_AUDIT, better_the_report_and_its_event, change_the_script, rewrite_the_run_consistently
from tuneplane.contract.layout import RunPaths, StorageRoot
from tuneplane.record.canonical import pretty_bytes
from tuneplane.record.digest import digest_bytes
from tuneplane.record.events import event_hash

from hpc.cli import main as cli
from hpc.evidence.entries import encode_entry
from hpc.evidence.facts import Reader
from hpc.evidence.log import append, init_log, read_head, signer_key
from hpc.runs.audit import audit
from hpc.site.layout import add_user
from hpc.site.users import User, find_user
from tests.accounts import accounts
from tests.evaluated import evaluated
from tests.site.people import as_user

pytestmark = pytest.mark.two_users
NAMES, GROUP = ("tpevid_a", "tpevid_b"), "tpevid_users"
TP = Path(sys.executable).parent / "tp"
SCRIPT = """mkdir -p "$TUNEPLANE_OUT_DIR/checkpoint-1" "$TUNEPLANE_OUT_DIR/export"
echo weights >"$TUNEPLANE_OUT_DIR/export/adapter.safetensors"
echo state >"$TUNEPLANE_OUT_DIR/checkpoint-1/state.bin"
echo '{"loss": 0.5}' >"$TUNEPLANE_OUT_DIR/result.json"
cp -r evaluation "$TUNEPLANE_OUT_DIR/export/"
"""


@dataclass
class Lab:
    """A storage root with one finished, logged, witnessed and shared run of `alice`; `bob` looks at it."""

    root: StorageRoot
    run: RunPaths
    alice: User
    bob: User
    witness: Path

    def tp(self, *argv: str) -> tuple[int, dict[str, Any]]:
        """`tp … --json` as bob: exit code and document."""
        code, out = as_user(self.bob, _tp, [*argv, "--json"])
        return code, json.loads(out)

    def audit(self) -> tuple[int, dict[str, Any]]:
        return self.tp("runs", "audit", f"job/{self.run.run_id}", "--owner", self.alice.name)

    def again(self) -> tuple[int, dict[str, Any]]:
        return self.tp("again", f"job/{self.run.run_id}", "--owner", self.alice.name)

    def edit(self, path: str, change: Callable[[dict[str, Any]], None]) -> None:
        value = json.loads((self.run.root / path).read_text())
        change(value)
        self.write(path, pretty_bytes(value))

    def write(self, path: str, data: bytes) -> None:
        """What the owner can do to a file: any bytes, the same owner and mode."""
        target = self.run.root / path
        mode = target.stat().st_mode if target.exists() else 0o100644
        target.unlink(missing_ok=True)
        target.write_bytes(data)
        os.chown(target, self.alice.uid, self.alice.gid)
        target.chmod(mode & 0o777)

    def events(self, writer: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.run.events / f"{writer}.jsonl").read_text().splitlines()]

    def put_events(self, writer: str, events: list[dict[str, Any]], *, anew: bool = False) -> None:
        """Write a chain; `anew` gives every event the place and the hashes that fit."""
        last = None
        for seq, event in enumerate(events) if anew else ():
            event["seq"], event["prev_hash"] = seq, last
            last = event["hash"] = event_hash(event)
        self.write(
            f"events/{writer}.jsonl",
            b"".join(json.dumps(e, sort_keys=True, separators=(",", ":")).encode() + b"\n" for e in events),
        )


def _tp(argv: list[str]) -> tuple[int, str]:
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()), pytest.raises(SystemExit) as ended:
        cli.main(argv)
    assert isinstance(ended.value.code, int)
    return ended.value.code, out.getvalue()


def as_alice(user: User, root: StorageRoot, home: Path, script: str) -> str:
    env = {
        "PATH": f"{TP.parent}:/usr/bin:/bin", "HOME": str(home), "TUNEPLANE_STORAGE_ROOT": str(root.path), "GIT_AUTHOR_NAME": "a",
        "GIT_AUTHOR_EMAIL": "a@example.invalid", "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@example.invalid",
    }  # fmt: skip
    done = subprocess.run(
        ["bash", "-ec", script], cwd=home, env=env, user=user.uid, group=user.gid, extra_groups=[], capture_output=True, text=True,
        check=False, umask=0o022,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def made() -> Iterator[tuple[Lab, Path]]:
    """The lab, and a copy of what manipulations change."""
    with accounts(NAMES, group=GROUP):
        scratch = Path(tempfile.mkdtemp(prefix="tp-second-user-"))
        scratch.chmod(0o755)
        alice, bob = map(find_user, NAMES)
        root = StorageRoot(scratch / "root")
        words = ("--name", "lab", "--fleet", "local", "--admin-group", "root", "--users-group", GROUP)
        assert _tp(["site", "init", str(root.path), *words])[0] == 0
        for folder, user in (("alice", alice), ("witness", bob)):
            (scratch / folder).mkdir()
            os.chown(scratch / folder, user.uid, user.gid)
            add_user(root, user.name)
        vkey = init_log(root, "lab/tp-log", uid=os.getuid())
        (root.site / "log.vkey").write_text(f"{vkey}\n")
        patch = pytest.MonkeyPatch()
        patch.setenv("TUNEPLANE_STORAGE_ROOT", str(root.path))
        lab = Lab(root, _finished(root, alice, scratch / "alice"), alice, bob, scratch / "witness/state")
        assert lab.tp("log", "witness", "--state", str(lab.witness))[0] == 0, "the last visit but one: an empty log"
        assert _tp(["log", "add"])[0] == 0
        assert lab.tp("log", "witness", "--state", str(lab.witness))[0] == 0, "the last visit"
        for part in (root.owner_runs(alice.name), root.log):
            subprocess.run(["cp", "-a", str(part), str(scratch / f"kept-{part.name}")], check=True)
        yield lab, scratch
        patch.undo()
        shutil.rmtree(scratch)


def _finished(root: StorageRoot, alice: User, home: Path) -> RunPaths:
    (home / "train.sh").write_text(SCRIPT)
    evaluated(home / "evaluation", home / "rows.jsonl", {"1 + 1?": ("2", "2"), "2 + 2?": ("4", "5")})
    said = as_alice(
        alice, root, home,
        "tp init lab --name lab >/dev/null; cd lab; tp new job --method custom/custom >/dev/null; cp -r ../train.sh ../evaluation experiments/job/;"
        " git add -A; git commit -qm x; tp submit job --validation-data ../rows.jsonl --json",
    )  # fmt: skip
    run = RunPaths(Path(json.loads(said)["run_dir"]))
    for _ in range(1200):
        closing = run.events / "batch-0.jsonl"
        if closing.exists() and closing.read_bytes().endswith(b"\n"):
            as_alice(alice, root, home, f"tp run share {run.run_id}")
            return run
        time.sleep(0.05)
    raise AssertionError("the run never ended")


@pytest.fixture
def lab(made: tuple[Lab, Path]) -> Iterator[Lab]:
    lab, scratch = made
    yield lab
    for part in (lab.root.owner_runs(lab.alice.name), lab.root.log):
        shutil.rmtree(part)
        subprocess.run(["cp", "-a", str(scratch / f"kept-{part.name}"), str(part)], check=True)


def test_a_second_user_audits_and_replays_from_the_files_alone(lab: Lab) -> None:
    code, found = lab.audit()
    assert found["findings"] == []
    assert (code, found["verdict"], found["owner"]) == (0, "verified", lab.alice.name)
    assert (found["artifacts"], found["attempts"], found["log"]) == (7, 1, 11)
    code, said = lab.again()
    assert (code, said["verdict"], said["differences"]) == (0, "identical", [])
    assert said["rendered_sha256"] == digest_bytes((lab.run.batch / "0.sh").read_bytes())
    code, log = lab.tp("log", "verify", "--records", "--witness", str(lab.witness / "checkpoint"))
    assert (code, log["verdict"], log["faults"]) == (0, "verified", [])


def test_a_run_that_is_not_shared_is_refused_with_a_code_and_never_called_tampered(lab: Lab) -> None:
    (lab.run.root / "shared.json").unlink(missing_ok=True)
    lab.run.root.chmod(0o750)
    for call in (lab.audit, lab.again):
        code, said = call()
        assert (code, [e["code"] for e in said["errors"]]) == (1, ["E-RUNS-004"])
    lab.root.owner_runs(lab.alice.name).chmod(0o750)
    code, said = lab.tp("runs", "audit", lab.run.run_id, "--owner", lab.alice.name)
    assert (code, [e["code"] for e in said["errors"]]) == (1, ["E-RUNS-004"])
    code, said = lab.tp("log", "verify", "--records")
    assert (code, said["faults"]) == (0, [])


@pytest.mark.parametrize("manipulation", BY_AUDIT, ids=lambda m: m.__name__)
def test_a_planted_manipulation_is_found_by_the_audit_and_named(lab: Lab, manipulation: Callable[[Lab], None]) -> None:
    manipulation(lab)
    code, found = lab.audit()
    assert (code, found["verdict"]) == (2, "tampered")
    assert BY_AUDIT[manipulation] in {f["path"] for f in found["findings"] if f["level"] == "tampered"}
    if "script" in manipulation.__name__:
        code, said = lab.again()
        assert code == (2 if manipulation is change_the_script else 1), "the script is not what these records make"
        assert said["verdict"] == ("tampered" if manipulation is change_the_script else "different")


@pytest.mark.parametrize(
    "manipulation", [better_the_report_and_its_event, rewrite_the_run_consistently], ids=lambda m: m.__name__
)
def test_a_consistent_rewrite_after_logging_is_found_by_the_log_and_named(
    lab: Lab, manipulation: Callable[[Lab], None]
) -> None:
    manipulation(lab)
    assert audit(lab.run).verdict == "verified", "these files alone contradict nothing"
    code, found = lab.audit()
    assert (code, found["verdict"]) == (2, "tampered")
    named = {f["path"]: f["message"] for f in found["findings"]}
    assert "was changed: logged" in named["report.json"]
    assert "was rewritten: event" in named["events/batch-0.jsonl"]
    assert _tp(["log", "verify", "--records", "--json"])[0] == 2, "as whoever may list the runs says, too"


@pytest.mark.parametrize("longer", [False, True], ids=["as long as it was", "longer than it was"])
def test_a_rewrite_of_run_and_log_after_the_witnesss_last_checkpoint_but_one_is_found_by_the_witness(
    lab: Lab, longer: bool
) -> None:
    """Whoever has the log's key signs another history from the last checkpoint but one on; the last one remembers."""
    key = signer_key(lab.root, os.getuid())
    seen = read_head(lab.root, key.verifier).checkpoint.size
    rewrite_the_run_consistently(lab)
    facts = [encode_entry(fact, "2026-01-01T00:00:00.000000Z") for fact in Reader(lab.root, lab.run).read().facts()]
    shutil.rmtree(lab.root.log)
    lab.root.log.mkdir()
    init_log(lab.root, key.name, uid=os.getuid())
    head = append(lab.root, [*facts, *facts][: seen + longer], key, read_head(lab.root, key.verifier))
    assert head.checkpoint.size == seen + longer
    assert _tp(["log", "verify", "--records", "--json"])[0] == 0, "without a witness, log and records agree"
    code, found = lab.audit()
    assert (code, found["verdict"], found["log"]) == (0, "verified", seen + longer)
    code, found = lab.tp("log", "witness", "--state", str(lab.witness))
    assert (code, found["accepted"], len(found["faults"])) == (2, False, 1)
    assert ("history was rewritten" if longer else "the log was forked or rewritten") in found["faults"][0]
    code, found = lab.tp("log", "verify", "--witness", str(lab.witness / "checkpoint"))
    assert (code, found["faults"][0].startswith("witness: ")) == (2, True)


def test_a_log_that_cannot_be_read_or_proved_accuses_no_run(lab: Lab) -> None:
    tile = next(p for p in sorted((lab.root.log / "tile/0").rglob("*")) if p.is_file())
    tile.chmod(0o644)
    tile.write_bytes(bytes(tile.stat().st_size))
    code, found = lab.audit()
    assert (code, found["verdict"], found["log"]) == (0, "verified", None)
    assert [(f["level"], f["path"]) for f in found["findings"]] == [("note", "registry/log")]
    (lab.root.log / "checkpoint").write_bytes(b"damaged")
    code, found = lab.audit()
    assert (code, found["verdict"], found["log"], found["findings"]) == (0, "verified", None, [])
    assert lab.tp("log", "verify")[0] != 0, "that it is damaged, the log's own check says"
