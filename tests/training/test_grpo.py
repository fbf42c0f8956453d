"""deepspeed/grpo: drawing, rewards, the objective, its runs."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from lessons import LORA, STEPS, Lessons, encoded, golden
from ranks import RECIPES, Attempt
from tuneplane.training import rewards
from tuneplane.training.refusals import Refused
from tuneplane.training.sampling import Sample, Sampler, uniform
from tuneplane.training.settings import parse
from tuneplane.training.tables import GRPO, GrpoSettings
from tuneplane.training.trl_methods import TrlGrpo
from tuneplane.training.watchdog import Watchdog

TEMPLATE = RECIPES / "grpo" / "template" / "rewards.py"
GROUPS = {"num_generations": 4, "max_completion_length": 8, "micro_batch_size": 8, "reward_functions": "digits,short"}
FULL = GROUPS | {"zero_stage": 2, "learning_rate": 3e-3, "num_iterations": 2}
HELD = GROUPS | LORA | {"lora_dropout": 0.0, "beta": 0.04, "temperature": 0.8, "loss_type": "grpo"}


def settings(**values: Any) -> GrpoSettings:
    return parse({"max_length": 1024} | values, None, GRPO)


# -- validation


@pytest.mark.parametrize(("held_out", "draws"), [(12, [2, 2, 2, 2]), (8, [2, 2])])
def test_under_zero3_all_ranks_make_the_same_draws_however_few_prompts_are_left_for_one(
    held_out: int, draws: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    from contextlib import nullcontext
    from types import SimpleNamespace

    from tuneplane.training import grpo

    made, kept = dict[int, list[int]](), dict[int, list[int]]()

    class Counted:
        def __init__(self, *_: Any) -> None: ...

        def draw(self, _engine: Any, prompts: Any, numbers: Any) -> list[Any]:
            assert len(prompts) == len(numbers)
            made[rank].append(len(prompts))
            return list(prompts)

    monkeypatch.setattr(grpo, "Sampler", Counted)
    engine: Any = SimpleNamespace(asking=nullcontext)
    tokens: Any = SimpleNamespace(examples=held_out, row=lambda i: (i, 1))
    for rank in (0, 1):
        method = object.__new__(grpo.Grpo)
        method.settings = settings(micro_batch_size=4, generation_batch_size=2, num_generations=4, zero_stage=3)
        method.peers = SimpleNamespace(place=SimpleNamespace(rank=rank, world_size=2), device="cpu")  # type: ignore[assignment]
        method._round, method._pad = 8, 0
        method._watchdog = method._tokenizer = SimpleNamespace(again=lambda: None, eos_token_id=1)  # type: ignore[assignment]
        made[rank], kept[rank] = [], []
        for share in method.shares_of(tokens):
            samples = method._draw(engine, share.ids, tokens, method._nothing(len(share.ids)), 0.0)
            assert samples == list(share.ids)
            kept[rank] += share.ids if share.counted else []
    assert made[0] == draws
    assert len(made[1]) == len(draws)
    assert sorted(kept[0] + kept[1]) == list(range(held_out))


# -- rewards


def functions(tmp_path: Path, text: str, names: str) -> dict[str, Any]:
    (tmp_path / "rewards.py").write_text(text)
    return rewards.load_functions(tmp_path, names)


def test_the_template_s_reward_is_1_for_the_row_s_answer() -> None:
    (found,) = rewards.load_functions(TEMPLATE.parent, "exact_match").values()
    chat = [[{"role": "assistant", "content": text}] for text in (" 42\n", "43", "")]
    assert found(prompts=[[]] * 3, completions=chat, answer=["42", "42", "42"], id=[1, 2, 3]) == [1.0, 0.0, 0.0]
    assert found(prompts=["q"], completions=["42 "], answer=[42]) == [1.0]


def test_a_function_gets_lists_and_the_rows_other_keys(tmp_path: Path) -> None:
    known = functions(tmp_path, "def f(**given):\n    seen.append(given)\n    return [1, 0.5]\nseen = []\n", "f")
    user = [{"role": "user", "content": "q"}]
    rows = [{"prompt": user, "answer": "a", "id": 7}, {"prompt": "text", "answer": "b"}]
    assert rewards.score(known, rows, ["x", "y"]) == {"f": [1.0, 0.5]}
    assert known["f"].__globals__["seen"] == [
        {
            "prompts": [user, "text"],
            "completions": [[{"role": "assistant", "content": "x"}], "y"],
            "answer": ["a", "b"],
            "id": [7, None],
        }
    ]


@pytest.mark.parametrize(
    ("text", "names", "reason"),
    [
        ("def f(): ...", "g", r"no such function\n    found    g\n    allowed  f"),
        ("f = 3", "f", "no such function"),
        ("raise RuntimeError('no')", "f", "cannot be imported: RuntimeError: no"),
    ],
)
def test_functions_that_cannot_be_had_are_refused(tmp_path: Path, text: str, names: str, reason: str) -> None:
    with pytest.raises(Refused, match=rf"E-TRAIN-018 (.|\n)*{reason}"):
        functions(tmp_path, text, names)


def test_an_experiment_without_rewards_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match=r"E-TRAIN-018 .*there is no rewards\.py"):
        rewards.load_functions(tmp_path, "f")


def by_deepspeed(known: dict[str, Any]) -> list[float]:
    return rewards.score(known, [{"prompt": "a", "answer": 1}, {"prompt": "b", "answer": 2}], ["x", "y"])["f"]


def by_trl(known: dict[str, Any]) -> list[float]:
    """As TRL's trainer calls what it was given."""
    method: Any = object.__new__(TrlGrpo)
    method._functions, method._watchdog = known, Watchdog()
    (function,) = method.rewards()
    assert function.__name__ == "f"
    found: list[float] = function(
        prompts=["a", "b"], completions=["x", "y"], completion_ids=[[1], [2]], answer=[1, 2], trainer_state=None,
        log_extra=None, log_metric=None,
    )  # fmt: skip
    return found


