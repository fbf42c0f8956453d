"""Figures as a text table, and as the section of docs/performance.md between its two marks."""

from __future__ import annotations

import os
import platform
import re
from dataclasses import dataclass
from pathlib import Path

from timing import Samples

BEGIN, END = "<!-- figures: make bench writes them -->", "<!-- end of figures -->"


@dataclass(frozen=True)
class Figure:
    """One measured line. `limit` is the target in words, "" for a line that only informs; `missed` is the verdict."""

    name: str
    value: str
    peer: str = ""
    ratio: str = ""
    limit: str = ""
    missed: bool = False

    @property
    def verdict(self) -> str:
        return "" if not self.limit else "MISSED" if self.missed else "kept"


def ratio(name: str, ours: Samples, peer: Samples, peer_name: str, limit: float = 0.0, unit: str = "ms") -> Figure:
    """A figure that is a ratio to a named peer, pair by pair."""
    ratios = ours.over(peer)
    words, missed = (f"≤ {limit:g} x", ratios.misses(limit)) if limit else ("", False)
    return Figure(name, ours.text(unit), f"{peer_name}: {peer.text(unit)}", ratios.text("x", 2), words, missed)


def bound(name: str, ours: Samples, unit: str, limit: float = 0.0) -> Figure:
    """A figure with an absolute limit, or with none."""
    words, missed = (f"≤ {limit:g} {unit}", ours.misses(limit)) if limit else ("", False)
    return Figure(name, ours.text(unit), limit=words, missed=missed)


def _rows(figures: list[Figure]) -> list[list[str]]:
    head = ["what", "measured: median (min–max)", "peer", "ratio", "target", "verdict"]
    return [head, *([f.name, f.value, f.peer, f.ratio, f.limit, f.verdict] for f in figures)]


def text(figures: list[Figure]) -> str:
    rows = _rows(figures)
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join("  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows)


def machine(slurm_version: str) -> str:
    """The kind of machine in one sentence: nothing that names it."""
    info = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    model = re.search(r"model name\s*: (.+)", info)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    load = os.getloadavg()[0]
    return (
        f"{os.cpu_count()} CPUs ({model.group(1) if model else platform.machine()}), {memory:.0f} GiB, local disk, "
        f"Python {platform.python_version()}, {slurm_version}; load average {load:.1f} at the end"
    )


def write(page: Path, figures: list[Figure], about: str) -> None:
    """Replace what stands between the marks. Raises ValueError where they are missing."""
    head, *body = _rows(figures)
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}", *(f"| {' | '.join(row)} |" for row in body)]
    section = f"{BEGIN}\nMeasured on {about}.\n\n" + "\n".join(lines) + f"\n{END}"
    before = page.read_text(encoding="utf-8")
    after, count = re.subn(re.escape(BEGIN) + ".*?" + re.escape(END), lambda _: section, before, flags=re.DOTALL)
    if count != 1:
        raise ValueError(f"{page} has no figures section")
    page.write_text(after, encoding="utf-8")
