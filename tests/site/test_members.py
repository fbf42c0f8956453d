"""Users of a root: added, retired, transferred; and the records that say so."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest
from tuneplane.contract.layout import StorageRoot

from hpc.errors import Refusal
from hpc.site.acl import ACCESS, GROUP_OBJ, MASK, OTHER, USER, USER_OBJ, Entry, format_acl
from hpc.site.check import check_root
from hpc.site.layout import add_user, init_root, retire_user, transfer_user
from hpc.site.members import ensure_owner, list_members, owner_uid, read_member, require_active
from hpc.site.plan import owner_folders, user_record
from hpc.site.users import User, check_name, find_group, real_user
from tests.site.people import AsUserError, as_user

pytestmark = pytest.mark.two_users


@pytest.fixture
def shared(scratch: Path, people: tuple[User, User], users_group: str) -> StorageRoot:
    """A root of root's, whose shared parents the two people's group may write."""
    return init_root(scratch / "root", name="lab", admin_group="root", users_group=users_group).root


def facts(root: StorageRoot, name: str) -> dict[str, tuple[str, int, int]]:
    """(mode, uid, gid) of a user's folders."""
    out = {}
    for folder in owner_folders(root, name):
        found = folder.path.lstat()
        path = str(folder.path.relative_to(root.path))
        out[path] = (f"{stat.S_IMODE(found.st_mode):04o}", found.st_uid, found.st_gid)
    return out


def code(call: object, *args: object, **kwargs: object) -> str:
    try:
        call(*args, **kwargs)  # type: ignore[operator]
    except Refusal as fault:
        return fault.code
    return ""


def test_root_adds_a_user_with_exact_owners_and_modes(shared: StorageRoot, people: tuple[User, User]) -> None:
    one, _ = people
    before = os.umask(0o000)
    try:
        made = add_user(shared, one.name)
    finally:
        os.umask(before)
    assert len(made) == 8
    assert facts(shared, one.name) == {
        f"registry/plugins/{one.name}": ("0755", one.uid, one.gid),
        f"registry/datasets/{one.name}": ("0755", one.uid, one.gid),
        f"registry/volumes/{one.name}": ("0755", one.uid, one.gid),
        f"registry/models/{one.name}": ("0755", one.uid, one.gid),
        f"registry/environments/{one.name}": ("0755", one.uid, one.gid),
        f"registry/channels/{one.name}": ("0755", one.uid, one.gid),
        f"runs/{one.name}": ("0750", one.uid, one.gid),
        f"state/{one.name}": ("0700", one.uid, one.gid),
    }
    record = json.loads(user_record(shared, one.name).read_text())
    assert (record["uid"], record["state"], record["schema"]) == (one.uid, "active", "tuneplane-hpc/user/v1")
    assert add_user(shared, one.name) == []


def test_runs_take_the_projects_group(shared: StorageRoot, people: tuple[User, User], users_group: str) -> None:
    one, _ = people
    add_user(shared, one.name, group=users_group)
    assert facts(shared, one.name)[f"runs/{one.name}"] == ("2750", one.uid, find_group(users_group))
    assert facts(shared, one.name)[f"state/{one.name}"] == ("0700", one.uid, one.gid)
    assert code(add_user, shared, one.name, group="daemon") == "E-SITE-043"  # not a member


def test_a_user_enrols_themselves_where_the_group_lets_them(shared: StorageRoot, people: tuple[User, User]) -> None:
    one, other = people
    assert len(as_user(one, add_user, shared, one.name)) == 8
    assert not user_record(shared, one.name).exists()  # only admins write records
    assert {f.message for f in check_root(shared) if f.status == "fail"} == set()
    with pytest.raises(AsUserError) as caught:
        as_user(one, add_user, shared, other.name)
    assert caught.value.code == "E-SITE-033"