@pytest.mark.parametrize("family", [by_deepspeed, by_trl])
@pytest.mark.parametrize(
    "value",
    ["None", "[1]", "[1, None]", "[1, float('nan')]", "[float('nan'), float('inf')]", "[1, 'x']", "[1, 2, 3]", "3"],
)
def test_anything_but_a_finite_number_an_answer_is_refused(tmp_path: Path, value: str, family: Any) -> None:
    known = functions(tmp_path, f"def f(**given):\n    return {value}\n", "f")
    with pytest.raises(Refused, match="E-TRAIN-047 f: "):
        family(known)


@pytest.mark.parametrize("family", [by_deepspeed, by_trl])
def test_both_families_give_a_function_the_same(tmp_path: Path, family: Any) -> None:
    known = functions(tmp_path, "def f(prompts, completions, answer):\n    return answer\n", "f")
    assert family(known) == [1.0, 2.0]


def test_trl_s_rows_have_the_same_columns_none_where_one_lacks_it() -> None:
    """TRL takes the first row's keys for all of them."""
    from types import SimpleNamespace

    method: Any = object.__new__(TrlGrpo)
    method.global_batch, method.settings = 2, SimpleNamespace(num_generations=2, gradient_accumulation=1)
    method.peers = SimpleNamespace(place=SimpleNamespace(world_size=1, rank=0))
    method.order = SimpleNamespace(ids=lambda position, count: [0, 1])
    rows = [{"prompt": "a", "id": 7}, {"prompt": "b", "answer": "c"}]
    method.train = SimpleNamespace(object=lambda i: rows[i])
    full = [{"prompt": "a", "id": 7, "answer": None}] * 2 + [{"prompt": "b", "id": None, "answer": "c"}] * 2
    assert method.micro_batches(None, 1) == [full]


