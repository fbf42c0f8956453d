"""The damage matrix: each kind of damage to each kind of record is found and named, and none of it stops the audit."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from tuneplane.contract.layout import StorageRoot

from hpc.registry.activation import activate
from hpc.registry.audit import Options, Report, audit
from hpc.registry.publish import Published
from hpc.registry.seal import seal
from hpc.registry.shelf import Shelf
from hpc.registry.switches import ADMIN, OWNER, set_family, set_version
from hpc.site.sitefile import Site
from hpc.site.users import User
from tests.registry.conftest import clear
from tests.registry.toys import CORE, LATER, NOW, TOY

Put = Callable[..., Published]
STRANGER = 54321


@dataclass
class World:
    """A sealed registry with two of everything, so that each record has another valid one to be swapped with."""

    root: StorageRoot
    site: Site
    me: User

    def audit(self, *, deep: bool = True) -> Report:
        return audit(
            self.root, [TOY], site=self.site, user=self.me, options=Options(deep=deep), core_version=CORE, now=LATER,
            check_pack=check_pack,
        )  # fmt: skip

    def path(self, record: str, which: int = 0) -> Path:
        """One of two records of a kind; 1 is the other valid one."""
        package = self.root.shelf("plugins") / self.me.name / "toy"
        version = package / ("1.0.0", "1.1.0")[which]
        return {
            "content file": version / "content/README.md",
            "record.json": version / "record.json",
            "owner switch": package / f".switch/{2 - which}.json",
            "admin switch": self.root.activation / f"switches/plugin/{self.me.name}/toy/{2 - which}.json",
            "activation": self.root.activation / f"policy/playbook/{2 - which}.json",
            "seal": self.root.seals / f"plugins/{self.me.name}/toy/{('1.0.0', '1.1.0')[which]}.json",
            "recipe pack": self.root.recipes / f"fw/.packs/m@{(1, 2)[which]}.0-00/recipe.yaml",
        }[record]


def check_pack(folder: Path, name: str) -> str:
    """Stands in for the catalogue: a toy pack names its own version."""
    text = (folder / "recipe.yaml").read_text()
    return "" if not name or text == f"pack {name}\n" else f"holds {text!r}"


@pytest.fixture
def world(root: StorageRoot, site: Site, me: User, shelf: Shelf, put: Put) -> World:
    one = put("1.0.0", files={"README.md": b"version 1.0.0\n", "lib/a.py": b"a"})
    two = put("1.1.0", files={"README.md": b"version 1.1.0\n", "lib/a.py": b"a"})
    for side in (OWNER, ADMIN):
        set_family(shelf, me.name, "toy", "enabled", user=me, site=site, now=NOW, side=side)
        set_version(shelf, me.name, "toy", "1.0.0", "enabled", user=me, site=site, now=NOW, side=side)
    for version, published in (("1.0.0", one), ("1.1.0", two)):
        activate(root, site, me, "playbook", f"{me.name}/toy", version, published.digest, now=NOW)
    for number in (1, 2):
        pack = root.recipes / f"fw/.packs/m@{number}.0-00"
        pack.mkdir(parents=True)
        (pack / "recipe.yaml").write_text(f"pack {pack.name}\n")
        (pack / "template").mkdir()
    (root.recipes / "fw/m").symlink_to(".packs/m@2.0-00")
    assert seal(root, [TOY], site=site, user=me, now=NOW).exit == 0
    return World(root, site, me)


def found(report: Report) -> set[tuple[str, str]]:
    return {(p.level, p.path) for p in report.problems}


def test_a_whole_registry_is_verified(world: World) -> None:
    report = world.audit()
    assert report.problems == []
    assert (report.verdict, report.exit) == ("verified", 0)
    tally = report.tally
    assert (tally.packages, tally.versions, tally.packs, tally.generations, tally.seals) == (1, 2, 2, 6, 10)
    assert tally.hashed_versions == 2


RECORDS = ["content file", "record.json", "owner switch", "admin switch", "activation", "seal", "recipe pack"]


def loosen(path: Path) -> None:
    path.parent.chmod(0o755)
    if path.exists():
        path.chmod(0o644)


def tighten(world: World, record: str, path: Path) -> None:
    """Give back the modes that a careful attacker gives back."""
    if record == "recipe pack":
        return
    if path.exists():
        path.chmod(0o444)
    if record in ("content file", "record.json"):
        path.parent.chmod(0o555)


def missing(path: Path, other: Path) -> None:
    path.unlink()


def truncated(path: Path, other: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def flipped(path: Path, other: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def swapped(path: Path, other: Path) -> None:
    mine, theirs = path.read_bytes(), other.read_bytes()
    path.write_bytes(theirs)
    other.chmod(0o644)
    other.write_bytes(mine)
    other.chmod(path.stat().st_mode & 0o777 if "recipes" in path.parts else 0o444)


def extra(path: Path, other: Path) -> None:
    (path.parent / "extra.py").write_bytes(b"import os\n")


def wrong_owner(path: Path, other: Path) -> None:
    os.chown(path, STRANGER, -1)


def wrong_mode(path: Path, other: Path) -> None:
    path.chmod(0o666)


DAMAGES = [missing, truncated, flipped, swapped, extra, wrong_owner, wrong_mode]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda d: d.__name__)
@pytest.mark.parametrize("record", RECORDS)
def test_damage_is_found_and_named(world: World, record: str, damage: Callable[[Path, Path], None]) -> None:
    path, other = world.path(record), world.path(record, 1)
    loosen(path)
    damage(path, other)
    if damage is not wrong_mode:
        tighten(world, record, path)
    report = world.audit()
    assert (report.verdict, report.exit) == ("tampered", 2)
    named = path.parent / "extra.py" if damage is extra else path
    where = str(named.relative_to(world.root.path))
    if record == "recipe pack" and damage in (missing, truncated, flipped, swapped, extra):
        where = str(path.parent.relative_to(world.root.path))  # a pack has one digest
    assert ("tampered", where) in found(report)
    if damage is swapped and record != "recipe pack":
        assert ("tampered", str(other.relative_to(world.root.path))) in found(report)


@pytest.mark.parametrize("record", ["owner switch", "admin switch", "activation"])
def test_an_older_generation_put_in_force_is_found(world: World, record: str) -> None:
    newest = world.path(record)
    newest.unlink()
    report = world.audit(deep=False)
    assert report.exit == 2
    assert found(report) == {("tampered", str(newest.relative_to(world.root.path)))}
    shutil.copyfile(world.path(record, 1), newest)
    newest.chmod(0o444)
    assert ("tampered", str(newest.relative_to(world.root.path))) in found(world.audit(deep=False))


@pytest.mark.parametrize("keep", ["record.json", "all"])
def test_an_older_version_in_the_place_of_a_newer_is_found(world: World, keep: str) -> None:
    old, new = world.path("record.json").parent, world.path("record.json", 1).parent
    if keep == "all":
        clear(new)
        shutil.copytree(old, new)
    else:
        clear(new / "content")
        new.chmod(0o755)
        shutil.copytree(old / "content", new / "content")
        new.chmod(0o555)
    report = world.audit()
    assert report.exit == 2
    assert all(str(new.relative_to(world.root.path)) in p.path for p in report.problems if p.level == "tampered")


def test_an_older_seal_is_found(world: World) -> None:
    """A seal of today put back to another digest, with a digest of its own that fits."""
    from dataclasses import replace

    from hpc.registry.seals import read_seal

    real = read_seal(world.root, f"plugins/{world.me.name}/toy/1.0.0")
    assert real is not None
    path = world.path("seal")
    path.chmod(0o644)
    path.write_bytes(replace(real, sealed_at="2020-01-01T00:00:00.000000Z").encode())
    path.chmod(0o444)
    report = world.audit(deep=False)
    assert found(report) == {("tampered", str(path.relative_to(world.root.path)))}


def test_a_deleted_version_is_found_by_its_seal(world: World) -> None:
    clear(world.path("record.json").parent)
    report = world.audit(deep=False)
    assert found(report) == {("tampered", f"registry/plugins/{world.me.name}/toy/1.0.0")}


def test_a_deleted_package_is_found_by_its_seals(world: World) -> None:
    clear(world.path("record.json").parents[1])
    report = world.audit(deep=False)
    base = f"registry/plugins/{world.me.name}/toy"
    policy = "registry/activation/policy/playbook"  # of which it was the selection
    assert {policy, f"{base}/1.0.0", f"{base}/1.1.0", f"{base}/.switch/1.json", f"{base}/.switch/2.json"} == {
        p for _, p in found(report)
    }


def test_every_byte_of_a_record_is_covered(world: World) -> None:
    """Each single byte of a record is flipped in turn; the quick pass finds every one."""
    path = world.path("record.json")
    loosen(path)
    data = path.read_bytes()
    for place in range(len(data)):
        path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        path.chmod(0o444)
        path.parent.chmod(0o555)
        problems = [p for p in world.audit(deep=False).problems if p.level == "tampered"]
        assert [p.path for p in problems] == [str(path.relative_to(world.root.path))], place
        path.parent.chmod(0o755)
        path.chmod(0o644)


@pytest.mark.parametrize(
    ("make", "where"),
    [
        (lambda r: (r.registry / "strange").mkdir(), "registry/strange"),
        (lambda r: (r.shelf("plugins") / "-bad").mkdir(), "registry/plugins/-bad"),
        (lambda r: (r.activation / "policy/playbook/notes.txt").write_text("x"), "registry/activation/policy/playbook/notes.txt"),
        (lambda r: (r.activation / "other").mkdir(), "registry/activation/other"),
        (lambda r: (r.seals / "stray.json").write_text("x"), "registry/seals/stray.json"),
        (lambda r: (r.recipes / "fw/x").symlink_to("/etc"), "registry/recipes/fw/x"),
        (lambda r: (r.recipes / "stray").write_text("x"), "registry/recipes/stray"),
    ],
)  # fmt: skip
def test_what_does_not_belong_is_named(world: World, make: Callable[[StorageRoot], object], where: str) -> None:
    make(world.root)
    report = world.audit(deep=False)
    assert ("tampered", where) in found(report)


def test_a_squatted_owner_folder_is_reported_and_a_nameless_one_cannot_be_judged(world: World) -> None:
    squatted = world.root.shelf("plugins") / "daemon"
    squatted.mkdir()
    os.chown(squatted, STRANGER, -1)
    (world.root.shelf("plugins") / "no-such-account").mkdir()
    assert found(world.audit(deep=False)) == {
        ("tampered", "registry/plugins/daemon"),
        ("incomplete", "registry/plugins/no-such-account"),
    }


def test_litter_is_a_note(world: World) -> None:
    package = world.path("record.json").parents[1]
    (package / ".2.0.0.0123456789ab.tmp/content").mkdir(parents=True)
    report = world.audit(deep=False)
    assert (report.verdict, report.exit) == ("verified", 0)
    assert found(report) == {("note", f"registry/plugins/{world.me.name}/toy/.2.0.0.0123456789ab.tmp")}


@pytest.mark.parametrize("replaced", [False, True])
def test_a_policy_in_force_that_is_gone_or_other_is_named_before_any_seal(
    root: StorageRoot, site: Site, me: User, put: Put, replaced: bool
) -> None:
    first = put("1.0.0")
    activate(root, site, me, "playbook", f"{me.name}/toy", "1.0.0", first.digest, now=NOW)
    world = World(root, site, me)
    assert world.audit().exit == 0
    clear(first.folder)
    if replaced:
        put("1.0.0", files={"README.md": b"other\n"})
    found = world.audit()
    assert found.exit == 2
    assert [(p.code, p.path) for p in found.problems] == [("E-REG-012", "registry/activation/policy/playbook")]
    assert ("other bytes" if replaced else "is not there") in found.problems[0].message
