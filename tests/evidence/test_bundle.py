"""Evidence bundles: a stranger verifies one with nothing but Python, every damage is found, and no secret enters."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from evidencelab import ME, Lab, RunMaker
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tuneplane.record.canonical import pretty_bytes

from hpc.evidence.export import judge_archive
from hpc.evidence.judge import Pins, judge
from hpc.evidence.ustar import ArchiveError, Member, header, read_archive, write_archive
from hpc.evidence.verifier import modules, sources
from tests.evaluated import evaluated

CANARY = "hf_CANARYq7Zk3"


def offline(folder: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    """The bundle's own verifier, with the standard library and nothing else."""
    return subprocess.run(
        [sys.executable, "-I", "-S", str(folder / "verify.py"), *argv],
        capture_output=True,
        text=True,
        check=False,
        cwd="/",
        timeout=60,
    )


def unpack(archive: Path, into: Path) -> Path:
    """As a stranger does, with an archiver of their own."""
    into.mkdir()
    subprocess.run(["tar", "-xf", str(archive), "-C", str(into)], check=True)
    (folder,) = into.iterdir()
    return folder


@pytest.fixture
def done(lab: Lab) -> RunMaker:
    maker = lab.make().done()
    (maker.run.attempt(0).env).write_text(json.dumps({"HF_TOKEN": CANARY}))
    maker.log(0, 0, f"the token is {CANARY}")
    (maker.run.attempt(0).rendezvous).write_text(CANARY)
    (maker.run.attempt(0).out / "notes.txt").write_text(CANARY)
    (maker.run.checkpoints / "latest.json").write_text(CANARY)
    (maker.run.batch / "0.log").write_text(CANARY)
    lab.tp("log", "add")
    return maker


@pytest.fixture
def bundle(lab: Lab, done: RunMaker, tmp_path: Path) -> Path:
    path = tmp_path / "evidence.tar"
    assert lab.tp("export", "sft", "-o", str(path)).code == 0
    return path


def test_a_stranger_verifies_a_bundle_with_python_alone(bundle: Path, tmp_path: Path, lab: Lab) -> None:
    folder = unpack(bundle, tmp_path / "out")
    before = sorted(folder.rglob("*"))
    said = offline(folder)
    assert (said.returncode, said.stderr) == (0, "")
    assert said.stdout.startswith(f"{ME}/sft/run-0a1b2c3d: verified\n")
    assert "11 entries of the log lab/tp-log, signed at 11 entries" in said.stdout
    assert f"{lab.vkey} is the bundle's word (--log-key)" in said.stdout
    assert sorted(folder.rglob("*")) == before, "a verifier leaves nothing behind"
    assert lab.tp("verify", str(bundle)).out == said.stdout
    assert lab.tp("verify", str(folder)).out == said.stdout


def test_keys_and_a_witness_from_elsewhere_make_it_more_than_the_bundles_word(
    bundle: Path, tmp_path: Path, lab: Lab
) -> None:
    lab.tp("log", "witness", "--state", str(tmp_path / "w"))
    folder = unpack(bundle, tmp_path / "out")
    said = json.loads(
        offline(folder, "--json", "--log-key", str(lab.vkey), "--witness", str(tmp_path / "w/checkpoint")).stdout
    )
    assert said["verdict"] == "verified"
    assert not any("--log-key" in u or "--witness" in u for u in said["unchecked"])
    other = type(lab.key)("lab/tp-log", bytes(32)).verifier
    wrong = offline(folder, "--log-key", str(other))
    assert (wrong.returncode, "is not signed by lab/tp-log+" in wrong.stdout) == (2, True)


def test_leaving_out_a_proof_gains_nothing_under_a_key_from_elsewhere(bundle: Path, tmp_path: Path, lab: Lab) -> None:
    folder = unpack(bundle, tmp_path / "out")
    path = folder / "bundle.json"
    for gone, verdict in (
        ({"log/7.tlog-proof"}, "verified"),
        ({f"log/{n}.tlog-proof" for n in range(11)} | {"log/checkpoint"}, "verified"),
    ):
        value = json.loads(path.read_text())
        value["files"] = [e for e in value["files"] if e["path"] not in gone]
        path.write_bytes(pretty_bytes(value))
        for name in gone:
            (folder / name).unlink(missing_ok=True)
        assert judge(folder, Pins()).verdict == verdict
        found = judge(folder, Pins(log=str(lab.vkey)))
        assert (found.exit, found.findings[0][:2]) == (1, ("incomplete", "log"))
    assert judge(folder, Pins(admission="ab" * 32)).findings == [
        ("incomplete", "admission.json", "no key signed it, and --admission-key names one")
    ]


