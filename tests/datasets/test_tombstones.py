"""What its owner removed is known as removed, by whom and when; what was deleted by hand is still found."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tuneplane.contract.layout import StorageRoot

from hpc.cli.registry import _kinds
from hpc.data import volumes
from hpc.data.kinds import DATASET
from hpc.data.push import Pusher, push_record, push_volume
from hpc.data.remove import remove_version
from hpc.data.visibility import PUBLIC, Visibility
from hpc.errors import Refusal
from hpc.plugins.environment_shelf import ENVIRONMENT, environment_kind
from hpc.registry.audit import Options, Report, audit
from hpc.registry.kinds import Kind
from hpc.registry.records import encode_record
from hpc.registry.resolve import resolve
from hpc.registry.seal import seal
from hpc.registry.shelf import Ref, Shelf
from hpc.registry.tombstones import place
from hpc.site.sitefile import Site
from hpc.site.users import User
from tests.datasets.conftest import NOW, as_user, clear
from tests.plugin_use.test_environments import write as write_environment

Put = Callable[..., object]
LATER = "2026-02-04T00:00:00Z"


def judged(by: Pusher) -> Report:
    return audit(by.root, _kinds(), site=by.site, user=by.user, options=Options(), core_version="0.4.0", now=LATER)


def sealed(by: Pusher, now: str = NOW) -> int:
    return seal(by.root, _kinds(), site=by.site, user=by.user, now=now).exit


def said(report: Report) -> list[tuple[str, str, str]]:
    return [(p.level, p.code, p.path) for p in report.problems]


def remove(by: Pusher, version: str = "1.0", kind: Kind = DATASET) -> None:
    shelf = Shelf(by.root, kind, site=by.site)
    remove_version(shelf, Ref(by.user.name, "sums", version), user=by.user, now="2026-02-03T00:00:00Z")


@pytest.fixture
def subject(put: Put, folder: Path, by: Pusher) -> str:
    """A sealed data set."""
    put(folder)
    assert sealed(by) == 0
    return f"datasets/{by.user.name}/sums/1.0"


def test_a_sealed_version_that_its_owner_removed_is_a_note_with_who_when_and_what(by: Pusher, subject: str) -> None:
    digest = resolve(by.root, DATASET, f"{by.user.name}/sums@1.0", for_new=False).digest
    remove(by)
    report = judged(by)
    assert (report.verdict, report.exit, said(report)) == ("verified", 0, [("note", "removed", f"registry/{subject}")])
    text = f"was removed by {by.user.name} at 2026-02-03T00:00:00Z; it was {digest}, sealed at "
    assert report.problems[0].message.startswith(text)
    assert sealed(by) == 0
    with pytest.raises(Refusal, match=f"was removed by {by.user.name} at 2026-02-03") as caught:
        resolve(by.root, DATASET, f"{by.user.name}/sums@1.0", for_new=True)
    assert caught.value.code == "E-REG-002"


def test_a_version_that_was_deleted_by_hand_is_still_tampered(by: Pusher, subject: str) -> None:
    clear(by.root.registry / subject)
    report = judged(by)
    assert (report.exit, said(report)) == (2, [("tampered", "E-REG-014", f"registry/{subject}")])
    assert sealed(by, LATER) == 2


@pytest.mark.parametrize("forged", ["other digest", "other subject", "open to others", "no record", "a link"])
def test_a_tombstone_that_is_not_the_owners_word_on_these_bytes_excuses_nothing(
    by: Pusher, subject: str, forged: str
) -> None:
    clear(by.root.registry / subject)
    path = place(by.root, subject)
    path.parent.mkdir(parents=True)
    body = {
        "schema": "tuneplane-hpc/tombstone/v1", "subject": subject, "digest": "sha256:" + "0" * 64, "digest_v2": "", "removed_record": "",
        "by": by.user.name, "uid": by.user.uid, "at": NOW,
    }  # fmt: skip
    body |= {"subject": "datasets/x/y/1"} if forged == "other subject" else {}
    path.write_bytes(b"{}" if forged == "no record" else encode_record(body))
    path.chmod(0o666 if forged == "open to others" else 0o444)
    if forged == "a link":
        path.rename(by.root.path / "elsewhere")
        path.symlink_to(by.root.path / "elsewhere")
    report = judged(by)
    assert report.exit == 2
    assert ("tampered", "E-REG-014", f"registry/{subject}") in said(report)


def test_the_tombstone_of_another_user_is_not_the_owners(
    scratch: Path, by: Pusher, subject: str, people: tuple[User, User]
) -> None:
    """Nobody else can lay one down: the owner's folder is the owner's."""
    path = place(by.root, subject)
    assert as_user(people[0], lambda: path.parent.parent.mkdir()) == ""
    assert not path.parent.parent.exists()


def test_what_comes_back_and_is_then_deleted_by_hand_is_found(by: Pusher, subject: str, put: Put, folder: Path) -> None:
    remove(by)
    put(folder)
    assert said(judged(by)) == []
    clear(by.root.registry / subject)
    assert judged(by).exit == 2


def test_killed_between_tombstone_and_removal_the_version_stands_and_can_be_removed(
    by: Pusher, subject: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(folder: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("hpc.data.remove.trash", killed)
        with pytest.raises(KeyboardInterrupt):
            remove(by)
    assert said(judged(by)) == []
    assert resolve(by.root, DATASET, f"{by.user.name}/sums@1.0", for_new=True).version == "1.0"
    remove(by)
    assert [p.code for p in judged(by).problems] == ["removed"]


def test_all_kinds_are_alike(by: Pusher, root: StorageRoot, site: Site, tmp_path: Path, folder: Path) -> None:
    push_record(by, environment_kind("sums", "1.0"), "sums", write_environment(tmp_path / "env"), None)
    volumes.create(by, "sums", Visibility(PUBLIC))
    push_volume(by, "sums", folder)
    push_volume(by, "sums", folder)
    assert sealed(by) == 0
    remove(by, kind=ENVIRONMENT)
    assert volumes.remove(by, Ref(by.user.name, "sums")) == ["2", "1"]
    assert not os.path.lexists(root.shelf("volumes") / by.user.name / "sums")
    report = judged(by)
    assert {p.code for p in report.problems} == {"removed"}
    assert sorted(p.path.removeprefix("registry/") for p in report.problems) == [
        f"environments/{by.user.name}/sums/1.0", f"volumes/{by.user.name}/sums/1", f"volumes/{by.user.name}/sums/2",
    ]  # fmt: skip


def test_what_is_no_tombstone_does_not_belong_there(by: Pusher, subject: str) -> None:
    remove(by)
    gone = by.root.registry / "datasets" / by.user.name / ".gone"
    (gone / "stray.json").write_text("{}")
    (gone / "sums" / "9.json").write_text("{}")
    (gone / "sums" / "deep").mkdir()
    found = {(code, path.rpartition("/")[2]) for level, code, path in said(judged(by)) if level == "tampered"}
    assert found == {("E-REG-013", "stray.json"), ("E-REG-012", "9.json"), ("E-REG-013", "deep")}
    shutil.rmtree(gone)
    assert judged(by).exit == 2
