"""Publishing when things go wrong: killed at every step, two at once, no locks and no hard links, lost replies, full disks."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tuneplane.contract.layout import StorageRoot
from tuneplane.record import files

from hpc.errors import Refusal
from hpc.registry import storing
from hpc.registry.audit import Options, audit
from hpc.registry.publish import Published, publish
from hpc.registry.resolve import resolve, verify_content
from hpc.site.sitefile import Site
from hpc.site.users import User
from tests.registry.conftest import clear
from tests.registry.toys import CORE, NOW, TOY, write_toy

Put = Callable[..., Published]
STEPS = (
    "open",
    "write",
    "close",
    "fsync",
    "fchmod",
    "chmod",
    "mkdir",
    "rename",
    "link",
    "unlink",
    "readv",
    "read",
    "lstat",
    "listdir",
)


def in_child(call: Callable[[], object]) -> int:
    """Run `call` in a forked child; its exit status as waitpid gives it."""
    return os.waitpid(forked(call), 0)[1]


def forked(call: Callable[[], object]) -> int:
    """The pid of a child that runs `call` and exits 0, 10 for E-REG-001, else another number."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            call()
            code = 0
        except Refusal as fault:
            code = 10 if fault.code == "E-REG-001" else 11
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return pid


def killed_at(step: int) -> None:
    """From now on, this process is killed in place of its n-th call into the operating system."""
    count = 0

    def dying(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal count
            count += 1
            if count == step:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*args, **kwargs)

        return call

    for name in STEPS:
        setattr(os, name, dying(getattr(os, name)))


def test_killed_at_every_step_a_version_is_whole_or_absent(
    root: StorageRoot, site: Site, me: User, scratch: Path
) -> None:
    source = write_toy(scratch / "p", files={"a.py": b"a" * 100, "lib/b.py": b"b"})
    folder = root.shelf("plugins") / me.name / "toy"
    final = folder / "1.0.0"
    states, step, status = [], 0, -1
    while status != 0:
        step += 1
        assert step < 1000

        def attempt(step: int = step) -> None:
            killed_at(step)
            publish(root, TOY, source, user=me, owner=me.name, site=site, method="publish", core_version=CORE, now=NOW)

        status = in_child(attempt)
        assert status == 0 or os.WIFSIGNALED(status), status
        states.append(final.exists())
        if final.exists():
            version = resolve(root, TOY, f"{me.name}/toy@1.0.0", site=site, for_new=True)
            assert verify_content(version) == []
            clear(final)
        else:
            with pytest.raises(Refusal) as caught:
                resolve(root, TOY, f"{me.name}/toy@1.0.0", site=site, for_new=True)
            assert caught.value.code == "E-REG-002"
        litter = os.listdir(folder) if folder.exists() else []
        assert all(n.startswith(".1.0.0.") and n.endswith(".tmp") for n in litter)
        if step % 40 == 0:
            report = audit(root, [TOY], site=site, user=me, options=Options(deep=True), core_version=CORE, now=NOW)
            assert report.verdict == "verified"
            assert {p.code for p in report.problems} == ({"litter"} if litter else set())
        for name in litter:
            clear(folder / name)
    assert step > 60
    assert states[0] is False
    assert states[-1] is True
    assert states == sorted(states)  # there is one step before which it is absent and after which it is whole


