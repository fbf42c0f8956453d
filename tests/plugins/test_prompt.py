"""A site's prompts: declared values alone are filled in, each once, and the built-in texts keep the same rules."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from hpc.errors import Refusals
from hpc.plugins.prompt import BUILTIN, VALUES, Prompt, holes, load
from hpc.plugins.validate import validate
from tests.plugins.making import build

HEAD = "schema: tuneplane/plugin/v1\nname: team-prompts\nversion: 1.0.0\ncapability: prompt\n"
DIAGNOSIS = {"text": 'Run {run} ended: {headline}\nAnswer as {{"cause": …}}', "placeholders": ["run", "headline"]}


def pack(folder: Path, **changes: Any) -> Path:
    value: dict[str, Any] = {
        "schema": "tuneplane-hpc/prompt/v1",
        "name": "team-prompts",
        "prompts": {"diagnosis": DIAGNOSIS},
    } | changes
    return build(folder, {"plugin.yaml": HEAD, "prompt.yaml": yaml.safe_dump(value, allow_unicode=True)})


def test_a_package_sets_one_prompt_and_leaves_the_other(tmp_path: Path) -> None:
    folder = pack(tmp_path)
    assert validate(folder).publishable is True
    prompts = load(folder)
    filled = prompts.get("diagnosis").fill({"run": "run-1", "headline": "{run} {{x}}"})
    assert filled == 'Run run-1 ended: {run} {{x}}\nAnswer as {"cause": …}'
    assert prompts.get("judge") == BUILTIN.prompts["judge"]


@pytest.mark.parametrize("key", VALUES)
def test_the_built_in_prompts_declare_what_they_use(key: str) -> None:
    prompt = BUILTIN.get(key)
    assert list(dict.fromkeys(holes(prompt.text))) == list(prompt.placeholders)
    assert set(prompt.placeholders) <= set(VALUES[key])
    filled = prompt.fill({name: f"<{name}>" for name in prompt.placeholders})
    assert all(f"<{name}>" in filled for name in prompt.placeholders)


@pytest.mark.parametrize(
    ("prompts", "expected"),
    [
        ({}, [("064", "prompts")]),
        ({"summary": {}}, [("063", "prompts.summary")]),
        ({"diagnosis": {}}, [("062", "prompts.diagnosis.text")]),
        ({"diagnosis": {"text": "x {run}"}}, [("064", "prompts.diagnosis.text")]),
        ({"diagnosis": {"text": "x", "placeholders": ["run"]}}, [("064", "prompts.diagnosis.placeholders")]),
        ({"diagnosis": {"text": "{secret}", "placeholders": ["secret"]}}, [("064", "prompts.diagnosis.placeholders")]),
        (
            {"diagnosis": {"text": "{run.__class__}", "placeholders": ["run"]}},
            [("064", "prompts.diagnosis.text"), ("064", "prompts.diagnosis.placeholders")],
        ),
        ({"diagnosis": {"text": "a } b"}}, [("064", "prompts.diagnosis.text")]),
        ({"diagnosis": {"text": "a { b"}}, [("064", "prompts.diagnosis.text")]),
        ({"diagnosis": {"text": "a\x1bb"}}, [("009", "prompts.diagnosis.text")]),
        ({"diagnosis": {"text": "a\u202eb"}}, [("009", "prompts.diagnosis.text")]),
        ({"diagnosis": {"text": "x" * (16 << 10) + "y"}}, [("064", "prompts.diagnosis.text")]),
        ({"judge": {"text": "{run}", "placeholders": ["run"]}}, [("064", "prompts.judge.placeholders")]),
        ({"diagnosis": DIAGNOSIS | {"model": "x"}}, [("063", "prompts.diagnosis.model")]),
    ],
    ids=lambda v: str(v)[:60],
)
def test_a_prompt_at_fault_names_the_key_and_is_not_loaded(
    tmp_path: Path, prompts: dict[str, Any], expected: list[tuple[str, str]]
) -> None:
    folder = pack(tmp_path, prompts=prompts)
    assert [(e.code[-3:], e.field.removeprefix("prompt.yaml: ")) for e in validate(folder).declarations] == expected
    with pytest.raises(Refusals):
        load(folder)


def test_the_package_and_its_declaration_have_one_name(tmp_path: Path) -> None:
    report = validate(pack(tmp_path, name="other"))
    assert [(e.code[-3:], e.field) for e in report.declarations] == [("064", "prompt.yaml: name")]


@given(st.text(max_size=40), st.text(max_size=40))
def test_values_are_put_in_once_and_never_read_again(before: str, value: str) -> None:
    text = before.replace("{", "{{").replace("}", "}}") + "{run}"
    assert Prompt(text, ("run",)).fill({"run": value}) == before + value
