"""`tp log` as cron, an auditor and a witness type it: what is logged, what is found, and the exit codes."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from evidencelab import ME, Lab
from tuneplane.record.canonical import pretty_bytes
from tuneplane.record.digest import digest_file
from tuneplane.record.events import EventWriter, read_chain

from hpc.evidence.entries import subject_of
from hpc.evidence.proof import check_proof

RUN_PATHS = {
    "admission.json", "work/.tuneplane/package.json", "submissions/0.json", "batch/0.sh", "attempts/0/claim", "attempts/0/start.json",
    "attempts/0/end.json", "report.json", "events/submit-0.jsonl", "events/launch-0.jsonl", "events/batch-0.jsonl",
}  # fmt: skip


def logged(lab: Lab) -> list[dict[str, Any]]:
    from hpc.evidence.log import tree

    return [json.loads(e) for _, e in tree(lab.root, lab.head()).entries()]


def test_an_ended_run_is_logged_once_and_whole(lab: Lab) -> None:
    lab.make().done()
    first = lab.tp("log", "add", "--json")
    assert (first.code, first.json()["added"]) == (0, len(RUN_PATHS))
    found = logged(lab)
    assert {e["path"] for e in found} == RUN_PATHS
    assert {e["subject"] for e in found} == {subject_of(ME, "sft", "run-0a1b2c3d")}
    assert "sft" not in json.dumps(found), "the experiment's name is not everybody's business"
    again = lab.tp("log", "add", "--json")
    assert (again.code, again.json()["added"], again.json()["looked_at"]) == (0, 0, 0)
    assert lab.tp("log", "add", "--all", "--json").json()["added"] == 0


def test_records_are_logged_at_once_and_chains_when_the_run_has_ended(lab: Lab) -> None:
    maker = lab.make().package().admit().submit().start()
    lab.tp("log", "add")
    assert {e["kind"] for e in logged(lab)} == {"record"}
    maker.nodes(0, 0, 0).end()
    assert lab.tp("log", "add", "--json").json()["added"] == 5
    assert {e["path"] for e in logged(lab)} == RUN_PATHS


def test_a_run_that_goes_on_after_its_requeue_is_not_taken_for_ended(lab: Lab) -> None:
    maker = lab.make().package().admit().submit().start(0).end(0, "preempted", requeue=True, step=4)
    lab.tp("log", "add")
    assert "chain" not in {e["kind"] for e in logged(lab)}
    maker.start(1).end(1)
    lab.tp("log", "add")
    assert sum(e["kind"] == "chain" for e in logged(lab)) == 5


def test_a_chain_that_grows_on_is_logged_again_and_accuses_nobody(lab: Lab) -> None:
    maker = lab.make().done()
    lab.tp("log", "add")
    maker.events("job-share-0").append("sharing", "completed", "shared")
    EventWriter(maker.run.events, "submit-0", run_id=maker.run_id, now=maker.now).append("x", "y", "z")
    found = lab.tp("log", "add", "--all", "--json")
    assert (found.code, found.json()["added"], found.json()["conflicts"]) == (0, 2, [])


def rewrite(path: Path, **changes: Any) -> None:
    path.chmod(0o644)
    path.write_bytes(pretty_bytes({**json.loads(path.read_text()), **changes}))


DAMAGES = {
    "report.json": "was changed", "attempts/0/end.json": "was changed", "submissions/0.json": "was changed", "admission.json": "was changed",
}  # fmt: skip


@pytest.mark.parametrize("path", DAMAGES)
def test_a_record_that_was_changed_after_it_was_logged_is_named(lab: Lab, path: str) -> None:
    run = lab.make().done().run
    lab.tp("log", "add")
    rewrite(run.root / path, more="x")
    found = lab.tp("log", "add", "--all", "--json")
    assert found.code == 2
    (conflict,) = found.json()["conflicts"]
    assert (conflict["path"], conflict["message"].split(":")[0]) == (path, DAMAGES[path])
    assert found.json()["added"] == 0, "what contradicts the log is told, never logged over it"
    assert lab.tp("log", "verify").code == 0, "the log itself is whole"
    assert lab.tp("log", "verify", "--records").code == 2


def rewrite_chain(path: Path, run_id: str) -> None:
    """The whole chain again, consistently, with another message."""
    events = read_chain(path).events
    path.unlink()
    writer = EventWriter(
        path.parent, path.name.removesuffix(".jsonl"), run_id=run_id, now=lambda: "2026-03-01T12:00:00.000000Z"
    )
    for event in events:
        writer.append(event["stage"], event["status"], "nothing happened", **event.get("details", {}))


@pytest.mark.parametrize("how", ["rewritten", "cut", "gone", "broken"])
def test_a_chain_that_is_not_what_was_logged_is_named(lab: Lab, how: str) -> None:
    run = lab.make().done().run
    lab.tp("log", "add")
    path = run.events / "launch-0.jsonl"
    if how == "rewritten":
        rewrite_chain(path, run.run_id)
    elif how == "cut":
        path.write_bytes(path.read_bytes().splitlines(keepends=True)[0])
    elif how == "broken":
        path.write_bytes(path.read_bytes().replace(b"ranks", b"ranke"))
    else:
        path.unlink()
    found = lab.tp("log", "add", "--all", "--json")
    assert found.code == 2
    (conflict,) = found.json()["conflicts"]
    words = {"rewritten": "was rewritten", "cut": "was cut", "gone": "is gone", "broken": "event 1"}
    assert (conflict["path"], conflict["message"].split(":")[0]) == ("events/launch-0.jsonl", words[how])


def test_one_bad_run_hides_no_other(lab: Lab) -> None:
    bad = lab.make("run-00000001").done().run
    os.unlink(bad.report)
    os.mkfifo(bad.report)
    (bad.events / "batch-0.jsonl").write_bytes(b"\xff\n[]\n")
    (bad.attempts / "0" / "end.json").chmod(0o644)
    (bad.attempts / "0" / "end.json").write_bytes(b"{" * 100_000)
    lab.make("run-00000002").done()
    assert lab.tp("log", "add").code == 0
    assert sum(e["subject"] == subject_of(ME, "sft", "run-00000002") for e in logged(lab)) == len(RUN_PATHS)


def test_a_run_that_was_removed_is_a_note(lab: Lab) -> None:
    run = lab.make().done().run
    lab.tp("log", "add")
    shutil.rmtree(run.root)
    found = lab.tp("log", "add", "--all", "--json")
    assert (found.code, found.json()["gone"]) == (0, [subject_of(ME, "sft", run.run_id)])


def test_registry_records_are_logged_and_compared(lab: Lab) -> None:
    version = lab.root.shelf("plugins") / ME / "p" / "1.0.0"
    (version / "content").mkdir(parents=True)
    (version / "record.json").write_text("{}")
    (version / "content" / "record.json").write_text("not a record of the registry")
    seal = lab.root.seals / "plugins" / ME / "p" / "1.0.0.json"
    seal.parent.mkdir(parents=True)
    seal.write_text("{}")
    assert lab.tp("log", "add", "--json").json()["added"] == 2
    assert {e["path"] for e in logged(lab)} == {f"plugins/{ME}/p/1.0.0/record.json", f"seals/plugins/{ME}/p/1.0.0.json"}
    (version / "record.json").unlink()
    assert lab.tp("log", "add", "--json").json()["gone"] == [f"registry/plugins/{ME}/p/1.0.0/record.json"]
    seal.unlink()
    found = lab.tp("log", "add", "--json")
    assert (found.code, found.json()["conflicts"][0]["message"]) == (2, "is gone")


@pytest.mark.parametrize("place", ["plugins/{me}/p/.switch", "channels/{me}/m/stable", "activation/policy/playbook"])
def test_the_newest_generation_of_a_pointer_is_missed_before_any_seal(lab: Lab, place: str) -> None:
    """Else an older one would be in force again, and nobody would know until the next night's seal."""
    pointer = lab.root.registry / place.format(me=ME)
    pointer.mkdir(parents=True)
    for number in (1, 2):
        (pointer / f"{number}.json").write_text("{}")
    assert lab.tp("log", "add").code == 0
    (pointer / "2.json").unlink()
    found = lab.tp("log", "add", "--json")
    assert found.code == 2
    assert [(c["path"], c["message"]) for c in found.json()["conflicts"]] == [
        (f"{place.format(me=ME)}/2.json", "is gone")
    ]
    shutil.rmtree(pointer)
    whole = lab.tp("log", "add", "--json")
    assert whole.code == (2 if place.startswith("activation") else 0), "an owner may remove a package as a whole"


