"""Benchmarks by the real lm-eval on tiny models: right numbers by name, samples, resumes, baselines, and what is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from known_sums import SUMS
from small_benchmarks import (
    FLEXIBLE,
    STRICT,
    choice_rows,
    generation,
    sum_rows,
    sums_benchmark,
    two_tasks,
    write_benchmark,
)
from tuneplane.evaluation import harness
from tuneplane.evaluation.benchmark import evaluate
from tuneplane.evaluation.benchmark_settings import parse
from tuneplane.evaluation.request import Request
from tuneplane.training import warning
from tuneplane.training.refusals import Refused

from hpc.evaluate.compare import compare
from hpc.evaluate.reports import faults_of, read_report

pytestmark = pytest.mark.train


def run(model: Path, benchmark: Path, out: Path, adapter: Path | None = None, **settings: Any) -> dict[str, Any]:
    earlier = settings.pop("earlier", ())
    request = Request(model, benchmark, out, parse(settings), adapter, "cpu", earlier=earlier)
    return evaluate(request, lambda _: None, lambda: "2026-01-01T00:00:00.000000Z")


def values(report: dict[str, Any]) -> dict[str, float]:
    return {key: metric["value"] for key, metric in report["metrics"].items()}


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many responses each call of the model was to give."""
    found: list[int] = []
    whole = harness.Responses.add_partial

    def note(self: Any, kind: str, args: Any, value: Any) -> None:
        found.append(1)
        whole(self, kind, args, value)

    monkeypatch.setattr(harness.Responses, "add_partial", note)
    return found


def test_known_answers_are_counted_and_strict_and_flexible_stay_two_numbers(
    taught: Path, base: Path, adapter: Path, tmp_path: Path
) -> None:
    marked = [
        {
            "name": "strict-match",
            "filter": [{"function": "regex", "regex_pattern": "#### ([0-9]+)"}, {"function": "take_first"}],
        }
    ]
    sums = write_benchmark(
        tmp_path / "sums",
        [generation(filter_list=[*marked, generation()["filter_list"][1]])],
        {"sums": sum_rows()},
        FLEXIBLE,
    )
    report = run(taught, sums, tmp_path / "out", chat_template=True)
    assert values(report) == {"score": 0.8, "pass_rate": 0.8, STRICT: 0.0, FLEXIBLE: 0.8}
    assert (report["suite"], report["decides"], report["metrics"]["score"]["n"]) == ("sums", FLEXIBLE, 5)
    answers = {p["id"]: p for p in lines(tmp_path / "out/predictions.jsonl")}
    inputs = lines(tmp_path / "out/inputs.jsonl")
    assert [answers[i["id"]]["text"] for i in inputs[:4]] == [str(a + b) for a, b in SUMS]
    assert answers[inputs[0]["id"]]["filtered"] == {"strict-match": "[invalid]", "flexible-extract": "3"}
    assert "-7" not in (tmp_path / "out/inputs.jsonl").read_text() + (tmp_path / "out/predictions.jsonl").read_text()
    assert values(run(taught, sums, tmp_path / "dressed", adapter, chat_template=True))[FLEXIBLE] == 0.0
    assert values(run(base, sums, tmp_path / "base", chat_template=True))[FLEXIBLE] == 0.0
    found = compare(read_report(tmp_path / "base"), read_report(tmp_path / "out"))
    assert (found.fixed, found.broken, found.shared) == (4, 0, 5)
    assert [faults_of(read_report(tmp_path / name)) for name in ("out", "dressed", "base")] == [[], [], []]


def likelihood(network: Any, tokenizer: Any, question: str, answer: str) -> float:
    """Log-likelihood of ` answer` behind the question, by one plain forward pass."""
    import torch

    ids, whole = (tokenizer(text)["input_ids"] for text in (question, f"{question} {answer}"))
    with torch.no_grad():
        logits = network(torch.tensor([whole])).logits[0].float().log_softmax(-1)
    return sum(float(logits[i - 1, whole[i]]) for i in range(len(ids), len(whole)))


