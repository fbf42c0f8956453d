"""The settings of a benchmark evaluation: names, types, ranges, defaults; parsed strictly. Standard library only.

`FIELDS` is the table that the recipe's `params` and `docs/evaluation.md` repeat. What is left at -1 or 0 is the benchmark's own word. `exact` marks
what an answer or a score may depend on: it is part of the settings digest, and reports that differ in it are not compared by a gate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from tuneplane.evaluation.settings import NONE, checked
from tuneplane.record.digest import digest_json
from tuneplane.training.refusals import Refused
from tuneplane.training.settings import Field

FIELDS: tuple[Field, ...] = (
    Field("num_fewshot", "int", -1, "answered examples before each question; -1 = as the benchmark says", -1, 1000),
    Field("limit", "int", 0, "rows of a seeded sample of each task; 0 = as the benchmark says", 0, 100_000_000),
    Field("seed", "int", 0, "which rows, which examples before them, and sampling", 0, 4_294_967_295),
    Field("chat_template", "bool", False, "questions as turns of the model's own chat template"),
    Field("precision", "enum", "auto", "auto = bf16 where the GPU has it, else fp32", choices=("auto", "bf16", "fp32")),
    Field("batch_size", "int", 0, "requests at once; 0 = as the benchmark says, else 16", 0, 65_536, exact=False),
    Field("adapter", "str", NONE, "folder of a LoRA adapter on shared storage", exact=False),
    Field("cache", "str", NONE, "folder where finished reports are kept and found again", exact=False),
)


@dataclass(frozen=True)
class Settings:
    """Checked settings, one attribute a field of `FIELDS`; `none` is still a word here."""

    num_fewshot: int
    limit: int
    seed: int
    chat_template: bool
    precision: str
    batch_size: int
    adapter: str
    cache: str

    def exact(self) -> dict[str, Any]:
        """What answers and scores depend on."""
        kept = {f.name for f in FIELDS if f.exact}
        return {name: value for name, value in asdict(self).items() if name in kept}


def settings_digest(settings: Settings, precision: str) -> str:
    """Digest of the settings with the precision that was really used."""
    return digest_json({**settings.exact(), "precision": precision})


def parse(given: Mapping[str, Any]) -> Settings:
    """Raises Refused E-EVAL-030 (unknown), E-EVAL-031 (out of range): every fault at once."""
    values, wrong = checked(FIELDS, given)
    if wrong:
        raise Refused(wrong)
    return Settings(**values)
