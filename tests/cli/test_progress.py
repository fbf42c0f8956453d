"""The line that says how far a long command is."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest
from tuneplane.contract.layout import StorageRoot

from hpc.cli.progress import Bar, Passing, line
from hpc.data.push import COUNTED, STORED, Pusher, push_dataset, push_volume
from hpc.data.visibility import PUBLIC, Visibility
from hpc.data.volumes import create
from hpc.site.layout import init_root
from hpc.site.sitefile import load_site
from hpc.site.users import real_user


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_rate_and_time_left_are_told_after_a_second() -> None:
    assert line(0, 10, 0, 0.0) == "  0%  0 B of 10 B, 0 B/s"
    assert line(250, 1000, 250, 0.9) == " 25%  250 B of 1.0 kB, 0 B/s"
    assert line(40_000_000, 100_000_000, 20_000_000, 2.0) == " 40%  40.0 MB of 100.0 MB, 10.0 MB/s, 0:06 left"


def test_a_bar_is_drawn_again_on_a_terminal_and_cleared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", shown := Terminal())
    ticks = iter([0.0, 0.1, 0.5, 2.0])
    with Passing(100, 2, clock=lambda: next(ticks)) as passing:
        for _ in range(3):
            passing.tick(40)
    clear = "\r\x1b[K"
    assert shown.getvalue() == f"{clear} 40%  40 B of 100 B, 0 B/s{clear} 60%  60 B of 100 B, 30 B/s, 0:01 left{clear}"


def test_nothing_is_drawn_in_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", shown := io.StringIO())
    bar = Bar()
    bar.show(1, 2, 1, 5.0)
    bar.close()
    assert shown.getvalue() == ""


@pytest.mark.parametrize(("what", "times"), [("dataset", COUNTED), ("volume", STORED)])
def test_a_push_reports_each_byte_as_often_as_it_takes_it_up(tmp_path: Path, what: str, times: int) -> None:
    root: StorageRoot = init_root(tmp_path / "root", name="lab").root
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "train.jsonl").write_text('{"text": "x"}\n' * 200_000)
    came: list[int] = []
    by = Pusher(root, load_site(root), real_user(), "2026-01-02T03:04:05Z", tick=came.append)
    if what == "dataset":
        push_dataset(by, "d", "1", tmp_path / "d")
    else:
        create(by, "d", Visibility(PUBLIC))
        push_volume(by, "d", tmp_path / "d")
    assert sum(came) == times * 14 * 200_000