def test_the_same_run_gives_the_same_bytes(bundle: Path, lab: Lab, tmp_path: Path) -> None:
    again = tmp_path / "again.tar"
    os.utime(bundle, (0, 0))
    assert lab.tp("export", "sft", "-o", str(again)).code == 0
    assert again.read_bytes() == bundle.read_bytes()


def test_no_secret_enters(bundle: Path, tmp_path: Path, lab: Lab) -> None:
    assert CANARY.encode() not in bundle.read_bytes()
    assert (lab.root.keys / "log.key").read_bytes().strip()[-20:] not in bundle.read_bytes()
    names = {p.name for p in unpack(bundle, tmp_path / "out").rglob("*")}
    assert names.isdisjoint(
        {"env.json", "rendezvous.json", "rank-00000.log", "0.log", "latest.json", "notes.txt", "adapter.safetensors"}
    )


def test_the_verifier_imports_what_travels_and_nothing_else(bundle: Path, tmp_path: Path) -> None:
    folder = unpack(bundle, tmp_path / "out")
    listing = (
        "import sys; sys.argv=['x']; sys.path.insert(0, sys.argv.pop() and r'%s'); import hpc.evidence.offline; "
        % (folder / "verifier")
    )
    code = listing + "print(sorted(m for m in sys.modules if m.split('.')[0] in ('hpc', 'tuneplane')))"
    said = subprocess.run([sys.executable, "-I", "-S", "-B", "-c", code], capture_output=True, text=True, check=True)
    assert list(modules()) == sorted(eval(said.stdout))
    assert len(sources()) == len(modules()) + 1
    assert {path: (folder / path).read_bytes() for path in sources()} == sources()


def test_artifacts_put_in_their_place_are_checked_too(bundle: Path, tmp_path: Path) -> None:
    folder = unpack(bundle, tmp_path / "out")
    place = folder / f"runs/{ME}/sft/run-0a1b2c3d/attempts/0/out"
    place.mkdir(parents=True)
    (place / "adapter.safetensors").write_bytes(b"weights")
    said = offline(folder)
    assert (said.returncode, "artifacts, which are not in the bundle" in said.stdout) == (0, False)
    (place / "adapter.safetensors").write_bytes(b"Weights")
    said = offline(folder)
    assert (said.returncode, "attempts/0/out/adapter.safetensors: was changed" in said.stdout) == (2, True)


def test_an_evaluation_put_in_its_place_is_compared_and_said_not_to_be_scored_again(lab: Lab, tmp_path: Path) -> None:
    made = evaluated(tmp_path / "made", tmp_path / "rows.jsonl", {"1 + 1?": ("2", "3")})
    left = {path.name: path.read_bytes() for path in made.iterdir()}
    lab.make(left=left).done()
    lab.tp("log", "add")
    assert lab.tp("export", "sft", "-o", str(tmp_path / "evidence.tar")).code == 0
    folder = unpack(tmp_path / "evidence.tar", tmp_path / "out")
    place = folder / f"runs/{ME}/sft/run-0a1b2c3d/attempts/0/out"
    place.mkdir(parents=True)
    for name, data in left.items():
        (place / name).write_bytes(data)
    said = offline(folder)
    assert (said.returncode, said.stderr) == (0, "")
    assert "eval_report.json: is not scored again: a bundle's verifier travels without" in said.stdout


def relist(folder: Path) -> None:
    """Make bundle.json fit what is there: what whoever changes a bundle does next."""
    from tuneplane.record.digest import digest_file

    path = folder / "bundle.json"
    value = json.loads(path.read_text())
    for entry in value["files"]:
        entry["sha256"], entry["size"] = digest_file(folder / entry["path"]), (folder / entry["path"]).stat().st_size
    path.write_bytes(pretty_bytes(value))


def test_every_file_of_a_bundle_is_missed_when_it_changes(bundle: Path, tmp_path: Path) -> None:
    folder = unpack(bundle, tmp_path / "out")
    paths = [e["path"] for e in json.loads((folder / "bundle.json").read_text())["files"]]
    assert len(paths) > 60
    for path in paths:
        kept = (folder / path).read_bytes()
        (folder / path).write_bytes(kept + b" ")
        assert ("tampered", path, "was changed") in judge(folder, Pins()).findings
        (folder / path).write_bytes(kept)
    for path in paths[::9]:
        (folder / path).rename(tmp_path / "away")
        assert ("tampered", path, "is gone") in judge(folder, Pins()).findings
        (tmp_path / "away").rename(folder / path)
    (folder / "more").write_text("")
    assert judge(folder, Pins()).findings == [("tampered", "more", "is not in the list")]


