"""What a benchmark's folder may hold: the job and the login node refuse the same, with the same codes, and name the same numbers."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from small_benchmarks import (
    ACC,
    FLEXIBLE,
    STRICT,
    choice,
    generation,
    sum_rows,
    sums_benchmark,
    two_tasks,
    write_benchmark,
)
from tuneplane.evaluation.tasks import read_tasks
from tuneplane.training.refusals import Refused

from hpc.errors import Refusals
from hpc.plugins.benchmarks import read_benchmark


def told(folder: Path) -> dict[str, Any]:
    """The numbers that both rooms read from a folder."""
    here = read_benchmark(folder.name, lambda path: (folder / path).read_bytes(), "x")
    assert here == read_tasks(folder).metrics
    return {key: (m.direction, m.ratio) for key, m in here.items()}


def refused(folder: Path) -> list[tuple[str, str]]:
    """Code and field, which both rooms agree on."""
    with pytest.raises(Refused) as job:
        read_tasks(folder)
    with pytest.raises(Refusals) as login:
        read_benchmark(folder.name, lambda path: (folder / path).read_bytes(), "x")
    there = [(r.code, r.field.rpartition(f"{folder}/")[2]) for r in job.value.reasons]
    assert there == [(f.code, f.field.removeprefix("x/")) for f in login.value.items]
    return there


def test_strict_and_flexible_are_two_numbers_and_score_is_the_primary_one(tmp_path: Path) -> None:
    assert told(sums_benchmark(tmp_path / "sums")) == {
        "score": ("higher", True), "pass_rate": ("higher", True), STRICT: ("higher", True), FLEXIBLE: ("higher", False),
    }  # fmt: skip


def test_of_several_tasks_each_number_has_its_task_and_the_shared_ones_stand_bare(tmp_path: Path) -> None:
    assert list(told(two_tasks(tmp_path / "letters"))) == [
        "score", "pass_rate", "acc,none", "acc_norm,none", "pick:acc,none", "pick:acc_norm,none", "again:acc,none", "again:acc_norm,none",
    ]  # fmt: skip


def test_a_direction_that_nobody_states_is_none(tmp_path: Path) -> None:
    metrics = [{"key": "acc", "primary": True}, {"key": "acc_norm", "direction": "lower"}]
    tasks = [choice("pick", metric_list=[{"metric": m["metric"]} for m in ACC])]
    folder = write_benchmark(
        tmp_path / "b", tasks, {"pick": [{"question": "a", "choices": ["b", "c"], "gold": 0}]}, "acc", metrics=metrics
    )
    assert told(folder)["score"] == told(folder)["acc,none"] == ("neutral", False)
    assert told(folder)["acc_norm,none"] == ("lower", False)


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "a data set on a hub": ({"dataset_path": "openai/gsm8k"}, "dataset_path"),
    "a part of one": ({"dataset_name": "main"}, "dataset_name"),
    "rows from an address": ({"dataset_kwargs": {"data_files": {"test": "https://h/x.jsonl"}}}, "dataset_kwargs.data_files.test"),
    "rows elsewhere": ({"dataset_kwargs": {"data_files": {"test": "../../x.jsonl"}}}, "dataset_kwargs.data_files.test"),
    "remote code": ({"dataset_kwargs": {"data_files": {"test": "sums.jsonl"}, "trust_remote_code": True}}, "dataset_kwargs"),
    "a prompt from a hub": ({"use_prompt": "promptsource:x"}, "use_prompt"),
    "a metric from a hub": ({"metric_list": [{"metric": "exact_match", "hf_evaluate": True}]}, "metric_list[0].hf_evaluate"),
    "a metric that is no mean": ({"metric_list": [{"metric": "bleu"}]}, "metric_list[0].metric"),
    "an aggregation that is none": ({"metric_list": [{"metric": "acc", "aggregation": "median"}]}, "metric_list[0].aggregation"),
    "no metric": ({"metric_list": []}, "metric_list"),
    "perplexity": ({"output_type": "loglikelihood_rolling"}, "output_type"),
    "another file": ({"include": "_base.yaml"}, "include"),
    "code": ({"process_docs": "f"}, "process_docs"),
    "what a model wrote": ({"unsafe_code": True}, "unsafe_code"),
    "another name": ({"task": "other"}, "task"),
    "a typo": ({"doc_to_txt": "x"}, "doc_to_txt"),
    "no such split": ({"fewshot_split": "train"}, "fewshot_split"),
    "a filter twice": ({"filter_list": copy.deepcopy(generation()["filter_list"][:1]) + generation()["filter_list"][:1]}, "filter_list"),
    "a pattern that is none": (
        {"filter_list": [{"name": "a", "filter": [{"function": "regex", "regex_pattern": "([0-9"}]}]}, "filter_list[0].filter[0].regex_pattern",
    ),
    "a choice without choices": ({"output_type": "multiple_choice"}, "doc_to_choice"),
    "examples elsewhere": ({"fewshot_config": {"split": "test"}}, "fewshot_config.split"),
    "examples by code": ({"fewshot_config": {"process_docs": "f"}}, "fewshot_config.process_docs"),
    "an unknown way to draw them": ({"fewshot_config": {"sampler": "balanced"}}, "fewshot_config.sampler"),
    "examples that are no rows": ({"fewshot_config": {"samples": ["a"]}}, "fewshot_config.samples"),
    "no number of examples": ({"num_fewshot": "two"}, "num_fewshot"),
    "a filter that is code": ({"filter_list": [{"name": "a", "filter": [{"function": "custom"}]}]}, "filter_list"),
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
def test_a_task_that_needs_a_network_or_code_or_is_no_mean_is_refused(tmp_path: Path, what: str) -> None:
    change, field = WRONG[what]
    folder = sums_benchmark(tmp_path / "sums")
    (folder / "tasks/sums.yaml").write_text(yaml.safe_dump({**generation(), **change}))
    assert refused(folder) == [("E-EVAL-061", f"tasks/sums.yaml: {field}")]


def test_words_of_lm_evals_tasks_that_change_no_number_are_let_through(tmp_path: Path) -> None:
    folder = sums_benchmark(tmp_path / "sums")
    more = {
        "tag": ["math"],
        "should_decontaminate": True,
        "doc_to_decontamination_query": "{{question}}",
        "metadata": {"version": 3.0},
    }
    (folder / "tasks/sums.yaml").write_text(yaml.safe_dump({**generation(), **more}))
    assert STRICT in told(folder)


def test_a_function_in_yaml_is_code(tmp_path: Path) -> None:
    folder = sums_benchmark(tmp_path / "sums")
    path = folder / "tasks/sums.yaml"
    path.write_text(path.read_text() + "process_docs: !function utils.process\n")
    with pytest.raises(Refused, match=r"E-EVAL-061 .*tasks/sums\.yaml: cannot be read: .*!function"):
        read_tasks(folder)
    with pytest.raises(Refusals) as login:
        read_benchmark("sums", lambda name: (folder / name).read_bytes(), "x")
    assert [(f.code, f.hint) for f in login.value.items] == [
        ("E-EVAL-061", "a function is code, which no task here has")
    ]


def gone(path: str) -> Callable[[Path], None]:
    return lambda folder: (folder / path).unlink()


def changed(**changes: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / "benchmark.yaml"
        path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), **changes}))

    return change


def metrics(*keys: str) -> list[dict[str, Any]]:
    return [{"key": key, "primary": index == 0} for index, key in enumerate(keys)]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (gone("tasks/sums.yaml"), ("E-EVAL-061", "tasks/sums.yaml")),
        (gone("tasks/sums.jsonl"), ("E-EVAL-062", "tasks/sums.jsonl")),
        (lambda f: (f / "tasks/sums.jsonl").write_text("\n"), ("E-EVAL-062", "tasks/sums.jsonl")),
        (changed(metrics=metrics("exact_match")), ("E-EVAL-060", "benchmark.yaml: metrics")),
        (changed(metrics=metrics(STRICT, "exact_match")), ("E-EVAL-060", "benchmark.yaml: metrics")),
        (changed(suites=["../x"]), ("E-EVAL-060", "benchmark.yaml: suites[0]")),
        (changed(extra_args={"trust": True}), ("E-EVAL-060", "benchmark.yaml: extra_args")),
    ],
)
def test_a_folder_that_is_not_whole_is_refused(
    tmp_path: Path, change: Callable[[Path], Any], expected: tuple[str, str]
) -> None:
    folder = sums_benchmark(tmp_path / "sums")
    change(folder)
    assert refused(folder) == [expected]


def test_a_word_that_yaml_readers_take_for_two_things_is_refused_before_the_job(tmp_path: Path) -> None:
    folder = write_benchmark(tmp_path / "yes", [choice("pick")], {"pick": [{"question": "a", "gold": 0}]}, "acc")
    path = folder / "tasks/pick.yaml"
    path.write_text(path.read_text().replace("doc_to_choice: choices", "doc_to_choice: [yes, no]"))
    with pytest.raises(Refusals, match="readers of YAML understand in two ways"):
        read_benchmark("yes", lambda name: (folder / name).read_bytes(), "x")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("[]", "is no object with fields"),
        ('{"question": "a", "answer": ', "is no JSON"),
        ('{"question": "a"}', "has other fields than the first row"),
        ('{"question": "a", "answer": "b", "more": 1}', "has other fields than the first row"),
        ('{"question": "a", "answer": 7}', "answer is of another kind than in line 3"),
    ],
)
def test_rows_have_one_form_and_the_line_that_has_another_is_named(tmp_path: Path, line: str, message: str) -> None:
    folder = sums_benchmark(tmp_path / "sums")
    rows = folder / "tasks/sums.jsonl"
    rows.write_text('\n{"question": "a", "answer": null}\n{"question": "a", "answer": "b"}\n')
    assert len(read_tasks(folder).asked("sums")) == 2
    rows.write_text(rows.read_text() + line + "\n")
    assert refused(folder) == [("E-EVAL-062", "tasks/sums.jsonl:4")]
    with pytest.raises(Refused, match=rf"E-EVAL-062 tasks/sums\.jsonl:4: {message}"):
        read_tasks(folder)


AMONG = {"test": "sums.jsonl", "examples": "examples.jsonl", "same": "sums.jsonl", "copied": "copied.jsonl"}


@pytest.mark.parametrize(
    ("task", "shots", "field"),
    [
        ({}, 2, "fewshot_split"),
        ({"fewshot_split": "same"}, 2, "fewshot_split"),
        ({"test_split": None, "validation_split": "test", "fewshot_split": "test"}, 1, "fewshot_split"),
        ({"fewshot_split": "test"}, len(sum_rows()), "num_fewshot"),
        ({"fewshot_split": "examples"}, 3, "num_fewshot"),
        ({"fewshot_split": "copied"}, 1, "fewshot_split"),
        ({"fewshot_config": {"samples": sum_rows()[1:2]}}, 1, "fewshot_config.samples"),
        ({"fewshot_config": {"samples": [{"question": "a", "answer": "b"}]}}, 2, "num_fewshot"),
        ({}, 0, ""),
        ({"fewshot_split": "test"}, len(sum_rows()) - 1, ""),
        ({"fewshot_split": "examples"}, 2, ""),
        ({"training_split": "examples"}, 2, ""),
        ({"fewshot_config": {"samples": [{"question": "a", "answer": "b"}]}}, 1, ""),
    ],
)
def test_no_question_finds_its_own_answer_among_its_examples(
    tmp_path: Path, task: dict[str, Any], shots: int, field: str
) -> None:
    whole = {**generation(), "dataset_kwargs": {"data_files": AMONG}, **task}
    rows = {
        "sums": sum_rows(),
        "examples": [{"question": "1 + 1", "answer": "2"}, {"question": "2 + 1", "answer": "3"}],
        "copied": [{"question": "1 + 1", "answer": "2"}, sum_rows()[2]],
    }
    folder = write_benchmark(tmp_path / "sums", [whole], rows, STRICT, num_fewshot=shots)
    if field:
        assert refused(folder) == [("E-EVAL-061", f"tasks/sums.yaml: {field}")]
    else:
        assert STRICT in told(folder)
    assert read_tasks(folder, shots=0).benchmark.num_fewshot == shots  # nothing stands before a question then


@pytest.mark.parametrize(
    ("key", "text", "message"),
    [
        ("doc_to_text", "{{ qestion }}", "names qestion, which the rows of test do not have"),
        ("doc_to_target", "{{ answer }", "is no template"),
        ("doc_to_text", "{{ question | nothing }}", "is no template"),
        ("doc_to_text", "{% if hint is defined %}{{ hint }}{% endif %}{{ note | default('') }}{{ question }}", ""),
        ("doc_to_text", "question", ""),
        ("doc_to_text", "{{ question | regex_replace('a', 'b') }}", ""),
    ],
)
def test_a_template_that_names_what_no_row_has_is_refused_before_the_job(
    tmp_path: Path, key: str, text: str, message: str
) -> None:
    folder = write_benchmark(tmp_path / "sums", [generation(**{key: text})], {"sums": sum_rows()}, STRICT)
    if not message:
        assert STRICT in told(folder)
        return
    with pytest.raises(Refusals) as login:
        read_benchmark("sums", lambda path: (folder / path).read_bytes(), "x")
    (fault,) = login.value.items
    assert (fault.code, fault.field) == ("E-EVAL-061", f"x/tasks/sums.yaml: {key}")
    assert fault.message.startswith(message)
