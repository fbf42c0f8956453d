"""benchmark.yaml: what a benchmark pack declares (tuneplane/benchmark/v1); and the tasks beside it, as far as lm-eval here can ask them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, Final

import yaml
from tuneplane.contract.benchmarks import (
    DECLARATION,
    RUNNER,
    TASKS,
    Fault,
    Measured,
    declaration_faults,
    declared,
    fewshot_of,
    measured,
    task_faults,
)

from hpc.errors import Refusal, Refusals
from hpc.plugins.forms import Form, shown
from hpc.plugins.opening import open_form
from hpc.plugins.tree import Tree
from hpc.spec.yamltext import parse_yaml

NAME: Final = DECLARATION
SCHEMA: Final = "tuneplane/benchmark/v1"
RUNNERS: Final = ("lm-eval", "evalscope", "rtl", "judge", "safety")
_OWN_SUITES: Final = ("judge", "safety", "rtl")
"""Runners that can do without named suites."""
_KEY = re.compile(r"[^\s/]+")


def check_benchmark(form: Form, name: str) -> None:
    """Keep every fault of the declaration in the form. `name` is the package's."""
    form.choice("schema", (SCHEMA,), required=True)
    if (stated := form.text("name", required=True, limit=128)) and stated != name:
        form.no("name", "is not the package's name", found=stated, allowed=name)
    form.text("title")
    form.text("summary")
    runner = form.choice("runner", RUNNERS, required=True)
    if not form.texts("suites", most=1000, limit=256) and runner not in ("", *_OWN_SUITES):
        form.no("suites", f"names none, and {runner} runs suites", allowed="a list of suites")
    _metrics(form)
    form.number("num_fewshot", 0, 1000, 0)
    if form.get("batch_size") != "auto":
        form.number("batch_size", 1, 1 << 20, 1)
    form.number("limit", 0, 1 << 31, 0)
    if isinstance(form.get("extra_args"), list):
        form.texts("extra_args")
    else:
        form.part("extra_args")
    rubric = form.text("rubric", limit=64 << 10, prose=True)
    if runner == "judge" and not rubric:
        form.no("rubric", "is missing; a judge needs one", allowed="text", code=form.codes.missing)
    form.text("category", limit=128)
    form.texts("keywords", most=64, limit=64)
    form.part("i18n")
    form.only()


def _metrics(form: Form) -> None:
    primary: list[str] = []
    seen: set[str] = set()
    metrics = form.parts("metrics", most=256)
    for metric in metrics:
        key = metric.text("key", required=True, limit=256, grammar=_KEY, allowed="a name without spaces and '/'")
        metric.text("label")
        metric.choice("direction", ("higher", "lower", "neutral"))
        metric.flag("ratio", False)
        if metric.flag("primary", False):
            primary.append(key)
        if key and key in seen:
            metric.no("key", "stands twice", found=key, allowed="each metric once")
        seen.add(key)
        metric.only()
    if not metrics:
        form.no("metrics", "names none", allowed="at least one metric")
    elif len(primary) != 1:
        form.no(
            "metrics",
            f"has {len(primary)} primary metrics",
            found=", ".join(primary),
            allowed="exactly one with primary: true",
        )


Read = Callable[[str], bytes]
"""A file of a benchmark's folder by its path. Raises FileNotFoundError."""


def read_benchmark(name: str, read: Read, where: str, shots: int = -1) -> dict[str, Measured]:
    """Every number that a benchmark gives. `where` starts the fields of refusals; `shots` is what `num_fewshot` was set to, -1 for nothing.

    Raises Refusals: E-PLUGIN-06x for the declaration, E-SUBMIT-096 for a runner that nothing here is, E-EVAL-060 … 062 for the numbers, tasks
    and their rows; all at once.
    """
    faults: list[Refusal] = []
    form = open_form(NAME, lambda: _stored(NAME, read), faults)
    if form is not None:
        check_benchmark(form, name)
    if faults or form is None:
        raise Refusals(_below(where, faults))
    benchmark = declared(form.value)
    if benchmark.runner != RUNNER:
        message = f"no method here runs {benchmark.runner}"
        raise Refusals(
            [Refusal("E-SUBMIT-096", message, field=f"{where}/{NAME}: runner", found=benchmark.runner, allowed=RUNNER)]
        )
    faults += _faults("E-EVAL-060", NAME, declaration_faults(form.value))
    tasks: dict[str, Any] = {}
    for suite in benchmark.suites if not faults else ():
        tasks[suite] = _task(suite, read, faults)
    if not faults:
        from hpc.plugins.benchmark_rows import row_faults  # it loads Jinja, which most submissions can do without

        faults += [f for task in tasks.values() for f in row_faults(task, read, fewshot_of(benchmark, task, shots))]
    if faults:
        raise Refusals(_below(where, faults))
    try:
        return measured(benchmark, tasks)
    except ValueError as exc:
        raise Refusals([Refusal("E-EVAL-060", str(exc), field=f"{where}/{NAME}: metrics")]) from None


def remarks(form: Form, name: str, tree: Tree) -> list[str]:
    """Why a sound declaration of lm-eval's could not be asked here: a pack may be meant for another site."""

    def read(path: str) -> bytes:
        if path not in tree.files:
            raise FileNotFoundError(path)
        return tree.read(path)

    if form.value.get("runner") != RUNNER:
        return []
    try:
        read_benchmark(name, read, name)
    except Refusals as faults:
        return [
            f"evalkit/benchmark cannot ask it: {f.field.removeprefix(f'{name}/')} {f.message}" for f in faults.items
        ]
    return []


def _stored(name: str, read: Read) -> bytes:
    try:
        return read(name)
    except FileNotFoundError:
        raise Refusal("E-PLUGIN-060", "is not there", field=name) from None


def _below(where: str, faults: Iterable[Refusal]) -> list[Refusal]:
    return [
        Refusal(f.code, f.message, field=f"{where}/{f.field}", found=f.found, allowed=f.allowed, hint=f.hint)
        for f in faults
    ]


def _faults(code: str, file: str, found: Iterable[Fault]) -> list[Refusal]:
    return [
        Refusal(
            code, f.message, field=f"{file}: {f.field}" if f.field else file, found=shown(f.found), allowed=f.allowed
        )
        for f in found
    ]


def _task(suite: str, read: Read, faults: list[Refusal]) -> Any:
    file = f"{TASKS}/{suite}.yaml"
    try:
        data = read(file)
        value = parse_yaml(data.decode("utf-8"), origin=file)
    except FileNotFoundError:
        hint = (
            "a task of lm-eval's own takes its rows from a hub, and nothing is downloaded: copy the task and its rows"
        )
        faults.append(Refusal("E-EVAL-061", "is not there", field=file, hint=hint))
        return None
    except UnicodeDecodeError as exc:
        faults.append(Refusal("E-EVAL-061", f"is not UTF-8: byte {exc.start}", field=file))
        return None
    except Refusal as exc:
        hint = "a function is code, which no task here has" if b"!function" in data else exc.hint
        faults.append(Refusal("E-EVAL-061", exc.message, field=exc.field or file, found=exc.found, hint=hint))
        return None
    found = _faults("E-EVAL-061", file, task_faults(value, suite))
    if not found and yaml.safe_load(data) != value:
        hint = "put words such as yes, no, on and off, dates and times into quotes"
        found = [
            Refusal("E-EVAL-061", "holds a value that readers of YAML understand in two ways", field=file, hint=hint)
        ]
    faults += found
    return value