RECORDS = [
    "admission.json",
    "report.json",
    "submissions/0.json",
    "attempts/0/end.json",
    "attempts/0/start.json",
    "work/.tuneplane/package.json",
]


@pytest.mark.parametrize("record", RECORDS)
def test_a_bundle_that_was_changed_and_listed_anew_is_tampered(bundle: Path, tmp_path: Path, record: str) -> None:
    folder = unpack(bundle, tmp_path / "out")
    path = folder / f"runs/{ME}/sft/run-0a1b2c3d/{record}"
    path.write_bytes(pretty_bytes({**json.loads(path.read_text()), "note": "a word more"}))
    relist(folder)
    found = judge(folder, Pins())
    assert found.verdict == "tampered"
    assert any(where == record and "entry" in what for _, where, what in found.findings), "the log remembers the record"


def test_a_run_that_was_forged_whole_is_caught_by_the_proofs(lab: Lab, bundle: Path, tmp_path: Path) -> None:
    """Another run under the same name, consistent in itself, with the proofs of the true one."""
    folder = unpack(bundle, tmp_path / "out")
    run = folder / f"runs/{ME}/sft/run-0a1b2c3d"
    shutil.rmtree(run)
    other = Lab.__new__(Lab)
    other.root = type(lab.root)(tmp_path / "elsewhere")
    RunMaker(other.root, owner=ME, exp="sft", run_id="run-0a1b2c3d", clock=9.0).done()
    source = other.root.run(ME, "sft", "run-0a1b2c3d").root
    shutil.copytree(source, run, ignore=shutil.ignore_patterns("out", "logs", "checkpoints"))
    relist(folder)
    found = judge(folder, Pins(log=str(lab.vkey)))
    assert found.verdict == "tampered"
    assert {w for _, w, what in found.findings if "was rewritten" in what} == {
        f"events/{n}-0.jsonl" for n in ("submit", "launch", "batch")
    }


@pytest.mark.parametrize("change", ["proof", "swap", "head", "foreign"])
def test_a_changed_proof_is_tampered(lab: Lab, bundle: Path, tmp_path: Path, change: str) -> None:
    folder = unpack(bundle, tmp_path / "out")
    log = folder / "log"
    if change == "proof":
        text = (log / "3.tlog-proof").read_text()
        (log / "3.tlog-proof").write_text(text.replace("index 3", "index 4"))
    elif change == "swap":
        (log / "3.tlog-proof").write_bytes((log / "4.tlog-proof").read_bytes()[:-40])
    elif change == "head":
        (log / "checkpoint").write_text((log / "checkpoint").read_text().replace("\n11\n", "\n12\n"))
    else:
        lab.make("run-11111111", exp="other").done()
        lab.tp("log", "add")
        from hpc.evidence.verify import proof_of

        (log / "3.tlog-proof").write_bytes(proof_of(lab.root, lab.head(), 15))
    relist(folder)
    found = judge(folder, Pins())
    assert found.verdict == "tampered"
    assert found.findings[0][1].startswith("log/")


@pytest.mark.parametrize(
    "damage", [lambda d: d[:-1], lambda d: d + b"\0", lambda d: d[:600] + b"x" + d[601:], lambda d: b"", lambda d: d[512:], lambda d: d[:1024],
               lambda d: d.replace(b"0000644", b"0000666", 1)]
)  # fmt: skip
def test_a_damaged_archive_is_tampered(lab: Lab, bundle: Path, damage: Callable[[bytes], bytes]) -> None:
    bundle.write_bytes(damage(bundle.read_bytes()))
    assert lab.tp("verify", str(bundle)).code == 2