def test_first_use_makes_the_missing_folders(shared: StorageRoot, people: tuple[User, User]) -> None:
    one, _ = people
    assert len(as_user(one, ensure_owner, shared, one)) == 8
    assert as_user(one, ensure_owner, shared, one) == []


def test_without_a_users_group_only_root_can_add(scratch: Path, people: tuple[User, User]) -> None:
    one, _ = people
    root = init_root(scratch / "root", name="lab", admin_group="root").root
    with pytest.raises(AsUserError) as caught:
        as_user(one, ensure_owner, root, one)
    assert caught.value.code == "E-SITE-022"
    add_user(root, one.name)
    assert as_user(one, ensure_owner, root, one) == []


def test_a_retired_users_records_stay_and_new_ones_are_refused(shared: StorageRoot, people: tuple[User, User]) -> None:
    one, _ = people
    add_user(shared, one.name)
    run = shared.owner_runs(one.name) / "exp" / "run-0001"
    as_user(one, _write, run / "report.json", "{}")
    retire_user(shared, one.name)
    assert (run / "report.json").read_text() == "{}"
    assert as_user(one, _read, run / "report.json") == "{}"
    assert code(require_active, shared, one) == "E-SITE-032"
    with pytest.raises(AsUserError) as caught:
        as_user(one, ensure_owner, shared, one)
    assert caught.value.code == "E-SITE-032"
    with pytest.raises(AsUserError) as denied:
        as_user(one, os.mkdir, shared.owner_runs(one.name) / "new-exp")
    assert denied.value.kind == "PermissionError"
    with pytest.raises(AsUserError) as again:
        as_user(one, add_user, shared, one.name)  # nobody takes themselves back
    assert again.value.code == "E-SITE-032"
    add_user(shared, one.name)
    assert code(require_active, shared, one) == ""
    assert facts(shared, one.name)[f"runs/{one.name}"][0] == "0750"


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _read(path: Path) -> str:
    return path.read_text()


def test_only_admins_retire(shared: StorageRoot, people: tuple[User, User]) -> None:
    one, other = people
    add_user(shared, one.name)
    with pytest.raises(AsUserError) as caught:
        as_user(other, retire_user, shared, one.name)
    assert caught.value.code == "E-SITE-036"
    assert code(require_active, shared, one) == ""


def test_a_number_that_changed_hands_is_found(shared: StorageRoot, people: tuple[User, User]) -> None:
    one, other = people
    add_user(shared, one.name)
    reborn = User(one.name, other.uid, other.gid)
    assert code(require_active, shared, reborn) == "E-SITE-035"


def test_transfer_gives_every_file_and_keeps_the_name(shared: StorageRoot, people: tuple[User, User]) -> None:
    one, other = people
    add_user(shared, one.name)
    add_user(shared, other.name)
    run = shared.owner_runs(one.name) / "exp" / "run-0001"
    as_user(one, _write, run / "work" / "train.py", "x")
    (run / "work" / "train.py").chmod(0o555)
    os.chown(run / "work" / "train.py", one.uid, one.gid)
    assert code(transfer_user, shared, one.name, other.name) == "E-SITE-034"  # not retired yet
    retire_user(shared, one.name)
    done = transfer_user(shared, one.name, other.name)
    assert done.left == []
    tree = [p for f in owner_folders(shared, one.name)[:-1] for p in (f.path, *f.path.rglob("*"))]
    assert {p.lstat().st_uid for p in tree} == {other.uid}
    assert done.changed == len(tree)
    assert stat.S_IMODE((run / "work" / "train.py").stat().st_mode) == 0o555
    assert owner_uid(shared, one.name) == other.uid
    assert shared.user_state(one.name).lstat().st_uid == one.uid
    assert [f.message for f in check_root(shared) if f.status == "fail"] == []
    with pytest.raises(AsUserError) as caught:
        as_user(one, _write, run / "report.json", "forged")
    assert caught.value.kind == "PermissionError"
    as_user(other, os.mkdir, shared.owner_runs(one.name) / "continued")
    assert code(add_user, shared, one.name) == "E-SITE-038"
    assert transfer_user(shared, one.name, other.name).changed == 0  # running again has nothing left to do


