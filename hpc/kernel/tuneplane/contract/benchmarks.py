"""What a benchmark declares and which numbers its tasks give: shared by who submits, who admits and who asks. Pure; standard library only.

A benchmark is a folder: `benchmark.yaml` (tuneplane/benchmark/v1) and, for the runner lm-eval, `tasks/<suite>.yaml` with rows beside it. Values come
in as parsed YAML. A task is taken only if it can run without a network and without code of its own, and if its numbers are means over its examples:
a mean can be computed again from the scores, which is what verdicts rest on.

With one task a number is named as lm-eval names it, `<metric>,<filter>`. With several it is `<task>:<metric>,<filter>`, and the bare name is the mean
over the examples of all tasks where every task gives it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Final

from tuneplane.contract.evaluation import METRIC_KEY, Direction
from tuneplane.contract.layout import SEGMENT

DECLARATION: Final = "benchmark.yaml"
RUNNER: Final = "lm-eval"
TASKS: Final = "tasks"
FOLDER: Final = "benchmarks"
"""Below an experiment: benchmarks of its own, one folder each."""
PACKS: Final = "tuneplane_plugins"
"""Below the package: benchmark packs, beside the other locked plugins."""

UNREAD: Final = frozenset(
    {"dataset_path", "dataset_kwargs", "tag", "should_decontaminate", "doc_to_decontamination_query"}
)
"""Keys of a task that lm-eval is not told: its rows are handed over, and a search for them in a training corpus needs one."""
MEANS: Final = ("acc", "acc_norm", "acc_bytes", "acc_mutual_info", "exact_match")
"""Metrics of lm-eval that are means over examples and need neither network nor code."""
FILTERS: Final = (
    "regex", "regex_pos", "multi_choice_regex", "remove_whitespace", "lowercase", "uppercase", "map", "take_first", "take_first_k", "majority_vote",
)  # fmt: skip
OUTPUTS: Final = ("generate_until", "multiple_choice", "loglikelihood")
_TASK_KEYS: Final = frozenset({
    "task", "task_alias", "tag", "dataset_path", "dataset_kwargs", "training_split", "validation_split", "test_split", "fewshot_split", "doc_to_text",
    "doc_to_target", "doc_to_choice", "description", "target_delimiter", "fewshot_delimiter", "fewshot_config", "num_fewshot", "metric_list",
    "output_type", "generation_kwargs", "repeats", "filter_list", "gen_prefix", "metadata", "should_decontaminate", "doc_to_decontamination_query",
})  # fmt: skip
_EXAMPLE_KEYS: Final = frozenset({
    "sampler", "samples", "fewshot_indices", "doc_to_text", "doc_to_choice", "doc_to_target", "gen_prefix", "fewshot_delimiter", "target_delimiter",
})  # fmt: skip
_WHY: Final = {
    "dataset_name": "names a part of a data set on a hub, and nothing is downloaded",
    "custom_dataset": "is code",
    "process_docs": "is code",
    "process_results": "is code",
    "class": "is code",
    "unsafe_code": "runs what a model wrote",
    "include": "leads to another file; write the task whole",
    "group": "is a group; benchmark.yaml lists the tasks under suites",
    "use_prompt": "takes a prompt from a hub",
    "doc_to_image": "asks with images",
    "doc_to_audio": "asks with sound",
}


@dataclass(frozen=True)
class Fault:
    """What is wrong with a task: a key's path in its file."""

    field: str
    message: str
    found: Any = ""
    allowed: str = ""


@dataclass(frozen=True)
class Stated:
    """A metric as benchmark.yaml states it; `direction` is "" where it says nothing."""

    key: str
    direction: Direction | str = ""
    ratio: bool = False
    primary: bool = False


@dataclass(frozen=True)
class Benchmark:
    """A declaration that the form's checks let through."""

    name: str
    runner: str
    suites: tuple[str, ...]
    metrics: tuple[Stated, ...]
    num_fewshot: int | None = None
    limit: int = 0
    batch_size: int = 0

    @property
    def primary(self) -> Stated:
        return next(m for m in self.metrics if m.primary)


