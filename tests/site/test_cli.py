"""`tp site` and `tp doctor` as people and programs meet them."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tuneplane.contract.layout import StorageRoot

from hpc.cli import doctor as doctor_room
from hpc.cli.main import main
from hpc.site.users import User, real_user
from hpc.store.contest import Outcome
from hpc.store.locks import held
from tests.site.people import as_user
from tests.store.holding import hold_in_child

if TYPE_CHECKING:
    from fakeslurm import FakeSlurm

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def tp(capsys: pytest.CaptureFixture[str], root: StorageRoot, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run `tp ARGS` on the root; (exit code, stdout, stderr)."""
    monkeypatch.setenv("TUNEPLANE_STORAGE_ROOT", str(root.path))

    def run(*args: str) -> tuple[int, str, str]:
        capsys.readouterr()
        with pytest.raises(SystemExit) as caught:
            main(list(args))
        out, err = capsys.readouterr()
        return int(caught.value.code or 0), out, err

    return run


def test_init_lays_out_publishes_and_says_what_comes_next(tp: Run, scratch: Path) -> None:
    rc, out, err = tp("site", "init", str(scratch / "new"), "--name", "lab")
    assert (rc, err) == (0, "")
    assert "28 new folders" in out
    assert "recipe deepspeed/sft" in out
    assert f"export TUNEPLANE_STORAGE_ROOT={scratch / 'new'}" in out
    assert len(list((scratch / "new/site/kernels").glob("*.zip"))) == 2
    rc, out, _ = tp("site", "init", str(scratch / "new"), "--json")
    value = json.loads(out)
    assert (rc, value["new_folders"], value["new_site_file"]) == (0, [], False)
    assert value["file_system"]["missing"] == []


