"""A witness of another uid or host: every rewriting after its first visit is caught, whatever the log's key signs."""

from __future__ import annotations

import shutil
from datetime import timedelta
from pathlib import Path

import pytest
from evidencelab import NOON, Lab, cosigned_at

from hpc.errors import Refusal
from hpc.evidence.note import WITNESS, SignerKey, parse_signer, sign_checkpoint
from hpc.evidence.witness import new_cosigner


def entries(count: int, start: int = 0, word: str = "entry") -> list[bytes]:
    return [f"{word} {n}".encode() for n in range(start, start + count)]


def rebuild(lab: Lab, items: list[bytes]) -> None:
    """What whoever has the service user's key can do: another history, signed well."""
    for name in ("tile", "checkpoint", "checkpoint.previous"):
        path = lab.root.log / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    from hpc.evidence.log import init_log

    init_log(lab.root, "lab/tp-log", uid=lab.root.log.stat().st_uid)
    lab.append(items)


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "witness"


def test_a_log_that_grows_is_accepted_and_the_blind_interval_told(lab: Lab, state: Path) -> None:
    lab.append(entries(40))
    first = lab.visit(state)
    assert (first.faults, first.size, first.first_size, first.before_at) == ((), 40, 40, "")
    assert first.blind == (
        "rewriting of entries 0 to 39 that was done before 2026-03-01T12:00:00.000000Z",
        "records that were changed before they were logged; the first visit was at 2026-03-01T12:00:00.000000Z",
    )
    lab.append(entries(300, 40))
    second = lab.visit(state, at=NOON + timedelta(hours=1))
    assert (second.faults, second.size, second.first_size, second.before_size) == ((), 340, 40, 40)
    assert second.blind[-1] == (
        "entries that were logged and taken back between 2026-03-01T12:00:00.000000Z and 2026-03-01T13:00:00.000000Z"
    )
    assert lab.visit(state).faults == ()


@pytest.mark.parametrize("changed", [0, 17, 39])
def test_history_that_was_rewritten_after_the_first_visit_is_caught(lab: Lab, state: Path, changed: int) -> None:
    items = entries(40)
    lab.append(items)
    lab.visit(state)
    items[changed] = b"another story"
    rebuild(lab, [*items, *entries(10, 40)])
    found = lab.visit(state)
    assert found.faults == ("the first 40 entries are not the ones that were seen: history was rewritten",)
    assert lab.visit(state).faults == found.faults, "a refused head must not become what was seen"


def test_the_first_visit_is_what_counts_however_many_follow(lab: Lab, state: Path) -> None:
    """The last checkpoint but one and all before are bound by the last one: a tree contains its beginnings."""
    items = entries(10)
    lab.append(items)
    for more in range(3):
        lab.visit(state)
        lab.append(entries(10, 10 * (more + 1)))
    lab.visit(state)
    items = entries(40)
    items[12] = b"changed after the second visit"
    rebuild(lab, items)
    assert lab.visit(state).faults == (
        "two different trees of 40 entries were signed: the log was forked or rewritten",
    )


def test_what_was_rewritten_before_the_first_visit_is_not_seen(lab: Lab, state: Path) -> None:
    lab.append(entries(40))
    rebuild(lab, entries(40, word="forged"))
    assert lab.visit(state).faults == ()


def test_truncation_and_an_older_checkpoint_put_back(lab: Lab, state: Path) -> None:
    lab.append(entries(5))
    kept = (lab.root.log / "checkpoint").read_bytes()
    lab.append(entries(5, 5))
    lab.visit(state)
    (lab.root.log / "checkpoint").write_bytes(kept)
    assert lab.visit(state).faults == (
        "the log has 5 entries and had 10: it was cut, or an older checkpoint was put back",
    )


def test_a_fork_of_the_same_size(lab: Lab, state: Path) -> None:
    lab.append(entries(5))
    lab.visit(state)
    rebuild(lab, entries(5, word="fork"))
    assert lab.visit(state).faults == ("two different trees of 5 entries were signed: the log was forked or rewritten",)


def test_a_damaged_tile_is_named_by_the_first_and_by_later_visits(lab: Lab, state: Path, tmp_path: Path) -> None:
    lab.append(entries(300))
    lab.visit(state)
    lab.append(entries(300, 300))
    path = lab.root.log / "tile/0/001"
    path.chmod(0o644)
    path.write_bytes(bytes(32) + path.read_bytes()[32:])
    for witness in (state, tmp_path / "new"):
        assert lab.visit(witness).faults[0] == "entry 256: tile/entries/001 and tile/0/001 disagree"


def test_another_key_is_refused(lab: Lab, state: Path) -> None:
    lab.append(entries(5))
    lab.visit(state)
    note = sign_checkpoint(lab.head().checkpoint, SignerKey("lab/tp-log", bytes(32)))
    (lab.root.log / "checkpoint").write_bytes(note)
    with pytest.raises(Refusal, match="is not signed by") as told:
        lab.visit(state)
    assert (told.value.code, told.value.exit) == ("E-EVID-006", 2)


def test_a_witness_with_a_key_signs_what_it_saw(lab: Lab, state: Path) -> None:
    lab.append(entries(5))
    lab.visit(state)
    eye = new_cosigner(state, "eye.example/w1", state.stat().st_uid)
    assert parse_signer((state / "witness.key").read_text().strip(), kind=WITNESS).verifier == eye
    assert (state / "witness.key").stat().st_mode & 0o777 == 0o600
    found = lab.visit(state)
    assert (found.cosigned, cosigned_at((state / "checkpoint").read_bytes(), eye)) == (True, int(NOON.timestamp()))
    lab.append(entries(5, 5))
    assert lab.visit(state).faults == ()


@pytest.mark.parametrize("damage", ["seen.json", "checkpoint", "cut", "foreign", "open"])
def test_a_damaged_state_vouches_for_nothing(lab: Lab, state: Path, damage: str) -> None:
    lab.append(entries(5))
    lab.visit(state)
    if damage == "cut":
        (state / "seen.json").write_text("{")
    elif damage == "foreign":
        (state / "checkpoint").write_text("lab/tp-log\n9\n" + "A" * 43 + "=\n\n— x AAAAAAA=\n")
    elif damage == "open":
        state.chmod(0o777)
    else:
        (state / damage).unlink()
    with pytest.raises(Refusal) as told:
        lab.visit(state)
    assert told.value.code == "E-EVID-008"


def test_a_visit_that_was_killed_between_its_two_files_goes_on(lab: Lab, state: Path) -> None:
    lab.append(entries(5))
    lab.visit(state)
    old = (state / "seen.json").read_bytes()
    lab.append(entries(5, 5))
    lab.visit(state)
    (state / "seen.json").write_bytes(old)
    assert lab.visit(state).faults == ()