# -- the objective


def test_advantages_are_the_documented_formula() -> None:
    """TRL: (rewards - mean_grouped_rewards) / (std_grouped_rewards + 1e-4)."""
    import torch
    from tuneplane.training.grpo import advantages

    groups = torch.tensor([[1.0, 0.0, 0.0, 1.0], [2.0, 2.0, 2.0, 2.0]], dtype=torch.float64)
    deviation = math.sqrt(4 * 0.25 / 3)
    scaled = [0.5 / (deviation + 1e-4) * sign for sign in (1, -1, -1, 1)]
    assert advantages(groups, True).tolist() == [pytest.approx(scaled), [0.0] * 4]
    assert advantages(groups, False).tolist() == [[0.5, -0.5, -0.5, 0.5], [0.0] * 4]


def test_the_clipped_objective_is_the_documented_formula() -> None:
    """TRL: -min(ratio * advantage, clamp(ratio, 1 - epsilon_low, 1 + epsilon_high) * advantage)."""
    import torch
    from tuneplane.training.grpo import token_loss

    chosen = settings(epsilon=0.2, epsilon_high=0.3)
    now = [math.log(r) for r in (1.0, 1.5, 0.5, 1.5, 0.5, 1.25)]
    gains = [1.0, 1.0, 1.0, -1.0, -1.0, 2.0]
    lost, clipped = token_loss(torch.tensor(now), torch.zeros(6), torch.tensor(gains), chosen)
    assert lost.tolist() == pytest.approx([-1.0, -1.3, -0.5, 1.5, 0.8, -2.5], rel=1e-5)
    assert clipped.tolist() == [False, True, False, False, True, False]


def test_a_gradient_norm_of_minus_1_is_not_lost_behind_that_of_another_update() -> None:
    from types import SimpleNamespace

    import torch
    from tuneplane.training.grpo import Grpo

    method: Any = object.__new__(Grpo)
    method.settings = settings(num_iterations=2)
    method.peers = SimpleNamespace(place=SimpleNamespace(world_size=1))
    method._watchdog = SimpleNamespace(again=lambda: None)
    method.roll = lambda engine, step: SimpleNamespace(shares={}, tokens=1)
    method._lost = lambda *_: (torch.tensor(0.5), {})
    found = iter([1.0, -1.0])
    engine: Any = SimpleNamespace(backward=lambda loss: None, step=lambda rate: next(found))
    assert method.step(engine, 1, 0.1).grad_norm == -1.0


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"micro_batch_size": 6}, "micro_batch_size"),
        ({"max_completion_length": 1020}, "max_completion_length"),
        ({"beta": 0.1}, "beta"),
        ({"lora_rank": 4, "lora_dropout": 0.1}, "lora_dropout"),
    ],
)
def test_values_that_contradict_each_other_are_refused(values: dict[str, Any], field: str) -> None:
    with pytest.raises(Refused, match=rf"E-TRAIN-016 hyperparams.{field}: "):
        settings(**values)


# -- drawing


class Plain:
    """A model as the sampler calls it."""

    def __init__(self, model: Any) -> None:
        self.model = model.eval()

    def __call__(self, **inputs: Any) -> Any:
        import torch

        with torch.no_grad():
            return self.model(**inputs)

    def accepts(self, name: str) -> bool:
        import inspect

        return name in inspect.signature(self.model.forward).parameters


@pytest.fixture(scope="module")
def plain(tiny: Path) -> Plain:
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4)  # else it is sure of nothing
    return Plain(model)


PROMPTS = [[1, 40, 41, 42], [1, 60], [1, 70, 71, 72, 73, 74, 75]]


def draw(plain: Plain, prompts: list[list[int]], numbers: Any, temperature: float = 0.7, end: int = 2) -> list[Sample]:
    import torch

    return Sampler(end, 2, temperature, numbers.shape[1], torch.device("cpu")).draw(plain, prompts, numbers)


