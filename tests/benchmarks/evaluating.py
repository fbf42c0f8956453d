"""Evaluation: asking a model against a bare batched loop, and comparing two reports. `python tests/benchmarks/evaluating.py` measures these alone."""

from __future__ import annotations

import json
import random
import sys
import time
from pathlib import Path
from typing import Any

from report import Figure, bound, ratio, text
from scene import REPO, TP, environment, scratch
from timing import Environment, in_turn, once, times

sys.path.insert(0, str(REPO / "tests/evaluate"))

EXAMPLES, QUESTIONS, BATCH, TOKENS = 10_000, 96, 16, 32
LIMIT = 1 / 0.9
"""Of the bare loop's time: 0.9 of its speed."""
WORDS = ["the", "answer", "follows", "the", "question", "and", "the", "loss", "covers", "the", "answer", "only"]


def comparison(folder: Path, env: Environment) -> list[Figure]:
    """`tp eval compare` of two reports with 10,000 examples, whole process: models that agree mostly, and models that agree in nothing."""
    from answered import answered

    out = []
    for kind, share in (("three in ten differ", 0.3), ("all differ", 1.0)):
        dice = random.Random(1)
        expected = [" ".join(dice.choices(WORDS, k=dice.randint(1, 30))) for _ in range(EXAMPLES)]
        given = {f"question {i}: {dice.random()}": (e, _altered(e, 0.4, dice)) for i, e in enumerate(expected)}
        again = {q: (e, _altered(e, 0.5, dice) if dice.random() < share else text) for q, (e, text) in given.items()}
        place = folder / f"compare-{share}"
        one = answered(place / "a", given)
        other = answered(place / "b", again, basis={"model": "n"})
        wall = times(
            5, lambda n, one=one, other=other: once([TP, "eval", "compare", str(one), str(other)], env=env, cwd=folder)
        )
        name = f"tp eval compare, 2 x {EXAMPLES} examples, {kind}, whole process"
        out.append(bound(name, wall, "ms", 1000))
    return out


def _altered(text: str, share: float, dice: random.Random) -> str:
    """The text with some words exchanged; half of the time none."""
    if dice.random() < 0.5:
        return text
    return " ".join(dice.choice(WORDS) if dice.random() < share else word for word in text.split())


def behaviour(folder: Path) -> list[Figure]:
    """The evaluator from the file of rows to the report, against loading the model and a loop over batches in the file's order."""
    from tuneplane.training.model import quiet_libraries

    quiet_libraries("cpu")
    import torch
    from tuneplane.evaluation.behaviour import evaluate
    from tuneplane.evaluation.request import Request
    from tuneplane.evaluation.settings import parse
    from tuneplane.training.tiny import build

    torch.set_num_threads(1)
    model, data = folder / "model", folder / "rows.jsonl"
    build(model, layers=4, hidden=256)
    dice = random.Random(2)
    asked = [" ".join(dice.choices(WORDS, k=dice.randint(2, 60))) + f" {i}" for i in range(QUESTIONS)]
    turns = [[{"role": "user", "content": q}, {"role": "assistant", "content": "x"}] for q in asked]
    data.write_text("".join(json.dumps({"messages": t}) + "\n" for t in turns), encoding="utf-8")

    def ours(n: int) -> float:
        begin = time.perf_counter()
        settings = parse({"max_new_tokens": TOKENS, "batch_size": BATCH})
        report = evaluate(Request(model, data, folder / f"out-{n}", settings, device="cpu"), lambda _: None)
        took = (time.perf_counter() - begin) * 1000
        assert report["figures"]["tokens"] == QUESTIONS * TOKENS
        return took

    def bare(n: int) -> float:
        begin = time.perf_counter()
        assert _bare(model, [t[:-1] for t in turns]) == QUESTIONS * TOKENS
        return (time.perf_counter() - begin) * 1000

    mine, theirs = in_turn(7, ours, bare)
    name = f"evaluating {QUESTIONS} questions of a tiny model, {TOKENS} tokens an answer"
    return [ratio(name, mine, theirs, "bare generate loop", round(LIMIT, 3))]


def _bare(model: Path, questions: list[list[dict[str, Any]]]) -> int:
    """Tokens that a plain loop generates, greedily."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    network = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(model, padding_side="left")
    total = 0
    for begin in range(0, len(questions), BATCH):
        texts = [
            tokenizer.apply_chat_template(q, tokenize=False, add_generation_prompt=True)
            for q in questions[begin : begin + BATCH]
        ]
        batch = tokenizer(texts, return_tensors="pt", padding=True, add_special_tokens=False)
        ids, mask = batch["input_ids"], batch["attention_mask"]
        with torch.inference_mode():
            out = network.generate(input_ids=ids, attention_mask=mask, max_new_tokens=TOKENS, do_sample=False)
        new = out[:, ids.shape[1] :]
        tokenizer.batch_decode(new, skip_special_tokens=True)
        total += new.numel()
    return total


def main() -> None:
    with scratch() as folder:
        print(text([*comparison(folder, environment(folder)), *behaviour(folder)]))


if __name__ == "__main__":
    main()
