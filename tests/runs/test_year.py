"""A year of nightly audits on a simulated clock: damage at random, budgets, crons that overlap, storage that hangs.

What is asked of each night: no two audits at work at once, nothing accused that was not damaged, and every damage named within the coverage that
the audits themselves state.
"""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import random
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from builder import RunMaker
from conftest import ME
from tuneplane.contract.layout import StorageRoot
from tuneplane.record.times import utc_text

from hpc.cli import main as cli
from hpc.cli import registry, registry_audit
from hpc.registry import packagecheck
from hpc.registry.publish import publish
from hpc.registry.seal import seal
from hpc.site.layout import init_root
from hpc.site.sitefile import load_site
from hpc.site.users import real_user
from hpc.store.owners import this_process
from tests.registry.toys import CORE, NOW, TOY, write_toy

NIGHTS = 365
BUDGET = 1000
"""Bytes a night, about a fifth of all there are: half of it for the shelves, the rest for runs."""
AREAS = ("registry", "runs")


class Clock:
    """Simulated time. It goes on only when the year, or storage that hangs, lets it."""

    def __init__(self) -> None:
        self.now = datetime(2026, 1, 1, 3, 15, tzinfo=timezone.utc)

    def seconds(self) -> float:
        return self.now.timestamp()

    def text(self) -> str:
        return utc_text(self.now)


@dataclass
class Damage:
    """One planted damage: what it was before, since which night, and in which round of its area's deep pass it may still be missed."""

    path: Path
    area: str
    subject: str
    deep: bool
    before: bytes
    night: int
    round: int

    def restore(self) -> None:
        self.path.parent.chmod(0o755)
        self.path.unlink(missing_ok=True)
        self.path.write_bytes(self.before)
        if self.area == "registry":
            self.path.chmod(0o444)
            self.path.parent.chmod(0o555)


@dataclass
class Year:
    root: StorageRoot
    clock: Clock
    dice: random.Random
    damages: list[Damage] = field(default_factory=list)
    delays: dict[bool, list[int]] = field(default_factory=lambda: {False: [], True: []})
    rounds: dict[str, int] = field(default_factory=lambda: dict.fromkeys(AREAS, 1))
    hang: tuple[str, timedelta, int] | None = None
    hangs: int = 0
    turned_away: list[tuple[bool, int]] = field(default_factory=list)
    """Of each cron that met another audit at work: whether that was younger than a day, and the exit code."""

    # Crons

    def cron(self) -> tuple[int, dict[str, Any]]:
        """The crontab's line: exit code and what it printed."""
        words = ["registry", "audit", "--deep", "--budget", str(BUDGET), "--deadline", "2:00:00", "--if-idle", "--json"]
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.raises(SystemExit) as ended:
            cli.main(words)
        assert isinstance(ended.value.code, int)
        return ended.value.code, json.loads(out.getvalue()) if out.getvalue() else {}

    def opened(self, path: object) -> None:
        """The fault layer: the first access below the armed place hangs for some time, and ends well or with an error."""
        if self.hang is None or self.hang[0] not in os.fspath(path):  # type: ignore[call-overload]
            return
        _, length, error = self.hang
        self.hang, begun, self.hangs = None, self.clock.now, self.hangs + 1
        while (following := _next_night(self.clock.now)) < begun + length:
            self.clock.now = following
            self.turned_away.append((following - begun <= timedelta(days=1), self.elsewhere()))
        self.clock.now = begun + length
        if error:
            raise OSError(error, os.strerror(error), str(path))

    def elsewhere(self) -> int:
        """The exit code of the crontab's line in a process of its own, as long as which nothing here goes on."""
        child = os.fork()
        if child == 0:
            code = 99
            try:
                code = self.cron()[0]
            finally:
                os._exit(code)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    # Damage

    def plant(self, night: int) -> None:
        area = self.dice.choice(AREAS)
        chosen = self._of_registry() if area == "registry" else self._of_runs()
        path, subject, deep, change = chosen
        if any(d.subject == subject for d in self.damages):
            return
        before, modes = path.read_bytes(), (path.stat().st_mode, path.parent.stat().st_mode)
        path.parent.chmod(0o755)
        path.chmod(0o644 | modes[0])
        if (after := change(before)) is None:
            path.unlink()
        else:
            path.write_bytes(after)
            path.chmod(modes[0])
        path.parent.chmod(modes[1])
        self.damages.append(Damage(path, area, subject, deep, before, night, self.rounds[area]))

    def _of_registry(self) -> tuple[Path, str, bool, Callable[[bytes], bytes | None]]:
        shelf = self.root.shelf("plugins") / ME
        version = self.dice.choice(sorted(shelf.glob("*/1.*")))
        name, deep, change = self.dice.choice(
            [("content/lib/data.bin", True, self._flip), ("content/lib/data.bin", False, _cut), ("content/README.md", True, self._flip),
             ("record.json", False, self._flip), ("content/README.md", False, _gone)]
        )  # fmt: skip
        return version / name, str(version.relative_to(self.root.path)), deep, change

    def _of_runs(self) -> tuple[Path, str, bool, Callable[[bytes], bytes | None]]:
        run = self.dice.choice(sorted(self.root.owner_runs(ME).glob("*/run-*")))
        name, deep, change = self.dice.choice(
            [("attempts/0/out/adapter.safetensors", True, self._flip), ("work/common/data.py", True, self._flip),
             ("attempts/0/out/adapter.safetensors", False, _cut), ("report.json", False, self._flip), ("events/launch-0.jsonl", False, _cut),
             ("attempts/0/end.json", False, _gone), ("batch/0.sh", False, self._flip)]
        )  # fmt: skip
        return run / name, str(run.relative_to(self.root.path)), deep, change

    def _flip(self, data: bytes) -> bytes:
        at = self.dice.randrange(len(data))
        return data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :]

    # Nights

    def night(self, number: int) -> None:
        if self.dice.random() < 0.3:
            self.plant(number)
        if self.dice.random() < 0.06:
            place = self.dice.choice(["data.bin", "adapter.safetensors", "record.json", "report.json"])
            length = timedelta(hours=self.dice.choice([1, 5, 25, 50]))
            self.hang = (place, length, self.dice.choice([0, errno.EIO, errno.ETIMEDOUT]))
        planted = list(self.damages)
        code, found = self.cron()
        self.hang = None
        problems = {"registry": found["problems"], "runs": found["runs"]["problems"]}
        named = {p["path"] for listed in problems.values() for p in listed if p["level"] == "tampered"}
        unread = any(p["level"] == "incomplete" for listed in problems.values() for p in listed)
        assert code == found["exit"] == (2 if named else 1 if unread else 0)
        for path in named:
            assert any(path.startswith(d.subject) for d in self.damages), f"night {number}: {path} is accused"
        for area in AREAS:
            self._covered(area, found if area == "registry" else found["runs"], problems[area], planted, number)

    def _covered(
        self, area: str, report: dict[str, Any], problems: list[dict[str, Any]], planted: list[Damage], number: int
    ) -> None:
        """Take what was named off the list; what is left must be left by the report's own words."""
        coverage = report["coverage"]
        unread = {p["path"] for p in problems if p["level"] == "incomplete"}
        named = {p["path"] for p in problems if p["level"] == "tampered"}
        self.rounds[area] = coverage["round"] + (float(coverage["round_share"]) >= 1 and report["complete"]["deep"])
        for damage in [d for d in planted if d.area == area]:
            if any(path.startswith(damage.subject) for path in named):
                self.damages.remove(damage)
                self.delays[damage.deep].append(number - damage.night)
                damage.restore()
            elif any(path.startswith(damage.subject) for path in unread) or not report["complete"]["quick"]:
                damage.round = self.rounds[area]  # it was said that this could not be looked at
            else:
                assert damage.deep, f"night {number}: {damage.path} was not named by a complete quick pass"
                assert self.rounds[area] <= damage.round + 1, f"night {number}: {damage.path} outlived a whole round"


