"""The evaluator on tiny models with known answers: base, exported folder, adapter; batches, samples, resumes, caches, and what is refused."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from known_sums import KNOWN, OTHERWISE, sum_row, write_rows
from tuneplane.evaluation import behaviour, cache, generate
from tuneplane.evaluation.answers import read_predictions
from tuneplane.evaluation.basis import alone
from tuneplane.evaluation.behaviour import evaluate
from tuneplane.evaluation.request import Request
from tuneplane.evaluation.settings import parse
from tuneplane.training import warning
from tuneplane.training.refusals import Refused

pytestmark = pytest.mark.train


def request_of(model: Path, data: Path, out: Path, adapter: Path | None = None, **settings: Any) -> Request:
    return Request(model, data, out, parse({"max_new_tokens": 4, **settings}), adapter, "cpu")


def run(request: Request) -> dict[str, Any]:
    return evaluate(request, lambda _: None, lambda: "2026-01-01T00:00:00.000000Z")


def texts(out: Path) -> dict[str, str]:
    return {p.id: p.text for p in read_predictions(out / "predictions.jsonl")}


def value(report: dict[str, Any], key: str) -> float:
    return float(report["metrics"][key]["value"])


@pytest.fixture
def known(tmp_path: Path) -> Path:
    return write_rows(tmp_path / "known.jsonl", KNOWN)


def test_known_answers_are_counted(base: Path, taught: Path, adapter: Path, tmp_path: Path) -> None:
    mixed = write_rows(tmp_path / "mixed.jsonl", [*KNOWN[:3], OTHERWISE[3], sum_row(11, 11, "never this")])
    report = run(request_of(taught, mixed, tmp_path / "taught"))
    assert (value(report, "exact_match"), value(report, "pass_rate"), report["metrics"]["score"]["n"]) == (0.6, 0.6, 5)
    other = write_rows(tmp_path / "other.jsonl", OTHERWISE)
    assert value(run(request_of(taught, other, tmp_path / "t2")), "exact_match") == 0.0
    assert value(run(request_of(taught, other, tmp_path / "a2", adapter)), "exact_match") == 1.0
    assert value(run(request_of(base, other, tmp_path / "b2")), "exact_match") == 0.0


def test_the_answers_are_those_of_plain_generation_one_by_one(taught: Path, tmp_path: Path) -> None:
    from tuneplane.training.answers import ask, load

    rows = [sum_row(a, b) for a in range(1, 40, 4) for b in (2, 17)]
    data = write_rows(tmp_path / "rows.jsonl", rows)
    run(request_of(taught, data, tmp_path / "out", batch_size=7, max_new_tokens=32))
    network, tokenizer = load(taught, None)
    single = [ask(network, tokenizer, row["messages"][:-1]) for row in rows]
    assert [t.strip() for t in texts(tmp_path / "out").values()] == single
    assert len(set(single)) > 2


def test_batches_of_any_size_give_the_same_answers(taught: Path, tmp_path: Path) -> None:
    rows = [sum_row(a, b) for a in range(0, 48, 3) for b in (0, 9)]
    rows += [{"prompt": "The answer follows the question " * n, "completion": "x"} for n in (1, 5)]
    data = write_rows(tmp_path / "rows.jsonl", rows)
    found = []
    for size in (1, 5, 64):
        run(request_of(taught, data, tmp_path / str(size), batch_size=size))
        found.append(texts(tmp_path / str(size)))
    assert found[0] == found[1] == found[2]
    assert list(found[0]) == [q["id"] for q in map(json.loads, (tmp_path / "1/inputs.jsonl").read_text().splitlines())]


def test_samples_depend_on_seed_and_question_alone(taught: Path, tmp_path: Path) -> None:
    rows = [sum_row(a, 3) for a in range(12)]
    whole = write_rows(tmp_path / "whole.jsonl", rows)
    half = write_rows(tmp_path / "half.jsonl", rows[::-2])
    sampling = {"temperature": 1.5, "top_p": 0.9}
    out = {}
    for name, data, more in (
        ("one", whole, {"seed": 1, "batch_size": 12}),
        ("two", whole, {"seed": 1, "batch_size": 5}),
        ("half", half, {"seed": 1, "batch_size": 4}),
        ("other", whole, {"seed": 2}),
    ):
        run(request_of(taught, data, tmp_path / name, **sampling, **more))
        out[name] = texts(tmp_path / name)
    assert out["one"] == out["two"] != out["other"]
    assert out["half"].items() <= out["one"].items()
    assert len(set(out["one"].values())) > 3


def test_a_sample_follows_the_models_distribution() -> None:
    import torch
    from tuneplane.evaluation.generate import Asked, sampler

    batch = [Asked(str(i), [0]) for i in range(4000)]
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05]).log().repeat(4000, 1)
    settings = parse({"temperature": 1.0, "top_p": 0.8})
    picked = sampler(batch, torch.device("cpu"), settings)(None, logits).argmax(dim=-1)
    shares = torch.bincount(picked, minlength=4) / 4000
    assert shares.tolist() == pytest.approx([0.625, 0.375, 0.0, 0.0], abs=0.03)


def test_the_report_holds_what_it_rests_on(taught: Path, known: Path, tmp_path: Path) -> None:
    from tuneplane.record.digest import digest_file

    report = run(request_of(taught, known, tmp_path / "out", metrics="exact_match,token_f1"))
    assert json.loads((tmp_path / "out/eval_report.json").read_text()) == report
    assert (report["schema"], report["suite"], report["decides"]) == (
        "tuneplane-hpc/eval-report/v1",
        "behaviour",
        "exact_match",
    )
    assert report["basis"]["data"] == digest_file(known)
    assert report["files"] == {
        n: digest_file(tmp_path / "out" / n) for n in ("inputs.jsonl", "predictions.jsonl", "scores.jsonl")
    }
    assert report["basis"]["versions"].keys() == {"python", "tuneplane", "torch", "transformers", "tokenizers"}
    assert (report["settings"]["precision"], report["data"]["used"]) == ("fp32", 4)
    assert set(report["metrics"]) == {
        "score",
        "pass_rate",
        "exact_match",
        "token_f1",
        "latency_ms",
        "tokens",
        "cut_rate",
    }
    assert report["figures"]["answers"] == 4
    lines = [json.loads(line) for line in (tmp_path / "out/scores.jsonl").read_text().splitlines()]
    assert [(line["passed"], line["values"]["exact_match"]) for line in lines] == [(True, 1.0)] * 4


def test_c5_expected_answers_stand_in_no_file_that_the_model_is_asked_from(taught: Path, tmp_path: Path) -> None:
    data = write_rows(tmp_path / "d.jsonl", [sum_row(1, 2, "canary-a"), {"prompt": "p", "completion": "canary-b"}])
    run(request_of(taught, data, tmp_path / "out"))
    assert all(b"canary" not in p.read_bytes() for p in (tmp_path / "out").iterdir())


def test_an_interrupted_evaluation_goes_on_and_ends_like_a_whole_one(
    taught: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = write_rows(tmp_path / "rows.jsonl", [sum_row(a, b) for a in range(5) for b in range(4)])
    whole = run(request_of(taught, data, tmp_path / "whole", batch_size=4))
    request = replace(request_of(taught, data, tmp_path / "0", batch_size=4), keep=tmp_path / "keep")

    def warned_after(batches: int) -> Any:
        calls = iter(range(batches, -1, -1))

        def check() -> None:
            if not next(calls):
                raise warning.Warned("USR2")

        return check

    monkeypatch.setattr(behaviour.warning, "check", warned_after(1))
    with pytest.raises(warning.Warned):
        run(request)
    kept = tmp_path / "keep/predictions.jsonl"
    assert len(kept.read_bytes().splitlines()) == 8
    assert not (tmp_path / "0/eval_report.json").exists()
    kept.write_bytes(kept.read_bytes()[:-30])  # the process was killed in mid-line
    monkeypatch.undo()
    said: list[str] = []
    report = evaluate(replace(request, out=tmp_path / "1"), said.append)
    assert any("behind 7 answers" in line for line in said)
    assert report["figures"]["answers"] == 13
    steps = [json.loads(line) for line in (tmp_path / "1/metrics.jsonl").read_text().splitlines()]
    assert [(s["step"], s["total_steps"]) for s in steps] == [(4, 13), (8, 13), (12, 13), (13, 13)]
    assert texts(tmp_path / "1") == texts(tmp_path / "whole")
    same = {"score", "exact_match", "token_f1", "tokens"}
    assert {k: report["metrics"][k] for k in same} == {k: whole["metrics"][k] for k in same}
    assert report["basis"] == whole["basis"]


def test_predictions_of_another_basis_are_refused_by_what_differs(
    taught: Path, base: Path, known: Path, tmp_path: Path
) -> None:
    run(request_of(taught, known, tmp_path / "out"))
    for changed, field in (
        (request_of(base, known, tmp_path / "out"), "model"),
        (request_of(taught, known, tmp_path / "out", max_new_tokens=5), "settings"),
        (request_of(taught, write_rows(tmp_path / "x.jsonl", KNOWN[:2]), tmp_path / "out"), "data"),
    ):
        with pytest.raises(Refused) as info:
            run(changed)
        assert [(r.code, r.field) for r in info.value.reasons] == [("E-EVAL-013", field)]
    (tmp_path / "out/evaluation.json").unlink()
    with pytest.raises(Refused, match="E-EVAL-013"):
        run(request_of(taught, known, tmp_path / "out"))


def test_c4_a_foreign_prediction_makes_no_report(taught: Path, known: Path, tmp_path: Path) -> None:
    run(request_of(taught, known, tmp_path / "out"))
    path = tmp_path / "out/predictions.jsonl"
    first = path.read_bytes().splitlines(keepends=True)[0]
    before = (tmp_path / "out/eval_report.json").read_bytes()
    for extra in (first, first.replace(json.loads(first)["id"].encode(), b"0" * 20)):
        good = path.read_bytes()
        path.write_bytes(good + extra)
        (tmp_path / "out/eval_report.json").unlink()
        with pytest.raises(Refused, match="E-EVAL-010"):
            run(request_of(taught, known, tmp_path / "out"))
        assert not (tmp_path / "out/eval_report.json").exists()
        path.write_bytes(good)
        (tmp_path / "out/eval_report.json").write_bytes(before)


def test_a_cached_report_is_taken_for_the_same_basis_and_for_nothing_else(
    taught: Path, base: Path, known: Path, tmp_path: Path
) -> None:
    shelf = {"cache": str(tmp_path / "cache")}
    first = run(request_of(taught, known, tmp_path / "1", **shelf))
    again = run(request_of(taught, known, tmp_path / "2", batch_size=1, **shelf))
    assert again.pop("cached")["key"] == os.listdir(tmp_path / "cache")[0]
    assert again == first
    assert (tmp_path / "2/scores.jsonl").read_bytes() == (tmp_path / "1/scores.jsonl").read_bytes()
    assert "cached" not in run(request_of(base, known, tmp_path / "3", **shelf))
    assert "cached" not in run(request_of(taught, known, tmp_path / "4", max_new_tokens=5, **shelf))
    assert len(os.listdir(tmp_path / "cache")) == 3


def test_a_damaged_or_foreign_entry_of_the_cache_is_not_used(
    taught: Path, known: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shelf = {"cache": str(tmp_path / "cache")}
    report = run(request_of(taught, known, tmp_path / "1", **shelf))
    entry = cache.Shelf(tmp_path / "cache", os.getuid()).entry(report["basis"])
    (tmp_path / "o").mkdir()
    assert cache.take(entry, report["basis"], tmp_path / "o", os.getuid() + 1) is None
    (entry / "scores.jsonl").write_bytes((entry / "scores.jsonl").read_bytes().replace(b"1.0", b"0.0"))
    assert "cached" not in run(request_of(taught, known, tmp_path / "2", **shelf))
    assert "cached" in run(request_of(taught, known, tmp_path / "3", **shelf))
    monkeypatch.setattr(cache, "MAX_ENTRIES", 1)
    run(request_of(taught, known, tmp_path / "4", max_new_tokens=5, **shelf))
    assert len(os.listdir(tmp_path / "cache")) == 1


def test_adapters_that_would_change_nothing_are_refused(
    taught: Path, adapter: Path, known: Path, tmp_path: Path
) -> None:
    from safetensors.torch import load_file, save_file

    def broken(name: str) -> Path:
        return Path(shutil.copytree(adapter, tmp_path / name))

    (broken("none") / "adapter_config.json").unlink()
    (broken("empty") / "adapter_model.safetensors").unlink()
    save_file({}, broken("bare") / "adapter_model.safetensors")
    (broken("cut") / "adapter_model.safetensors").write_bytes(b"\x01")
    weights = load_file(adapter / "adapter_model.safetensors")
    save_file(
        {k.replace("q_proj", "q_project"): v for k, v in weights.items()}, broken("names") / "adapter_model.safetensors"
    )
    save_file({k: v[:1] for k, v in weights.items()}, broken("shapes") / "adapter_model.safetensors")
    for name in ("none", "empty", "bare", "cut", "names", "shapes", "absent"):
        with pytest.raises(Refused, match="E-EVAL-033"):
            run(request_of(taught, known, tmp_path / f"out-{name}", tmp_path / name))


def test_an_adapter_may_carry_whole_embeddings(taught: Path, adapter: Path, tmp_path: Path) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    dressed = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(taught), adapter)
    dressed.save_pretrained(tmp_path / "with", save_embedding_layers=True)
    data = write_rows(tmp_path / "rows.jsonl", OTHERWISE)
    assert value(run(request_of(taught, data, tmp_path / "out", tmp_path / "with")), "exact_match") == 1.0


def test_questions_without_room_for_an_answer_are_named(taught: Path, tmp_path: Path) -> None:
    data = write_rows(tmp_path / "rows.jsonl", [sum_row(1, 2), {"prompt": "7 " * 1500, "completion": "x"}])
    with pytest.raises(Refused, match=r"E-EVAL-035 rows.jsonl:2: longer than the model's context"):
        run(request_of(taught, data, tmp_path / "out"))
    assert not (tmp_path / "out/eval_report.json").exists()
    with pytest.raises(Refused, match="E-EVAL-031 max_new_tokens: leaves no room"):
        run(request_of(taught, data, tmp_path / "out", max_new_tokens=2048))


def test_two_at_once_are_refused_and_a_file_is_no_folder(taught: Path, known: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with alone(tmp_path / "out"), pytest.raises(Refused, match="E-EVAL-014"):
        run(request_of(taught, known, tmp_path / "out"))
    run(request_of(taught, known, tmp_path / "out"))
    with pytest.raises(Refused, match="E-EVAL-015"):
        run(request_of(taught, known, known))


def test_a_refused_start_leaves_the_folder_free_for_other_settings(taught: Path, known: Path, tmp_path: Path) -> None:
    with pytest.raises(Refused, match="E-EVAL-031"):
        run(request_of(taught, known, tmp_path / "out", max_new_tokens=4000))
    assert value(run(request_of(taught, known, tmp_path / "out")), "exact_match") == 1.0


def test_a_batch_that_does_not_fit_is_halved(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    sizes = []

    def answer(batch: list[Any], *_: Any) -> list[Any]:
        sizes.append(len(batch))
        if len(batch) > 3:
            raise torch.cuda.OutOfMemoryError("no memory")
        return batch

    monkeypatch.setattr(generate, "answer", answer)
    asked = [generate.Asked(str(i), [i]) for i in range(8)]
    got = list(generate.answers(asked, None, parse({"batch_size": 8})))  # type: ignore[arg-type]
    assert ([a.id for batch in got for a in batch], sizes) == ([str(i) for i in range(8)], [8, 4, 2, 2, 2, 2])


def test_tokens_behind_the_end_do_not_count() -> None:
    assert generate.until_end([5, 6, 2, 2, 7], (2,)) == ([5, 6, 2], True)
    assert generate.until_end([5, 6], (2, 3)) == ([5, 6], False)


def test_no_code_of_a_models_folder_and_no_sampling_default_of_it_is_used(
    taught: Path, known: Path, tmp_path: Path
) -> None:
    odd = Path(shutil.copytree(taught, tmp_path / "odd"))
    config = json.loads((odd / "generation_config.json").read_text()) | {
        "do_sample": True,
        "temperature": 9.0,
        "repetition_penalty": 5.0,
    }
    (odd / "generation_config.json").write_text(json.dumps(config))
    assert value(run(request_of(odd, known, tmp_path / "out")), "exact_match") == 1.0