def test_init_ends_with_1_where_the_file_system_is_unfit(
    tp: Run, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hpc.store import probe as room

    monkeypatch.setitem(room.CHECKS, "hard_link", lambda folder: Outcome("unsupported", "EPERM"))
    rc, out, _ = tp("site", "init", str(scratch / "new"))
    assert rc == 1
    assert "NOT fit for a storage root" in out
    assert "hard_link: unsupported, EPERM" in out


def test_init_of_a_foreign_folder_is_refused_with_code_and_mend(tp: Run, scratch: Path) -> None:
    (scratch / "thesis").mkdir()
    (scratch / "thesis" / "x").write_text("x")
    rc, out, err = tp("site", "init", str(scratch / "thesis"))
    assert (rc, out) == (1, "")
    assert err.splitlines()[0].startswith("tp: E-SITE-040 ROOT: ")
    assert "mend:" in err


def test_check_is_calm_when_all_is_well(tp: Run) -> None:
    assert tp("site", "sync")[0] == 0
    rc, out, _ = tp("site", "check")
    assert rc == 0
    assert {line.split()[0] for line in out.splitlines()} == {"ok"}


def test_check_finds_what_is_wrong_and_says_how_to_mend_it(tp: Run, root: StorageRoot) -> None:
    tp("site", "sync")
    root.runs.chmod(0o777)
    rc, out, _ = tp("site", "check", "--json")
    value = json.loads(out)
    assert (rc, value["verdict"], value["counts"]["fail"]) == (1, "fail", 1)
    (bad,) = [c for c in value["checks"] if c["status"] == "fail"]
    assert (bad["found"], bad["expect"]) == ("0777", "3775")
    assert bad["mend"].startswith("`tp site init ROOT`")
    assert "E-SITE-015" in tp("site", "check")[1]


def test_an_edit_without_sync_is_noticed(tp: Run, root: StorageRoot) -> None:
    tp("site", "sync")
    root.site_file.write_text(root.site_file.read_text().replace("verify: full", "verify: stat"))
    rc, out, _ = tp("site", "check")
    assert rc == 1
    assert "site.policy" in out
    assert tp("site", "sync")[0] == 0
    assert tp("site", "check")[0] == 0
    assert json.loads((root.site / "policy.json").read_text())["runtimes"] == {"verify": "stat"}


def test_a_candidate_file_is_checked_before_it_is_in_place(tp: Run, tmp_path: Path) -> None:
    good, bad = tmp_path / "good.yaml", tmp_path / "bad.yaml"
    good.write_text("schema: tuneplane-hpc/site/v1\nname: new\n")
    bad.write_text("schema: tuneplane-hpc/site/v1\nname: new\nquotas: {}\nadmin_group: no-such-group-x\n")
    assert tp("site", "check", "--file", str(good))[0] == 0
    rc, out, _ = tp("site", "check", "--file", str(bad))
    assert rc == 1
    assert "did you mean 'quota'?" in out


def test_a_group_that_does_not_exist_is_found(tp: Run, root: StorageRoot) -> None:
    text = root.site_file.read_text().replace('admin_group: ""', "admin_group: no-such-group-x")
    root.site_file.write_text(text)
    rc, out, _ = tp("site", "check")
    assert rc == 1
    assert "E-SITE-043 site.yaml: admin_group: there is no group no-such-group-x" in out


def test_show_prints_every_default(tp: Run) -> None:
    rc, out, _ = tp("site", "show", "--json")
    value = json.loads(out)["site"]
    assert rc == 0
    assert (value["schema"], value["slurm"]["poll_max_s"], value["quota"]["gpus"]) == ("tuneplane-hpc/site/v1", 180, 16)
    assert "poll_max_s: 180" in tp("site", "show")[1]


@pytest.mark.two_users
def test_users_are_added_listed_retired_and_transferred(tp: Run, people: tuple[User, User]) -> None:
    one, other = people
    assert tp("site", "user", "add", one.name)[1].splitlines()[-1] == f"{one.name} can submit"
    assert tp("site", "user", "add", one.name)[1] == f"{one.name} had all folders; modes are right\n"
    assert tp("site", "user", "add", other.name)[0] == 0
    assert tp("site", "user", "retire", one.name)[0] == 0
    rows = {r["name"]: r["state"] for r in json.loads(tp("site", "user", "ls", "--json")[1])}
    assert rows == {"root": "active", one.name: "retired", other.name: "active"}
    rc, out, _ = tp("site", "user", "transfer", one.name, other.name)
    assert (rc, out) == (0, f"7 files and folders of {one.name} belong to {other.name} now\n")
    assert tp("site", "user", "ls")[1].splitlines()[2].split() == [one.name, str(one.uid), "retired", other.name]
    assert tp("site", "user", "add", "no-such-user-x")[0] == 75


@pytest.mark.two_users
def test_ordinary_users_may_look_and_not_touch(root: StorageRoot, people: tuple[User, User]) -> None:
    def attempt(*args: str) -> int:
        os.environ["TUNEPLANE_STORAGE_ROOT"] = str(root.path)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        try:
            main(list(args))
        except SystemExit as done:
            return int(done.code or 0)
        return -1

    one, _ = people
    assert as_user(one, attempt, "site", "show") == 0
    assert as_user(one, attempt, "site", "sync") == 1
    assert as_user(one, attempt, "site", "key") == 1
    assert as_user(one, attempt, "site", "init", str(root.path)) == 1
    assert as_user(one, attempt, "site", "user", "retire", "root") == 1


def test_the_signing_key_is_made_for_the_service_user_only(tp: Run, root: StorageRoot) -> None:
    rc, _, err = tp("site", "key")
    assert rc == 1
    assert "E-SITE-037" in err
    me = real_user().name
    root.site_file.write_text(root.site_file.read_text().replace('service_user: ""', f"service_user: {me}"))
    rc, out, _ = tp("site", "key")
    assert (rc, len(out.strip())) == (0, 64)
    assert tp("site", "key")[1] == out  # made once
    assert (root.keys / "admission.key").stat().st_mode & 0o777 == 0o600


def test_unlock_shows_the_owner_and_breaks_with_proof_or_force(tp: Run, tmp_path: Path) -> None:
    lock = tmp_path / "x.lock"
    with held(lock, purpose="a test"):
        rc, out, _ = tp("site", "unlock", str(lock))
        assert rc == 1
        assert out.startswith(f"held: pid {os.getpid()} of uid")
    assert tp("site", "unlock", str(lock))[1] == f"{lock} is free\n"
    pid = hold_in_child(lock)
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    rc, out, _ = tp("site", "unlock", str(lock))
    assert (rc, [line.split(":")[0] for line in out.splitlines()]) == (0, ["removed", "removed"])
    with held(lock):
        rc, out, _ = tp("site", "unlock", str(lock), "--force", "--json")
        assert (rc, json.loads(out)["free"]) == (0, True)


@pytest.fixture
def small_doctor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the half second that the file system probe takes."""
    monkeypatch.setattr(doctor_room, "_file_system", lambda root: [])


def _use_slurm(root: StorageRoot, fake: FakeSlurm, **profile: Any) -> None:
    text = root.site_file.read_text()
    text = text.replace(
        "  local: {kind: local}\n", f"  local: {{kind: slurm, bin_dir: {fake.bin}, conf: {fake.conf}}}\n"
    )
    if profile:
        text = text.replace("profiles:\n", f"profiles:\n  extra: {json.dumps(profile)}\n")
    root.site_file.write_text(text)


@pytest.mark.usefixtures("small_doctor")
def test_doctor_judges_this_machine(tp: Run) -> None:
    tp("site", "sync")
    rc, out, _ = tp("doctor", "--json")
    value = json.loads(out)
    names = {c["name"] for c in value["checks"]}
    assert rc == 0
    assert {"site.file", "layout.owners", "login.machine", "login.memlock", "place.root"} <= names
    assert {tuple(sorted(c)) for c in value["checks"]} == {("expect", "found", "mend", "message", "name", "status")}


def test_doctor_tries_the_file_system(tp: Run, root: StorageRoot) -> None:
    tp("site", "sync")
    _, out, _ = tp("doctor")
    assert "ok    store.locks" in out
    assert os.listdir(root.user_state(real_user().name)) == []


@pytest.mark.usefixtures("small_doctor")
def test_doctor_reads_slurm_and_compares_the_profiles(tp: Run, root: StorageRoot, make_fake_slurm: Any) -> None:
    fake = make_fake_slurm(accounting=False, KillWait="5 sec", AccountingStorageType="accounting_storage/none")
    _use_slurm(root, fake, series="h200", gpus_per_node=8, partition="nope")
    tp("site", "sync")
    rc, out, _ = tp("doctor", "--json")
    checks = {c["name"]: c for c in json.loads(out)["checks"]}
    assert checks["slurm.kill_wait"]["message"].startswith("KillWait 5 s")
    assert checks["slurm.accounting"]["status"] == "warn"
    assert checks["profile.extra"]["status"] == "fail"
    assert rc == 1


@pytest.mark.usefixtures("small_doctor")
def test_doctor_says_when_the_controller_is_away(tp: Run, root: StorageRoot, fake_slurm: FakeSlurm) -> None:
    _use_slurm(root, fake_slurm)
    tp("site", "sync")
    fake_slurm.faults("* fail refused")
    rc, out, _ = tp("doctor")
    assert rc == 1
    assert "fail  slurm.controller     E-SLURM-002" in out


@pytest.mark.usefixtures("small_doctor")
def test_p24_doctor_says_when_slurms_commands_are_not_where_the_site_says(tp: Run, root: StorageRoot) -> None:
    text = root.site_file.read_text().replace("{kind: local}", "{kind: slurm, bin_dir: /nonexistent}")
    root.site_file.write_text(text)
    tp("site", "sync")
    rc, out, _ = tp("doctor")
    assert rc == 1
    assert "fail  slurm.commands       E-SLURM-001" in out


@pytest.mark.usefixtures("small_doctor")
def test_probe_without_a_slurm_fleet_is_refused(tp: Run) -> None:
    rc, _, err = tp("doctor", "--probe")
    assert rc == 1
    assert "E-SITE-050" in err
    assert "E-SITE-004" in tp("doctor", "--probe", "--profile", "nope")[2]


def test_doctor_stops_at_a_site_file_that_cannot_be_believed(tp: Run, root: StorageRoot) -> None:
    root.site_file.chmod(0o666)
    rc, out, _ = tp("doctor", "--json")
    names = [c["name"] for c in json.loads(out)["checks"]]
    assert rc == 1
    assert names[0] == "site.file"
    assert not any(n.startswith("login") for n in names)


@pytest.mark.parametrize("command", [["site"], ["site", "init"], ["site", "user", "transfer"], ["doctor"]])
def test_every_command_has_help_and_loads_nothing_heavy_for_it(command: list[str]) -> None:
    code = (
        "import sys; from hpc.cli.main import cli\n"
        f"cli.main({[*command, '-h']!r}, standalone_mode=False)\n"
        "print([m for m in ('pydantic', 'filelock', 'yaml', 'jinja2') if m in sys.modules], file=sys.stderr)"
    )
    import sys

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("Usage:")
    assert done.stderr == "[]\n"