def test_log_probabilities_at_the_drawing_are_those_of_one_whole_forward(plain: Plain) -> None:
    import torch

    samples = draw(plain, PROMPTS, uniform(3, 1, range(3), 12), end=-1)
    for prompt, sample in zip(PROMPTS, samples, strict=True):
        assert len(sample.ids) == 12
        logits = plain(input_ids=torch.tensor([prompt + sample.ids])).logits[0, len(prompt) - 1 : -1]
        wanted = torch.log_softmax(logits / 0.7, -1)[range(12), sample.ids]
        assert sample.logps == pytest.approx(wanted.tolist(), abs=1e-4)


def test_a_sample_depends_on_its_own_numbers_only(plain: Plain) -> None:
    together = draw(plain, PROMPTS, uniform(3, 1, [5, 6, 7], 10))
    alone = draw(plain, PROMPTS[1:2], uniform(3, 1, [6], 10))
    assert alone[0].ids == together[1].ids
    assert draw(plain, PROMPTS[1:2], uniform(3, 2, [6], 10))[0].ids != alone[0].ids
    assert uniform(3, 1, [6], 10).tolist() == uniform(3, 1, [6], 10).tolist() != uniform(4, 1, [6], 10).tolist()


def test_a_deterministic_run_sums_chances_where_that_is_deterministic(
    plain: Plain, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU torch refuses such sums then. There is none here, so what is looked at is that they are asked of a copy on the CPU."""
    import torch

    before = [s.ids for s in draw(plain, PROMPTS, uniform(3, 1, [5, 6, 7], 10))]
    moved, summed, cpu, cumsum = set[int](), list[bool](), torch.Tensor.cpu, torch.Tensor.cumsum

    def to_cpu(tensor: torch.Tensor) -> torch.Tensor:
        out = cpu(tensor).clone()
        moved.add(out.data_ptr())
        return out

    def sums(tensor: torch.Tensor, dim: int) -> torch.Tensor:
        if tensor.is_floating_point():
            summed.append(tensor.data_ptr() in moved)
        return cumsum(tensor, dim)

    monkeypatch.setattr(torch.Tensor, "cpu", to_cpu)
    monkeypatch.setattr(torch.Tensor, "cumsum", sums)
    torch.use_deterministic_algorithms(True)
    try:
        assert [s.ids for s in draw(plain, PROMPTS, uniform(3, 1, [5, 6, 7], 10))] == before
    finally:
        torch.use_deterministic_algorithms(False)
    assert set(summed) == {True}


def test_log_probabilities_are_asked_in_the_form_that_is_deterministic_on_a_gpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of logits with two dimensions: torch takes more of them for an image's, which it refuses on a GPU under `deterministic`."""
    import torch
    from tuneplane.training.forward import IGNORED, token_logps

    logits, wanted = torch.randn(2, 3, 5), torch.tensor([[1, IGNORED, 4], [0, 2, IGNORED]])
    asked, real = list[int](), torch.nn.functional.cross_entropy
    monkeypatch.setattr(
        torch.nn.functional, "cross_entropy", lambda x, *a, **k: asked.append(x.dim()) or real(x, *a, **k)
    )
    found = token_logps(logits, wanted)
    picked = torch.log_softmax(logits, -1).gather(-1, wanted.clamp_min(0)[..., None])[..., 0]
    assert torch.allclose(found, picked * (wanted != IGNORED))
    assert asked == [2]


def test_tokens_come_as_often_as_they_are_likely(plain: Plain) -> None:
    import torch

    count = 2000
    samples = draw(plain, [PROMPTS[1]] * count, uniform(0, 1, range(count), 1))
    wanted = torch.softmax(plain(input_ids=torch.tensor([PROMPTS[1]])).logits[0, -1] / 0.7, -1)
    found = torch.bincount(torch.tensor([s.ids[0] for s in samples]), minlength=len(wanted)) / count
    assert float((found - wanted).abs().max()) < 4 * math.sqrt(0.25 / count)
    assert float(wanted.max()) > 0.05


def test_the_end_token_ends_an_answer_and_temperature_0_is_the_likeliest(plain: Plain) -> None:
    import numpy as np
    import torch

    greedy = draw(plain, PROMPTS, np.zeros((3, 6)), temperature=0.0, end=-1)
    first = int(plain(input_ids=torch.tensor([PROMPTS[0]])).logits[0, -1].argmax())
    assert greedy[0].ids[0] == first
    ended = draw(plain, PROMPTS, np.zeros((3, 6)), temperature=0.0, end=greedy[1].ids[2])
    stop = greedy[1].ids.index(greedy[1].ids[2]) + 1
    assert (ended[1].ids, ended[1].ended, len(ended[1].logps)) == (greedy[1].ids[:stop], True, stop)
    assert ended[0].ids == greedy[0].ids[: len(ended[0].ids)]


# -- runs


@pytest.fixture(scope="module")
def full(lessons: Lessons) -> Attempt:
    return lessons.straight("grpo", **FULL)


@pytest.fixture(scope="module")
def held(lessons: Lessons) -> Attempt:
    return lessons.straight("grpo", **HELD)


@pytest.mark.train
def test_the_reward_rises_and_the_bookkeeping_is_exact(full: Attempt) -> None:
    lines = full.metrics()
    assert sum(m["reward"] for m in lines[-2:]) > sum(m["reward"] for m in lines[:2]) + 0.05
    for line in lines:
        assert line["sampling_gap"] < 1e-5
        assert line["reward"] == pytest.approx(line["reward_digits"] + line["reward_short"], abs=1e-9)
        assert 1 <= line["completion_length"] <= 8
    assert any(line["clip_ratio"] > 0 for line in lines)  # the second update of a step leaves the drawing model
    assert "a step: 8 prompts x 4 answers, 2 updates; global batch 32 = 8 x 2 accumulated x 2 ranks" in full.log(0)
    assert full.result()["validation_reward_digits"] > 0


@pytest.mark.train
def test_the_divergence_from_the_initial_model_starts_at_0(held: Attempt) -> None:
    lines = held.metrics()
    assert lines[0]["kl"] == pytest.approx(0.0, abs=1e-6)
    assert lines[0]["loss"] == pytest.approx(0.0, abs=1e-6)  # ratios of 1: advantages cancel in a group
    assert all(line["kl"] > 0 for line in lines[1:])
    assert all(line["clip_ratio"] == 0 for line in lines)


@pytest.mark.train
@pytest.mark.parametrize("case", ["lora", "full"])
def test_golden_losses_and_rewards(case: str, request: pytest.FixtureRequest) -> None:
    attempt: Attempt = request.getfixturevalue("held" if case == "lora" else "full")
    assert [m["reward"] for m in attempt.metrics()] == golden(f"grpo {case} rewards")
    assert list(attempt.losses().values()) == golden(f"grpo {case}", more=10)  # differences of what is nearly equal


@pytest.mark.train
def test_losses_and_rewards_are_those_of_a_plain_torch_loop(full: Attempt, lessons: Lessons) -> None:
    """One process, the whole batch at once, the objective written out token by token; only the drawing is shared."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from tuneplane.training.sampler import Order

    model = AutoModelForCausalLM.from_pretrained(lessons.tiny, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(lessons.tiny)
    prompts = [group[0][0] for group in encoded(lessons.rows("grpo"), "prompt", tokenizer)]
    optimiser = torch.optim.AdamW(model.parameters(), weight_decay=0.0)
    order, losses, means = Order(len(prompts), 3), [], []
    for step in range(STEPS):
        asked = [prompts[i] for i in order.ids(step * 8, 8) for _ in range(4)]
        samples = draw(Plain(model), asked, uniform(3, step + 1, range(32), 8), temperature=1.0)
        texts = [tokenizer.decode(s.ids, skip_special_tokens=True) for s in samples]
        values = [sum(c.isdigit() for c in t) / max(1, len(t)) - 0.01 * len(t) for t in texts]
        groups = torch.tensor(values).view(8, 4)
        gains = ((groups - groups.mean(1, keepdim=True)) / (groups.std(1, keepdim=True) + 1e-4)).flatten()
        olds, updates = None, []
        for _ in range(2):
            nows = [logps_of(model, prompt, sample.ids) for prompt, sample in zip(asked, samples, strict=True)]
            olds = olds or [now.detach() for now in nows]
            terms = []
            for now, old, gain in zip(nows, olds, gains, strict=True):
                ratio = torch.exp(now - old)
                terms.append(-torch.minimum(ratio * gain, ratio.clamp(0.8, 1.2) * gain))
            loss = torch.cat(terms).mean()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimiser.param_groups[0]["lr"] = 3e-3 * (1 - step / STEPS)
            optimiser.step()
            optimiser.zero_grad()
            updates.append(float(loss.detach()))
        losses.append(sum(updates) / 2)
        means.append(sum(values) / 32)
    assert [m["reward"] for m in full.metrics()] == pytest.approx(means, abs=1e-5)
    assert list(full.losses().values()) == pytest.approx(losses, rel=1e-2, abs=2e-4)


def logps_of(model: Any, prompt: list[int], ids: list[int]) -> Any:
    import torch

    logits = model(input_ids=torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1]
    return torch.log_softmax(logits, -1)[range(len(ids)), ids]


@pytest.mark.train
@pytest.mark.parametrize("case", ["lora", "full"])
def test_p35_a_resumed_run_draws_and_learns_the_same_to_the_last_bit(case: str, lessons: Lessons) -> None:
    lessons.assert_resumes("grpo", **(HELD if case == "lora" else FULL))


@pytest.mark.train
def test_zero3_draws_the_same_answers(lessons: Lessons, held: Attempt) -> None:
    short = {"zero_stage": 3, "max_steps": 2, "save_steps": 0}
    attempt = lessons.straight("grpo", **(HELD | short))
    names = ("reward_digits", "completion_length", "truncated")
    first = [[m[name] for name in names] for m in (attempt.metrics()[0], held.metrics()[0])]
    assert first[0] == pytest.approx(first[1])


@pytest.mark.train
def test_exact_match_on_sums_rises(lessons: Lessons, tmp_path: Path) -> None:
    """A model that has begun to learn 16 small sums answers them right more often after learning from its own answers."""
    from tuneplane.training.sums import prompt, row

    answers, prompts = tmp_path / "answers.jsonl", tmp_path / "prompts.jsonl"
    pairs = [(a, b) for a in range(4) for b in range(4)]
    answers.write_text("\n".join(row(a, b) for a, b in pairs) + "\n")
    prompts.write_text("\n".join(json.dumps({"prompt": prompt(a, b), "answer": str(a + b)}) for a, b in pairs) + "\n")
    begun = lessons.run("sft", zero_stage=0, learning_rate=3e-3, max_steps=24, save_steps=0)
    begun.train = begun.validation = answers
    start = begun.complete().out / "final"
    made = lessons.run(
        "grpo", zero_stage=0, learning_rate=2e-3, max_steps=16, save_steps=0, num_iterations=2, num_generations=8,
        max_completion_length=4, micro_batch_size=16, lr_schedule="constant",
    )  # fmt: skip
    made.model, made.train, made.validation = start, prompts, prompts
    (made.root / "work" / "rewards.py").write_text(TEMPLATE.read_text())
    attempt = made.complete()
    right = [m["reward_exact_match"] for m in attempt.metrics()]
    assert sum(right[-3:]) / 3 > sum(right[:3]) / 3 + 0.2
