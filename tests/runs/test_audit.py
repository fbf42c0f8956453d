"""The audit judges from the files alone: every edit, deletion and truncation is found, and nothing more is claimed (H3)."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from builder import RunMaker
from tuneplane.record.canonical import pretty_bytes
from tuneplane.record.digest import digest_bytes
from tuneplane.record.events import event_hash

from hpc.runs.audit import Audit, audit
from hpc.runs.evidence import Stopped

Make = Callable[..., RunMaker]


def levels(found: Audit) -> list[tuple[str, str, str]]:
    return [(f.level, f.check, f.path) for f in found.findings]


def two_attempts(make: Make) -> RunMaker:
    """Preempted, requeued, done."""
    maker = make().package().admit().submit()
    maker.start(0).log(0, 0, "one").nodes(0, 85, 85).end(0, "preempted", requeue=True, step=40)
    return maker.start(1).log(1, 0, "two").nodes(1, 0, 0).end(1)


def test_a_done_run_is_verified(make_run: Make) -> None:
    found = audit(make_run().done().run)
    assert (found.verdict, levels(found), found.exit) == ("verified", [], 0)
    assert {c.writer: c.status for c in found.chains} == {
        "batch-0": "verified",
        "launch-0": "verified",
        "submit-0": "verified",
    }
    assert found.facts["status"] == "done"
    assert found.facts["artifacts"] == 1
    assert found.facts["provenance"] == {"core_version": "0.4.0"}
    assert json.loads(pretty_bytes(found.as_json()))["verdict"] == "verified"


def test_a_requeued_run_is_verified(make_run: Make) -> None:
    assert levels(audit(two_attempts(make_run).run)) == []


def test_a_login_action_after_the_end_takes_nothing_away(make_run: Make) -> None:
    maker = make_run().done()
    maker.events("job-share-0").append("sharing", "completed", "shared")
    assert audit(maker.run).verdict == "verified"


def test_the_timeline_merges_stages(make_run: Make) -> None:
    found = audit(make_run().done().run)
    assert [s.stage for s in found.timeline] == ["queued", "preparing", "training", "completed"]
    assert found.timeline[0].duration_s > 0
    assert found.timeline[-1].duration_s == 0


# What is not whole


def test_a_run_that_goes_on_is_incomplete_and_no_error(make_run: Make) -> None:
    found = audit(make_run().package().admit().submit().start().run)
    assert (found.verdict, found.exit) == ("incomplete", 0)
    assert ("incomplete", "report", "report.json") in levels(found)


@pytest.mark.parametrize("cls", ["error", "cancelled", "timeout", "node_fail", "refused"])
def test_a_run_that_ended_badly_is_incomplete(make_run: Make, cls: str) -> None:
    found = audit(make_run().package().admit().submit().start().nodes(0, 1, 1).end(0, cls).run)
    assert (found.verdict, found.exit) == ("incomplete", 0)
    assert levels(found) == [("incomplete", "report", "report.json")]


def test_a_packed_run_without_more_is_incomplete(make_run: Make) -> None:
    assert audit(make_run().package().run).verdict == "incomplete"


@pytest.fixture
def as_nobody() -> Any:
    """Become an ordinary user for the body; root reads everything, whatever the mode."""

    class Nobody:
        def __enter__(self) -> None:
            os.setegid(65534)
            os.seteuid(65534)

        def __exit__(self, *exc: object) -> None:
            os.seteuid(0)
            os.setegid(0)

    assert os.getuid() == 0, "this test needs root, to become somebody else"
    return Nobody()


@pytest.mark.two_users
@pytest.mark.parametrize(
    "path",
    ["report.json", "admission.json", "events", "events/batch-0.jsonl", "events/launch-0.jsonl", "events/submit-0.jsonl", "work",
     "work/.tuneplane/package.json", "work/.tuneplane/jobspec.json", "work/common", "work/common/data.py", "attempts", "attempts/0",
     "attempts/0/claim", "attempts/0/start.json", "attempts/0/end.json", "attempts/0/out", "attempts/0/out/adapter.safetensors",
     "submissions", "submissions/0.json", "batch", "batch/0.sh", "."],
)  # fmt: skip
def test_what_may_not_be_read_is_incomplete_never_tampered(
    make_run: Make, tmp_path: Path, as_nobody: Any, path: str
) -> None:
    run = make_run().done().run
    for folder in (tmp_path, *list(tmp_path.parents)[:3], *run.root.parents):
        os.chmod(folder, stat.S_IMODE(os.stat(folder).st_mode) | 0o055)
    os.chmod(run.root / path, 0)
    with as_nobody:
        found = audit(run)
    assert found.verdict == "incomplete"
    assert [f for f in found.findings if f.level == "tampered"] == []


# The damage matrix: every record, every kind of damage


def rewrite(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    value = json.loads(path.read_text())
    change(value)
    path.chmod(0o644)
    path.write_bytes(pretty_bytes(value))


RECORDS = [
    "admission.json", "report.json", "submissions/0.json", "batch/0.sh", "attempts/0/claim", "attempts/0/start.json",
    "attempts/0/end.json", "attempts/0/requeue.json", "attempts/1/claim", "attempts/1/start.json", "attempts/1/end.json",
    "attempts/1/out/adapter.safetensors", "events/submit-0.jsonl", "events/launch-0.jsonl", "events/batch-0.jsonl",
    "events/launch-1.jsonl", "events/batch-1.jsonl", "work/.tuneplane/package.json", "work/.tuneplane/jobspec.json",
    "work/.tuneplane/launch.json", "work/.tuneplane/recipe.json", "work/experiments/sft/train.sh", "work/common/data.py",
]  # fmt: skip
# Nothing names these: their loss can be an interrupted write, so the run is not verified any more, but nobody is accused.
ONLY_INCOMPLETE = {"admission.json", "attempts/0/claim", "attempts/1/claim"}


@pytest.mark.parametrize("record", RECORDS)
def test_a_missing_record_is_found(make_run: Make, record: str) -> None:
    maker = two_attempts(make_run)
    (maker.run.root / record).unlink()
    assert audit(maker.run).verdict == ("incomplete" if record in ONLY_INCOMPLETE else "tampered")


@pytest.mark.parametrize("record", RECORDS)
@pytest.mark.parametrize("damage", ["cut", "empty", "flip", "space", "link", "folder", "fifo", "swap", "zeros"])
def test_a_damaged_record_is_found_and_crashes_nothing(make_run: Make, record: str, damage: str) -> None:
    maker = two_attempts(make_run)
    path = maker.run.root / record
    before = path.read_bytes()
    path.unlink()
    if damage == "link":
        (path.parent / "elsewhere").write_bytes(before)
        path.symlink_to("elsewhere")
    elif damage == "folder":
        path.mkdir()
    elif damage == "fifo":
        os.mkfifo(path)
    else:
        data = {
            "cut": before[: len(before) // 2], "empty": b"", "flip": bytes([before[3] ^ 1]).join([before[:3], before[4:]]),
            "space": before.replace(b" ", b"  ", 1) if b" " in before else b" " + before, "swap": b'{"schema": "other"}\n',
            "zeros": bytes(len(before)),
        }[damage]  # fmt: skip
        path.write_bytes(data)
        path.chmod(0o755 if record.endswith(".sh") else 0o644)
    found = audit(maker.run)
    # White space inside a JSON record that nothing digests changes nothing that it says.
    harmless = damage == "space" and record in {
        "admission.json", "submissions/0.json", "attempts/0/claim", "attempts/0/start.json", "attempts/0/end.json",
        "attempts/0/requeue.json", "attempts/1/claim", "attempts/1/start.json", "attempts/1/end.json", "work/.tuneplane/package.json",
    }  # fmt: skip
    assert found.verdict == ("verified" if harmless else "tampered"), levels(found)


ONLY_DEEP = {"attempts/1/out/adapter.safetensors", "work/experiments/sft/train.sh", "work/common/data.py"}


@pytest.mark.parametrize("record", RECORDS)
def test_a_quick_audit_takes_only_bytes_of_files_and_artifacts_for_right(make_run: Make, record: str) -> None:
    maker = two_attempts(make_run)
    path = maker.run.root / record
    before = path.read_bytes()
    path.chmod(0o644 | path.stat().st_mode)
    for data, same_size in ((bytes(len(before)), True), (before[:-2], False), (before + b"x", False)):
        path.write_bytes(data)
        found = audit(maker.run).verdict
        assert found != "verified"
        seen_only_deep = same_size and record in ONLY_DEEP
        assert audit(maker.run, deep=False).verdict == ("verified" if seen_only_deep else found)
    path.write_bytes(before)
    quick, deep = audit(maker.run, deep=False), audit(maker.run)
    assert (quick.verdict, quick.listed, deep.hashed > deep.listed > quick.hashed) == ("verified", deep.listed, True)


def test_an_audit_stops_between_bytes_when_its_time_is_up(make_run: Make) -> None:
    run = two_attempts(make_run).run
    left = [3]

    def stop() -> bool:
        left[0] -= 1
        return left[0] < 0

    with pytest.raises(Stopped):
        audit(run, stop=stop)


@pytest.mark.parametrize(
    "record", ["admission.json", "attempts/0/start.json", "attempts/0/end.json", "submissions/0.json", "report.json"]
)
def test_every_bit_flip_of_a_record_is_survived(make_run: Make, record: str) -> None:
    maker = two_attempts(make_run)
    path = maker.run.root / record
    before = path.read_bytes()
    for at in range(0, len(before), 7):
        path.write_bytes(before[:at] + bytes([before[at] ^ 0x10]) + before[at + 1 :])
        assert audit(maker.run).verdict in ("tampered", "incomplete", "verified")
    path.write_bytes(before)
    assert audit(maker.run).verdict == "verified"


FIELDS = [
    ("admission.json", "owner", "mallory"), ("admission.json", "package_digest", "sha256:" + "0" * 64),
    ("admission.json", "spec_digest", "sha256:" + "0" * 64), ("admission.json", "verdict", "refused"),
    ("admission.json", "kernel", {}), ("admission.json", "mode", "super"), ("admission.json", "run_id", "run-ffff"),
    ("submissions/0.json", "job_id", "999"), ("submissions/0.json", "nonce", "0" * 16), ("submissions/0.json", "fleet", "other"),
    ("submissions/0.json", "script_sha256", "sha256:" + "0" * 64), ("submissions/0.json", "first_attempt", 1),
    ("submissions/0.json", "spec_digest", "sha256:" + "0" * 64),
    ("attempts/1/start.json", "nonce", "0" * 16), ("attempts/1/start.json", "job_id", "999"), ("attempts/1/start.json", "attempt", 0),
    ("attempts/1/start.json", "hosts", ["n9"]), ("attempts/1/start.json", "package_digest", "sha256:" + "0" * 64),
    ("attempts/0/end.json", "class", "error"), ("attempts/0/end.json", "step", 41), ("attempts/0/end.json", "requeue", False),
    ("attempts/0/requeue.json", "step", 41), ("attempts/0/requeue.json", "job_id", "999"),
    ("work/.tuneplane/package.json", "digest_v1", "sha256:" + "0" * 64), ("work/.tuneplane/package.json", "digest_v2", "sha256:" + "0" * 64),
    ("work/.tuneplane/package.json", "run_id", "run-ffff"), ("work/.tuneplane/package.json", "files", []),
]  # fmt: skip


@pytest.mark.parametrize(("record", "key", "value"), FIELDS, ids=lambda v: str(v)[:24])
def test_every_edit_of_a_field_is_found(make_run: Make, record: str, key: str, value: Any) -> None:
    maker = two_attempts(make_run)
    rewrite(maker.run.root / record, lambda r: r.update({key: value}))
    found = audit(maker.run)
    assert found.verdict == "tampered"
    assert found.exit == 2


def test_h3_one_space_in_the_report_is_found(make_run: Make) -> None:
    maker = make_run().done()
    data = maker.run.report.read_bytes()
    maker.run.report.write_bytes(data + b" ")
    found = audit(maker.run)
    assert found.exit == 2
    assert [f.check for f in found.findings if f.level == "tampered"] == ["report"]


def test_a_report_with_a_better_loss_and_a_new_digest_is_found(make_run: Make) -> None:
    """Report and completing event rewritten together, chain and all: the heads joined by nobody, but the end record still tells."""
    maker = two_attempts(make_run)
    rewrite(maker.run.report, lambda r: r["attempts"][0].update({"class": "timeout"}))
    path = maker.run.events / "batch-1.jsonl"
    event = json.loads(path.read_text())
    event["details"]["report_sha256"] = digest_bytes(maker.run.report.read_bytes())
    event["hash"] = event_hash(event)
    path.write_text(json.dumps(event) + "\n")
    found = audit(maker.run)
    assert found.verdict == "tampered"
    assert "tells attempt 0 in another way" in found.findings[0].message


def test_a_run_of_another_script_than_the_submitted_one_is_found(make_run: Make) -> None:
    maker = make_run().package().admit().submit().start().nodes(0, 0, 0)
    maker.ran = "sha256:" + "0" * 64
    found = audit(maker.end().run)
    assert found.verdict == "tampered"
    assert "another script ran than was submitted" in found.findings[0].message


# The log


def chain_lines(maker: RunMaker, writer: str) -> tuple[Path, list[bytes]]:
    path = maker.run.events / f"{writer}.jsonl"
    return path, path.read_bytes().splitlines(keepends=True)


@pytest.mark.parametrize("writer", ["submit-0", "launch-0", "batch-0", "launch-1", "batch-1"])
def test_every_truncation_of_the_log_is_found(make_run: Make, writer: str) -> None:
    maker = two_attempts(make_run)
    path, lines = chain_lines(maker, writer)
    for keep in range(len(lines)):
        path.write_bytes(b"".join(lines[:keep]))
        assert audit(maker.run).verdict == "tampered", keep


@pytest.mark.parametrize("writer", ["submit-0", "launch-0", "batch-0", "launch-1", "batch-1"])
def test_every_deleted_line_and_edited_event_is_found(make_run: Make, writer: str) -> None:
    maker = two_attempts(make_run)
    path, lines = chain_lines(maker, writer)
    for at in range(len(lines)):
        path.write_bytes(b"".join(lines[:at] + lines[at + 1 :]))
        assert audit(maker.run).verdict == "tampered", at
        event = json.loads(lines[at])
        event["message"] = "all went well"
        for forged in (event, {**event, "hash": event_hash(event)}):
            path.write_bytes(b"".join([*lines[:at], json.dumps(forged).encode() + b"\n", *lines[at + 1 :]]))
            # Nothing follows the last event of the last writer: only the log knows what stood there.
            unseen = writer == "batch-1" and at == len(lines) - 1 and forged is not event
            assert (audit(maker.run).verdict == "tampered") is not unseen, at


def test_a_chain_rewritten_from_the_start_does_not_fit_the_joined_heads(make_run: Make) -> None:
    maker = two_attempts(make_run)
    path, lines = chain_lines(maker, "launch-0")
    prev, out = None, []
    for line in lines:
        event = {**json.loads(line), "message": "forged", "prev_hash": prev}
        event["hash"] = prev = event_hash(event)
        out.append(json.dumps(event).encode() + b"\n")
    path.write_bytes(b"".join(out))
    found = audit(maker.run)
    assert [(f.level, f.check) for f in found.findings] == [("tampered", "heads")] * 2  # both batch steps joined it


def test_unhashed_lines_are_incomplete(make_run: Make) -> None:
    maker = make_run().done()
    path, lines = chain_lines(maker, "launch-0")
    path.write_bytes(b"".join(lines) + b'{"run_id": "run-0a1b2c3d", "stage": "x"}\n')
    assert audit(maker.run).verdict == "incomplete"
    path.write_bytes(b"".join(lines) + b'{"torn')
    assert audit(maker.run).verdict == "incomplete"


def test_events_of_another_run_are_found(make_run: Make) -> None:
    maker = make_run().done()
    other = make_run("run-ffffffff", exp="other").done()
    (maker.run.events / "launch-7.jsonl").write_bytes((other.run.events / "launch-0.jsonl").read_bytes())
    assert audit(maker.run).verdict == "tampered"


def test_a_whole_run_in_anothers_place_is_found(make_run: Make) -> None:
    maker = make_run().done()
    moved = maker.run.root.with_name("run-deadbeef")
    maker.run.root.rename(moved)
    assert audit(type(maker.run)(moved)).verdict == "tampered"


@pytest.mark.parametrize("extra", ["work/evil.py", "work/experiments/sft/.hidden", "work/.tuneplane/more.json"])
def test_a_file_added_to_the_package_is_found(make_run: Make, extra: str) -> None:
    maker = make_run().done()
    (maker.run.root / extra).write_text("x")
    assert audit(maker.run).verdict == "tampered"


def test_an_exec_bit_on_a_package_file_is_found(make_run: Make) -> None:
    maker = make_run().done()
    os.chmod(maker.run.work / "common/data.py", 0o755)
    assert audit(maker.run).verdict == "tampered"


def test_an_artifact_that_leads_out_of_the_run_is_found(make_run: Make) -> None:
    maker = make_run().done()
    rewrite(maker.run.report, lambda r: r["artifacts"][0].update({"path": "../../../../etc/passwd"}))
    assert "artifacts" in {f.check for f in audit(maker.run).findings if f.level == "tampered"}


@pytest.mark.two_users
@pytest.mark.parametrize("record", ["report.json", "submissions/0.json", "events/batch-0.jsonl", "attempts/0/end.json"])
def test_a_record_of_another_user_is_found(make_run: Make, record: str) -> None:
    maker = make_run().done()
    os.chown(maker.run.root / record, 65534, 65534)
    found = audit(maker.run)
    assert [f.check for f in found.findings if f.level == "tampered"] == ["owner"]


# Attempts that could not close themselves


def node_died(make: Make, **changes: Any) -> RunMaker:
    maker = make().package().admit().submit().start(0).log(0, 0, "one")
    return maker.closed_by_next(0, **changes).start(1, previous_end="node_fail").nodes(1, 0, 0).end(1)


def test_an_attempt_that_died_with_its_node_is_closed_by_the_next(make_run: Make) -> None:
    found = audit(node_died(make_run).run)
    assert (found.verdict, levels(found)) == ("verified", [("note", "attempts", "attempts/0/end.json")])


def test_a_changed_class_of_such_an_end_is_found(make_run: Make) -> None:
    maker = node_died(make_run)
    rewrite(maker.run.attempt(0).end, lambda r: r.update({"class": "preempted"}))
    assert audit(maker.run).verdict == "tampered"


def test_such_an_end_without_a_next_attempt_is_no_proof(make_run: Make) -> None:
    maker = make_run().package().admit().submit().start(0).closed_by_next(0)
    assert ("incomplete", "attempts", "attempts/0/end.json") in levels(audit(maker.run))
    assert audit(maker.run).verdict == "incomplete"


def test_an_attempt_without_an_end_that_the_next_one_calls_lost(make_run: Make) -> None:
    maker = make_run().package().admit().submit().start(0)
    maker.job_id, maker.nonce = "200", "beef0123beef0123"
    maker.submit(1).start(1, previous_end="lost").nodes(1, 0, 0).end(1)
    found = audit(maker.run)
    assert levels(found) == [("note", "attempts", "attempts/0/end.json")]
    assert found.verdict == "verified"


# Arrays


def array(make: Make) -> tuple[RunMaker, list[RunMaker]]:
    spec = {"apiVersion": "tuneplane/v1", "metadata": {"name": "sft"}, "spec": {"slurm": {"array": "0-1"}}}
    maker = make(spec=spec).package().admit().submit()
    return maker, [maker.element(n).start().nodes(0, 0, 0).end() for n in range(2)]


def test_p14_every_element_of_an_array_is_judged(make_run: Make) -> None:
    maker, elements = array(make_run)
    found = audit(maker.run)
    assert (found.verdict, levels(found)) == ("verified", [])
    assert (found.facts["attempts"], found.facts["artifacts"], found.facts["status"]) == (2, 2, "done")
    assert sorted(c.writer for c in found.chains) == ["0/batch-0", "0/launch-0", "1/batch-0", "1/launch-0", "submit-0"]
    (elements[1].run.attempt(0).out / "adapter.safetensors").write_bytes(b"other")
    assert levels(audit(maker.run)) == [("tampered", "artifacts", "array/1/attempts/0/out/adapter.safetensors")]


def test_p14_an_element_that_never_ran_is_incomplete(make_run: Make) -> None:
    import shutil

    maker, elements = array(make_run)
    shutil.rmtree(elements[0].run.root)
    assert levels(audit(maker.run)) == [("incomplete", "array", "array/0")]


# Enforced admissions


def enforced(make: Make, **changes: Any) -> RunMaker:
    """An admission that a service user's key signed, with the copy that it verified."""
    import shutil

    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from tuneplane.contract.schemas import SIGNED_KEYS
    from tuneplane.record.canonical import canonical_bytes
    from tuneplane.record.files import write_json_new

    key = Ed25519PrivateKey.generate()
    maker = make().package()
    maker.admit(mode="enforced")
    maker.run.admission.unlink()
    signature = key.sign(canonical_bytes({k: maker.admission.get(k) for k in SIGNED_KEYS})).hex()
    copy = maker.root.admitted / maker.run_id
    copy.mkdir(parents=True)
    shutil.copytree(maker.run.work, copy / "work")
    write_json_new(copy / "admission.json", {**maker.admission, "signature": signature, **changes})
    policy = {"schema": "p", "admission": {"mode": "enforced", "public_key": key.public_key().public_bytes_raw().hex()}}
    write_json_new(maker.root.site / "policy.json", policy)
    return maker.submit().start().nodes(0, 0, 0).end()


