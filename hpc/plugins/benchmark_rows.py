"""The rows of a benchmark's tasks, and what its templates ask of them, as far as they can be judged before a job asks. Nothing is run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from jinja2 import TemplateError, nodes
from jinja2.meta import find_undeclared_variables
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tuneplane.contract.benchmark_rows import read_rows
from tuneplane.contract.benchmarks import TASKS, example_faults, rows_of

from hpc.errors import Refusal

_TEMPLATES: Final = ("doc_to_text", "doc_to_target", "doc_to_choice")
_ASKED: Final = ("test_split", "validation_split", "fewshot_split")


def row_faults(task: Mapping[str, Any], read: Callable[[str], bytes], shots: int) -> list[Refusal]:
    """Why the rows of a task without faults cannot be asked after `shots` examples: E-EVAL-061 of the task, E-EVAL-062 of a file.

    `read` gives a file of the benchmark's folder, or raises FileNotFoundError.
    """
    where = f"{TASKS}/{task['task']}.yaml"
    faults: list[Refusal] = []
    files: dict[str, list[dict[str, Any]]] = {}
    for file in sorted(set(rows_of(task).values())):
        files[file] = _read(file, read, faults)
    if faults:
        return faults
    rows = {split: files[file] for split, file in rows_of(task).items()}
    faults += [
        Refusal("E-EVAL-061", f.message, field=f"{where}: {f.field}", found=f.found, allowed=f.allowed)
        for f in example_faults(task, shots, rows)
    ]
    for key in _TEMPLATES:
        if isinstance(text := task.get(key), str):
            faults += _template_faults(f"{where}: {key}", text, {task[s]: rows[task[s]] for s in _ASKED if task.get(s)})
    return faults


def _read(file: str, read: Callable[[str], bytes], faults: list[Refusal]) -> list[dict[str, Any]]:
    path = f"{TASKS}/{file}"
    try:
        rows, found = read_rows(read(path))
    except FileNotFoundError:
        faults.append(Refusal("E-EVAL-062", "is not there", field=path))
        return []
    faults += [
        Refusal("E-EVAL-062", f.message, field=f"{path}:{f.line}" if f.line else path, found=f.found, allowed=f.allowed)
        for f in found
    ]
    return rows


def _template_faults(field: str, text: str, rows: Mapping[str, Iterable[Mapping[str, Any]]]) -> Iterable[Refusal]:
    """A template that is none, or that names what rows do not have; the name of a field alone is that field, as lm-eval reads it."""
    try:
        wanted = _names(text)
    except TemplateError as exc:
        return [Refusal("E-EVAL-061", f"is no template: {exc}", field=field, found=text)]
    for split, listed in rows.items():
        fields = list(next(iter(listed), {}))  # all rows of a file have those of its first
        if text not in fields and (lacking := sorted(wanted - set(fields))):
            message = f"names {', '.join(lacking)}, which the rows of {split} do not have"
            return [Refusal("E-EVAL-061", message, field=field, found=text, allowed=", ".join(fields))]
    return []


def _names(text: str) -> set[str]:
    """What a template takes from a row; not what it only asks for with `is defined` or `default`."""
    env = ImmutableSandboxedEnvironment()
    env.filters["regex_replace"] = str  # lm-eval's own
    tree = env.parse(text)
    asked = [
        *(t.node for t in tree.find_all(nodes.Test) if t.name in ("defined", "undefined")),
        *(f.node for f in tree.find_all(nodes.Filter) if f.name in ("default", "d")),
    ]
    optional = {node.name for node in asked if isinstance(node, nodes.Name)}
    return find_undeclared_variables(tree) - optional - set(env.globals)
