"""lm-eval's own evaluation of one benchmark: its tasks, its metrics, our model, and every response kept as it comes.

Nothing is fetched: rows are handed over, the model is loaded, and metrics that would need a hub never come here (`contract.benchmarks`). A request
that the model's context would cut is refused instead, since lm-eval would shorten it with a line in a log.
"""

from __future__ import annotations

import json
import logging
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from tuneplane.contract.benchmarks import UNREAD
from tuneplane.evaluation.benchmark_settings import Settings
from tuneplane.evaluation.loading import Loaded
from tuneplane.evaluation.tasks import Tasks
from tuneplane.record.digest import digest_json
from tuneplane.training import warning
from tuneplane.training.refusals import refuse

BATCH = 16
_ID_DOMAIN = "tuneplane/eval-benchmark-question/v1"


@dataclass(frozen=True)
class Answered:
    """One question of a task: what was asked, what came, and lm-eval's numbers by `<metric>,<filter>`."""

    id: str
    task: str
    line: int
    prompt: str
    choices: tuple[str, ...]
    text: str
    filtered: Mapping[str, str]
    likelihoods: tuple[float, ...]
    numbers: Mapping[str, float]

    def asked(self) -> dict[str, Any]:
        """The line of the input file: no expected answer is in it."""
        more = {"choices": list(self.choices)} if self.choices else {}
        return {"id": self.id, "task": self.task, "line": self.line, "prompt": self.prompt, **more}

    def answer(self) -> dict[str, Any]:
        more = {"likelihoods": list(self.likelihoods)} if self.likelihoods else {"filtered": dict(self.filtered)}
        return {"id": self.id, "text": self.text, **more}


class Responses:
    """Responses by request, one line each in a file: what a killed process had is not asked again."""

    def __init__(self, path: Path, progress: Callable[[int, int], None]) -> None:
        self._known: dict[str, Any] = {}
        self._progress, self.done, self.total = progress, 0, 0
        for line in path.read_bytes().split(b"\n") if path.exists() else ():
            try:
                value = json.loads(line)
                self._known[value["key"]] = value["value"]
            except (ValueError, KeyError, TypeError):
                continue  # torn: the process ended while it wrote; it is asked again
        self.earlier = len(self._known)
        self._stream = open(path, "ab")  # noqa: SIM115 - open as long as the process asks
        if self._stream.tell():
            self._stream.write(b"\n")  # behind a torn line

    @staticmethod
    def key(kind: str, args: Iterable[Any]) -> str:
        return digest_json([kind, json.dumps(list(args), sort_keys=True, default=str)])

    def get(self, kind: str, args: Iterable[Any]) -> Any:
        return self._known.get(self.key(kind, args))

    def add_partial(self, kind: str, args: Iterable[Any], value: Any) -> None:
        """lm-eval's hook, after each response. Raises Warned once a warning came."""
        key = self.key(kind, args)
        self._known[key] = value
        self._stream.write(json.dumps({"key": key, "value": value}).encode() + b"\n")
        self._stream.flush()
        self.done += 1
        self._progress(self.done, self.total)
        warning.check()

    def close(self) -> None:
        os.fsync(self._stream.fileno())
        self._stream.close()


def ask(loaded: Loaded, tasks: Tasks, settings: Settings, responses: Responses) -> list[Answered]:
    """Every example of every task, in the order of tasks and rows.

    Raises Refused E-EVAL-035, E-EVAL-061 (a template that cannot be filled in), or Warned with every response kept.
    """
    from jinja2 import TemplateError

    _tame()
    try:
        return _ask(loaded, tasks, settings, responses)
    except TemplateError as exc:
        raise refuse("E-EVAL-061", f"a template cannot be filled in: {exc}", field=tasks.benchmark.name) from exc


def _tame() -> None:
    """lm-eval without what it would do beside asking: comments, programs that describe the machine, templates that reach into Python."""
    from jinja2.sandbox import ImmutableSandboxedEnvironment
    from lm_eval import evaluator, utils

    logging.getLogger("lm_eval").setLevel(logging.ERROR)  # it comments on a model and rows that are handed over
    # It would start git, pip and nvidia-smi to describe folder and machine, which the run's own records do.
    evaluator.get_git_commit_hash, evaluator.add_env_info = (lambda: ""), (lambda _: None)
    if not isinstance(utils.env, ImmutableSandboxedEnvironment):
        plain = utils.env
        utils.env = ImmutableSandboxedEnvironment(
            loader=plain.loader, undefined=plain.undefined, keep_trailing_newline=plain.keep_trailing_newline
        )
        utils.env.filters.update(plain.filters)


