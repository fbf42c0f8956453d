"""The judge of an environment: its manifest.json names a plugin's function, whose answer to (task, trajectory) is the reward.

A verifier that fails, or answers with anything but one finite number, ends the run: a failure is never a reward of 0, which would teach the model
to please a broken judge.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tuneplane.contract.environments import MANIFEST
from tuneplane.record.files import read_json
from tuneplane.training.program import Job
from tuneplane.training.refusals import refuse

Verifier = Callable[[dict[str, Any], dict[str, Any]], float]
_FIELD = "data.environment: verifier"


def load_verifier(job: Job) -> Callable[..., list[float]]:
    """The environment's verifier in the form of a reward function. Runs the plugin's import code. Raises Refused E-TRAIN-049.

    `ref` is a locked plugin, `<owner>/<name>` with or without `@version`, whose entrypoint is the function, or `module:function` of any locked one.
    """
    folder = job.launch.input_path("environment", job.place)
    if folder is None:
        raise refuse("E-TRAIN-049", "the job has no environment", field=_FIELD, allowed="spec.data.environment")
    try:
        told = read_json(folder / MANIFEST)["verifier"]
        kind, ref = str(told["kind"]), str(told.get("ref", ""))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as exc:
        raise refuse("E-TRAIN-049", f"{MANIFEST} does not name it: {exc!r}", field=_FIELD) from exc
    if kind != "plugin":
        raise refuse(
            "E-TRAIN-049", "is of a kind that training does not ask", field=_FIELD, found=kind, allowed="plugin"
        )
    return as_reward(ref, _function(ref, job.place.work_dir), job.watchdog.again)


def _function(ref: str, work: Path) -> Verifier:
    from tuneplane.plugins.fault import PluginFault
    from tuneplane.plugins.locked import read_locked
    from tuneplane.plugins.provider import load

    try:
        module, colon, name = ref.partition(":")
        if colon:
            found: Any = importlib.import_module(module)
            for part in name.split("."):
                found = getattr(found, part)
        else:
            locked = read_locked(work)
            plugin = next((p for p in locked if ref in (p.id, p.label)), None)
            if plugin is None:
                allowed = ", ".join(p.label for p in locked) or "none is locked"
                raise refuse("E-TRAIN-049", "is no locked plugin of this job", field=_FIELD, found=ref, allowed=allowed)
            found = load(plugin)
    except PluginFault as fault:
        raise refuse("E-TRAIN-049", str(fault), field=_FIELD, found=ref) from fault
    except (ImportError, AttributeError) as exc:
        raise refuse("E-TRAIN-049", f"cannot be imported: {exc}", field=_FIELD, found=ref) from exc
    if not callable(found):
        raise refuse("E-TRAIN-049", "is no function", field=_FIELD, found=ref)
    return found  # type: ignore[no-any-return]


def as_reward(ref: str, verifier: Verifier, again: Callable[[], None] = lambda: None) -> Callable[..., list[float]]:
    """The verifier as reward functions are called. A trajectory is `{"messages": [the prompt's …, the answer], "completion": its text}`.

    `again` is called before each answer.
    """

    def judge(prompts: Sequence[Any], completions: Sequence[Any], **columns: Sequence[Any]) -> list[float]:
        out = []
        for at, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
            again()
            task = {"prompt": prompt, **{name: values[at] for name, values in columns.items()}}
            try:
                out.append(verifier(task, trajectory(prompt, completion)))
            except Exception as exc:  # the plugin's own code
                text = f"failed: {type(exc).__name__}: {exc}"
                raise refuse("E-TRAIN-047", text, field=f"verifier {ref}", found=f"task {task.get('id')}") from exc
        return out

    return judge


def trajectory(prompt: Any, completion: Any) -> dict[str, Any]:
    """What was asked and answered: a prompt as text counts as the user's one message."""
    asked: Sequence[Mapping[str, Any]] = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    text = completion if isinstance(completion, str) else completion[0]["content"]
    return {"messages": [*map(dict, asked), {"role": "assistant", "content": text}], "completion": text}