def test_an_enforced_admission_is_verified_with_the_sites_key(make_run: Make) -> None:
    found = audit(enforced(make_run).run)
    assert (found.verdict, levels(found), found.facts["admission"]) == ("verified", [], "enforced")


def test_a_forged_signature_is_found(make_run: Make) -> None:
    assert audit(enforced(make_run, admitted_at="2026-01-01T00:00:00.000000Z").run).verdict == "tampered"


def test_an_admission_that_calls_itself_enforced_needs_the_signature(make_run: Make) -> None:
    maker = enforced(make_run, signature="")
    assert audit(maker.run).verdict == "tampered"


def test_without_the_sites_key_an_enforced_admission_proves_nothing(make_run: Make) -> None:
    maker = enforced(make_run)
    (maker.root.site / "policy.json").unlink()
    path = os.path.relpath(maker.root.admitted / maker.run_id / "admission.json", maker.run.root)
    assert levels(audit(maker.run)) == [("incomplete", "admission", path)]


def test_an_edited_admitted_copy_is_found(make_run: Make) -> None:
    maker = enforced(make_run)
    (maker.root.admitted / maker.run_id / "work/common/data.py").write_text("X = 2\n")
    assert audit(maker.run).verdict == "tampered"


def test_an_adopted_submission_without_a_script_digest_is_incomplete(make_run: Make) -> None:
    maker = make_run().package().admit().submit(script_sha256="", adopted=True).start().nodes(0, 0, 0).end()
    found = audit(maker.run)
    assert [f.check for f in found.findings] == ["script"]
    assert found.verdict == "incomplete"


def test_a_run_that_is_being_closed_accuses_nobody_until_a_minute_has_passed(make_run: Make) -> None:
    """Report, end and closing event are three writes; a nightly audit can come in between, on another client of the storage."""
    maker = two_attempts(make_run)
    log = maker.run.events / "batch-1.jsonl"
    log.write_bytes(b"".join(log.read_bytes().splitlines(keepends=True)[:-1]))
    report = maker.run.report
    os.utime(report)
    found = {(f.level, f.path, f.message) for f in audit(maker.run).findings if f.check == "report"}
    assert ("incomplete", "report.json", "the run is being closed at this moment") in found
    for age in (61, -3600):  # later, and by a clock that somebody turned
        stamp = os.stat(report).st_mtime - age
        os.utime(report, (stamp, stamp))
        assert audit(maker.run).verdict == "tampered"
        os.utime(report)
