from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tuneplane.evaluation import benchmark_settings
from tuneplane.evaluation.metrics import Scoring
from tuneplane.evaluation.settings import FIELDS, parse, settings_digest
from tuneplane.training.refusals import Refused


def test_defaults_are_greedy_and_score_exact_match_first() -> None:
    settings = parse({})
    assert settings.scoring == Scoring(("exact_match", "token_f1"), (), ())
    assert (settings.temperature, settings.max_rows, settings.suite) == (0.0, 0, "behaviour")
    assert parse({f.name: f.default for f in FIELDS}) == settings


def test_lists_are_texts_with_signs_between() -> None:
    settings = parse(
        {"metrics": "json_fields, constraints", "fields": "a,b", "constraints": "Never say no; Always ask."}
    )
    assert settings.scoring == Scoring(("json_fields", "constraints"), ("a", "b"), ("Never say no", "Always ask."))


@pytest.mark.parametrize(
    ("given", "code", "field"),
    [
        ({"metric": "exact_match"}, "E-EVAL-030", "metric"),
        ({"metrics": "bleu"}, "E-EVAL-031", "metrics"),
        ({"metrics": "exact_match,exact_match"}, "E-EVAL-031", "metrics"),
        ({"metrics": ","}, "E-EVAL-031", "metrics"),
        ({"metrics": "constraints"}, "E-EVAL-031", "constraints"),
        ({"constraints": "Never say no"}, "E-EVAL-031", "constraints"),
        ({"suite": "a/b"}, "E-EVAL-031", "suite"),
        ({"max_new_tokens": 0}, "E-EVAL-031", "max_new_tokens"),
        ({"temperature": -1.0}, "E-EVAL-031", "temperature"),
        ({"top_p": 0.0}, "E-EVAL-031", "top_p"),
        ({"batch_size": True}, "E-EVAL-031", "batch_size"),
    ],
)
def test_every_fault_is_refused_by_name(given: dict[str, Any], code: str, field: str) -> None:
    with pytest.raises(Refused) as info:
        parse(given)
    assert [(r.code, r.field) for r in info.value.reasons] == [(code, field)]


def test_the_digest_covers_what_answers_and_scores_depend_on_and_nothing_else() -> None:
    base = settings_digest(parse({}), "fp32")
    same = [{"batch_size": 3}, {"cache": "/x"}, {"adapter": "/x"}, {"seed": 4}, {"top_p": 0.5}]
    assert {settings_digest(parse(given), "fp32") for given in same} == {base}
    other = [{"max_new_tokens": 3}, {"metrics": "token_f1"}, {"max_rows": 3}, {"sample_seed": 1}, {"temperature": 0.5}]
    other += [
        {"temperature": 0.5, "seed": 4},
        {"temperature": 0.5, "top_p": 0.5},
        {"repeats": "first"},
        {"fields": "a"},
    ]
    found = {settings_digest(parse(given), "fp32") for given in other} | {settings_digest(parse({}), "bf16")}
    assert len(found | {base}) == len(other) + 2


def test_the_page_lists_the_settings() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs/evaluation.md").read_text(encoding="utf-8")
    for field in (*FIELDS, *benchmark_settings.FIELDS):
        default = "`*`" if field.default == "*" else "false" if field.default is False else field.default
        allowed = field.allowed.replace("|", "\\|")
        assert f"| `{field.name}` | {allowed} | {default} | {field.doc} |" in page