@pytest.mark.parametrize("name", ["fsync", "write", "mkdir", "rename", "open", "fchmod", "readv"])
def test_an_error_at_any_call_leaves_nothing_or_the_whole(
    root: StorageRoot, site: Site, me: User, scratch: Path, name: str
) -> None:
    """ENOSPC at the n-th call of each kind, for every n."""
    source = write_toy(scratch / "p", files={"a.py": b"a"})
    folder = root.shelf("plugins") / me.name / "toy"
    real = getattr(os, name)
    for step in range(1, 200):
        count = 0

        def failing(*args: Any, **kwargs: Any) -> Any:
            nonlocal count
            count += 1
            if count == step:  # noqa: B023 - called before the loop goes on
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return real(*args, **kwargs)

        setattr(os, name, failing)
        try:
            publish(root, TOY, source, user=me, owner=me.name, site=site, method="publish", core_version=CORE, now=NOW)
        except (Refusal, OSError):
            pass
        finally:
            setattr(os, name, real)
        left = os.listdir(folder) if folder.exists() else []
        assert left in ([], ["1.0.0"]), (step, left)
        if left:
            assert verify_content(resolve(root, TOY, f"{me.name}/toy@1.0.0", site=site, for_new=True)) == []
            clear(folder / "1.0.0")
        if count < step:
            break
    else:
        raise AssertionError("never ran to its end")


def no_locks() -> None:
    """flock and POSIX locks are not implemented, hard links are refused: P61."""

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    def no_link(*args: Any, **kwargs: Any) -> Any:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    fcntl.flock = fcntl.lockf = refuse  # type: ignore[assignment]
    os.link = no_link


@pytest.mark.parametrize("locks", [True, False], ids=["locks", "no-locks-no-links"])
def test_p61_p62_of_two_publishers_one_wins_and_one_gets_409(
    root: StorageRoot, site: Site, me: User, scratch: Path, locks: bool
) -> None:
    sources = [write_toy(scratch / who, files={"a.py": who.encode()}) for who in ("one", "other")]
    winners = set()
    for round_ in range(25):
        version = f"1.{round_}"
        start, go = os.pipe()

        def attempt(source: Path, start: int = start, go: int = go, version: str = version) -> None:
            os.close(go)
            if not locks:
                no_locks()
            write_toy(source, version=version, files={})
            os.read(start, 1)
            publish(root, TOY, source, user=me, owner=me.name, site=site, method="publish", core_version=CORE, now=NOW)

        pids = [forked(lambda s=source: attempt(s)) for source in sources]  # type: ignore[misc]
        os.close(start)
        os.close(go)  # both are let go in the same moment
        codes = sorted(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids)
        assert codes == [0, 10], codes
        found = resolve(root, TOY, f"{me.name}/toy@{version}", site=site, for_new=True)
        assert verify_content(found) == []
        winners.add((found.content / "a.py").read_bytes())
    assert sorted(p.name for p in (root.shelf("plugins") / me.name / "toy").iterdir()) == sorted(
        f"1.{n}" for n in range(25)
    )


def test_a_lost_reply_of_the_rename_is_settled_by_looking(put: Put, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.rename

    def lossy(source: Any, target: Any) -> None:
        real(source, target)
        raise FileNotFoundError(errno.ENOENT, "the retransmitted request found nothing")

    monkeypatch.setattr(os, "rename", lossy)
    assert put("1.0.0").folder.is_dir()


def test_a_lost_reply_does_not_take_anothers_version_for_ones_own(
    put: Put, root: StorageRoot, me: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Our temporary folder is gone and another publisher's version stands there."""
    other = put("1.0.0", name="other").folder

    def stolen(temp: Path, final: Path) -> None:
        storing.drop(temp)
        os.rename(other, final)

    monkeypatch.setattr(files, "publish_dir", stolen)
    with pytest.raises(Refusal) as caught:
        put("1.0.0")
    assert caught.value.code == "E-REG-001"


def test_p71_a_full_disk_leaves_the_old_versions(
    put: Put, root: StorageRoot, me: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    put("1.0.0")

    def full(fd: int) -> None:
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(Refusal) as caught:
            put("1.1.0")
    assert caught.value.code == "E-STORE-020"
    assert os.listdir(root.shelf("plugins") / me.name / "toy") == ["1.0.0"]
    assert str(resolve(root, TOY, f"{me.name}/toy", for_new=True)) == f"{me.name}/toy@1.0.0"