def test_choices_are_those_of_plain_likelihoods_and_every_task_has_its_own_number(base: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    report = run(base, two_tasks(tmp_path / "letters"), tmp_path / "out")
    network, tokenizer = AutoModelForCausalLM.from_pretrained(base), AutoTokenizer.from_pretrained(base)
    plain, normed, likely = [], [], []
    for row in choice_rows():
        found = [likelihood(network, tokenizer, row["question"], c) for c in row["choices"]]
        likely.append(found)
        plain.append(float(max(range(3), key=lambda i: found[i]) == row["gold"]))
        normed.append(float(max(range(3), key=lambda i: found[i] / len(row["choices"][i])) == row["gold"]))
    assert plain != normed
    means = {
        "pick:acc,none": sum(plain) / 5, "pick:acc_norm,none": sum(normed) / 5, "again:acc,none": sum(plain[3:]) / 2,
        "again:acc_norm,none": sum(normed[3:]) / 2, "acc,none": sum(plain + plain[3:]) / 7, "acc_norm,none": sum(normed + normed[3:]) / 7,
    }  # fmt: skip
    want = {**means, "score": means["acc,none"], "pass_rate": means["acc,none"]}
    assert values(report) == pytest.approx(want, abs=1e-9)
    assert (report["metrics"]["again:acc,none"]["n"], report["metrics"]["acc,none"]["n"]) == (2, 7)
    for line, wanted in zip(lines(tmp_path / "out/predictions.jsonl"), likely, strict=False):
        assert line["likelihoods"] == pytest.approx(wanted, abs=1e-4)
    assert len({i["id"] for i in lines(tmp_path / "out/inputs.jsonl")}) == 7
    assert faults_of(read_report(tmp_path / "out")) == []


def test_a_sample_is_drawn_by_its_seed_and_examples_stand_before_the_questions(base: Path, tmp_path: Path) -> None:
    rows = [{"question": f"{n}?", "answer": str(n)} for n in range(20)]
    task = generation("many", num_fewshot=1, fewshot_split="test", description="")
    many = write_benchmark(tmp_path / "many", [task], {"many": rows}, STRICT)
    for out, seed in (("one", 1), ("same", 1), ("other", 2)):
        run(base, many, tmp_path / out, limit=4, seed=seed)
    drawn = {
        out: [(i["line"], i["prompt"]) for i in lines(tmp_path / out / "inputs.jsonl")]
        for out in ("one", "same", "other")
    }
    assert drawn["one"] == drawn["same"] != drawn["other"]
    assert [n for n, _ in drawn["one"]] == sorted({n for n, _ in drawn["one"]})
    for line, prompt in drawn["one"]:
        shown, question = prompt.split("\n\n")
        number = shown.split("? ")[1]
        assert (question, shown) == (f"{line - 1}?", f"{number}? {number}")
        assert number != str(line - 1)
    report = run(base, many, tmp_path / "none", limit=2, num_fewshot=0)
    assert [i["prompt"] for i in lines(tmp_path / "none/inputs.jsonl")] == [
        f"{i['line'] - 1}?" for i in lines(tmp_path / "none/inputs.jsonl")
    ]
    assert (report["data"]["used"], report["data"]["rows"], report["data"]["sampled"]) == (2, 20, True)


def test_a_warned_start_keeps_its_responses_and_the_next_one_asks_the_rest(
    taught: Path, tmp_path: Path, asked: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    sums = sums_benchmark(tmp_path / "sums")
    whole = run(taught, sums, tmp_path / "whole", chat_template=True)
    asked.clear()
    monkeypatch.setattr(warning, "_given", warning.Given("SIGUSR2", 0.0))
    with pytest.raises(warning.Warned):
        run(taught, sums, tmp_path / "out", chat_template=True)
    monkeypatch.setattr(warning, "_given", None)
    kept = tmp_path / "out/responses.jsonl"
    kept.write_bytes(kept.read_bytes() + b'{"key":"torn')
    assert len(asked) == 1
    assert not (tmp_path / "out/eval_report.json").exists()
    with pytest.raises(Refused, match="E-EVAL-013 settings"):
        run(taught, sums, tmp_path / "out", chat_template=True, seed=1)
    again = run(taught, sums, tmp_path / "out", chat_template=True)
    assert len(asked) == 5
    assert (again["files"], again["metrics"]) == (whole["files"], whole["metrics"])


def test_a_batch_that_does_not_fit_is_halved_and_what_was_answered_stays(
    taught: Path, tmp_path: Path, asked: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch
    from lm_eval.models.huggingface import HFLM

    whole, sizes = HFLM._model_generate, list[int]()

    def small(self: Any, context: Any, *more: Any, **words: Any) -> Any:
        sizes.append(len(context))
        if len(context) > 2:
            raise torch.cuda.OutOfMemoryError
        return whole(self, context, *more, **words)

    monkeypatch.setattr(HFLM, "_model_generate", small)
    report = run(taught, sums_benchmark(tmp_path / "sums"), tmp_path / "out", chat_template=True, batch_size=8)
    assert (values(report)[STRICT], sizes, len(asked)) == (0.8, [5, 4, 2, 2, 1], 5)
    monkeypatch.setattr(HFLM, "_model_generate", lambda *_, **__: (_ for _ in ()).throw(torch.cuda.OutOfMemoryError))
    with pytest.raises(torch.cuda.OutOfMemoryError):
        run(taught, sums_benchmark(tmp_path / "x/sums"), tmp_path / "none", chat_template=True)


def test_a_finished_report_stands_in_only_for_the_same_bytes(taught: Path, tmp_path: Path, asked: list[int]) -> None:
    sums = sums_benchmark(tmp_path / "sums")
    first = run(taught, sums, tmp_path / "one", chat_template=True)
    assert len(asked) == 5
    again = run(taught, sums, tmp_path / "two", chat_template=True, earlier=[tmp_path / "one"])
    assert (again["cached"]["from"], again["metrics"], len(asked)) == (str(tmp_path / "one"), first["metrics"], 5)
    shutil.copytree(sums, tmp_path / "x/sums")
    rows = tmp_path / "x/sums/tasks/sums.jsonl"
    rows.write_text(rows.read_text().replace('"-7"', '"-8"'))
    other = run(taught, tmp_path / "x/sums", tmp_path / "three", chat_template=True, earlier=[tmp_path / "one"])
    assert ("cached" in other, other["basis"]["data"] == first["basis"]["data"], len(asked)) == (False, False, 10)


def test_what_the_context_would_cut_is_refused_and_not_cut(base: Path, tmp_path: Path) -> None:
    rows = [{"question": "short?", "answer": "1"}, {"question": "long " * 2000, "answer": "1"}]
    long = write_benchmark(tmp_path / "long", [generation("long", description="")], {"long": rows}, STRICT)
    with pytest.raises(Refused, match="E-EVAL-035 long:2: longer than the model's context allows"):
        run(base, long, tmp_path / "out")
    assert not (tmp_path / "out/eval_report.json").exists()


@pytest.mark.parametrize(
    ("template", "words"),
    [
        (
            "{{ question.__class__.__mro__[1].__subclasses__() }}",
            "E-EVAL-061 sums: a template cannot be filled in: .*unsafe",
        ),
        ("{{ qestion }}", "E-EVAL-061 sums: a template cannot be filled in: 'qestion' is undefined"),
    ],
)
def test_a_template_reaches_for_its_row_alone(base: Path, tmp_path: Path, template: str, words: str) -> None:
    sums = write_benchmark(tmp_path / "sums", [generation(doc_to_text=template)], {"sums": sum_rows()}, STRICT)
    with pytest.raises(Refused, match=words):
        run(base, sums, tmp_path / "out")


def test_nothing_of_a_benchmark_reaches_for_a_network(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import socket

    def no(*_: Any, **__: Any) -> None:
        raise AssertionError("a connection was tried")

    monkeypatch.setattr(socket.socket, "connect", no)
    monkeypatch.setattr(socket, "getaddrinfo", no)
    reached: Callable[..., Any] = run
    assert reached(base, two_tasks(tmp_path / "letters"), tmp_path / "out")["metrics"]["acc,none"]["n"] == 7