def test_a_digest_is_proved_by_text_that_stands_alone(lab: Lab, tmp_path: Path) -> None:
    run = lab.make().done().run
    lab.tp("log", "add")
    digest = digest_file(run.report)
    said = lab.tp("log", "prove", digest)
    proven = check_proof(said.out.encode(), lab.vkey)
    assert (proven.entry.fact.path, proven.entry.fact.digest, proven.checkpoint.size) == (
        "report.json",
        digest,
        len(RUN_PATHS),
    )
    head = read_chain(run.events / "batch-0.jsonl").head
    assert head
    assert lab.tp("log", "prove", head, "--json").json()["proofs"][0]["path"] == "events/batch-0.jsonl"
    lab.tp("log", "prove", digest, "-o", str(tmp_path / "p.tlog-proof"))
    assert (tmp_path / "p.tlog-proof").read_text() == said.out
    assert lab.tp("log", "prove", "0" * 64, "--json").json()["errors"][0]["code"] == "E-EVID-007"
    assert lab.tp("log", "prove", "0" * 63).code == 64


def test_a_proof_is_judged_under_a_key_from_elsewhere(lab: Lab, tmp_path: Path) -> None:
    run = lab.make().done().run
    lab.tp("log", "add")
    lab.tp("log", "witness", "--state", str(tmp_path / "w"))
    path = tmp_path / "p.tlog-proof"
    lab.tp("log", "prove", digest_file(run.report), "-o", str(path))
    assert lab.tp("verify", str(path)).code == 1
    said = lab.tp("verify", str(path), "--log-key", str(lab.vkey), "--witness", str(tmp_path / "w/checkpoint"))
    assert (said.code, "report.json: verified" in said.out, "which a witness saw, too (11 entries)" in said.out) == (
        0,
        True,
        True,
    )
    other = type(lab.key)("lab/tp-log", bytes(32)).verifier
    assert lab.tp("verify", str(path), "--log-key", str(other)).code == 2
    path.write_text(path.read_text().replace("index 7", "index 6"))
    assert lab.tp("verify", str(path), "--log-key", str(lab.vkey)).code == 2
    assert lab.tp("verify", str(tmp_path / "none.tlog-proof"), "--json").json()["errors"][0]["code"] == "E-EVID-013"