def _ask(loaded: Loaded, tasks: Tasks, settings: Settings, responses: Responses) -> list[Answered]:
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    from tuneplane.evaluation.asked import asked_model

    manager = TaskManager(include_defaults=False)
    built = manager.load([_config(tasks, name, settings) for name in tasks.tasks])["tasks"]
    batch = settings.batch_size or tasks.benchmark.batch_size or BATCH
    found: Any = simple_evaluate(
        model=asked_model(loaded, batch, responses),
        tasks=list(built.values()),
        task_manager=manager,
        batch_size=batch,
        samples={name: drawn(tasks, name, settings) for name in tasks.tasks},
        bootstrap_iters=0,
        apply_chat_template=settings.chat_template,
        random_seed=settings.seed,
        numpy_random_seed=settings.seed,
        torch_random_seed=settings.seed,
        fewshot_random_seed=settings.seed,
    )
    out = [one for name, task in built.items() for one in _answered(name, task, found["samples"][name])]
    _agree(out, found["results"])
    return out


def drawn(tasks: Tasks, name: str, settings: Settings) -> list[int]:
    """The rows of a task that are asked, counted from 0: all, or a seeded sample in the file's order."""
    rows, limit = len(tasks.asked(name)), settings.limit or tasks.benchmark.limit
    if not limit or limit >= rows:
        return list(range(rows))
    return sorted(Random(f"tuneplane benchmark rows {settings.seed}").sample(range(rows), limit))  # noqa: S311


def _config(tasks: Tasks, name: str, settings: Settings) -> dict[str, Any]:
    """A task as lm-eval takes it: its rows from memory, its examples as the settings, else the benchmark, else the task say."""
    import datasets

    rows = tasks.rows[name]
    out = {k: v for k, v in tasks.tasks[name].items() if k not in UNREAD}
    fewshot = settings.num_fewshot if settings.num_fewshot >= 0 else tasks.benchmark.num_fewshot
    if fewshot is not None:
        out["num_fewshot"] = fewshot
    out["custom_dataset"] = lambda **_: {split: datasets.Dataset.from_list(listed) for split, listed in rows.items()}
    return out


def _answered(name: str, task: Any, samples: Iterable[Mapping[str, Any]]) -> list[Answered]:
    """lm-eval's samples, one a filter, as one an example."""
    by_row: dict[int, list[Mapping[str, Any]]] = {}
    for sample in samples:
        by_row.setdefault(int(sample["doc_id"]), []).append(sample)
    out, seen = [], Counter[str]()
    for row, found in sorted(by_row.items()):
        first = found[0]
        choices = tuple(map(str, task.doc_to_choice(first["doc"]))) if task.OUTPUT_TYPE == "multiple_choice" else ()
        question = [_ID_DOMAIN, name, str(task.doc_to_text(first["doc"])), list(choices)]
        seen[digest_json(question)] += 1
        # A question that stands twice has two ids, the same ones in every evaluation of these rows.
        ident = digest_json([*question, seen[digest_json(question)]])[7:27]
        numbers = {f"{m},{s['filter']}": float(s[m]) for s in found for m in s["metrics"]}
        scored = task.OUTPUT_TYPE != "generate_until"
        likelihoods = tuple(float(r[0][0]) for r in first["resps"]) if scored else ()
        filtered = {} if scored else {str(s["filter"]): _text(s["filtered_resps"][0]) for s in found}
        text = _chosen(likelihoods, choices) if scored else _text(first["resps"][0][0])
        prompt = str(first["arguments"][0][0])
        out.append(Answered(ident, name, row + 1, prompt, choices, text, filtered, likelihoods, numbers))
    return out


def _chosen(likelihoods: Sequence[float], choices: Sequence[str]) -> str:
    """The likeliest choice; "" where nothing was to choose."""
    return choices[max(range(len(choices)), key=lambda i: likelihoods[i])] if choices else ""


def _text(value: Any) -> str:
    """Text that UTF-8 can hold: a tokenizer may decode half of a pair."""
    return str(value).encode("utf-8", "replace").decode("utf-8")


def _agree(answered: Sequence[Answered], results: Mapping[str, Mapping[str, Any]]) -> None:
    """lm-eval's own aggregates are the means of the examples that it handed out; anything else would be a metric that was let in by mistake."""
    for task in {a.task for a in answered}:
        of_task = [a.numbers for a in answered if a.task == task]
        for key in of_task[0]:
            mean = sum(n[key] for n in of_task) / len(of_task)
            if abs(mean - float(results[task][key])) > 1e-9:
                raise AssertionError(f"{task}: {key} is {results[task][key]} for lm-eval and {mean} over its examples")
