"""Tokenised rows: made once a run by one rank, kept by content, mapped into memory by all (P65)."""

from __future__ import annotations

import os
import shutil
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from tuneplane.record.canonical import pretty_bytes
from tuneplane.record.digest import digest_file, digest_json
from tuneplane.record.files import fsync_dir, publish_dir, read_json, write_new
from tuneplane.training.chat import Encoded, Encoder
from tuneplane.training.refusals import Reason, Refused, refuse
from tuneplane.training.rows import MAX_FAULTS, Example, read_examples

FORMAT = "tuneplane-hpc/tokens/v2"
_FILES = {"ids.bin": "<i4", "offsets.bin": "<i8", "prompts.bin": "<i4"}
_MORE = {"judged": {"labels.bin": "<i1"}, "prompt": {"lines.bin": "<i4"}}
_CHUNK = 512


@dataclass(frozen=True)
class Tokens:
    """Rows as ids. `ids[offsets[i]:offsets[i + 1]]` is row i, of which the first `prompts[i]` ids carry no loss. `meta` holds the counts.

    Of preferences, rows 2 k and 2 k + 1 are the chosen and the rejected answer of pair k. `labels[i]` is 1 where the judged answer i is good;
    None where nothing is judged. `lines[i]` is the line of prompt i in its file, from 1; None for other forms.
    """

    ids: Any
    offsets: Any
    prompts: Any
    meta: dict[str, Any]
    labels: Any = None
    lines: Any = None

    def __len__(self) -> int:
        return len(self.prompts)

    @property
    def examples(self) -> int:
        """Rows, or pairs of rows: what the order of a run numbers."""
        return int(self.meta["counts"]["kept"])

    def rows_of(self, example: int) -> range:
        """The numbers of the example's rows."""
        width = len(self) // self.examples
        return range(example * width, (example + 1) * width)

    def row(self, index: int) -> tuple[Any, int]:
        return self.ids[self.offsets[index] : self.offsets[index + 1]], int(self.prompts[index])

    def length(self, index: int) -> int:
        return int(self.offsets[index + 1] - self.offsets[index])

    def targets(self, index: int) -> int:
        """How many ids of the row carry loss."""
        return self.length(index) - int(self.prompts[index])


def open_tokens(folder: str | os.PathLike[str]) -> Tokens:
    """Map a finished token folder into memory, read-only. Raises OSError or ValueError when it is not whole (by size)."""
    import numpy as np

    base = Path(folder)
    meta = read_json(base / "meta.json")
    if not isinstance(meta, dict) or meta.get("schema") != FORMAT:
        raise ValueError(f"{base}: not a token folder of this release")
    arrays: list[Any] = []
    for name, kind in _files(meta["form"]).items():
        if os.path.getsize(base / name) != meta["files"][name]["size"]:
            raise ValueError(f"{base / name}: not the size that was written")
        arrays.append(np.memmap(base / name, dtype=kind, mode="r"))
    more = dict(zip(_MORE.get(meta["form"], {}), arrays[3:], strict=True))
    return Tokens(arrays[0], arrays[1], arrays[2], meta, more.get("labels.bin"), more.get("lines.bin"))


def _files(form: str) -> dict[str, str]:
    """Names and number types of the arrays of a form."""
    return _FILES | _MORE.get(form, {})


def key_of(source_digest: str, tokenizer_digest: str, max_length: int, over_long: str, form: str) -> str:
    """The name of a token folder: a digest of everything that it depends on."""
    return digest_json([FORMAT, form, source_digest, tokenizer_digest, max_length, over_long])


def is_whole(folder: Path) -> bool:
    """True if every file has the digest that its meta.json records."""
    try:
        meta = read_json(folder / "meta.json")
        return all(digest_file(folder / n) == meta["files"][n]["sha256"] for n in _files(meta["form"]))
    except (OSError, ValueError, KeyError, TypeError):
        return False


def ensure(
    cache: Path,
    source: Path,
    tokenizer_digest: str,
    encoder: Encoder,
    form: str = "answer",
    *,
    check: Callable[[], None] = lambda: None,
) -> Path:
    """The token folder of `source` below `cache`, made now if it is not there whole. One process a cache at a time.

    `check` is called between chunks and may raise to stop. Raises Refused, naming the rows, when the data is at fault.
    """
    try:
        source_digest = digest_file(source, follow=True)
    except OSError as exc:
        raise refuse("E-TRAIN-020", f"cannot be read: {exc.strerror or exc}", field=os.fspath(source)) from exc
    key = key_of(source_digest, tokenizer_digest, encoder.max_length, encoder.over_long, form)
    folder = cache / key.removeprefix("sha256:")[:32]
    if folder.exists():
        if is_whole(folder):
            return folder
        shutil.rmtree(folder)  # content addressed: making it again loses nothing
    temp = folder.with_name(f".{folder.name}.tmp")
    shutil.rmtree(temp, ignore_errors=True)
    temp.mkdir(parents=True)
    try:
        meta = _write(temp, read_examples(source, form), encoder, form, check)
        meta |= {"schema": FORMAT, "form": form, "key": key, "source": source.name, "source_sha256": source_digest}
        write_new(temp / "meta.json", pretty_bytes(meta))
        fsync_dir(temp)
        publish_dir(temp, folder)
    except BaseException:
        shutil.rmtree(temp, ignore_errors=True)
        raise
    return folder


def _chunks(examples: Iterable[Example]) -> Iterator[list[Example]]:
    stream = iter(examples)
    while chunk := list(islice(stream, _CHUNK)):
        yield chunk


def _write(
    folder: Path, examples: Iterable[Example], encoder: Encoder, form: str, check: Callable[[], None]
) -> dict[str, Any]:
    counts = {"read": 0, "kept": 0, "truncated": 0, "skipped": 0, "unfit": 0}
    offsets, prompts, labels, lines = array("q", [0]), array("i"), array("b"), array("i")
    wrong: list[Reason] = []
    with open(folder / "ids.bin", "wb") as stream:
        for chunk in _chunks(examples):
            check()
            for example, got in zip(chunk, encoder.encode_groups([e.rows for e in chunk]), strict=True):
                counts["read"] += 1
                if isinstance(got, Reason):
                    wrong.append(got)
                elif isinstance(got, str):
                    counts[got] += 1
                else:
                    _add(got, stream, offsets, prompts)
                    labels.append(example.good)
                    lines.append(example.line)
                    counts["kept"] += 1
                    counts["truncated"] += any(g.cut for g in got)
            if len(wrong) >= MAX_FAULTS:
                break
        if wrong:
            raise Refused(wrong[:MAX_FAULTS])
        if not counts["kept"]:
            raise refuse("E-TRAIN-025", "no row is left to train on", field=encoder.source, found=str(counts))
        stream.flush()
        os.fchmod(stream.fileno(), 0o644)
        os.fsync(stream.fileno())
    arrays = {"offsets.bin": offsets, "prompts.bin": prompts, "labels.bin": labels, "lines.bin": lines}
    for name in _files(form).keys() & arrays.keys():
        write_new(folder / name, arrays[name].tobytes())
    files = {n: {"size": os.path.getsize(folder / n), "sha256": digest_file(folder / n)} for n in _files(form)}
    return {"counts": counts, "tokens": offsets[-1], "targets": offsets[-1] - sum(prompts), "files": files}


def _add(got: Sequence[Encoded], stream: Any, offsets: array[int], prompts: array[int]) -> None:
    for one in got:
        array("i", one.ids).tofile(stream)
        offsets.append(offsets[-1] + len(one.ids))
        prompts.append(one.prompt)
