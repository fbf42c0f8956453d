"""Launch plans: what a framework's compiler may say about how its program is started, and the few words in it that only the job can fill in.

A plan is compiled at submission, where no attempt exists yet. What depends on one is written as `${TUNEPLANE_…}` and filled in by the launcher, in
argv, in the environment and in generated files alike. Other `${…}` are the framework's own and stay as they are.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Final

SCHEMA: Final = "tuneplane-hpc/launch-plan/v1"
RECORD: Final = "plan.json"
"""The plan's file below `.tuneplane/`."""
DIRECT, RAY_DRIVER = "direct", "ray-driver"
GENERATED: Final = "TUNEPLANE_GENERATED_DIR"
ALWAYS: Final = frozenset(
    {
        "TUNEPLANE_OUT_DIR",
        "TUNEPLANE_CHECKPOINT_DIR",
        "TUNEPLANE_WORK_DIR",
        "TUNEPLANE_EXP_DIR",
        "TUNEPLANE_RUN_DIR",
        "TUNEPLANE_RUN_ID",
        "TUNEPLANE_ATTEMPT",
        "TUNEPLANE_MAIN_PROCESS_IP",
        "TUNEPLANE_MAIN_PROCESS_PORT",
        GENERATED,
    }
)
"""Words that every job has. Each input that the job was given adds one."""
INPUTS: Final = {
    "model": "TUNEPLANE_MODEL_PATH",
    "train": "TUNEPLANE_TRAIN_DATA",
    "validation": "TUNEPLANE_VALIDATION_DATA",
}
_WORD = re.compile(r"\$\{(TUNEPLANE_[A-Z0-9_]*)\}")


def words_of(inputs: Collection[str]) -> frozenset[str]:
    """The words that a job with these inputs (`model`, `train`, `validation`) can fill in."""
    return ALWAYS | {word for name, word in INPUTS.items() if name in inputs}


def unknown_words(text: str, words: Collection[str]) -> list[str]:
    """Words in `text` that the job could not fill in, in their order."""
    return [word for word in _WORD.findall(text) if word not in words]


def fill(text: str, values: Mapping[str, str]) -> str:
    """`text` with every word replaced by its value. Raises KeyError naming a word without one."""
    return _WORD.sub(lambda match: values[match[1]], text)