def test_an_interrupted_transfer_is_finished_by_running_it_again(
    shared: StorageRoot, people: tuple[User, User], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = people
    add_user(shared, one.name)
    for number in range(5):
        as_user(one, _write, shared.shelf("models") / one.name / f"m{number}", "x")
    retire_user(shared, one.name)
    real, left = os.fchown, 4

    def killed(fd: int, uid: int, gid: int) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise KeyboardInterrupt
        real(fd, uid, gid)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fchown", killed)
        with pytest.raises(KeyboardInterrupt):
            transfer_user(shared, one.name, other.name)
    assert transfer_user(shared, one.name, other.name).left == []
    owners = {p.lstat().st_uid for f in owner_folders(shared, one.name)[:-1] for p in (f.path, *f.path.rglob("*"))}
    assert owners == {other.uid}
    assert [f.message for f in check_root(shared) if f.status == "fail"] == []


def test_transfer_gives_nothing_that_was_not_the_users(shared: StorageRoot, people: tuple[User, User]) -> None:
    one, other = people
    add_user(shared, one.name)
    shelf = shared.shelf("plugins") / one.name
    secret = shared.path.parent / "secret"
    secret.write_text("root's")
    secret.chmod(0o600)
    os.link(secret, shelf / "hard")
    os.symlink(secret, shelf / "soft")
    os.lchown(shelf / "soft", one.uid, one.gid)
    setuid = shelf / "tool"
    setuid.write_text("x")
    os.chown(setuid, one.uid, one.gid)
    setuid.chmod(0o4777)
    entries = [Entry(USER_OBJ, 7), Entry(USER, 7, one.uid), Entry(GROUP_OBJ, 5), Entry(MASK, 7), Entry(OTHER, 5)]
    os.setxattr(shelf, ACCESS, format_acl(entries))
    retire_user(shared, one.name)
    done = transfer_user(shared, one.name, other.name)
    assert done.left == [str(shelf / "hard")]
    assert (secret.stat().st_uid, stat.S_IMODE(secret.stat().st_mode)) == (0, 0o600)
    assert (shelf / "soft").lstat().st_uid == other.uid
    assert (setuid.stat().st_uid, stat.S_IMODE(setuid.stat().st_mode)) == (other.uid, 0o755)
    assert os.listxattr(shelf) == []


def test_transfer_needs_root_and_an_active_heir(shared: StorageRoot, people: tuple[User, User]) -> None:
    one, other = people
    add_user(shared, one.name)
    add_user(shared, other.name)
    retire_user(shared, one.name)
    with pytest.raises(AsUserError) as caught:
        as_user(other, transfer_user, shared, one.name, other.name)
    assert caught.value.code == "E-SITE-033"
    assert code(transfer_user, shared, one.name, one.name) == "E-SITE-038"
    retire_user(shared, other.name)
    assert code(transfer_user, shared, one.name, other.name) == "E-SITE-038"
    assert code(transfer_user, shared, one.name, "no-such-user-here") == "E-SITE-030"


def test_members_are_listed(shared: StorageRoot, people: tuple[User, User]) -> None:
    one, other = people
    add_user(shared, one.name)
    as_user(other, add_user, shared, other.name)
    retire_user(shared, one.name)
    listed = [(m.name, m.uid, m.state) for m in list_members(shared)]
    assert listed == [(one.name, one.uid, "retired"), (other.name, other.uid, "active")]


@pytest.mark.parametrize("text", ["{", "[]", '{"schema": "other"}', '{"schema": "tuneplane-hpc/user/v1"}'])
def test_a_damaged_record_is_a_refusal(shared: StorageRoot, people: tuple[User, User], text: str) -> None:
    user_record(shared, people[0].name).write_text(text)
    assert code(read_member, shared, people[0].name) == "E-SITE-001"


def test_a_record_that_is_not_the_admins_is_a_refusal(shared: StorageRoot, people: tuple[User, User]) -> None:
    one, _ = people
    add_user(shared, one.name)
    os.chown(user_record(shared, one.name), one.uid, one.gid)
    assert code(require_active, shared, one) == "E-SITE-010"


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "DOM\\user", "a b", "user@domain", "-x", "a\n", "x" * 65])
def test_names_that_are_no_path_segments_are_refused(name: str) -> None:
    assert code(check_name, name) == "E-SITE-031"