@dataclass(frozen=True)
class Measured:
    """A number that a benchmark gives. `neutral`: no direction is better, or nobody said which."""

    direction: Direction
    ratio: bool


def declared(value: Mapping[str, Any]) -> Benchmark:
    """A benchmark from its declaration, in which every fault was looked for before. Raises ValueError where one is left all the same."""
    try:
        metrics = tuple(
            Stated(str(m["key"]), m.get("direction") or "", bool(m.get("ratio")), bool(m.get("primary")))
            for m in value["metrics"]
        )
        batch = value.get("batch_size")
        found = Benchmark(
            str(value["name"]), str(value["runner"]), tuple(str(s) for s in value.get("suites") or ()), metrics,
            value.get("num_fewshot"), int(value.get("limit") or 0), batch if type(batch) is int else 0,
        )  # fmt: skip
    except (KeyError, TypeError, AttributeError) as exc:
        raise ValueError(f"{DECLARATION} is no declaration: {exc!r}") from exc
    if not found.metrics or sum(m.primary for m in found.metrics) != 1:
        raise ValueError(f"{DECLARATION} has not exactly one primary metric")
    return found


def declaration_faults(value: Mapping[str, Any]) -> Iterator[Fault]:
    """What a benchmark asks of lm-eval that is not done here."""
    for index, name in enumerate(value.get("suites") or ()):
        if not SEGMENT.match(str(name)):
            yield Fault(f"suites[{index}]", "is no name of a file", name, "letters, digits, '.', '_', '-'")
    if value.get("extra_args"):
        yield Fault("extra_args", "are not passed on", allowed="settings of evalkit/benchmark")


def task_faults(value: Any, name: str) -> Iterator[Fault]:
    """Why a task cannot be asked here, every reason; none if it can."""
    if not isinstance(value, dict):
        yield Fault("", "is no mapping", type(value).__name__, "a mapping")
        return
    for key in sorted(map(str, value.keys() - _TASK_KEYS)):
        yield Fault(key, _WHY.get(key, "is no key of a task that is read here"), allowed=", ".join(sorted(_TASK_KEYS)))
    if value.get("task") != name:
        yield Fault("task", "is not the file's name", value.get("task"), name)
    if value.get("dataset_path") != "json":
        yield Fault(
            "dataset_path", "is a data set on a hub, and nothing is downloaded", value.get("dataset_path"), "json"
        )
    kind = value.get("output_type", OUTPUTS[0])
    if kind not in OUTPUTS:
        yield Fault("output_type", "gives no mean over examples", kind, ", ".join(OUTPUTS))
    yield from _data_faults(value)
    yield from _metric_faults(value)
    yield from _example_option_faults(value)
    for key in ("doc_to_text", "doc_to_target"):
        if not isinstance(value.get(key), (str, int)):
            yield Fault(key, "is no template", value.get(key), "text")
    if kind == "multiple_choice" and not isinstance(value.get("doc_to_choice"), (str, list, dict)):
        yield Fault(
            "doc_to_choice",
            "says no choices",
            value.get("doc_to_choice"),
            "a list, or a field or template that gives one",
        )


def _example_option_faults(task: Mapping[str, Any]) -> Iterator[Fault]:
    options, shots = task.get("fewshot_config"), task.get("num_fewshot")
    if shots is not None and (type(shots) is not int or shots < 0):
        yield Fault("num_fewshot", "is no number of examples", shots, "0 or more")
    if options is None:
        return
    if not isinstance(options, dict):
        yield Fault("fewshot_config", "is no mapping", options, ", ".join(sorted(_EXAMPLE_KEYS)))
        return
    for key in sorted(map(str, options.keys() - _EXAMPLE_KEYS)):
        message = "stands beside it, as fewshot_split" if key == "split" else "is no key of it that is read here"
        yield Fault(f"fewshot_config.{key}", message, allowed=", ".join(sorted(_EXAMPLE_KEYS)))
    if options.get("sampler", "default") not in ("default", "first_n"):
        yield Fault("fewshot_config.sampler", "is none that draws examples", options["sampler"], "default, first_n")
    listed = options.get("samples")
    if listed is not None and not (isinstance(listed, list) and all(isinstance(row, dict) for row in listed)):
        yield Fault("fewshot_config.samples", "is no list of rows", listed, "[{question: …, answer: …}]")