@pytest.mark.parametrize(
    "kind", ["link", "hardlink", "device", "absolute", "dotdot", "twice", "two tops", "file and folder", "pax"]
)
def test_an_archive_with_more_than_files_is_not_unpacked(lab: Lab, tmp_path: Path, kind: str) -> None:
    out = io.BytesIO()
    with tarfile.open(
        fileobj=out, mode="w", format=tarfile.PAX_FORMAT if kind == "pax" else tarfile.USTAR_FORMAT
    ) as tar:
        names = {
            "absolute": ["/tmp/planted"], "dotdot": ["r/../../planted"], "twice": ["r/a", "r/a"], "two tops": ["r/a", "s/a"],
            "file and folder": ["r/a", "r/a/b"], "pax": ["r/" + "x" * 200],
        }.get(kind, ["r/a"])  # fmt: skip
        for name in names:
            info = tarfile.TarInfo(name)
            info.type = {"link": tarfile.SYMTYPE, "hardlink": tarfile.LNKTYPE, "device": tarfile.CHRTYPE}.get(
                kind, tarfile.REGTYPE
            )
            info.linkname = "/etc/passwd" if "link" in kind else ""
            tar.addfile(info)
    path = tmp_path / "evil.tar"
    path.write_bytes(out.getvalue())
    said = lab.tp("verify", str(path), "--json")
    assert (
        said.code,
        said.json()["findings"][0]["message"].startswith("is not an archive as `tp export` writes it"),
    ) == (2, True)
    assert not Path("/tmp/planted").exists()


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_no_byte_of_a_bundle_can_change_unseen(bundle: Path, data: st.DataObject) -> None:
    whole = bundle.read_bytes()
    # The verifier's sources are most of the bytes and the dullest; half of the changes go before them.
    end = data.draw(st.sampled_from([whole.index(b"/verifier/"), len(whole)]))
    place, change = data.draw(st.integers(0, end - 1)), data.draw(st.integers(1, 255))
    damaged = bundle.with_name("damaged.tar")
    damaged.write_bytes(whole[:place] + bytes([whole[place] ^ change]) + whole[place + 1 :])
    assert judge_archive(damaged, Pins()).verdict == "tampered", place


def test_a_list_that_says_the_same_in_other_bytes_is_not_the_list(bundle: Path, tmp_path: Path) -> None:
    folder = unpack(bundle, tmp_path / "out")
    path = folder / "bundle.json"
    kept = path.read_text()
    for changed in (
        kept.replace(": ", ":  ", 1),
        kept.replace('"exported_as": "verified"', '"exported_as": "incomplete"'),
        kept[:-1],
    ):
        assert changed != kept
        path.write_text(changed)
        assert judge(folder, Pins()).exit == 2


def test_what_the_writer_writes_other_archivers_read(tmp_path: Path) -> None:
    long = "run/" + "d" * 120 + "/" + "f" * 100
    files = {"run/a": b"x", long: b"y" * 513, "run/empty": b""}
    with open(tmp_path / "t.tar", "wb") as stream:
        write_archive(stream, ((Member(n, len(d), n == "run/a"), [d]) for n, d in files.items()))
    with tarfile.open(tmp_path / "t.tar") as tar:
        assert {m.name: tar.extractfile(m).read() for m in tar.getmembers()} == files  # type: ignore[union-attr]
        assert {m.mode for m in tar.getmembers()} == {0o755, 0o644}
    with open(tmp_path / "t.tar", "rb") as stream:
        assert {m.path: b"".join(c) for m, c in read_archive(stream)} == files


@given(st.text(min_size=1, max_size=300), st.integers(0, 1 << 34), st.booleans())
def test_a_header_is_one_block_or_refused(path: str, size: int, executable: bool) -> None:
    try:
        assert len(header(Member(path, size, executable))) == 512
    except (ArchiveError, UnicodeEncodeError):
        return


def test_a_tampered_run_is_not_exported(lab: Lab, done: RunMaker, tmp_path: Path) -> None:
    done.run.report.chmod(0o644)
    done.run.report.write_bytes(done.run.report.read_bytes() + b" ")
    for words in ([], ["--allow-unverified"]):
        said = lab.tp("export", "sft", "-o", str(tmp_path / "x.tar"), "--json", *words)
        assert (said.code, said.json()["errors"][0]["code"]) == (1, "E-EVID-010")
    assert lab.tp("publish", "sft", "--dry-run", "--json").json()["errors"][0]["code"] == "E-EVID-010"
    assert not (tmp_path / "x.tar").exists()


def test_a_run_that_contradicts_the_log_is_not_exported(lab: Lab, done: RunMaker, tmp_path: Path) -> None:
    shutil.rmtree(done.run.root)
    lab.make(clock=5.0).done()
    assert lab.tp("runs", "audit", "sft").code == 2
    said = lab.tp("export", "sft", "-o", str(tmp_path / "x.tar"), "--json").json()
    assert (said["errors"][0]["code"], "of the log" in said["errors"][0]["message"]) == ("E-EVID-010", True)


