"""The log on disk: it grows like a naive tree, survives a crash at every step, and every damage is named."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path

import pytest
from evidencelab import Lab, naive_root
from hypothesis import given, settings
from hypothesis import strategies as st
from tuneplane.record.digest import digest_file

from hpc.errors import Refusal
from hpc.evidence import log as log_module
from hpc.evidence import merkle
from hpc.evidence.log import init_log, read_head, require_root, signer_key, tree
from hpc.evidence.note import Checkpoint, sign_checkpoint
from hpc.evidence.tiles import TileError, Tiles, decode_bundle, encode_bundle, grown, tile_path
from hpc.evidence.verify import check_log
from hpc.evidence.witness import whole_tree


def entries(count: int, start: int = 0) -> list[bytes]:
    return [f"entry {n}".encode() for n in range(start, start + count)]


def files(lab: Lab) -> dict[str, bytes]:
    return {str(p.relative_to(lab.root.log)): p.read_bytes() for p in sorted(lab.root.log.rglob("*")) if p.is_file()}


@pytest.mark.parametrize(
    ("index", "width", "path"),
    [(0, 256, "tile/0/000"), (5, 3, "tile/0/005.p/3"), (999, 256, "tile/0/999"), (1000, 256, "tile/0/x001/000"),
     (1234067, 256, "tile/0/x001/x234/067"), (1234067, 7, "tile/0/x001/x234/067.p/7")],
)  # fmt: skip
def test_paths_are_those_of_the_specification(index: int, width: int, path: str) -> None:
    assert tile_path(0, index, width) == path
    assert tile_path("entries", index, width) == path.replace("/0/", "/entries/")


@given(st.lists(st.binary(max_size=300), max_size=8))
def test_bundles_come_back_and_a_cut_one_does_not(items: list[bytes]) -> None:
    data = encode_bundle(items)
    assert decode_bundle(data) == items
    if items:
        with pytest.raises(TileError, match="is cut"):
            decode_bundle(data[:-1])


def test_an_entry_that_is_too_long_is_refused() -> None:
    assert decode_bundle(encode_bundle([b"x" * 65535])) == [b"x" * 65535]
    with pytest.raises(ValueError, match="65536 bytes"):
        encode_bundle([b"x" * 65536])


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(1, 300), min_size=1, max_size=6))
def test_a_tree_grows_to_the_naive_root_whatever_the_steps(steps: list[int]) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as name:
        folder, size = Path(name), 0
        for step in steps:
            for path, data in grown(Tiles(folder, size), entries(step, size)):
                (folder / path).parent.mkdir(parents=True, exist_ok=True)
                (folder / path).write_bytes(data)
            size += step
        tiles = Tiles(folder, size)
        assert tiles.check() == []
        assert merkle.root(tiles.node, size) == naive_root(entries(size))
        assert [e for _, e in tiles.entries()] == entries(size)


def test_a_tree_of_seventy_thousand_has_the_tiles_of_the_specification(tmp_path: Path) -> None:
    made = dict(grown(Tiles(tmp_path, 0), entries(70_000)))
    assert sum(p.startswith("tile/0/") and ".p" not in p for p in made) == 273
    partial = {p: len(d) // 32 for p, d in made.items() if ".p" in p and "entries" not in p}
    assert partial == {"tile/0/273.p/112": 112, "tile/1/001.p/17": 17, "tile/2/000.p/1": 1}
    assert len(made["tile/1/000"]) == 8192


def test_the_golden_log(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same entries and key give the same files, byte for byte; an independent reader of tlog-tiles has verified these."""
    monkeypatch.setattr(log_module.secrets, "token_bytes", lambda n: bytes(range(n)))
    (lab.root.keys / "log.key").unlink()
    shutil.rmtree(lab.root.log)
    lab.root.log.mkdir()
    lab.vkey = init_log(lab.root, "lab/tp-log", uid=os.getuid())
    assert (lab.root.log / "checkpoint").read_text() == EMPTY
    for step in (3, 253, 44):
        lab.append(entries(step, lab.head().checkpoint.size))
    assert (lab.root.log / "checkpoint").read_text() == GOLDEN
    assert {n: digest_file(lab.root.log / n)[7:19] for n in files(lab) if n.startswith("tile/")} == TILES
    assert all(p.stat().st_mode & 0o777 == 0o444 for p in (lab.root.log / "tile").rglob("*") if p.is_file())


EMPTY = (
    "lab/tp-log\n"
    "0\n"
    "47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=\n"
    "\n"
    "— lab/tp-log 9VdhA8uFuHzK2W35U+50OpBR2exkT98mKwA6GZAtwOrOB2QUvFWQSwJciaJyqedMlGVwH2jiJXmbom5PTRD9eQKtBQY=\n"
)
GOLDEN = (
    "lab/tp-log\n"
    "300\n"
    "yjk9Apa+xeC43KuYO9H7fRRh9RLnJny4ljGtJv1m2Eg=\n"
    "\n"
    "— lab/tp-log 9VdhA2R+T7C5X4L1/DqKAdEY/7az9o2UJe9S6c26fjGUiDOysEhw2zjO/qz2ph1pdETad9/c2ojKCd784F9R/F07Bgs=\n"
)
TILES = {
    "tile/0/000": "b0f6ca2ff425",
    "tile/0/001.p/44": "b7fedf2b6e00",
    "tile/1/000.p/1": "f01c757ba6dc",
    "tile/entries/000": "c378282cb216",
    "tile/entries/001.p/44": "a52dd94c9965",
}


