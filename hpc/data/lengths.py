"""How long the rows of a split are: in tokens of a tokenizer that lies in a folder, else in characters. Streams; keeps one number a row."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from hpc.data.shingles import TEXT_COLUMNS
from hpc.errors.core import Refusal

BUCKETS: Final = 12
BATCH: Final = 256
Measure = Callable[[list[str]], Iterable[int]]


@dataclass(frozen=True)
class Lengths:
    """Lengths of `rows` rows, in `unit` (tokens or characters). `cut`: there are more rows, which were not read.

    `buckets`: (from, to, rows) with both ends included; the last one ends at the longest row, whatever its width.
    """

    unit: str
    rows: int
    cut: bool
    least: int
    median: int
    p95: int
    most: int
    buckets: tuple[tuple[int, int, int], ...]

    def as_json(self) -> dict[str, Any]:
        return {**vars(self), "buckets": [list(b) for b in self.buckets]}


def row_text(row: dict[str, Any]) -> str:
    """All text that a model may see of a row: the columns that models learn from, else all; without the names of roles."""
    named = [row[column] for column in TEXT_COLUMNS if column in row]
    return "\n".join(_strings(named or list(row.values())))


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, inner in value.items():
            if key != "role":
                yield from _strings(inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from _strings(inner)
    elif value is not None:
        yield str(value)


def characters(texts: list[str]) -> Iterable[int]:
    return map(len, texts)


def tokens(folder: Path) -> Measure:
    """Counts with the tokenizer.json of a model's folder, without the tokens that a chat template adds. Raises Refusal E-DATA-070."""
    path = folder if folder.is_file() else folder / "tokenizer.json"
    try:
        from tokenizers import Tokenizer
    except ImportError as exc:
        raise Refusal(
            "E-DATA-070", "the package tokenizers is not installed here", field="--tokenizer", found=str(folder)
        ) from exc
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as exc:  # the library raises nothing narrower
        raise Refusal("E-DATA-070", f"{path}: {exc}"[:300], field="--tokenizer", found=str(folder)) from exc
    tokenizer.no_truncation()
    tokenizer.no_padding()

    def count(texts: list[str]) -> Iterable[int]:
        return (len(one.ids) for one in tokenizer.encode_batch_fast(texts, add_special_tokens=False))

    return count


def lengths(rows: Iterable[dict[str, Any]], measure: Measure, unit: str, limit: int) -> Lengths | None:
    """The lengths of the first `limit` rows (0: of all), None where there are no rows."""
    found, cut = array("q"), False
    texts: list[str] = []
    for row in rows:
        if limit and len(found) + len(texts) >= limit:
            cut = True
            break
        texts.append(row_text(row))
        if len(texts) >= BATCH:
            found.extend(measure(texts))
            texts.clear()
    found.extend(measure(texts))
    if not found:
        return None
    ordered = sorted(found)
    last = len(ordered) - 1
    return Lengths(
        unit,
        len(ordered),
        cut,
        ordered[0],
        ordered[last // 2],
        ordered[last * 95 // 100],
        ordered[-1],
        _buckets(ordered),
    )


def _buckets(ordered: Sequence[int]) -> tuple[tuple[int, int, int], ...]:
    """Equal widths up to the length that 99 % of the rows keep to; what is longer is in the last. Pure."""
    least, most = ordered[0], ordered[-1]
    usual = ordered[(len(ordered) - 1) * 99 // 100]
    width = max(1, -(-(usual - least + 1) // BUCKETS))
    counts = [0] * BUCKETS
    for length in ordered:
        counts[min(BUCKETS - 1, (length - least) // width)] += 1
    used = min(BUCKETS, (most - least) // width + 1)
    ends = [least + width * (n + 1) - 1 for n in range(used)]
    ends[-1] = most
    return tuple((least + width * n, ends[n], counts[n]) for n in range(used))


def chart(found: Lengths, *, width: int = 40) -> str:
    """The histogram as lines of text. Pure."""
    highest = max(count for _, _, count in found.buckets)
    left, right = (max(len(str(b[i])) for b in found.buckets) for i in (0, 1))
    lines = [
        f"  {low:>{left}} – {high:<{right}}  {'█' * round(width * count / highest) or ('▏' if count else '')} {count}".rstrip()
        for low, high, count in found.buckets
    ]
    return "\n".join([title(found), *lines])


def title(found: Lengths, what: str = "") -> str:
    of = f"the first {found.rows} rows" if found.cut else f"{found.rows} rows"
    told = f"shortest {found.least}, median {found.median}, 95 % up to {found.p95}, longest {found.most}"
    return f"{what}{' · ' if what else ''}length in {found.unit} of {of}: {told}"


def write_png(found: Lengths, path: Path, *, what: str) -> None:
    """The same as a picture. Raises Refusal E-DATA-071 without matplotlib, OSError."""
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError as exc:
        raise Refusal("E-DATA-071", "matplotlib is not installed here", field="--png", found=str(path)) from exc
    figure, axes = pyplot.subplots(figsize=(10, 5), dpi=100)
    labels = [f"{low}–{high}" for low, high, _ in found.buckets]
    bars = axes.bar(range(len(labels)), [count for _, _, count in found.buckets], width=0.95)
    axes.bar_label(bars, fontsize="small")
    axes.set_xticks(range(len(labels)), labels, rotation=45, ha="right", fontsize="small")
    axes.set(xlabel=found.unit, ylabel="rows")
    axes.set_title(title(found, what).replace(": ", "\n"), fontsize="medium")
    figure.tight_layout()
    figure.savefig(path)
    pyplot.close(figure)