def _cut(data: bytes) -> bytes:
    return data[: len(data) // 2]


def _gone(data: bytes) -> None:
    return None


def _next_night(now: datetime) -> datetime:
    tonight = now.replace(hour=3, minute=15, second=0, microsecond=0)
    return tonight if tonight > now else tonight + timedelta(days=1)


@pytest.fixture
def year(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Year:
    root = init_root(tmp_path / "root", name="lab", fleet="local").root
    monkeypatch.setenv("TUNEPLANE_STORAGE_ROOT", str(root.path))
    site, me = load_site(root), real_user()
    for number in range(6):
        source = write_toy(Path(tempfile.mkdtemp(dir=tmp_path)), f"toy{number // 3}", f"1.{number}")
        publish(root, TOY, source, user=me, owner=ME, site=site, method="publish", core_version=CORE, now=NOW)
        shutil.rmtree(source)
    assert seal(root, [TOY], site=site, user=me, now=NOW).exit == 0
    for number in range(4):
        RunMaker(root, owner=ME, exp=("sft", "dpo")[number % 2], run_id=f"run-{number:08x}").done()
    made = Year(root, Clock(), random.Random(2026))
    monkeypatch.setattr(registry, "_kinds", lambda: [TOY])
    clock = SimpleNamespace(monotonic=made.clock.seconds, time=made.clock.seconds)
    for module in (registry_audit, packagecheck):
        monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(registry_audit, "utc_now", made.clock.text)
    monkeypatch.setitem(this_process.__kwdefaults__, "now", made.clock.text)
    real = os.open

    def hooked(path: Any, *rest: Any, **more: Any) -> int:
        made.opened(path)
        return real(path, *rest, **more)

    monkeypatch.setattr(os, "fsync", lambda fd: None)  # no power fails here
    monkeypatch.setattr(os, "open", hooked)
    monkeypatch.setattr(os, "supports_dir_fd", os.supports_dir_fd | {hooked})
    return made


def test_a_year_of_nights_names_every_damage_and_never_piles_up(year: Year) -> None:
    first = year.clock.now
    while (number := (year.clock.now - first).days) < NIGHTS:
        year.night(number)
        year.clock.now = _next_night(year.clock.now)
    assert year.hangs >= 8
    assert set(year.turned_away) == {(True, 0), (False, 75)}, "none waits, and what hangs for a day is told"
    assert len(year.delays[False]) > 20
    assert len(year.delays[True]) > 20
    assert max(year.delays[True]) > 1, "a budget makes bytes wait for their turn"
    assert min(year.rounds.values()) > 20
    assert os.listdir(year.root.index / "audit/audit.lock.owners") == []
