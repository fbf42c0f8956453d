"""What a data-prep provider is called with and what it gives back. Standard library only; providers import it from here.

from tuneplane.contract.transforms import TransformRequest, TransformResult

def transform(request: TransformRequest) -> TransformResult: ...
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

API: Final = "tuneplane/transform/v1"
"""The `api` of a request and of a report."""


@dataclass(frozen=True)
class TransformRequest:
    """One call of a provider.

    `inputs` maps the request's names to absolute paths of files or folders, to be read and not written. `output_dir` exists, is empty and
    belongs to the runner: the provider writes files below it and nothing else. `config` is the request's JSON object, not checked by anyone yet.
    """

    inputs: Mapping[str, Path]
    output_dir: Path
    config: Mapping[str, Any]


@dataclass(frozen=True)
class TransformResult:
    """What a provider made.

    `files` names every file below `output_dir` once, as POSIX paths relative to it, and is a tuple; `records` counts what the files hold, zero
    or more. The runner compares both with the folder: a file that is not listed is refused like one that is listed and missing.
    """

    files: tuple[str, ...]
    records: int