def _data_faults(task: Mapping[str, Any]) -> Iterator[Fault]:
    kwargs = task.get("dataset_kwargs")
    files = kwargs.get("data_files") if isinstance(kwargs, dict) else None
    if not isinstance(kwargs, dict) or not isinstance(files, dict) or not files or kwargs.keys() != {"data_files"}:
        yield Fault("dataset_kwargs", "names no rows", allowed="data_files: {test: rows.jsonl}")
        return
    for split, path in files.items():
        where = f"dataset_kwargs.data_files.{split}"
        pure = PurePosixPath(path) if isinstance(path, str) else None
        if pure is None or "://" in path or pure.is_absolute() or ".." in pure.parts or pure.suffix != ".jsonl":
            yield Fault(where, "is no JSONL file beside the task", path, "a relative path without .., to a .jsonl file")
    for key in ("training_split", "validation_split", "test_split", "fewshot_split"):
        if task.get(key) is not None and task[key] not in files:
            yield Fault(key, "is no split of the rows", task[key], ", ".join(map(str, files)))
    if task.get("test_split") is None and task.get("validation_split") is None:
        yield Fault("test_split", "is missing", allowed=", ".join(map(str, files)))


def _metric_faults(task: Mapping[str, Any]) -> Iterator[Fault]:
    metrics, filters = task.get("metric_list"), task.get("filter_list") or []
    if not isinstance(metrics, list) or not metrics:
        yield Fault("metric_list", "is missing", allowed=f"a list of {{metric: {' | '.join(MEANS)}}}")
        return
    for index, metric in enumerate(metrics):
        where, name = f"metric_list[{index}]", metric.get("metric") if isinstance(metric, dict) else None
        if name not in MEANS:
            yield Fault(f"{where}.metric", "is no mean over examples that needs nothing else", name, ", ".join(MEANS))
        elif metric.get("aggregation", "mean") != "mean":
            yield Fault(f"{where}.aggregation", "is no mean over examples", metric["aggregation"], "mean")
        elif metric.get("hf_evaluate"):
            yield Fault(f"{where}.hf_evaluate", "takes a metric from a hub", allowed="false")
    if not isinstance(filters, list) or not all(_is_filter(f) for f in filters):
        allowed = f"[{{name: …, filter: [{{function: {' | '.join(FILTERS)}, …}}]}}]"
        yield Fault("filter_list", "is no list of filters", allowed=allowed)
        return
    yield from _pattern_faults(filters)
    names = [str(f.get("name", "")) for f in filters]
    if len(set(names)) < len(names) or not all(METRIC_KEY.fullmatch(n) and "," not in n for n in names):
        yield Fault("filter_list", "has a name twice, or one that no gate could name", ", ".join(names))


def _pattern_faults(filters: list[Mapping[str, Any]]) -> Iterator[Fault]:
    for index, one in enumerate(filters):
        for at, step in enumerate(one["filter"]):
            if (pattern := step.get("regex_pattern")) is None:
                continue
            try:
                re.compile(pattern)
            except (re.error, TypeError, RecursionError, OverflowError) as exc:
                yield Fault(
                    f"filter_list[{index}].filter[{at}].regex_pattern", f"is no regular expression: {exc}", pattern
                )


def _is_filter(value: Any) -> bool:
    steps = value.get("filter") if isinstance(value, dict) else None
    return (
        isinstance(steps, list)
        and bool(steps)
        and all(isinstance(s, dict) and s.get("function") in FILTERS for s in steps)
    )


def rows_of(task: Mapping[str, Any]) -> dict[str, str]:
    """Split → file of a task without faults."""
    return {str(k): str(v) for k, v in task["dataset_kwargs"]["data_files"].items()}


