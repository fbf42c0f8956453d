"""The job's rows as tokens: made by one rank of the run, shared through the run directory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tuneplane.training import warning
from tuneplane.training.chat import Encoder
from tuneplane.training.model import tokenizer_digest
from tuneplane.training.program import Job
from tuneplane.training.settings import Settings
from tuneplane.training.tokens import Tokens, ensure, open_tokens


def tokens(
    job: Job, name: str, model_folder: Path, tokenizer: Any, settings: Settings, form: str = "answer", room: int = 0
) -> Tokens | None:
    """The tokens of the input `name` (`train`, `validation`), rows of `form`; None where the job has no such input. A collective.

    `room` tokens of `max_length` are left for answers to come.

    They are kept in `RUN_DIR/cache/tokens` by content, so that a later attempt finds them. The wait is bounded by `start_timeout_s`; a warning
    during the work ends it on all ranks.
    """
    source = job.launch.input_path(name, job.place)
    if source is None:
        return None
    cache = job.place.run_dir / "cache" / "tokens"

    def work() -> str:
        encoder = Encoder(tokenizer, settings.max_length - room, settings.over_long, source.name)
        return ensure(cache, source, tokenizer_digest(model_folder), encoder, form, check=warning.check).name

    folder = job.peers.once(f"tokenise {name}", work, job.launch.policies.start_timeout_s)
    return open_tokens(cache / folder)
