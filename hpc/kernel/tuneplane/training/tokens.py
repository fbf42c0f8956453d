"""Tokenised rows: made once by one rank, kept by content, mapped into memory by all (P65)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from tuneplane.contract.datarows import DataFault
from tuneplane.contract.mapping import Mapper, Seen
from tuneplane.record.digest import digest_json
from tuneplane.training.arrays import ArrayWriter, kept, open_arrays, writing
from tuneplane.training.chat import Encoded, Encoder
from tuneplane.training.packs import Packs
from tuneplane.training.refusals import Reason, Refused, refuse
from tuneplane.training.rows import MAX_FAULTS, Example, read_examples
from tuneplane.training.source import Source, raw_rows, refused

FORMAT = "tuneplane-hpc/tokens/v3"
_ARRAYS = {"ids": "i", "offsets": "q", "prompts": "i"}
_MORE = {"judged": {"labels": "b"}, "prompt": {"objects": "B", "places": "q"}}
_CHUNK = 512


@dataclass(frozen=True)
class Tokens:
    """Rows as ids. `ids[offsets[i]:offsets[i + 1]]` is row i, of which the first `prompts[i]` ids carry no loss. `meta` holds the counts.

    Of preferences, rows 2 k and 2 k + 1 are the chosen and the rejected answer of pair k. `labels[i]` is 1 where the judged answer i is good;
    None where nothing is judged. Prompts have `objects`: their whole rows. With `packs` an example is a sequence of several rows.
    """

    ids: Any
    offsets: Any
    prompts: Any
    meta: dict[str, Any]
    labels: Any = None
    objects: Any = None
    places: Any = None
    packs: Packs | None = None

    def __len__(self) -> int:
        return len(self.prompts)

    @property
    def examples(self) -> int:
        """Rows, pairs of rows, or packs of them: what the order of a run numbers."""
        return int(self.meta["counts"]["kept"]) if self.packs is None else len(self.packs)

    def rows_of(self, example: int) -> Sequence[int]:
        """The numbers of the example's rows."""
        if self.packs is not None:
            return self.packs.rows_of(example)
        width = len(self) // self.examples
        return range(example * width, (example + 1) * width)

    def row(self, index: int) -> tuple[Any, int]:
        return self.ids[self.offsets[index] : self.offsets[index + 1]], int(self.prompts[index])

    def length(self, index: int) -> int:
        return int(self.offsets[index + 1] - self.offsets[index])

    def targets(self, index: int) -> int:
        """How many ids of the row carry loss: the first one of a row without a prompt does not, since nothing foretells it."""
        return self.length(index) - max(1, int(self.prompts[index]))

    def object(self, index: int) -> dict[str, Any]:
        """The whole row behind prompt `index`, as the data has it."""
        return dict(json.loads(bytes(self.objects[self.places[index] : self.places[index + 1]])))


def open_tokens(folder: Path) -> Tokens:
    """Map a finished token folder into memory, read-only. Raises OSError or ValueError when it is not whole (by size)."""
    arrays, meta = open_arrays(folder, FORMAT)
    return Tokens(meta=meta, **arrays)


def key_of(
    source: Source, tokenizer_digest: str, max_length: int, over_long: str, form: str, held_out: Source | None = None
) -> str:
    """The name of a token folder: a digest of everything that it depends on."""
    parts: list[Any] = [FORMAT, form, source.digest, tokenizer_digest, max_length, over_long]
    if source.columns is not None:
        roles = None if held_out is None or held_out.columns is None else dict(held_out.columns.roles)
        parts += [source.name, dict(source.columns.roles), None if held_out is None else [held_out.digest, roles]]
    return digest_json(parts)