def test_no_changed_proof_is_accepted(lab: Lab) -> None:
    from hpc.evidence.note import NoteError

    run = lab.make().done().run
    lab.tp("log", "add")
    text = lab.tp("log", "prove", digest_file(run.report)).out
    for old, new in (
        ("index 7", "index 6"),
        ("@v1", "@v2"),
        ("\nextra ", "\nextra A"),
        ("\n\n", "\n"),
        ("lab/tp-log\n", "lab/tp-lug\n"),
    ):
        assert old in text
        with pytest.raises(NoteError):
            check_proof(text.replace(old, new, 1).encode(), lab.vkey)


def test_the_consistent_rewrite_of_a_run_and_of_the_log_is_caught_by_the_witness(lab: Lab, tmp_path: Path) -> None:
    """Whoever has the service user's key can rewrite a run's chains, begin the log again and sign it: only a witness sees that."""
    maker = lab.make().done()
    lab.tp("log", "add")
    assert lab.tp("log", "witness", "--state", str(tmp_path / "w")).code == 0
    shutil.rmtree(maker.run.root)
    lab.make(clock=5.0).done()
    for path in (lab.root.log / "checkpoint", lab.root.log / "checkpoint.previous"):
        path.unlink()
    shutil.rmtree(lab.root.log / "tile")
    lab.tp("log", "init")
    assert lab.tp("log", "add").code == 0
    assert lab.tp("runs", "audit", "sft").code == 0, (
        "the forgery is consistent: an audit of the files alone cannot see it"
    )
    assert lab.tp("log", "verify").code == 0
    found = lab.tp("log", "witness", "--state", str(tmp_path / "w"))
    assert found.code == 2
    assert "two different trees of 11 entries were signed" in found.err
    compared = lab.tp("log", "verify", "--witness", str(tmp_path / "w/checkpoint"), "--json")
    assert (compared.code, compared.json()["verdict"]) == (2, "tampered")


