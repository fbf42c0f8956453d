"""How far a long command is: one line that is drawn again on a terminal, with rate and time left, and nothing in a pipe."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import final

import click

EACH_S = 0.2


def size(count: int) -> str:
    """Bytes for people: 12 B, 3.4 MB, 1.2 GB (powers of 1000)."""
    value = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"


def line(done: int, total: int, came: int, seconds: float) -> str:
    """`done` of `total` bytes are there, `came` of them within `seconds`; rate and time left once there is a second to tell it from. Pure."""
    rate = came / seconds if seconds > 1 else 0.0
    left = (total - done) / rate if rate > 0 else 0.0
    eta = f", {int(left // 60)}:{int(left % 60):02d} left" if rate > 0 else ""
    return f"{100 * done // total:3d}%  {size(done)} of {size(total)}, {size(int(rate))}/s{eta}"


class Bar:
    """The line on stderr."""

    def __init__(self) -> None:
        self.on = sys.stderr.isatty()
        self.drawn = False

    def show(self, done: int, total: int, came: int, seconds: float) -> None:
        if self.on and total:
            sys.stderr.write(f"\r\x1b[K{line(done, total, came, seconds)}")
            sys.stderr.flush()
            self.drawn = True

    def say(self, text: str) -> None:
        self.close()
        click.echo(f"tp: {text}", err=True)

    def close(self) -> None:
        if self.drawn:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
        self.drawn = False


@final
class Passing:
    """Bytes that are taken up `times` times each, as a bar over the bytes themselves. A context; `tick` is what reports them."""

    def __init__(self, total: int, times: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.bar, self.total, self.times, self.clock = Bar(), total, times, clock
        self.count, self.began = 0, clock()
        self.shown = self.began

    def tick(self, count: int) -> None:
        self.count += count
        now = self.clock()
        if now - self.shown >= EACH_S:
            self.shown = now
            done = min(self.count // self.times, self.total)
            self.bar.show(done, self.total, done, now - self.began)

    def __enter__(self) -> Passing:
        return self

    def __exit__(self, *error: object) -> None:
        self.bar.close()