def test_an_unfinished_run_needs_the_flag_and_is_incomplete(lab: Lab, tmp_path: Path) -> None:
    lab.make().package().admit().submit().start()
    path = tmp_path / "x.tar"
    said = lab.tp("export", "sft", "-o", str(path), "--json")
    assert (said.code, said.json()["errors"][0]["code"]) == (1, "E-EVID-011")
    assert lab.tp("export", "sft", "-o", str(path), "--allow-unverified").code == 0
    assert lab.tp("verify", str(path)).code == 1
    folder = unpack(path, tmp_path / "out")
    assert (offline(folder).returncode, json.loads((folder / "bundle.json").read_text())["exported_as"]) == (
        1,
        "incomplete",
    )


def test_a_bundle_without_a_log_says_so(lab: Lab, tmp_path: Path) -> None:
    lab.make().done()
    assert lab.tp("export", "sft", "-o", str(tmp_path / "x.tar")).code == 0
    said = lab.tp("verify", str(tmp_path / "x.tar"))
    assert (said.code, "no proof of the log is in the bundle" in said.out) == (0, True)


def test_an_array_travels_whole(lab: Lab, tmp_path: Path) -> None:
    maker = lab.make()
    maker.spec = {**maker.spec, "spec": {"slurm": {"array": "0-1"}}}
    maker.package().admit().submit()
    for index in (0, 1):
        maker.element(index).start().nodes(0, 0, 0).end()
    lab.tp("log", "add")
    assert lab.tp("export", "sft", "-o", str(tmp_path / "x.tar")).code == 0
    said = lab.tp("verify", str(tmp_path / "x.tar"), "--json").json()
    assert (said["verdict"], said["findings"]) == ("verified", [])
    assert "the bytes of 2 artifacts" in " ".join(said["unchecked"])


def test_a_file_that_is_there_is_not_overwritten(lab: Lab, bundle: Path) -> None:
    before = bundle.read_bytes()
    said = lab.tp("export", "sft", "-o", str(bundle), "--json")
    assert (said.code, said.json()["errors"][0]["code"]) == (1, "E-EVID-012")
    assert bundle.read_bytes() == before
    assert list(bundle.parent.glob(".evidence*")) == []


def test_publish_shows_and_asks(lab: Lab, done: RunMaker, tmp_path: Path) -> None:
    said = lab.tp("publish", "sft", "--dry-run")
    assert (said.code, "not shared: attempts/*/env.json" in said.out) == (0, True)
    payload: dict[str, Any] = lab.tp("publish", "sft", "--dry-run", "--json").json()
    assert (payload["verdict"], payload["proofs"], len(payload["files"]) > 60) == ("verified", 11, True)
    assert list(tmp_path.glob("*.tar")) == []
    assert lab.tp("publish", "sft").code == 64
    assert lab.tp("publish", "sft", "--to", str(tmp_path), "--json").code == 64
    assert lab.tp("publish", "sft", "--to", str(tmp_path), "--yes", "--json").json()["proofs"] == 11
    assert lab.tp("verify", str(tmp_path / "run-0a1b2c3d.tar")).code == 0


def test_a_file_that_is_not_there_is_refused(lab: Lab, tmp_path: Path) -> None:
    said = lab.tp("verify", str(tmp_path / "none.tar"), "--json")
    assert (said.code, said.json()["errors"][0]["code"]) == (1, "E-EVID-013")


