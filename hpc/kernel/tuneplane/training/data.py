"""The job's rows as tokens: made by one rank of the run, shared through the run directory, taken over from an earlier run where it made the same."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from tuneplane.training import warning
from tuneplane.training.arrays import clear_leftovers
from tuneplane.training.chat import Encoder
from tuneplane.training.going import size_below
from tuneplane.training.model import tokenizer_digest
from tuneplane.training.packs import ensure_packs, open_packs
from tuneplane.training.program import Job
from tuneplane.training.refusals import refuse
from tuneplane.training.settings import Settings
from tuneplane.training.source import source_of
from tuneplane.training.tokens import Tokens, ensure, open_tokens

CACHE = Path("cache") / "tokens"
_MOST_RUNS = 1000


def tokens(
    job: Job,
    name: str,
    model_folder: Path,
    tokenizer: Any,
    settings: Settings,
    form: str = "answer",
    room: int = 0,
    *,
    packing: bool = False,
) -> Tokens | None:
    """The tokens of the input `name` (`train`, `validation`), rows of `form`; None where there is nothing to validate on. A collective.

    `room` tokens of `max_length` are left for answers to come. With `packing` an example is a sequence of several rows.

    They are kept in `RUN_DIR/cache/tokens` by content, so that a later attempt finds them; what another run of the experiment made of the same rows
    is copied. The wait ends when nothing moves for `start_timeout_s`; a warning during the work ends it on all ranks.
    """
    cache, bound = job.place.run_dir / CACHE, job.launch.policies.start_timeout_s

    def written() -> int:
        return size_below(cache)

    def further() -> None:
        warning.check()
        job.peers.moves()

    def work() -> str:
        clear_leftovers(cache)
        source = source_of(job.launch, job.place, name)
        if source is None:
            if name == "train":
                raise refuse("E-TRAIN-004", "no rows are given", field="launch.json: inputs.train")
            return ""
        held_out = None
        if name == "train" and source.columns is not None:
            held_out = source_of(job.launch, job.place, "validation")
        encoder = Encoder(tokenizer, settings.max_length - room, settings.over_long, source.label)
        return ensure(
            cache, source, tokenizer_digest(model_folder), encoder, form, held_out=held_out, elsewhere=_other_runs(job.place.run_dir),
            check=further,
        ).name  # fmt: skip

    made = job.peers.once(f"tokenise {name}", work, bound, seen=written)
    if not made:
        return None
    found = open_tokens(cache / made)
    if not packing:
        return found

    def arrange() -> str:
        return ensure_packs(cache, found, settings.max_length, settings.seed, check=further).name

    return replace(found, packs=open_packs(cache / job.peers.once(f"pack {name}", arrange, bound, seen=written)))


def _other_runs(run_dir: Path) -> Iterator[Path]:
    """Token caches of the other runs of this experiment. Who made what is in them is asked of the file system, never of a name."""
    try:
        with os.scandir(run_dir.parent) as entries:
            others = [
                e.path for e in islice(entries, _MOST_RUNS) if e.name != run_dir.name and not e.name.startswith(".")
            ]
    except OSError:
        return
    for path in sorted(others):
        if (Path(path) / CACHE).is_dir():
            yield Path(path) / CACHE