def example_faults(task: Mapping[str, Any], wanted: int, rows: Mapping[str, Sequence[Any]]) -> Iterator[Fault]:
    """Why `wanted` answered examples cannot stand before each question of a task without faults; `rows` are each split's.

    Without a split of their own lm-eval takes them from the rows that are asked, and a question may find itself among them, with its answer.
    """
    listed, split = (task.get("fewshot_config") or {}).get("samples"), task.get("fewshot_split")
    if wanted < 1:
        return
    asked = task.get("test_split") or task["validation_split"]
    told = False
    examples: Sequence[Any] = listed if isinstance(listed, list) else ()
    if split is not None or not isinstance(listed, list):
        files = rows_of(task)
        split = split or task.get("training_split") or task.get("validation_split") or asked
        # Where it is told that they are the same, lm-eval leaves the question out.
        told = split == task.get("test_split") == task.get("fewshot_split")
        if files[split] == files[asked] and not told:
            message = (
                f"is missing: of {wanted} examples before a question one could be the question itself, with its answer"
            )
            yield Fault("fewshot_split", message, allowed="a split with rows of its own, or num_fewshot: 0")
            return
        examples = rows[split]
    if wanted > len(examples) - told:
        yield Fault(
            "num_fewshot", "is more than there are answered examples", wanted, f"at most {len(examples) - told}"
        )
    questions = set() if told else {_same(row) for row in rows[asked]}
    if both := [str(number) for number, row in enumerate(examples, 1) if _same(row) in questions]:
        message = "holds examples that are asked, too: a question could find its own answer"
        where = "fewshot_config.samples" if split is None else "fewshot_split"
        yield Fault(where, message, f"{'row' if len(both) == 1 else 'rows'} {', '.join(both[:8])}", "other rows")


def _same(row: Any) -> str:
    return json.dumps(row, sort_keys=True, default=str)


def fewshot_of(benchmark: Benchmark, task: Mapping[str, Any], asked: int = -1) -> int:
    """How many answered examples stand before each question: as was asked, else as the benchmark says, else as the task does."""
    if asked >= 0:
        return asked
    return benchmark.num_fewshot if benchmark.num_fewshot is not None else int(task.get("num_fewshot") or 0)


def keys_of(task: Mapping[str, Any]) -> dict[str, Direction]:
    """`<metric>,<filter>` → which way is better, of a task without faults; neutral where it does not say."""
    filters = [str(f["name"]) for f in task.get("filter_list") or []] or ["none"]
    return {f"{m['metric']},{f}": _direction(m.get("higher_is_better")) for m in task["metric_list"] for f in filters}


def _direction(higher: Any) -> Direction:
    return "neutral" if higher is None else "higher" if higher else "lower"


def shared_keys(tasks: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The numbers that every example of a benchmark has."""
    each = [keys_of(task) for task in tasks.values()]
    return [key for key in each[0] if all(key in keys for keys in each)]


def measured(benchmark: Benchmark, tasks: Mapping[str, Mapping[str, Any]]) -> dict[str, Measured]:
    """Every number that a benchmark gives, `score` and `pass_rate` first. Raises ValueError where a declared one is not among them."""
    given: dict[str, Direction] = {key: keys_of(next(iter(tasks.values())))[key] for key in shared_keys(tasks)}
    if len(tasks) > 1:
        given |= {f"{name}:{key}": way for name, task in tasks.items() for key, way in keys_of(task).items()}
    ratios = set()
    for metric in benchmark.metrics:
        key = full_key(metric.key, given)
        if not key:
            raise ValueError(f"{metric.key} is none of the numbers that its tasks give: {', '.join(given)}")
        given[key] = metric.direction or given[key]  # type: ignore[assignment]
        ratios |= {key} if metric.ratio else set()
    primary = full_key(benchmark.primary.key, given)
    if primary not in shared_keys(tasks):
        raise ValueError(f"the primary metric {primary} is not that of every task")
    out = {"score": Measured(given[primary], primary in ratios), "pass_rate": Measured(given[primary], True)}
    return out | {key: Measured(way, key in ratios) for key, way in given.items()}


def full_key(key: str, given: Mapping[str, Any]) -> str:
    """The key as the tasks give it, `,none` added where it was left out; "" where they do not."""
    return next((k for k in (key, f"{key},none") if k in given), "")