def test_a_witness_without_news_and_its_words(lab: Lab, tmp_path: Path) -> None:
    lab.make().done()
    lab.tp("log", "add")
    said = lab.tp("log", "witness", "--state", str(tmp_path / "w"))
    assert "lab/tp-log: 11 entries, first visit" in said.out
    assert "blind for: rewriting of entries 0 to 10 that was done before" in said.out
    said = lab.tp("log", "witness", "--state", str(tmp_path / "w"), "--json").json()
    assert (said["accepted"], said["size"], said["last_size"]) == (True, 11, 11)
    assert said["blind"][-1].startswith("entries that were logged and taken back between")


def test_a_busy_log_is_try_again_later_and_silent_for_cron(lab: Lab) -> None:
    from hpc.store.locks import held

    with held(lab.root.log / "append.lock"):
        assert lab.tp("log", "add").code == 75
        idle = lab.tp("log", "add", "--if-idle")
    assert (idle.code, idle.out, idle.err) == (0, "", "")


def test_without_the_admins_key_the_log_does_not_vouch_for_itself(lab: Lab) -> None:
    (lab.root.site / "log.vkey").unlink()
    refused = lab.tp("log", "verify", "--json")
    assert (refused.code, refused.json()["errors"][0]["code"]) == (1, "E-EVID-004")
    assert lab.tp("log", "verify", "--key", str(lab.vkey)).code == 0
    (lab.root.site / "log.vkey").write_text("nonsense\n")
    assert lab.tp("log", "verify", "--json").json()["errors"][0]["code"] == "E-EVID-004"


@pytest.mark.two_users
def test_another_user_verifies_and_witnesses_and_cannot_add(lab: Lab, tmp_path: Path) -> None:
    assert os.getuid() == 0, "this test needs root, to become somebody else"
    lab.make().done()
    lab.tp("log", "add")
    home = tmp_path / "nobody"
    home.mkdir(mode=0o755)
    os.chown(home, 65534, 65534)
    for folder in [*list(tmp_path.parents)[:3], tmp_path]:
        os.chmod(folder, os.stat(folder).st_mode & 0o7777 | 0o055)
    os.setegid(65534)
    os.seteuid(65534)
    try:
        os.setresuid(65534, 65534, 0)
        codes = [
            lab.tp("log", "verify").code,
            lab.tp("log", "witness", "--state", str(home / "w")).code,
            lab.tp("log", "add", "--json").json()["errors"][0]["code"],
            lab.tp("log", "init", "--json").json()["errors"][0]["code"],
        ]
    finally:
        os.setresuid(0, 0, 0)
        os.setegid(0)
    assert codes == [0, 0, "E-EVID-003", "E-EVID-003"]


def test_a_run_with_more_records_than_are_logged_says_so_and_is_not_accused(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.make().done()
    assert lab.tp("log", "add", "--all").code == 0
    monkeypatch.setattr("hpc.evidence.facts.MAX_FACTS", 4)
    said = lab.tp("log", "add", "--all", "--json")
    assert (said.code, said.json()["conflicts"]) == (0, [])
    assert [why for path, why in said.json()["unread"].items() if "further records" in path] == [
        "a run has at most 4 that are logged"
    ]