def test_an_enforced_admission_travels_with_its_key_and_without_the_copy(lab: Lab, tmp_path: Path) -> None:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from tuneplane.contract.schemas import SIGNED_KEYS
    from tuneplane.record.canonical import canonical_bytes

    maker = lab.make(admitted_as="enforced").done()
    key, other = (Ed25519PrivateKey.from_private_bytes(bytes([n]) * 32) for n in (1, 2))
    public = key.public_key().public_bytes_raw().hex()
    policy = {"admission": {"mode": "enforced", "public_key": public}}
    (lab.root.site / "policy.json").write_bytes(pretty_bytes(policy))
    body = {**json.loads(maker.run.admission.read_text()), "mode": "enforced"}
    maker.run.admission.unlink()
    signed = {**body, "signature": key.sign(canonical_bytes({k: body.get(k) for k in SIGNED_KEYS})).hex()}
    copy = lab.root.admitted / maker.run_id
    copy.mkdir()
    (copy / "admission.json").write_bytes(pretty_bytes(signed))
    shutil.copytree(maker.run.work, copy / "work")
    lab.tp("log", "add")
    path = tmp_path / "x.tar"
    assert lab.tp("export", "sft", "-o", str(path)).code == 0
    said = lab.tp("verify", str(path), "--admission-key", public)
    assert said.code == 0
    assert "the service user's copy of the package" in said.out
    assert "--admission-key" not in said.out
    wrong = lab.tp("verify", str(path), "--admission-key", other.public_key().public_bytes_raw().hex())
    assert (wrong.code, "not the one given" in wrong.out) == (2, True)
    folder = unpack(path, tmp_path / "out")
    place = folder / f"admitted/{maker.run_id}/admission.json"
    place.write_bytes(pretty_bytes({**signed, "owner": "mallory"}))
    relist(folder)
    found = judge(folder, Pins())
    assert {what for _, where, what in found.findings if "signature" in what} == {"the signature is not the site's"}


@pytest.mark.parametrize("key", ["log", "admission"])
def test_a_list_that_names_another_key_than_the_one_that_signed_is_tampered(
    bundle: Path, tmp_path: Path, lab: Lab, key: str
) -> None:
    folder = unpack(bundle, tmp_path / "out")
    path = folder / "bundle.json"
    value = json.loads(path.read_text())
    value["keys"][key] = str(type(lab.key)("lab/tp-log", bytes(32)).verifier) if key == "log" else "ab" * 32
    path.write_bytes(pretty_bytes(value))
    found = judge(folder, Pins(log=str(lab.vkey)))
    assert (found.exit, [(level, where) for level, where, _ in found.findings]) == (2, [("tampered", "bundle.json")])


def test_that_the_proofs_were_chosen_by_the_maker_is_said(lab: Lab, done: RunMaker, tmp_path: Path) -> None:
    """A chain that grew was logged twice; a bundle of its shorter form, without the later proof, contradicts nothing that is in it."""
    kept = tmp_path / "kept"
    shutil.copytree(done.run.root, kept)
    done.events("batch-0").append("sharing", "completed", "shared")
    assert lab.tp("log", "add", "--all").code == 0
    grown = tmp_path / "grown.tar"
    assert lab.tp("export", "sft", "-o", str(grown)).code == 0
    folder = unpack(grown, tmp_path / "out")
    shutil.copyfile(kept / "events/batch-0.jsonl", folder / f"runs/{ME}/sft/run-0a1b2c3d/events/batch-0.jsonl")
    later = folder / "log/11.tlog-proof"
    later.unlink()
    path = folder / "bundle.json"
    value = json.loads(path.read_text())
    value["files"] = [e for e in value["files"] if e["path"] != "log/11.tlog-proof"]
    path.write_bytes(pretty_bytes(value))
    relist(folder)
    found = judge(folder, Pins(log=str(lab.vkey)))
    assert found.verdict == "verified"
    assert any("has no more about this run" in text for text in found.unchecked)
    shutil.copyfile(kept / "events/batch-0.jsonl", done.run.events / "batch-0.jsonl")
    assert "was cut: logged with 2 events" in lab.tp("runs", "audit", "sft").out, "the log itself remembers"


def test_records_that_an_audit_asks_for_travel(lab: Lab, tmp_path: Path) -> None:
    """What a closing event or a rung's event names must be in the bundle, or its reader would call it gone."""
    from tuneplane.record.digest import digest_json

    spec = {"apiVersion": "tuneplane/v1", "metadata": {"name": "sft"}, "spec": {"slurm": {"array": "0"}}}
    maker = lab.make(spec=spec).package().admit().submit()
    part = maker.element(0).start()
    rung = {"step": 40, "decision": "goes on"}
    part.run.rungs.mkdir()
    (part.run.rungs / "40.json").write_bytes(pretty_bytes(rung))
    part.events("rungs-0").append("training", "running", "goes on", step=40, rung_sha256=digest_json(rung))
    part.run.attempt(0).continuity.write_bytes(b"{}")
    part.nodes(0, 0, 0).end()
    path = tmp_path / "x.tar"
    assert lab.tp("runs", "audit", "sft", "--json").json()["verdict"] == "verified"
    assert lab.tp("export", "sft", "-o", str(path)).code == 0
    assert offline(unpack(path, tmp_path / "out")).returncode == 0
