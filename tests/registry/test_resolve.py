"""From a reference to a version: which one is meant, what switches say, and what is never resolved."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tuneplane.contract.layout import StorageRoot
from tuneplane.record.digest import digest_file

from hpc.errors import Refusal, Refusals
from hpc.registry.order import newest_first
from hpc.registry.publish import Published
from hpc.registry.resolve import read_file, require_content, resolve, verify_content
from hpc.registry.seal import seal
from hpc.registry.shelf import Shelf, parse_ref
from hpc.registry.switches import recommend, set_family, set_version
from hpc.site.sitefile import Site
from hpc.site.users import User
from tests.registry.toys import LATER, NOW, TOY

Put = Callable[..., Published]


def codes(call: Callable[[], object]) -> set[str]:
    """The codes of what a call is refused with."""
    try:
        call()
    except Refusal as fault:
        return {fault.code}
    except Refusals as faults:
        return {f.code for f in faults.items}
    return set()


def test_versions_are_ordered_by_pep_440_and_else_naturally() -> None:
    given = ["1.10", "1.9", "2.0rc1", "2.0", "nightly-10", "nightly-9", "1.9.post1"]
    assert newest_first(given) == ["2.0", "2.0rc1", "1.10", "1.9.post1", "1.9", "nightly-10", "nightly-9"]


@pytest.mark.parametrize("text", ["toy", "a/b/c", "a/b@", "../a", "a/.switch", "a/b@.x.tmp", "a/b@1/2", "a\n/b", ""])
def test_what_is_no_reference_is_refused(text: str) -> None:
    with pytest.raises(Refusal) as caught:
        parse_ref(text)
    assert caught.value.code == "E-REG-008"


def test_a_pin_then_the_recommended_then_the_newest_enabled(
    root: StorageRoot, site: Site, shelf: Shelf, me: User, put: Put
) -> None:
    for version in ("1.9", "1.10", "1.11"):
        put(version)

    def get(ref: str = f"{me.name}/toy", for_new: bool = True) -> str:
        return resolve(root, TOY, ref, site=site, for_new=for_new).version

    assert get() == "1.11"
    assert get(f"{me.name}/toy@1.9") == "1.9"
    recommend(shelf, me.name, "toy", "1.9", user=me, site=site, now=NOW)
    assert get() == "1.9"
    set_version(shelf, me.name, "toy", "1.9", "disabled", user=me, site=site, now=NOW)
    assert get() == "1.11"
    set_version(shelf, me.name, "toy", "1.11", "disabled", user=me, site=site, now=NOW)
    assert get() == "1.10"


def test_disabled_means_no_new_references_and_locks_still_run(
    root: StorageRoot, site: Site, shelf: Shelf, me: User, put: Put
) -> None:
    put("1.0.0")
    set_family(shelf, me.name, "toy", "disabled", user=me, site=site, now=NOW)
    ref = f"{me.name}/toy@1.0.0"
    with pytest.raises(Refusal) as caught:
        resolve(root, TOY, ref, site=site, for_new=True)
    assert (caught.value.code, caught.value.message) == (
        "E-REG-010",
        f"{ref} is disabled by its owner (the whole family)",
    )
    assert codes(lambda: resolve(root, TOY, f"{me.name}/toy", site=site, for_new=True)) == {"E-REG-011"}
    assert str(resolve(root, TOY, ref, site=site, for_new=False)) == ref
    put("1.1.0")  # the family's switch survives a new version
    assert codes(lambda: resolve(root, TOY, f"{me.name}/toy", site=site, for_new=True)) == {"E-REG-011"}


def test_an_import_starts_disabled_until_somebody_says_otherwise(
    root: StorageRoot, site: Site, shelf: Shelf, me: User, put: Put
) -> None:
    put("1.0.0", starts="disabled")
    ref = f"{me.name}/toy@1.0.0"
    assert codes(lambda: resolve(root, TOY, ref, site=site, for_new=True)) == {"E-REG-010"}
    set_version(shelf, me.name, "toy", "1.0.0", "enabled", user=me, site=site, now=NOW)
    assert str(resolve(root, TOY, ref, site=site, for_new=True)) == ref


def test_what_is_not_there_is_told_with_what_is(root: StorageRoot, me: User, put: Put) -> None:
    put("1.0.0")
    with pytest.raises(Refusal) as caught:
        resolve(root, TOY, f"{me.name}/toy@2.0.0", for_new=True)
    assert (caught.value.code, caught.value.allowed) == ("E-REG-002", "1.0.0")
    assert codes(lambda: resolve(root, TOY, f"{me.name}/none", for_new=True)) == {"E-REG-002"}


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda v: (v / "record.json").chmod(0o644), "E-REG-015"),
        (lambda v: v.chmod(0o755), "E-REG-015"),
        (lambda v: (v / "content/toy.json").chmod(0o644), "E-REG-015"),
        (lambda v: (v / "content/extra.pyc").write_bytes(b"planted"), "E-REG-013"),
        (lambda v: (v / "content/README.md").unlink(), "E-REG-013"),
        (lambda v: (v / "content/README.md").write_bytes(b"longer than before"), "E-REG-013"),
        (lambda v: os.link(v / "content/README.md", v.parent / ".x.tmp"), "E-REG-013"),
    ],
)
def test_an_owner_who_edits_a_published_version_is_refused(
    root: StorageRoot, me: User, put: Put, change: Callable[[Path], object], code: str
) -> None:
    done = put("1.0.0")
    change(done.folder)
    assert code in codes(lambda: resolve(root, TOY, f"{me.name}/toy@1.0.0", for_new=False))


def test_a_byte_of_the_same_size_is_found_by_hashing_with_both_digests(root: StorageRoot, me: User, put: Put) -> None:
    done = put("1.0.0")
    before = digest_file(done.folder / "content/README.md")
    (done.folder / "content/README.md").write_bytes(b"# top\n")
    after = digest_file(done.folder / "content/README.md")
    version = resolve(root, TOY, f"{me.name}/toy@1.0.0", for_new=False)
    (problem,) = verify_content(version)
    assert problem.path == str(done.folder / "content/README.md")
    assert problem.message == f"has other bytes: recorded {before}, found {after}"
    with pytest.raises(Refusal) as caught:
        require_content(version)
    assert caught.value.code == "E-REG-013"
    with pytest.raises(Refusal) as caught:
        read_file(version, "README.md")
    assert (caught.value.code, caught.value.found, caught.value.allowed) == ("E-REG-013", after, before)
    assert read_file(version, "lib/toy.py") == b"print('toy')\n"


def test_deleting_and_publishing_again_is_refused_once_sealed(
    root: StorageRoot, site: Site, me: User, put: Put
) -> None:
    from tests.registry.conftest import clear

    first = put("1.0.0")
    sealed = seal(root, [TOY], site=site, user=me, now=NOW)
    assert sealed.new == [f"plugins/{me.name}/toy/1.0.0"]
    clear(first.folder)
    assert codes(lambda: put("1.0.0", files={"other": b"x"})) == {"E-REG-001"}
    with pytest.raises(Refusal) as caught:
        resolve(root, TOY, f"{me.name}/toy@1.0.0", for_new=False)
    assert "is gone" in caught.value.message
    again = put("1.0.0", now=LATER)  # the same bytes may come back, as the same record
    assert again.restored
    assert resolve(root, TOY, f"{me.name}/toy@1.0.0", for_new=False).record["published"]["at"] == NOW


def test_a_forged_record_is_refused_once_sealed(
    root: StorageRoot, site: Site, me: User, put: Put, scratch: Path
) -> None:
    from tests.registry.conftest import clear

    real = put("1.0.0")
    seal(root, [TOY], site=site, user=me, now=NOW)
    seals = scratch / "kept"
    root.seals.rename(seals)
    root.seals.mkdir()
    clear(real.folder)
    put("1.0.0", files={"other": b"x"})
    root.seals.rmdir()
    seals.rename(root.seals)
    assert codes(lambda: resolve(root, TOY, f"{me.name}/toy@1.0.0", for_new=False)) == {"E-REG-014"}


def test_resolving_a_pin_loads_nothing_heavy(root: StorageRoot, me: User, put: Put) -> None:
    put("1.0.0")
    put("1.1.0")
    code = """
import sys
from pathlib import Path
from tuneplane.contract.layout import StorageRoot
from hpc.registry.kinds import Kind
from hpc.registry.resolve import resolve
kind = Kind("plugin", "plugins", None, 1, 1)
print(resolve(StorageRoot(Path(sys.argv[1])), kind, sys.argv[2], for_new=True))
print(sorted({m.partition(".")[0] for m in sys.modules} & {"pydantic", "jinja2", "packaging", "yaml", "filelock", "subprocess", "click"}))
"""

    def loaded(ref: str) -> list[str]:
        words = [sys.executable, "-c", code, str(root.path), ref]
        return subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()

    assert loaded(f"{me.name}/toy@1.0.0") == [f"{me.name}/toy@1.0.0", "[]"]
    assert loaded(f"{me.name}/toy") == [f"{me.name}/toy@1.1.0", "['packaging']"]
