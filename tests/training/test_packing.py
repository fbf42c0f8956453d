"""Several rows in one sequence: nothing leaks from one to the next, the losses are those of the rows alone, and the packs follow from the seed."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lessons import LORA, STEPS, Lessons, plain_losses
from sources import file_source
from tuneplane.contract.packing import OPEN, pack
from tuneplane.training.chat import Encoder
from tuneplane.training.packs import ensure_packs, open_packs
from tuneplane.training.refusals import Refused
from tuneplane.training.tokens import Tokens, ensure, open_tokens

PACKED = {"packing": True, "max_length": 160, "zero_stage": 2, "learning_rate": 1e-3, "micro_batch_size": 2}


def lengths(count: int, width: int, seed: int = 1) -> list[int]:
    draw = random.Random(seed)
    return [min(width, max(4, int(draw.lognormvariate(4.5, 0.8)))) for _ in range(count)]


@pytest.mark.parametrize("count", [1, 7, 5000])
def test_every_row_is_in_one_pack_and_packs_are_nearly_full(count: int) -> None:
    sizes = lengths(count, 1024)
    packs = list(pack(iter(enumerate(sizes)), 1024))
    assert sorted(row for rows in packs for row in rows) == list(range(count))
    assert all(sum(sizes[row] for row in rows) <= 1024 for rows in packs)
    assert packs == list(pack(iter(enumerate(sizes)), 1024))
    if count > OPEN:
        assert sum(sizes) / (len(packs) * 1024) > 0.99


def test_memory_of_packing_is_bounded_by_the_open_packs() -> None:
    stream = pack(((row, 600) for row in range(10**9)), 1024)  # no two fit together
    assert [next(stream) for _ in range(3)] == [[0], [1], [2]]


@pytest.fixture
def mixed(tmp_path: Path, tokenizer: Any) -> Tokens:
    """Rows of mixed lengths, one of them without any prompt."""
    path, sizes = tmp_path / "rows.jsonl", lengths(60, 60)
    rows = [{"prompt": "" if n == 3 else "sum " * (n % 7), "completion": "1" * size} for n, size in enumerate(sizes)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    encoder = Encoder(tokenizer, 128, "truncate")
    return open_tokens(ensure(tmp_path / "cache", file_source(path), "sha256:0", encoder))


def test_packs_follow_from_rows_and_seed_and_are_kept_by_content(tmp_path: Path, mixed: Tokens) -> None:
    made = [
        ensure_packs(tmp_path / "cache", mixed, width, seed) for width, seed in ((128, 1), (128, 1), (128, 2), (96, 1))
    ]
    assert made[0] == made[1]
    assert len(set(made)) == 3
    packs = [open_packs(folder) for folder in made]
    members = [[packs_.rows_of(k) for k in range(len(packs_))] for packs_ in packs]
    assert sorted(row for rows in members[0] for row in rows) == list(range(60))
    assert members[0] != members[2]
    assert all(sum(mixed.length(r) for r in rows) <= 96 for rows in members[3])


class Asked:
    """A plain model in the place of the engine."""

    def __init__(self, model: Any, **changed: Any) -> None:
        self.model, self._changed = model.eval(), changed

    def __call__(self, **inputs: Any) -> Any:
        return self.model(**(inputs | self._changed))

    def accepts(self, name: str) -> bool:
        return name in ("position_ids", "logits_to_keep")


@pytest.fixture(scope="module")
def model(tiny: Path) -> Callable[[str], Any]:
    from transformers import AutoModelForCausalLM

    def load(attention: str) -> Any:
        return AutoModelForCausalLM.from_pretrained(tiny, attn_implementation=attention)

    return load


@pytest.mark.train
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_logits_loss_and_gradients_of_packed_rows_are_those_of_the_rows_alone(
    tmp_path: Path, mixed: Tokens, model: Callable[[str], Any], attention: str
) -> None:
    import torch
    from tuneplane.training.forward import answer_logits, collate, collate_packed, summed_loss

    asked, packs = Asked(model(attention)), open_packs(ensure_packs(tmp_path / "cache", mixed, 128, 5))
    groups = [packs.rows_of(k) for k in range(4)]
    assert max(len(rows) for rows in groups) > 2
    together = collate_packed([[mixed.row(r) for r in rows] for rows in groups], 2, "cpu")
    logits = asked(**together.inputs, use_cache=False).logits
    for line, rows in enumerate(groups):
        at = 0
        for row in rows:
            ids = torch.tensor([mixed.row(row)[0].tolist()])
            alone = asked(input_ids=ids).logits[0]
            torch.testing.assert_close(logits[line, at : at + len(alone)], alone, rtol=1e-5, atol=1e-5)
            at += len(alone)

    def taught(batches: list[Any]) -> tuple[float, list[Any]]:
        asked.model.zero_grad()
        lost = sum(summed_loss(*answer_logits(asked, batch)) for batch in batches)
        lost.backward()
        return float(lost.detach()), [p.grad.clone() for p in asked.model.parameters()]

    apart = [collate([mixed.row(row)], 2, "cpu") for rows in groups for row in rows]
    (one, grads), (other, others) = taught([together]), taught(apart)
    assert one == pytest.approx(other, rel=1e-5)
    for grad, wanted in zip(grads, others, strict=True):
        torch.testing.assert_close(grad, wanted, rtol=1e-3, atol=1e-4)


@pytest.mark.train
def test_the_first_token_of_a_row_is_never_foretold_by_the_row_before_it() -> None:
    import numpy as np
    from tuneplane.training.forward import IGNORED, collate_packed

    rows = [(np.array([5, 6, 7]), 1), (np.array([8, 9]), 0), (np.array([4]), 0)]
    batch = collate_packed([rows, rows[:1]], 2, "cpu")
    assert batch.inputs["input_ids"].tolist() == [[5, 6, 7, 8, 9, 4], [5, 6, 7, 2, 2, 2]]
    assert batch.inputs["position_ids"].tolist() == [[0, 1, 2, 0, 1, 0], [0, 1, 2, 0, 1, 2]]
    i = IGNORED
    assert batch.labels.tolist() == [[i, 6, 7, i, 9, i], [i, 6, 7, i, i, i]]
    assert batch.asked.tolist() == [0, 1, 3]
    assert "attention_mask" not in batch.inputs


@pytest.mark.train
def test_a_model_that_lets_rows_see_each_other_is_refused(mixed: Tokens, model: Callable[[str], Any]) -> None:
    import torch
    from tuneplane.training.packing import prove

    class Deaf(Asked):
        """It takes positions and builds one causal mask over the whole sequence."""

        def __call__(self, **inputs: Any) -> Any:
            mask = torch.ones_like(inputs["input_ids"])
            return self.model(**(inputs | {"attention_mask": mask}))

    class Old(Asked):
        def accepts(self, name: str) -> bool:
            return False

    class Lost(Asked):
        """It keeps rows apart and counts positions through."""

        def __call__(self, **inputs: Any) -> Any:
            ids = inputs["input_ids"]
            return self.model(input_ids=ids, position_ids=torch.arange(ids.shape[1])[None] + ids.shape[1])

    loaded = model("sdpa")
    with torch.no_grad():
        prove(Asked(loaded), mixed, 2, "cpu", "fp32")
        prove(Asked(model("sdpa").to(torch.bfloat16)), mixed, 2, "cpu", "bf16")
        for broken, why in (
            (Deaf(loaded), "behind another one"),
            (Old(loaded), "takes no position_ids"),
            (Lost(loaded), "alone"),
        ):
            with pytest.raises(Refused, match=rf"E-TRAIN-019 hyperparams\.packing: .*{why}"):
                prove(broken, mixed, 2, "cpu", "fp32")


@pytest.mark.train
def test_a_packed_run_learns_what_a_plain_loop_over_the_same_rows_learns(lessons: Lessons) -> None:
    """One by one, without any packing: no DeepSpeed, one process, torch's AdamW."""
    from transformers import AutoModelForCausalLM
    from tuneplane.training.forward import IGNORED

    attempt = lessons.straight("sft", **PACKED)
    cache, plain = attempt.root / "cache" / "tokens", AutoModelForCausalLM.from_pretrained(lessons.tiny)
    packs = next(
        k for p in cache.iterdir() if (p / "members.bin").exists() and (k := open_packs(p)).meta["rows"] == 200
    )
    source = attempt.result()["packs"]
    assert (source["rows"], source["packs"], source["width"]) == (200, len(packs), 160)
    assert 100 > len(packs) > 40
    tokens = next(t for p in cache.iterdir() if (p / "ids.bin").exists() and len(t := open_tokens(p)) == 200)

    def loss_of(chosen: list[int]) -> Any:
        import torch

        lost, count = 0.0, 0
        for row in (r for k in chosen for r in packs.rows_of(k)):
            ids, prompt = tokens.row(row)
            wanted = torch.tensor([IGNORED] * prompt + ids[prompt:].tolist())
            logits = plain(input_ids=torch.tensor([ids.tolist()])).logits[0]
            lost = lost + torch.nn.functional.cross_entropy(logits[:-1], wanted[1:], reduction="sum")
            count += len(ids) - prompt
        return lost / count

    wanted = plain_losses(plain, len(packs), loss_of, 1e-3)
    assert list(attempt.losses().values()) == pytest.approx(wanted, rel=1e-4)
    assert len(wanted) == STEPS
    assert "packed: 200 rows in" in attempt.log(0)


@pytest.mark.train
def test_ranks_share_the_packs_whatever_their_number(lessons: Lessons) -> None:
    two = lessons.straight("sft", **PACKED)
    one = lessons.run("sft", **(PACKED | {"micro_batch_size": 4})).complete(world=1)
    assert list(one.losses().values()) == pytest.approx(list(two.losses().values()), rel=1e-4)
    assert one.result()["samples_sha256"] == two.result()["samples_sha256"]


@pytest.mark.train
def test_p35_a_resumed_packed_run_goes_on_to_the_last_bit(lessons: Lessons) -> None:
    lessons.assert_resumes("sft", **(PACKED | LORA))


@pytest.mark.train
def test_a_distillation_packs_for_both_models(lessons: Lessons) -> None:
    settings = {**PACKED, "teacher": str(lessons.tiny), "alpha": 0.5}
    attempt = lessons.straight("distill", **settings)
    first = attempt.metrics()[0]
    assert first["divergence"] == pytest.approx(0.0, abs=1e-5)  # the teacher is the student before its first step
    assert first["agreement"] == pytest.approx(1.0)
    assert first["loss"] == pytest.approx(0.5 * first["cross_entropy"], rel=1e-4)
