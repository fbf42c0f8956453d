"""Error kinds of the plan area: what a forecast cannot be made from. They stand among what is not known, and refuse no submission."""

from __future__ import annotations

from hpc.errors.core import ErrorKind, table

_K = ErrorKind
KINDS: dict[str, ErrorKind] = table(
    _K("E-PLAN-001", "a model that cannot be read for a forecast", "Its folder has no config.json or safetensors, or config.json lacks the sizes.", "Look at the folder; without it `tp plan` says nothing of memory, and the rest holds."),
)  # fmt: skip