def ensure(
    cache: Path,
    source: Source,
    tokenizer_digest: str,
    encoder: Encoder,
    form: str = "answer",
    *,
    held_out: Source | None = None,
    elsewhere: Iterable[Path] = (),
    check: Callable[[], None] = lambda: None,
) -> Path:
    """The token folder of `source` below `cache`, made now, or copied from a cache `elsewhere`, if it is not there whole.

    Where the source's columns are mapped, rows that ask what `held_out` asks are dropped. `check` is called between chunks and may raise to stop.
    Raises Refused, naming the rows, when the data is at fault.
    """
    key = key_of(source, tokenizer_digest, encoder.max_length, encoder.over_long, form, held_out)

    def make(folder: Path) -> dict[str, Any]:
        mapper = _mapper(source, held_out, check)
        meta = _write(folder, read_examples(source, form, mapper), encoder, form, check, mapper)
        mapped = {} if mapper is None else {"columns": mapper.counts.as_json()}
        files = [path.name for path in source.files]
        return meta | mapped | {"schema": FORMAT, "form": form, "source": files, "source_sha256": source.digest}

    return kept(cache, key, make, elsewhere)


def _mapper(source: Source, held_out: Source | None, check: Callable[[], None]) -> Mapper | None:
    if source.columns is None:
        return None
    seen = Seen()
    if held_out is not None:
        asked = Mapper(held_out.columns, seen, split=held_out.name, evaluates=True)
        for number, raw in enumerate(raw_rows(held_out)):
            if number % _CHUNK == 0:
                check()
            if isinstance(raw.value, dict):
                asked.take(raw.value)
    return Mapper(source.columns, seen, split=source.name, evaluates=source.name != "train")


def _chunks(examples: Iterable[Example]) -> Iterator[list[Example]]:
    stream = iter(examples)
    while chunk := list(islice(stream, _CHUNK)):
        yield chunk


def _write(
    folder: Path,
    examples: Iterable[Example],
    encoder: Encoder,
    form: str,
    check: Callable[[], None],
    mapper: Mapper | None = None,
) -> dict[str, Any]:
    counts = {"read": 0, "kept": 0, "truncated": 0, "skipped": 0, "unfit": 0}
    wrong: list[Reason] = []
    with writing(folder, _ARRAYS | _MORE.get(form, {})) as writer:
        rows = _RowWriter(writer, form)
        for chunk in _chunks(examples):
            check()
            for example, got in zip(chunk, encoder.encode_groups([e.rows for e in chunk]), strict=True):
                counts["read"] += 1
                if isinstance(got, Reason):
                    wrong.append(got)
                elif isinstance(got, str):
                    counts[got] += 1
                else:
                    rows.add(example, got)
                    counts["kept"] += 1
                    counts["truncated"] += any(g.cut for g in got)
            if len(wrong) >= MAX_FAULTS:
                break
        if wrong:
            raise Refused(wrong[:MAX_FAULTS])
        if mapper is not None:
            _settle(mapper)
        if not counts["kept"]:
            raise refuse("E-TRAIN-025", "no row is left to train on", field=encoder.source, found=str(counts))
        return {"counts": counts, "tokens": rows.tokens, "targets": rows.targets, "files": writer.finish()}


def _settle(mapper: Mapper) -> None:
    try:
        mapper.finish()
    except DataFault as fault:
        raise refused(fault) from fault


class _RowWriter:
    """Rows into the arrays of their form, one after the other."""

    def __init__(self, writer: ArrayWriter, form: str) -> None:
        self._writer, self._form = writer, form
        self.tokens = self.targets = self._objects = 0
        writer.append("offsets", 0)
        if form == "prompt":
            writer.append("places", 0)

    def add(self, example: Example, got: Sequence[Encoded]) -> None:
        for one in got:
            self.tokens += len(one.ids)
            self.targets += len(one.ids) - max(1, one.prompt)
            self._writer.extend("ids", one.ids)
            self._writer.append("offsets", self.tokens)
            self._writer.append("prompts", one.prompt)
        if self._form == "judged":
            self._writer.append("labels", example.good)
        elif self._form == "prompt":
            data = json.dumps(example.value, ensure_ascii=False).encode("utf-8", "surrogatepass")
            self._objects += len(data)
            self._writer.extend("objects", data)
            self._writer.append("places", self._objects)
