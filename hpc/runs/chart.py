"""Line charts in text, two by four dots a character (braille), and as PNG: one or several metrics over the same steps. Pure but for the PNG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

Point = tuple[float, float]
_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
SMOOTHED = 50
"""From so many points on, a running mean is drawn over a noisy line in the picture."""


def _scale(value: float, low: float, high: float, cells: int) -> int:
    return 0 if high == low else min(cells - 1, max(0, round((value - low) / (high - low) * (cells - 1))))


def chart(
    points: Sequence[Point], *, title: str, width: int = 72, height: int = 14, marks: Sequence[float] = ()
) -> str:
    """`points` (x ascending) as lines of text, `width` characters of plot area wide and `height` high, with the extremes on the axes.

    Under each x of `marks` the axis has a tick: where an attempt went on.
    """
    return overlay([points], title=title, width=width, height=height, marks=marks)


def overlay(
    lines: Sequence[Sequence[Point]], *, title: str, width: int = 72, height: int = 14, marks: Sequence[float] = ()
) -> str:
    """Several lines in one plot, on common axes; none of them may be empty."""
    xs, ys = ([point[i] for points in lines for point in points] for i in (0, 1))
    left_x, right_x, low, high = min(xs), max(xs), min(ys), max(ys)
    dots_x, dots_y = width * 2, height * 4
    cells = [[0] * width for _ in range(height)]
    for points in lines:
        last: tuple[int, int] | None = None
        for x, y in points:
            now = (_scale(x, left_x, right_x, dots_x), dots_y - 1 - _scale(y, low, high, dots_y))
            for column, row in _between(last or now, now):
                cells[row // 4][column // 2] |= _DOTS[row % 4][column % 2]
            last = now
    labels = [f"{high:.4g}", *[""] * (height - 2), f"{low:.4g}"]
    margin = max(len(label) for label in labels)
    body = [
        f"{label:>{margin}} ┤{''.join(chr(0x2800 + c) for c in line)}"
        for label, line in zip(labels, cells, strict=True)
    ]
    left, right = f"{left_x:g}", f"{right_x:g}"
    ticks = {_scale(x, left_x, right_x, width) for x in marks if left_x <= x <= right_x}
    axis = " " * margin + " └" + "".join("┬" if i in ticks else "─" for i in range(width))
    return "\n".join([title, *body, axis, f"{'':>{margin}}  {left}{right:>{width - len(left)}}"])


def _between(one: tuple[int, int], other: tuple[int, int]) -> list[tuple[int, int]]:
    steps = max(abs(other[0] - one[0]), abs(other[1] - one[1]), 1)
    return [
        (one[0] + (other[0] - one[0]) * i // steps, one[1] + (other[1] - one[1]) * i // steps) for i in range(steps + 1)
    ]


def running_mean(values: Sequence[float], reach: int) -> list[float]:
    """The mean of each value and up to `reach` on either side of it, as many on both; fewer at the ends. Pure."""
    sums = [0.0]
    for value in values:
        sums.append(sums[-1] + value)
    out = []
    for at in range(len(values)):
        near = min(reach, at, len(values) - 1 - at)
        out.append((sums[at + near + 1] - sums[at - near]) / (2 * near + 1))
    return out


def write_png(panels: Mapping[str, Sequence[Point]], path: Path, *, title: str, marks: Sequence[float] = ()) -> None:
    """One panel a metric, under each other over the same steps; attempts are marked. Raises ImportError without matplotlib, OSError."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, rows = pyplot.subplots(
        len(panels), 1, figsize=(10, 1.2 + 2.6 * len(panels)), dpi=100, sharex=True, squeeze=False, layout="constrained"
    )
    for axes, (name, points) in zip(rows[:, 0], panels.items(), strict=True):
        xs, ys = [p[0] for p in points], [p[1] for p in points]
        noisy = len(ys) >= SMOOTHED
        axes.plot(
            xs,
            ys,
            linewidth=1.0 if noisy else 1.6,
            alpha=0.35 if noisy else 1.0,
            color="#1f5fa8",
            marker="" if len(ys) > 1 else "o",
        )
        if noisy:
            axes.plot(xs, running_mean(ys, len(ys) // 40), linewidth=1.8, color="#1f5fa8")
        for mark in marks:
            axes.axvline(mark, color="#888888", linewidth=0.8, linestyle=":")
        axes.set_ylabel(name)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    rows[-1, 0].set_xlabel("step" + ("; dotted: another attempt goes on" if marks else ""))
    figure.align_ylabels()
    figure.suptitle(title, fontsize=11)
    figure.savefig(path, format="png")
    pyplot.close(figure)


def write_lines(lines: Sequence[tuple[str, Sequence[Point]]], path: Path, *, title: str, name: str) -> None:
    """Several lines, each under its label; up to twelve are told apart by a legend. Raises ImportError without matplotlib, OSError."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(12, 6), dpi=100)
    for label, points in lines:
        axes.plot(
            [p[0] for p in points], [p[1] for p in points], linewidth=1.5 if len(lines) == 1 else 0.9, label=label
        )
    if 1 < len(lines) <= 12:
        axes.legend(fontsize="small")
    axes.set(title=title, xlabel="step", ylabel=name)
    axes.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, format="png")
    pyplot.close(figure)
