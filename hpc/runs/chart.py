"""A line chart in text, two by four dots a character (braille), and as PNG. Pure but for the PNG."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

Point = tuple[float, float]
_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))


def _scale(value: float, low: float, high: float, cells: int) -> int:
    return 0 if high == low else min(cells - 1, max(0, round((value - low) / (high - low) * (cells - 1))))


def chart(points: Sequence[Point], *, title: str, width: int = 72, height: int = 14) -> str:
    """`points` (x ascending) as lines of text, `width` characters of plot area wide and `height` high, with the extremes on the axes."""
    return overlay([points], title=title, width=width, height=height)


def overlay(lines: Sequence[Sequence[Point]], *, title: str, width: int = 72, height: int = 14) -> str:
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
    axis = " " * margin + " └" + "─" * width
    return "\n".join([title, *body, axis, f"{'':>{margin}}  {left}{right:>{width - len(left)}}"])


def _between(one: tuple[int, int], other: tuple[int, int]) -> list[tuple[int, int]]:
    steps = max(abs(other[0] - one[0]), abs(other[1] - one[1]), 1)
    return [
        (one[0] + (other[0] - one[0]) * i // steps, one[1] + (other[1] - one[1]) * i // steps) for i in range(steps + 1)
    ]


def write_png(points: Sequence[Point], path: Path, *, title: str, name: str) -> None:
    """The same as a picture, 1200 x 600. Raises ImportError without matplotlib, OSError."""
    write_lines([("", points)], path, title=title, name=name)


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
    figure.savefig(path)
    pyplot.close(figure)