def test_a_crash_at_every_write_leaves_a_log_that_verifies_and_goes_on(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.append(entries(255))
    before, writes, real = lab.head(), 0, log_module.replace

    def failing(path: Path, data: bytes, **kwargs: object) -> None:
        nonlocal writes
        writes += 1
        if writes > allowed:
            raise OSError(28, "No space left on device", str(path))
        real(path, data, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(log_module, "replace", failing)
    for allowed in range(20):
        writes = 0
        # Another set of entries each time: what a crash left beyond the checkpoint must not survive.
        with suppress(Refusal):
            lab.append(entries(300, start=1000 * allowed))
        assert whole_tree(lab.root, lab.head()) == ()
        if lab.head() != before:
            break
    assert allowed >= 7  # two bundles, two tiles and one above, two checkpoints
    assert whole_tree(lab.root, lab.head()) == ()
    assert [e for _, e in tree(lab.root, lab.head()).entries(255)] == entries(300, start=1000 * allowed)


def test_a_damaged_log_is_not_extended(lab: Lab) -> None:
    lab.append(entries(10))
    path = lab.root.log / "tile/0/000.p/10"
    path.chmod(0o644)
    path.write_bytes(path.read_bytes()[:-32] + bytes(32))
    with pytest.raises(Refusal, match="do not make the signed head of 10") as told:
        lab.append(entries(1))
    assert (told.value.code, told.value.exit) == ("E-EVID-006", 2)


def test_partial_tiles_go_when_the_full_one_is_there_and_old_heads_still_read(lab: Lab) -> None:
    old = lab.append(entries(10))
    lab.append(entries(300, 10))
    assert "tile/0/000.p/10" not in files(lab)
    assert tree(lab.root, old).check() == []
    require_root(tree(lab.root, old), old)


def test_what_a_killed_writer_left_is_swept(lab: Lab) -> None:
    lab.append(entries(10))
    litter = [lab.root.log / name for name in ("tile/entries/.000.00aa.tmp", ".checkpoint.00aa.tmp")]
    for path in litter:
        path.write_bytes(b"x")
    lab.append(entries(300, 10))
    assert [p for p in litter if p.exists()] == []


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.chmod(0o644)
    path.write_bytes(bytes(data))


@pytest.mark.parametrize("damage", ["flip", "cut", "gone", "longer", "swap"])
def test_every_damage_of_every_tile_is_named(lab: Lab, damage: str) -> None:
    lab.append(entries(600))
    names = [n for n in files(lab) if n.startswith("tile/")]
    assert len(names) == 7
    for name in names:
        path = lab.root.log / name
        kept, mode = path.read_bytes(), path.stat().st_mode
        path.chmod(0o644)
        if damage == "flip":
            _flip(path)
        elif damage == "cut":
            path.write_bytes(kept[:-1])
        elif damage == "longer":
            path.write_bytes(kept + kept[:32])
        elif damage == "swap":
            path.write_bytes(kept[32:64] + kept[:32] + kept[64:])
        else:
            path.unlink()
        found = whole_tree(lab.root, lab.head())
        path.write_bytes(kept)
        path.chmod(mode)
        assert name in " ".join(found)
    assert whole_tree(lab.root, lab.head()) == ()


def test_a_checkpoint_of_another_key_is_refused_by_name(lab: Lab) -> None:
    lab.append(entries(3))
    stranger = type(lab.key)("lab/tp-log", bytes(32))
    path = lab.root.log / "checkpoint"
    path.write_bytes(sign_checkpoint(lab.head().checkpoint, stranger))
    with pytest.raises(Refusal, match=r"is not signed by lab/tp-log\+") as told:
        lab.head()
    assert told.value.code == "E-EVID-006"


def test_a_missing_checkpoint_is_damage_and_no_new_log(lab: Lab) -> None:
    lab.append(entries(3))
    (lab.root.log / "checkpoint").unlink()
    for begin in (lab.head, lambda: init_log(lab.root, "lab/tp-log", uid=os.getuid())):
        with pytest.raises(Refusal, match="the checkpoint is gone"):
            begin()


def test_a_lost_key_does_not_begin_the_log_again(lab: Lab) -> None:
    (lab.root.keys / "log.key").unlink()
    with pytest.raises(Refusal, match="a key that is gone"):
        init_log(lab.root, "lab/tp-log", uid=os.getuid())


def test_a_key_that_others_can_read_signs_nothing(lab: Lab) -> None:
    (lab.root.keys / "log.key").chmod(0o640)
    with pytest.raises(Refusal) as told:
        signer_key(lab.root, os.getuid())
    assert (told.value.code, told.value.found) == ("E-EVID-002", f"uid {os.getuid()}, 0640")


def test_only_the_logs_owner_begins_it(lab: Lab) -> None:
    with pytest.raises(Refusal) as told:
        init_log(lab.root, "lab/tp-log", uid=os.getuid() + 1)
    assert told.value.code == "E-EVID-003"


def test_a_head_that_the_tiles_do_not_make_is_named(lab: Lab) -> None:
    head = lab.append(entries(5))
    forged = Checkpoint("lab/tp-log", 5, bytes(32))
    (lab.root.log / "checkpoint").write_bytes(sign_checkpoint(forged, lab.key))
    found = check_log(lab.root, read_head(lab.root, lab.vkey), lab.vkey, witness=head.note, records=False)
    assert "the tiles do not make the signed head of 5 entries" in found.faults
    assert "witness: two different trees of 5 entries were signed: the log was forked or rewritten" in found.faults
