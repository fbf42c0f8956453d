"""The settings of a behaviour evaluation: names, types, ranges, defaults; parsed strictly. Standard library only.

`FIELDS` is the table that the recipe's `params` and `docs/evaluation.md` repeat. `exact` marks what an answer or a score may depend on: it is part of
the settings digest, and reports that differ in it are not compared by a gate.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tuneplane.contract.evaluation import METRICS
from tuneplane.evaluation.metrics import Scoring
from tuneplane.record.digest import digest_json
from tuneplane.training.refusals import Reason, Refused
from tuneplane.training.settings import Field

NONE, ALL = "none", "*"
_SUITE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")

FIELDS: tuple[Field, ...] = (
    Field("suite", "str", "behaviour", "name under which gates know the report"),
    Field("metrics", "str", "exact_match,token_f1", f"with commas, the deciding one first: {', '.join(METRICS)}"),
    Field("fields", "str", ALL, "what json_fields compares, with commas; * = all of the expected object's"),
    Field("constraints", "str", NONE, "what constraints checks, with semicolons: Never mention X; Always include Y"),
    Field("max_rows", "int", 0, "rows of a seeded sample; 0 = all", 0, 100_000_000),
    Field("sample_seed", "int", 0, "which sample", 0, 4_294_967_295),
    Field("repeats", "enum", "error", "a question that stands twice", choices=("error", "first")),
    Field("max_new_tokens", "int", 256, "longest answer in tokens", 1, 65_536),
    Field("temperature", "float", 0.0, "0 = greedy", 0, 10),
    Field("top_p", "float", 1.0, "sampling keeps the likeliest tokens up to this sum", 0, 1, above=True),
    Field("seed", "int", 0, "sampling; each question has random numbers of its own", 0, 4_294_967_295),
    Field("precision", "enum", "auto", "auto = bf16 where the GPU has it, else fp32", choices=("auto", "bf16", "fp32")),
    Field("batch_size", "int", 16, "questions that are answered at once", 1, 65_536, exact=False),
    Field("adapter", "str", NONE, "folder of a LoRA adapter on shared storage", exact=False),
    Field("cache", "str", NONE, "folder where finished reports are kept and found again", exact=False),
)


@dataclass(frozen=True)
class Settings:
    """Checked settings, one attribute a field of `FIELDS`; `none` and `*` are still words here."""

    suite: str
    metrics: str
    fields: str
    constraints: str
    max_rows: int
    sample_seed: int
    repeats: str
    max_new_tokens: int
    temperature: float
    top_p: float
    seed: int
    precision: str
    batch_size: int
    adapter: str
    cache: str

    @property
    def scoring(self) -> Scoring:
        fields = () if self.fields == ALL else _items(self.fields, ",")
        rules = () if self.constraints == NONE else _items(self.constraints, ";")
        return Scoring(_items(self.metrics, ","), fields, rules)

    def exact(self) -> dict[str, Any]:
        """What answers and scores depend on. Sampling is left out where nothing is sampled."""
        sampled = self.temperature > 0
        kept = {f.name for f in FIELDS if f.exact} - (set() if sampled else {"top_p", "seed"})
        return {name: value for name, value in asdict(self).items() if name in kept}


def _items(text: str, sign: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(sign) if part.strip())


def settings_digest(settings: Settings, precision: str) -> str:
    """Digest of the settings with the precision that was really used."""
    return digest_json({**settings.exact(), "precision": precision})


def parse(given: Mapping[str, Any]) -> Settings:
    """Raises Refused E-EVAL-030 (unknown), E-EVAL-031 (out of range): every fault at once."""
    values, wrong = checked(FIELDS, given)
    settings = Settings(**values)
    wrong += _contradictions(settings)
    if wrong:
        raise Refused(wrong)
    return settings


def checked(fields: Sequence[Field], given: Mapping[str, Any]) -> tuple[dict[str, Any], list[Reason]]:
    """A value for every field, its default where the given one is at fault; and the faults."""
    by_name = {f.name: f for f in fields}
    wrong: list[Reason] = []
    values = {f.name: f.default for f in fields}
    for name, value in given.items():
        field = by_name.get(name)
        if field is None:
            near = difflib.get_close_matches(name, by_name, 1)
            hint = f"did you mean {near[0]}?" if near else "see docs/evaluation.md for the list"
            wrong.append(Reason("E-EVAL-030", "unknown setting", name, hint=hint))
        elif fault := field.fault(value):
            wrong.append(Reason("E-EVAL-031", fault, name, repr(value), field.allowed))
        else:
            values[name] = float(value) if field.kind == "float" else value
    return values, wrong


def _contradictions(settings: Settings) -> list[Reason]:
    wrong = []
    metrics = settings.scoring.metrics
    for name in metrics:
        if name not in METRICS:
            wrong.append(Reason("E-EVAL-031", "no such metric", "metrics", repr(name), ", ".join(METRICS)))
    if not metrics or len(set(metrics)) < len(metrics):
        wrong.append(
            Reason("E-EVAL-031", "names none, or one twice", "metrics", repr(settings.metrics), ", ".join(METRICS))
        )
    if not _SUITE.fullmatch(settings.suite):
        wrong.append(
            Reason("E-EVAL-031", "not a name", "suite", repr(settings.suite), "letters, digits, '.', '_', '-'")
        )
    if ("constraints" in metrics) != bool(settings.scoring.constraints):
        wrong.append(
            Reason("E-EVAL-031", "the metric and its rules go together", "constraints", repr(settings.constraints))
        )
    return wrong