def test_the_real_user_is_the_kernels(people: tuple[User, User], monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = people
    monkeypatch.setenv("USER", other.name)
    monkeypatch.setenv("LOGNAME", other.name)
    assert as_user(one, real_user) == one


def test_the_service_user_may_read_runs_and_nothing_more(
    scratch: Path, people: tuple[User, User], users_group: str
) -> None:
    one, service = people
    root = init_root(
        scratch / "root", name="lab", admin_group="root", users_group=users_group, service_user=service.name
    ).root
    as_user(one, add_user, root, one.name)
    run = root.owner_runs(one.name) / "exp" / "run-0001"
    as_user(one, _write, run / "report.json", "{}")
    as_user(one, _write, root.user_state(one.name) / "intent.json", "{}")
    assert stat.S_IMODE(root.owner_runs(one.name).stat().st_mode) == 0o750
    assert as_user(service, _read, run / "report.json") == "{}"
    for call, path in ((_read, root.user_state(one.name) / "intent.json"), (os.mkdir, root.owner_runs(one.name) / "x")):
        with pytest.raises(AsUserError) as caught:
            as_user(service, call, path)
        assert caught.value.kind == "PermissionError"
    assert as_user(one, ensure_owner, root, one) == []
    findings = {f.name: f for f in check_root(root)}
    assert [n for n, f in findings.items() if f.status == "fail"] == []
    assert findings["layout.service"].status == "ok"
    os.removexattr(root.owner_runs(one.name), ACCESS)
    warned = {f.name: f for f in check_root(root)}["layout.service"]
    assert (warned.status, warned.found) == ("warn", one.name)


def test_a_tree_made_too_deep_to_follow_is_left_and_said_to_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from hpc.site import transfer

    monkeypatch.setattr(transfer, "MAX_DEPTH", 3)
    (tmp_path / "a/b/c/d").mkdir(parents=True)
    me, done = real_user(), transfer.Transfer()
    transfer._give_tree(tmp_path, me.uid, me, done)
    assert done.left == [str(tmp_path / "a/b/c")]


def test_a_folder_of_an_odd_name_does_not_hide_the_users(tmp_path: Path) -> None:
    root = StorageRoot(tmp_path / "root")
    init_root(root.path, name="lab")
    me = real_user()
    ensure_owner(root, me)
    for name in ("a b", ".x", "\x1b[31m", "no-such-user-of-this-machine"):
        (root.runs / name).mkdir()
    assert [m.name for m in list_members(root)] == [me.name]


@pytest.mark.parametrize(
    "change", [{"transferred_to": {}}, {"state": []}, {"uid": "0"}, {"changed_at": 5}, {"uid": True}]
)
def test_a_members_record_of_another_form_is_refused(tmp_path: Path, change: dict[str, object]) -> None:
    root = StorageRoot(tmp_path / "root")
    init_root(root.path, name="lab")
    me = real_user()
    path = user_record(root, me.name)
    value = {"schema": "x", "name": me.name, "uid": me.uid, "state": "active", "changed_at": "", "transferred_to": ""}
    if path.exists():
        value = json.loads(path.read_text())
    path.write_text(json.dumps({**value, **change}))
    with pytest.raises(Refusal) as refused:
        read_member(root, me.name)
    assert refused.value.code == "E-SITE-001"
