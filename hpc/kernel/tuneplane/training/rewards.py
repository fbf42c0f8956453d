"""Reward functions of the experiment, found by name in its rewards.py, and the environment's verifier: called as TRL calls them, answers checked."""

from __future__ import annotations

import importlib.util
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tuneplane.training.program import Job
from tuneplane.training.refusals import refuse
from tuneplane.training.verifier import load_verifier

FILE = "rewards.py"
AUTO, VERIFIER = "auto", "verifier"
_FIELD = "hyperparams.reward_functions"
Function = Callable[..., Sequence[float]]


def rewards_of(job: Job, names: str) -> dict[str, Function]:
    """The functions that `names` lists with commas. `verifier` is the environment's; `auto` is that where there is one, else `exact_match`.

    Runs rewards.py where a function of it is named. Raises Refused.
    """
    if names.strip() == AUTO:
        names = VERIFIER if "environment" in job.launch.inputs else "exact_match"
    listed = [n.strip() for n in names.split(",") if n.strip()]
    own = [n for n in listed if n != VERIFIER]
    found = load_functions(job.place.exp_dir, ",".join(own)) if own or not listed else {}
    if VERIFIER in listed:
        found[VERIFIER] = load_verifier(job)
    return {name: found[name] for name in listed}


def load_functions(folder: Path, names: str) -> dict[str, Function]:
    """The functions of `folder`/rewards.py that `names` lists with commas. Runs the file. Raises Refused."""
    path = folder / FILE
    spec = importlib.util.spec_from_file_location("rewards", path) if path.is_file() else None
    if spec is None or spec.loader is None:
        raise refuse("E-TRAIN-018", "there is no rewards.py in the experiment", field=_FIELD, found=str(folder))
    module = sys.modules["rewards"] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as exc:  # the user's own code
        raise refuse("E-TRAIN-018", f"cannot be imported: {type(exc).__name__}: {exc}", field=str(path)) from exc
    wanted = [n.strip() for n in names.split(",") if n.strip()]
    wrong = [n for n in wanted if not callable(getattr(module, n, None))]
    if wrong or not wanted:
        has = sorted(n for n, v in vars(module).items() if callable(v) and not n.startswith("_"))
        raise refuse("E-TRAIN-018", "no such function", field=_FIELD, found=", ".join(wrong), allowed=", ".join(has))
    return {name: getattr(module, name) for name in wanted}


def score(
    functions: Mapping[str, Function],
    rows: Sequence[Mapping[str, Any]],
    texts: Sequence[str],
    again: Callable[[], None] = lambda: None,
) -> dict[str, list[float]]:
    """What each function gives to each answer: `f(prompts=…, completions=…, **columns)`, with a list an argument.

    Of a conversation a completion is a list of one message of the assistant. `columns` are the rows' other keys; None where a row lacks one.
    `again` is called before each function. Raises Refused when a function gives anything but one finite number an answer.
    """
    prompts = [row["prompt"] for row in rows]
    completions: list[Any] = [
        text if isinstance(prompt, str) else [{"role": "assistant", "content": text}]
        for prompt, text in zip(prompts, texts, strict=True)
    ]
    names = sorted({name for row in rows for name in row} - {"prompt", "prompts", "completions"})
    columns = {name: [row.get(name) for row in rows] for name in names}
    found = {}
    for name, function in functions.items():
        again()
        found[name] = asked(name, function, prompts, completions, columns)
    return found


def asked(
    name: str, function: Function, prompts: Sequence[Any], completions: Sequence[Any], columns: Mapping[str, Any]
) -> list[float]:
    """What one function gives to these answers. Raises Refused E-TRAIN-047 for anything but one finite number each."""
    values, count = function(prompts=prompts, completions=completions, **columns), len(completions)
    try:
        found = [float(v) for v in values]
    except (TypeError, ValueError) as exc:
        raise refuse("E-TRAIN-047", f"does not give a list of numbers: {exc}", field=name) from exc
    if len(found) != count:
        raise refuse(
            "E-TRAIN-047", "gives another number of values", field=name, found=str(len(found)), allowed=str(count)
        )
    if wrong := [v for v in found if not math.isfinite(v)]:
        raise refuse("E-TRAIN-047", "gives what is no finite number", field=name, found=str(wrong[0]))
    return found
