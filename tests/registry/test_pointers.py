"""Pointers: generations, switches, activation. Of two writers with one generation exactly one wins, and a reader keeps the last good one."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from tuneplane.contract.layout import StorageRoot

from hpc.errors import Refusal
from hpc.registry.activation import activate, active, applied, deactivate, history
from hpc.registry.generations import Pointer
from hpc.registry.publish import Published
from hpc.registry.shelf import Shelf
from hpc.registry.switches import read_switch, recommend, set_family, set_version
from hpc.site.members import retire_user
from hpc.site.sitefile import Site
from hpc.site.users import User
from tests.registry.test_publish_faults import forked, in_child, no_locks
from tests.registry.toys import NOW

Put = Callable[..., Published]
DIGEST = "sha256:" + "a" * 64


@pytest.fixture
def pointer(root: StorageRoot) -> Pointer:
    found = Pointer(root, root.activation / "policy/playbook")
    found.make(root.activation, 0o755)
    return found


def test_generations_are_counted_and_kept(pointer: Pointer, me: User) -> None:
    assert pointer.current() == (0, {})
    assert pointer.advance(0, {"id": "a"}, by=me, now=NOW) == 1
    assert pointer.advance(1, {"id": "b"}, by=me, now=NOW) == 2
    assert pointer.current() == (2, {"id": "b"})
    newer, older = pointer.history()
    assert [(g.number, g.body, g.after) for g in (newer, older)] == [(2, {"id": "b"}, 1), (1, {"id": "a"}, 0)]
    assert (newer.previous, older.previous) == (older.digest, "")


def test_a_stale_generation_is_refused_and_changes_nothing(pointer: Pointer, me: User) -> None:
    pointer.advance(0, {"id": "a"}, by=me, now=NOW)
    with pytest.raises(Refusal) as caught:
        pointer.advance(0, {"id": "b"}, by=me, now=NOW)
    assert (caught.value.code, caught.value.found, caught.value.allowed) == ("E-REG-020", 1, "0")
    assert pointer.current() == (1, {"id": "a"})


@pytest.mark.parametrize("locks", [True, False], ids=["locks", "no-locks-no-links"])
def test_p71_concurrent_writers_lose_nothing(pointer: Pointer, me: User, locks: bool) -> None:
    """Four processes count to 30 together, each number by compare-and-set; every success is a generation of its own."""

    def count(who: int) -> None:
        if not locks:
            no_locks()
        done = 0
        while done < 30:
            state = pointer.state()
            if not state.whole:
                continue  # without hard links, a name is taken a moment before it has its bytes
            body = state.good.body if state.good else {}
            try:
                pointer.advance(state.number, {**body, str(who): body.get(str(who), 0) + 1}, by=me, now=NOW)
                done += 1
            except Refusal as fault:
                if fault.code != "E-REG-020":
                    raise

    pids = [forked(lambda w=who: count(w)) for who in range(4)]  # type: ignore[misc]
    assert [os.waitpid(pid, 0)[1] for pid in pids] == [0] * 4
    assert pointer.current() == (120, {str(who): 30 for who in range(4)})
    assert [g.after for g in pointer.history()] == list(range(119, -1, -1))


def test_two_updates_with_one_generation_exactly_one_wins(root: StorageRoot, site: Site, me: User) -> None:
    activate(root, site, me, "playbook", "a/rules", "1.0.0", DIGEST, now=NOW)
    for number in range(1, 25):
        start, go = os.pipe()

        def attempt(version: str, start: int = start, go: int = go, number: int = number) -> None:
            os.close(go)
            os.read(start, 1)
            try:
                activate(root, site, me, "playbook", "a/rules", version, DIGEST, number, now=NOW)
            except Refusal as fault:
                os._exit(20 if fault.code == "E-REG-020" else 21)

        pids = [forked(lambda v=version: attempt(v)) for version in ("2.0.0", "3.0.0")]  # type: ignore[misc]
        os.close(start)
        os.close(go)
        assert sorted(os.waitstatus_to_exitcode(os.waitpid(p, 0)[1]) for p in pids) == [0, 20]
        assert active(root, "playbook").generation == number + 1


def test_a_reader_keeps_the_last_good_generation_and_says_so(pointer: Pointer, me: User) -> None:
    pointer.advance(0, {"id": "a"}, by=me, now=NOW)
    pointer.advance(1, {"id": "b"}, by=me, now=NOW)
    pointer.path(2).chmod(0o644)
    pointer.path(2).write_bytes(pointer.path(2).read_bytes()[:-9])
    state = pointer.state()
    assert state.number == 2
    assert state.good is not None
    assert state.good.body == {"id": "a"}
    (problem,) = state.problems
    assert (problem.code, problem.path) == ("E-REG-012", str(pointer.path(2)))


def test_a_writer_that_died_in_the_middle_is_passed_over_only_by_name(root: StorageRoot, site: Site, me: User) -> None:
    activate(root, site, me, "prompt", "a/rules", "1.0.0", DIGEST, now=NOW)
    (root.activation / "policy/prompt/2.json").write_bytes(b"")  # a mount without hard links, and a crash
    assert active(root, "prompt").version == "1.0.0"
    with pytest.raises(Refusal) as caught:
        deactivate(root, site, me, "prompt", now=NOW)
    assert (caught.value.code, caught.value.found) == ("E-REG-021", 2)
    assert deactivate(root, site, me, "prompt", 2, now=NOW).generation == 3
    assert active(root, "prompt").id == ""


def test_no_good_generation_is_no_guess(pointer: Pointer, me: User) -> None:
    pointer.path(1).write_bytes(b"{}")
    with pytest.raises(Refusal) as caught:
        pointer.current()
    assert caught.value.code == "E-REG-022"


def test_a_generation_of_another_pointer_is_not_believed(root: StorageRoot, site: Site, me: User) -> None:
    activate(root, site, me, "prompt", "a/rules", "1.0.0", DIGEST, now=NOW)
    activate(root, site, me, "playbook", "b/rules", "2.0.0", DIGEST, now=NOW)
    policy = root.activation / "policy"
    (policy / "playbook/2.json").write_bytes((policy / "prompt/1.json").read_bytes())
    found = active(root, "playbook")
    assert (found.id, found.generation, found.of) == ("b/rules", 2, 1)
    assert [p.code for p in found.problems] == ["E-REG-012"]


@pytest.mark.two_users
def test_a_strangers_generation_is_not_believed(root: StorageRoot, site: Site, me: User) -> None:
    activate(root, site, me, "prompt", "a/rules", "1.0.0", DIGEST, now=NOW)
    activate(root, site, me, "prompt", "a/rules", "2.0.0", DIGEST, now=NOW)
    os.chown(root.activation / "policy/prompt/2.json", 54321, -1)
    found = active(root, "prompt")
    assert (found.version, [p.code for p in found.problems]) == ("1.0.0", ["E-SITE-010"])


def test_rollback_is_activating_the_version_before(root: StorageRoot, site: Site, me: User) -> None:
    for version in ("1.1.0", "1.2.0", "1.1.0"):
        activate(root, site, me, "playbook", "a/rules", version, DIGEST, now=NOW)
    deactivate(root, site, me, "playbook", now=NOW)
    assert [(a.of, a.version) for a in history(root, "playbook")] == [(4, ""), (3, "1.1.0"), (2, "1.2.0"), (1, "1.1.0")]


def test_what_cannot_be_loaded_leaves_the_selection_before_in_force(root: StorageRoot, site: Site, me: User) -> None:
    for version in ("1.0.0", "2.0.0"):
        activate(root, site, me, "playbook", "a/rules", version, DIGEST, now=NOW)

    def load(selection: object) -> str:
        if getattr(selection, "version", "") == "2.0.0":
            raise Refusal("E-REG-013", "has other bytes")
        return "rules"

    found = applied(root, "playbook", load)
    assert (found.value, found.selection.version) == ("rules", "1.0.0")
    assert found.problems[0].message == "a/rules@2.0.0 (generation 2) cannot be loaded: has other bytes"
    assert applied(root, "prompt", load).value is None


def test_an_active_policy_cannot_be_switched_off(
    root: StorageRoot, site: Site, shelf: Shelf, me: User, put: Put
) -> None:
    one = put("1.0.0")
    put("1.1.0")
    activate(root, site, me, "playbook", one.id, "1.0.0", one.digest, now=NOW)
    for refused in (
        lambda: set_version(shelf, me.name, "toy", "1.0.0", "disabled", user=me, site=site, now=NOW),
        lambda: set_family(shelf, me.name, "toy", "disabled", user=me, site=site, now=NOW),
    ):
        with pytest.raises(Refusal) as caught:
            refused()
        assert caught.value.code == "E-REG-023"
        assert "tp plugin deactivate playbook" in caught.value.hint
    set_version(shelf, me.name, "toy", "1.1.0", "disabled", user=me, site=site, now=NOW)
    deactivate(root, site, me, "playbook", now=NOW)
    set_family(shelf, me.name, "toy", "disabled", user=me, site=site, now=NOW)


def test_an_admins_word_wins_over_the_owners(site: Site, shelf: Shelf, me: User, put: Put) -> None:
    put("1.0.0")
    words = {"user": me, "site": site, "now": NOW}
    set_version(shelf, me.name, "toy", "1.0.0", "enabled", side="owner", **words)  # type: ignore[arg-type]
    set_version(shelf, me.name, "toy", "1.0.0", "disabled", side="admin", **words)  # type: ignore[arg-type]
    switch = read_switch(shelf, me.name, "toy", me.uid)
    assert not switch.enabled("1.0.0", "enabled")
    assert switch.decided_by("1.0.0", "enabled") == "an admin"
    set_version(shelf, me.name, "toy", "1.0.0", "", side="admin", **words)  # type: ignore[arg-type]
    assert read_switch(shelf, me.name, "toy", me.uid).enabled("1.0.0", "enabled")


def test_p69_a_stale_handle_is_opened_again_by_path(
    pointer: Pointer, me: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    pointer.advance(0, {"id": "a"}, by=me, now=NOW)
    real, left = os.open, [2]

    def stale(path: object, *args: object, **kwargs: object) -> int:
        if str(path).endswith("1.json") and left[0]:
            left[0] -= 1
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return real(path, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", stale)
    assert pointer.current() == (1, {"id": "a"})
    left[0] = 3
    (problem,) = pointer.state().problems
    assert (problem.level, problem.code) == ("incomplete", "E-STORE-023")


def test_killed_at_every_step_a_pointer_has_its_old_state_or_its_new(pointer: Pointer, me: User) -> None:
    from tests.registry.test_publish_faults import killed_at

    pointer.advance(0, {"id": "old"}, by=me, now=NOW)
    step, status = 0, -1
    while status != 0:
        step += 1

        def attempt(step: int = step) -> None:
            killed_at(step)
            pointer.advance(1, {"id": "new"}, by=me, now=NOW)

        status = in_child(attempt)
        number, body = pointer.current()
        assert (number, body["id"]) in ((1, "old"), (2, "new"))
        pointer.path(2).unlink(missing_ok=True)
        for litter in Path(pointer.folder).glob(".*.tmp"):
            litter.unlink()
    assert step > 5


def test_a_retired_user_has_no_further_word(root: StorageRoot, site: Site, shelf: Shelf, me: User, put: Put) -> None:
    put("1.0.0")
    retire_user(root, me.name, now=NOW)
    words = (
        lambda: set_family(shelf, me.name, "toy", "disabled", user=me, site=site, now=NOW),
        lambda: recommend(shelf, me.name, "toy", "1.0.0", user=me, site=site, now=NOW),
        lambda: activate(root, site, me, "playbook", f"{me.name}/toy", "1.0.0", DIGEST, now=NOW),
        lambda: deactivate(root, site, me, "playbook", now=NOW),
    )
    for word in words:
        with pytest.raises(Refusal) as caught:
            word()
        assert caught.value.code == "E-SITE-032"
    assert not (root.shelf("plugins") / me.name / "toy/.switch").exists()
