"""Seals add only what is new and never overwrite; people see only bytes that were verified, and what was cut is said to be cut."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
from tuneplane.contract.layout import StorageRoot
from tuneplane.record.digest import digest_bytes

from hpc.errors import Refusal
from hpc.registry.audit import Options, audit
from hpc.registry.inspection import (
    COMPARED_LINES,
    DIFF_LINES,
    PREVIEW_BYTES,
    PREVIEW_LINES,
    compare,
    list_files,
    plain_lines,
    preview,
)
from hpc.registry.publish import Published
from hpc.registry.resolve import Version, resolve
from hpc.registry.seal import Sealed, seal
from hpc.registry.seals import read_seal
from hpc.site.sitefile import Site
from hpc.site.users import User
from tests.registry.conftest import clear
from tests.registry.toys import CORE, LATER, NOW, TOY

Put = Callable[..., Published]
Seal = Callable[..., Sealed]


@pytest.fixture
def do_seal(root: StorageRoot, site: Site, me: User) -> Seal:
    def do(now: str = NOW, over: Callable[[], bool] = lambda: False) -> Sealed:
        return seal(root, [TOY], site=site, user=me, now=now, over=over)

    return do


def test_sealing_again_adds_only_what_is_new(root: StorageRoot, me: User, put: Put, do_seal: Seal) -> None:
    put("1.0.0")
    assert do_seal().new == [f"plugins/{me.name}/toy/1.0.0"]
    put("1.1.0")
    again = do_seal(LATER)
    assert (again.new, again.standing, again.exit) == ([f"plugins/{me.name}/toy/1.1.0"], 1, 0)
    first = read_seal(root, f"plugins/{me.name}/toy/1.0.0")
    assert first is not None
    assert (first.sealed_at, first.uid) == (NOW, me.uid)


def test_a_damaged_version_is_not_sealed(root: StorageRoot, me: User, put: Put, do_seal: Seal) -> None:
    done = put("1.0.0")
    (done.folder / "content/README.md").write_bytes(b"# TOY\n")
    found = do_seal()
    assert (found.new, found.exit) == ([], 2)
    assert [p.code for p in found.problems] == ["E-REG-013"]


def test_a_version_that_changed_since_is_reported_and_its_seal_stays(
    root: StorageRoot, me: User, put: Put, do_seal: Seal
) -> None:
    done = put("1.0.0")
    do_seal()
    path = root.seals / f"plugins/{me.name}/toy/1.0.0.json"
    before = path.read_bytes()
    hidden = root.seals.rename(root.seals.with_name("index2"))
    root.seals.mkdir()
    clear(done.folder)
    put("1.0.0", files={"other": b"x"})
    root.seals.rmdir()
    hidden.rename(root.seals)
    found = do_seal()
    assert [p.code for p in found.problems if p.level == "tampered"] == ["E-REG-014"]
    assert (found.exit, path.read_bytes()) == (2, before)


def test_a_version_that_is_gone_is_reported(put: Put, me: User, do_seal: Seal) -> None:
    done = put("1.0.0")
    do_seal()
    clear(done.folder)
    found = do_seal(LATER)
    assert [(p.path, p.message) for p in found.problems] == [
        (f"registry/plugins/{me.name}/toy/1.0.0", "was sealed and is gone")
    ]


def test_a_seal_that_was_removed_is_not_made_anew(root: StorageRoot, me: User, put: Put, do_seal: Seal) -> None:
    put("1.0.0")
    put("1.1.0")
    do_seal()
    path = root.seals / f"plugins/{me.name}/toy/1.0.0.json"
    path.unlink()
    found = do_seal()
    assert (found.new, found.exit) == ([], 2)
    assert not path.exists()


def test_seals_that_a_killed_run_did_not_enter_are_entered_by_the_next(
    root: StorageRoot, site: Site, me: User, put: Put, do_seal: Seal, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hpc.registry.seal import _Sealer

    put("1.0.0")
    with monkeypatch.context() as patch:
        patch.setattr(_Sealer, "_flush", lambda self: None)
        do_seal()

    def judged() -> list[tuple[str, str]]:
        report = audit(root, [TOY], site=site, user=me, options=Options(), core_version=CORE, now=NOW)
        return [(p.level, p.code) for p in report.problems]

    assert judged() == [("incomplete", "E-REG-016")]
    assert do_seal().new == []
    assert judged() == []


def test_a_run_whose_time_is_up_says_so_and_the_next_goes_on(put: Put, do_seal: Seal) -> None:
    put("1.0.0")
    short = do_seal(over=lambda: True)
    assert (short.new, short.complete, short.exit) == ([], False, 1)
    assert len(do_seal().new) == 1


@pytest.fixture
def get(root: StorageRoot, me: User, put: Put) -> Callable[..., Version]:
    def do(version: str, files: dict[str, bytes]) -> Version:
        put(version, files=files)
        return resolve(root, TOY, f"{me.name}/toy@{version}", for_new=True)

    return do


def test_a_preview_is_bounded_and_says_so(get: Callable[..., Version]) -> None:
    version = get(
        "1.0.0",
        {
            "short.txt": "kurz: ä\n".encode(),
            "long.txt": b"x" * (PREVIEW_BYTES - 1) + "ä".encode() + b"y",
            "lines.txt": b"\n" * (PREVIEW_LINES + 1),
            "data.bin": b"\0\1\2",
            "latin1.txt": "ä".encode("latin-1"),
        },
    )
    short = preview(version, "short.txt")
    assert (short.text, short.cut, short.size) == ("kurz: ä\n", False, 9)
    long = preview(version, "long.txt")
    assert (long.text, long.cut) == ("x" * (PREVIEW_BYTES - 1), True)
    lines = preview(version, "lines.txt")
    assert (lines.text, lines.cut) == ("\n" * PREVIEW_LINES, True)
    for name, data in (("data.bin", b"\0\1\2"), ("latin1.txt", b"\xe4")):
        binary = preview(version, name)
        assert (binary.text, binary.size, binary.sha256) == (None, len(data), digest_bytes(data))
    with pytest.raises(Refusal) as caught:
        preview(version, "../record.json")
    assert caught.value.code == "E-REG-032"


def test_nothing_of_a_damaged_version_is_shown(get: Callable[..., Version]) -> None:
    version = get("1.0.0", {"a.txt": b"aaa", "b.txt": b"bbb"})
    (version.content / "b.txt").write_bytes(b"BBB")
    for call in (lambda: list_files(version), lambda: preview(version, "a.txt"), lambda: compare(version, version)):
        with pytest.raises(Refusal) as caught:
            call()
        assert (caught.value.code, caught.value.field) == ("E-REG-013", str(version.content / "b.txt"))


def test_two_versions_are_compared_file_by_file(get: Callable[..., Version], me: User) -> None:
    base = get("1.0.0", {"same": b"s", "gone": b"g", "text": b"one\ntwo\n", "bin": b"\0a"})
    other = get("1.1.0", {"same": b"s", "new": b"n", "text": b"one\nTWO\n", "bin": b"\0b"})
    found = compare(base, other)
    assert ([f.path for f in found.added], [f.path for f in found.removed], found.cut) == (["new"], ["gone"], False)
    changes = {c.path: c.diff for c in found.modified}
    assert changes["bin"] is None
    assert changes["text"] == (
        f"--- {me.name}/toy@1.0.0/text", f"+++ {me.name}/toy@1.1.0/text", "@@ -1,2 +1,2 @@", " one", "-two", "+TWO",
    )  # fmt: skip
    assert next(iter(plain_lines(found))).startswith("A new  1 bytes  sha256:")


def test_differences_are_cut_and_said_to_be_cut(get: Callable[..., Version]) -> None:
    many = b"".join(b"%d\n" % n for n in range(3000))
    base = get("1.0.0", {"a": many, "b": b"one\n", "huge": b"x\n" * 300_000})
    other = get("1.1.0", {"a": many.replace(b"\n", b"!\n"), "b": b"two\n", "huge": b"y\n" * 300_000})
    found = compare(base, other)
    assert found.cut
    a, b, huge, manifest = found.modified
    assert a.diff is not None
    assert (a.path, len(a.diff), a.cut) == ("a", DIFF_LINES, True)
    assert (b.path, b.diff, b.cut) == ("b", (), True)
    assert (huge.path, huge.diff, huge.cut) == ("huge", None, True)
    assert (manifest.path, manifest.cut) == ("toy.json", True)
    assert sum(line.startswith("…") for line in plain_lines(found)) == 4


def test_a_comparison_looks_at_a_bounded_number_of_lines(get: Callable[..., Version]) -> None:
    lines = 3000
    files = {f"f{n}": b"".join(b"%d\n" % (i % 50) for i in range(lines)) for n in range(5)}
    base = get("1.0.0", files)
    other = get("1.1.0", {name: data + b"more\n" for name, data in files.items()})
    looked = [c for c in compare(base, other).modified if c.diff]
    assert len(looked) <= COMPARED_LINES // (2 * lines) + 1
    assert os.path.isdir(base.content)


def test_root_removes_litter_of_dead_publishers_and_follows_no_link(
    put: Put, do_seal: Seal, root: StorageRoot, me: User
) -> None:
    package = put("1.0.0").folder.parent
    for name in (".old.tmp", ".young.tmp"):
        (package / name / "content").mkdir(parents=True)
    os.utime(package / ".old.tmp", (0, 0))
    (package / ".link.tmp").symlink_to(root.site)
    found = do_seal()
    assert found.swept == [f"registry/plugins/{me.name}/toy/.old.tmp"]
    assert root.site_file.exists()
    assert sorted(os.listdir(package)) == [".link.tmp", ".young.tmp", "1.0.0"]
