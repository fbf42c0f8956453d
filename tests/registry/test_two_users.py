"""Two real Unix users and root on one shared registry: whose namespace it is, by the registry and by the file system."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tuneplane.contract.layout import StorageRoot

from hpc.errors import Refusal
from hpc.registry.activation import activate
from hpc.registry.audit import Options, audit
from hpc.registry.publish import Published, publish
from hpc.registry.resolve import resolve
from hpc.registry.seal import seal
from hpc.registry.shelf import Shelf
from hpc.registry.switches import recommend, set_family
from hpc.site.layout import add_user, init_root
from hpc.site.sitefile import load_site
from hpc.site.users import User, real_user
from tests.registry.conftest import GROUP, clear
from tests.registry.toys import CORE, NOW, TOY, write_toy
from tests.site.people import AsUserError, as_user, su

pytestmark = pytest.mark.two_users
DIGEST = "sha256:" + "a" * 64


@pytest.fixture
def shared(people: tuple[User, User]) -> Iterator[StorageRoot]:
    """A root with both people enrolled and the first as the service user."""
    scratch = Path(tempfile.mkdtemp(prefix="tp-registry-two-"))
    scratch.chmod(0o755)
    root = init_root(
        scratch / "root", name="lab", admin_group="root", users_group=GROUP, service_user=people[1].name
    ).root
    for user in people:
        add_user(root, user.name)
    yield root
    clear(scratch)


def put(root: StorageRoot, user: User, version: str = "1.0.0", owner: str = "", **more: object) -> Published:
    """Publish a toy, as whoever runs this."""
    source = write_toy(Path(tempfile.mkdtemp(prefix="tp-toy-")), version=version, **more)  # type: ignore[arg-type]
    try:
        return publish(
            root, TOY, source, user=user, owner=owner or user.name, site=load_site(root), method="publish", core_version=CORE, now=NOW
        )  # fmt: skip
    finally:
        shutil.rmtree(source)


def as_whom(root: StorageRoot, user: User, call: str, *words: object) -> str:
    """The code that a call as `user` is refused with, or ""."""
    calls = {"put": put, "recommend": _recommend, "family": _family, "activate": _activate, "seal": _seal}
    try:
        as_user(user, calls[call], root, user, *words)
    except AsUserError as refused:
        return refused.code
    return ""


def _recommend(root: StorageRoot, user: User, owner: str) -> None:
    site = load_site(root)
    recommend(Shelf(root, TOY, site=site), owner, "toy", "1.0.0", user=user, site=site, now=NOW)


def _family(root: StorageRoot, user: User, owner: str, side: str = "") -> None:
    site = load_site(root)
    set_family(Shelf(root, TOY, site=site), owner, "toy", "disabled", user=user, site=site, now=NOW, side=side)


def _activate(root: StorageRoot, user: User, owner: str) -> None:
    activate(root, load_site(root), user, "playbook", f"{owner}/toy", "1.0.0", DIGEST, now=NOW)


def _seal(root: StorageRoot, user: User) -> None:
    assert seal(root, [TOY], site=load_site(root), user=user, now=NOW).exit == 0


def test_nobody_publishes_into_anothers_namespace(shared: StorageRoot, people: tuple[User, User]) -> None:
    one, other = people
    done = as_user(one, put, shared, one)
    assert done.folder.stat().st_uid == one.uid
    assert as_whom(shared, other, "put", "1.0.0", one.name) == "E-REG-003"
    assert as_whom(shared, other, "put", "1.0.0", "tuneplane") == "E-REG-003"
    for script in (
        f"mkdir {done.folder.parent}/2.0.0",
        f"mkdir {done.folder.parent.parent}/mine",
        f"echo x > {done.folder}/content/README.md",
        f"chmod 755 {done.folder}",
        f"mv {done.folder} {done.folder}x",
        f"rm -rf {done.folder.parent} && ! test -e {done.folder.parent}",
    ):
        assert su(other, script).returncode != 0, script
    assert str(resolve(shared, TOY, f"{one.name}/toy", for_new=True)) == f"{one.name}/toy@1.0.0"


def test_a_version_made_by_anybody_else_is_not_believed(shared: StorageRoot, people: tuple[User, User]) -> None:
    one, other = people
    done = as_user(one, put, shared, one)
    clear(done.folder)
    put(shared, real_user(), owner=one.name)  # root gives it to its owner
    assert resolve(shared, TOY, f"{one.name}/toy@1.0.0", for_new=True).folder.stat().st_uid == one.uid
    os.chown(done.folder / "content/README.md", other.uid, -1)
    with pytest.raises(Refusal) as caught:
        resolve(shared, TOY, f"{one.name}/toy@1.0.0", for_new=True)
    assert caught.value.code == "E-REG-015"


def test_root_gives_every_part_to_the_owner_or_leaves_nothing(
    shared: StorageRoot, people: tuple[User, User], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = people[0]
    done = put(shared, real_user(), owner=one.name)
    assert {p.lstat().st_uid for p in [done.folder, *done.folder.rglob("*")]} == {one.uid}
    report = audit(
        shared, [TOY], site=load_site(shared), user=real_user(), options=Options(deep=True), core_version=CORE, now=NOW
    )
    assert report.problems == []

    def squashed(*args: object, **kwargs: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    with monkeypatch.context() as patch:
        patch.setattr(os, "chown", squashed)
        patch.setattr(os, "fchown", squashed)
        for version, more in (("2.0.0", {}), ("1.0.0", {"name": "fresh"})):
            with pytest.raises(Refusal) as caught:
                put(shared, real_user(), version, owner=one.name, **more)  # type: ignore[arg-type]
            assert caught.value.code == "E-REG-006"
    assert os.listdir(done.folder.parent) == ["1.0.0"]
    assert os.listdir(done.folder.parent.parent) == ["toy"]


def test_words_for_the_whole_platform_are_the_admins(shared: StorageRoot, people: tuple[User, User]) -> None:
    one, other = people
    as_user(one, put, shared, one)
    for call in ("recommend", "activate"):
        assert as_whom(shared, one, call, one.name) == "E-REG-007"
    assert as_whom(shared, other, "family", one.name) == "E-REG-007"
    assert as_whom(shared, one, "family", one.name, "admin") == "E-REG-007"
    assert as_whom(shared, other, "family", one.name, "owner") == "E-REG-003"
    for script in ("mkdir policy", "mkdir -p switches/plugin", "echo x > x"):
        assert su(one, f"cd {shared.activation} && {script}").returncode != 0
    assert as_whom(shared, one, "family", one.name) == ""
    with pytest.raises(Refusal) as caught:
        resolve(shared, TOY, f"{one.name}/toy", for_new=True)
    assert caught.value.code == "E-REG-011"
    assert su(other, f"echo x > {shared.shelf('plugins')}/{one.name}/toy/.switch/2.json").returncode != 0


def test_policy_is_published_by_admins_only(shared: StorageRoot, people: tuple[User, User]) -> None:
    one = people[0]
    with pytest.raises(AsUserError) as caught:
        as_user(one, put, shared, one, policy=True)
    assert caught.value.code == "E-REG-007"
    assert put(shared, real_user(), owner=one.name, policy=True).id == f"{one.name}/toy"


def test_the_service_user_seals_and_the_owner_cannot_undo_it(shared: StorageRoot, people: tuple[User, User]) -> None:
    one, service = people
    done = as_user(one, put, shared, one)
    assert as_whom(shared, one, "seal") == "E-REG-031"
    assert as_whom(shared, service, "seal") == ""
    sealed = shared.seals / f"plugins/{one.name}/toy/1.0.0.json"
    assert sealed.stat().st_uid == service.uid
    for script in (
        f"rm -f {sealed} && ! test -e {sealed}",
        f"echo x > {sealed}",
        f"mv {sealed.parent} /tmp/x-{one.name}",
    ):
        assert su(one, script).returncode != 0, script
    assert su(one, f"chmod -R u+w {done.folder} && rm -rf {done.folder}").returncode == 0
    with pytest.raises(AsUserError) as caught:
        as_user(one, put, shared, one, files={"other": b"x"})
    assert caught.value.code == "E-REG-001"


def test_root_seals_for_the_service_user(shared: StorageRoot, people: tuple[User, User]) -> None:
    one, service = people
    as_user(one, put, shared, one)
    _seal(shared, real_user())
    owners = {p.lstat().st_uid for p in shared.seals.rglob("*")}
    assert owners == {service.uid}
    as_user(one, put, shared, one, "1.1.0")
    assert as_whom(shared, service, "seal") == ""


def test_p62_an_audit_by_the_service_user_needs_no_root_and_calls_nothing_tampered(
    shared: StorageRoot, people: tuple[User, User]
) -> None:
    one, service = people
    done = as_user(one, put, shared, one)
    assert as_user(service, _verdict, shared, service) == ("verified", 0, [])
    assert su(one, f"chmod 700 {done.folder.parent}").returncode == 0
    verdict, code, problems = as_user(service, _verdict, shared, service)
    assert (verdict, code) == ("incomplete", 1)
    assert problems == [("incomplete", "E-STORE-021", f"registry/plugins/{one.name}/toy")]


def _verdict(root: StorageRoot, user: User) -> tuple[str, int, list[tuple[str, str, str]]]:
    report = audit(root, [TOY], site=load_site(root), user=user, options=Options(deep=True), core_version=CORE, now=NOW)
    return report.verdict, report.exit, [(p.level, p.code, p.path) for p in report.problems if p.level != "note"]


def test_root_publishing_for_another_follows_no_link_of_theirs(shared: StorageRoot, people: tuple[User, User]) -> None:
    """The owner puts a link in the place of the temporary folder while root writes: nothing is written or given away elsewhere."""
    from hpc.registry import storing

    one = people[0]
    as_user(one, put, shared, one)
    target = shared.path / "victim"
    target.mkdir()
    (target / "secret").write_text("root's")
    real = storing._open_own

    def exchanged(temp: Path) -> int:
        temp.rmdir()
        temp.symlink_to(target)
        return real(temp)

    storing._open_own = exchanged
    try:
        with pytest.raises(Refusal):
            put(shared, real_user(), "2.0.0", owner=one.name)
    finally:
        storing._open_own = real
    assert (os.listdir(target), (target / "secret").stat().st_uid, target.stat().st_uid) == (["secret"], 0, 0)
    shutil.rmtree(target)
