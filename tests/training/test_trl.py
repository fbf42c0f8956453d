"""trl/*: TRL's own trainers under our loop. Two ranks on the CPU; rows, order and settings are those of deepspeed/*.

Losses are compared with TRL's own loop and with deepspeed/*: programs that share neither collation, forward nor loss.
"""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from lessons import CENTRED, FULL, GOLDEN, LEANING, LONGER, STEPS, Lessons
from ranks import ROOT, Attempt, Run, assert_continues, put_together
from tuneplane.record.digest import digest_file
from tuneplane.training.refusals import Refused
from tuneplane.training.settings import parse
from tuneplane.training.trl_settings import GONE, TABLES

TRL = ROOT / "recipes" / "trl"
LORA = {"lora_rank": 4, "lora_dropout": 0.1, "zero_stage": 3}
DRAWN = {
    "reward_functions": "digits,short",
    "num_generations": 2,
    "max_completion_length": 16,
    "lora_rank": 4,
    "zero_stage": 2,
}


DOTFILE = "distributed_type: 'NO'\nnum_processes: 1\nmixed_precision: bf16\nuse_cpu: false\n"


class Trl:
    """Runs of trl/*, each made once, all beside a dotfile of accelerate that says otherwise."""

    def __init__(self, lessons: Lessons) -> None:
        self._lessons, self._made = lessons, dict[str, Attempt]()

    def run(self, method: str, **settings: Any) -> Run:
        run = self._lessons.run(method, **settings)
        run.entry = TRL / method / "template" / "train.py"
        dotfile = run.root / ".cache" / "huggingface" / "accelerate" / "default_config.yaml"
        dotfile.parent.mkdir(parents=True)
        dotfile.write_text(DOTFILE)  # HOME is the run's folder
        return run

    def straight(self, method: str, **settings: Any) -> Attempt:
        key = f"{method} {sorted(settings.items())}"
        if key not in self._made:
            self._made[key] = self.run(method, **settings).complete()
        return self._made[key]

    def resumed(self, method: str, **settings: Any) -> tuple[Attempt, Attempt]:
        """(the uninterrupted run, one that goes on from its checkpoint in the middle)."""
        whole, later = self.straight(method, **settings), self.run(method, **settings)
        for name in ("cache", f"checkpoints/step-{STEPS // 2:09d}"):
            shutil.copytree(whole.root / name, later.root / name)
        return whole, later.complete()


@pytest.fixture(scope="session")
def trl(lessons: Lessons) -> Trl:
    return Trl(lessons)


CASES = {"sft full": LONGER, "rm full": CENTRED, "kto learns": LEANING}


@pytest.mark.train
@pytest.mark.parametrize("name", CASES)
def test_the_losses_are_those_of_trl_s_trainer_by_itself(trl: Trl, name: str) -> None:
    """Measured once with TRL's own loop, one process, as `test_same_as_trl` compares them with deepspeed/*."""
    attempt, known = trl.straight(name.split()[0], **CASES[name]), json.loads(GOLDEN.read_text("utf-8"))
    assert list(attempt.losses().values()) == pytest.approx(
        known["trl"]["losses"][name], rel=known["relative_tolerance"]
    )


@pytest.mark.train
def test_the_losses_of_dpo_are_those_of_deepspeed_on_the_same_rows_in_the_same_order(
    trl: Trl, lessons: Lessons
) -> None:
    theirs, ours = trl.straight("dpo", **FULL), lessons.straight("dpo", **FULL)
    assert list(theirs.losses()) == list(range(1, STEPS + 1))
    assert list(theirs.losses().values()) == pytest.approx(list(ours.losses().values()), rel=2e-5)
    assert theirs.result()["samples_sha256"] == ours.result()["samples_sha256"]
    for name in ("loss", "accuracy", "reward_margin"):
        assert theirs.result()[f"validation_{name}"] == pytest.approx(ours.result()[f"validation_{name}"], rel=2e-5)
    assert theirs.metrics()[-1]["reward_margin"] == pytest.approx(ours.metrics()[-1]["reward_margin"], rel=1e-4)


@pytest.mark.train
def test_sft_with_adapters_and_shared_weights_goes_on_to_the_last_bit(trl: Trl) -> None:
    whole, later = trl.resumed("sft", **LORA)
    assert whole.losses()[STEPS] < whole.losses()[1]
    assert_continues(later, whole, STEPS // 2)
    assert "verified" in later.log(0)
    assert later.result()["artefact"]["kind"] == "adapter"


@pytest.mark.train
@pytest.mark.parametrize(("method", "settings"), [("sft", LORA), ("dpo", FULL)], ids=["sft-lora-zero3", "dpo-full"])
def test_the_model_in_the_last_checkpoint_is_the_artefact_to_the_byte(
    trl: Trl, method: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    made, final = put_together(trl.straight(method, **settings), STEPS, tmp_path / "model")
    assert made == final


@pytest.mark.train
def test_a_new_run_begins_at_another_run_s_checkpoint_and_computes_the_same_to_the_last_bit(trl: Trl) -> None:
    """By `start` of launch.json, which `--init-from` writes: same ranks, the reference's cache not copied."""
    whole, later = trl.straight("dpo", **FULL), trl.run("dpo", **FULL)
    later.launch_start = start_of(whole)
    attempt = later.complete()
    assert_continues(attempt, whole, STEPS // 2)
    assert " answers asked of the initial model, kept" in attempt.log(0)


@pytest.mark.train
def test_p34_another_number_of_ranks_goes_on_with_the_same_rows(trl: Trl) -> None:
    more = LORA | {"lora_dropout": 0.0}
    whole = trl.straight("sft", **more)
    run = trl.run("sft", **more | {"micro_batch_size": 8, "gradient_accumulation": 1})
    run.launch_start = start_of(whole)
    attempt = run.complete(world=1)
    later = {step: loss for step, loss in whole.losses().items() if step > STEPS // 2}
    assert attempt.losses() == pytest.approx(later, rel=2e-5)
    assert "2 ranks became 1, verified: next samples" in attempt.log(0)


@pytest.mark.train
def test_a_checkpoint_of_deepspeed_s_own_method_is_refused_and_not_begun_anew(trl: Trl, lessons: Lessons) -> None:
    run = trl.run("dpo", **FULL)
    run.launch_start = start_of(lessons.straight("dpo", **FULL))
    attempt = run.start()
    assert attempt.wait() == [1, 1]
    assert "E-TRAIN-042 step-000000004: framework: changed since the checkpoint was written" in attempt.log(0)
    assert "found    trl now\n    allowed  deepspeed then" in attempt.log(0)
    assert attempt.metrics() == []


def start_of(attempt: Attempt) -> dict[str, Any]:
    source = attempt.root / "checkpoints" / f"step-{STEPS // 2:09d}"
    return {"path": str(source), "manifest_sha256": digest_file(source / "manifest.json")}


@pytest.mark.train
def test_grpo_draws_is_rewarded_and_goes_on_to_the_last_bit(trl: Trl) -> None:
    whole, later = trl.resumed("grpo", **DRAWN)
    last = whole.metrics()[-1]
    assert {"reward", "reward_std", "completion_length", "rewards_digits_mean", "rewards_short_mean"} <= set(last)
    assert last["tokens"] > 0
    assert_continues(later, whole, STEPS // 2)


@pytest.mark.train
def test_a_warning_saves_on_all_ranks_and_asks_for_a_requeue(trl: Trl) -> None:
    run = trl.run("dpo", **LORA | {"max_steps": 4000, "save_steps": 0})
    attempt = run.start()
    attempt.until_step(2)
    attempt.processes[1].send_signal(signal.SIGUSR2)  # one rank alone is warned
    assert attempt.wait() == [85, 85], attempt.log(0)[-3000:]
    assert (run.root / "checkpoints" / "latest.json").is_file()
    assert "preempted; step" in attempt.last_line(0)


@pytest.mark.train
def test_p42_a_dotfile_of_accelerate_changes_nothing(trl: Trl) -> None:
    attempt = trl.straight("rm", **CENTRED)
    assert (attempt.root / ".cache/huggingface/accelerate/default_config.yaml").read_text() == DOTFILE
    assert (attempt.result()["world_size"], attempt.result()["precision"]) == (2, "fp32")


def test_each_micro_batch_of_a_step_shows_that_the_rank_moves() -> None:
    """Of five: as it is put together, and as it is learnt from. Else a step that takes longer than the bound ends every attempt at the same place."""
    import torch
    from tuneplane.training.trl_methods import TrlSft
    from tuneplane.training.trl_trainer import TrainerEngine

    log: list[str] = []
    table = torch.nn.Embedding(1, 1)

    def collate(examples: list[Any]) -> Any:
        log.append(f"row {examples[0]}")
        return examples[0]

    def learn(model: Any, inputs: int, count: int) -> float:
        assert table._forward_pre_hooks  # what a micro batch draws shows it, too
        log.append(f"micro {inputs}")
        return 0.5

    trainer: Any = SimpleNamespace(
        accelerator=SimpleNamespace(gradient_state=SimpleNamespace(_set_sync_gradients=lambda last: None)),
        get_batch_samples=lambda batches, count, device: (list(batches), count), state=SimpleNamespace(global_step=0),
        training_step=learn, _metrics={"train": {}},
        data_collator=collate,
    )  # fmt: skip
    engine = object.__new__(TrainerEngine)
    engine.trainer, engine.model = trainer, SimpleNamespace(get_input_embeddings=lambda: table)
    engine._optimizer = SimpleNamespace(param_groups=[{}])
    engine._deepspeed = SimpleNamespace(get_global_grad_norm=lambda: 1.0)
    engine.peers = SimpleNamespace(device="cpu")  # type: ignore[assignment]
    method: Any = object.__new__(TrlSft)
    method.peers, method.train = SimpleNamespace(place=SimpleNamespace(world_size=1, rank=0)), None
    method.settings, method._watchdog = (
        SimpleNamespace(micro_batch_size=1),
        SimpleNamespace(again=lambda: log.append("again")),
    )
    method.on_first_batch, method.rows_of = (lambda: None), (lambda step: [[i] for i in range(5)])
    method.example, method.tokens_of = (lambda tokens, index: index), (lambda engine, step: 7)
    assert method.step(engine, 1, 0.1).loss == 2.5
    assert log == [word for part in ("row", "micro") for i in range(5) for word in ("again", f"{part} {i}")]


@pytest.mark.filterwarnings("ignore::FutureWarning")  # transformers', of a name that PEFT asks for
@pytest.mark.parametrize("lora", [False, True])
def test_each_token_that_transformers_draws_shows_that_the_rank_moves(tiny: Path, lora: bool) -> None:
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM
    from tuneplane.training.trl_trainer import at_each_forward

    model: Any = AutoModelForCausalLM.from_pretrained(tiny)
    model = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", target_modules="all-linear")) if lora else model
    moved: list[int] = []
    with at_each_forward(model, lambda: moved.append(1)):
        model.generate(input_ids=torch.tensor([[1, 40, 41]]), max_new_tokens=5, min_new_tokens=5, do_sample=False)
        assert len(moved) == 5
        model(input_ids=torch.tensor([[1, 40, 41]]))
        assert len(moved) == 6
    model(input_ids=torch.tensor([[1, 40, 41]]))
    assert len(moved) == 6


@pytest.mark.parametrize("method", TABLES)
def test_a_setting_that_trl_s_trainer_does_not_have_is_unknown(method: str) -> None:
    table = TABLES[method]
    assert not {f.name for f in table.fields} & set(GONE)
    with pytest.raises(Refused) as caught:
        parse({"zero_stage": 0, "packing": True}, None, table)
    assert [r.code for r in caught.value.reasons] == ["E-TRAIN-011", "E-TRAIN-010"]
    assert parse({}, None, table).zero_stage == 2


@pytest.mark.parametrize("method", TABLES)
def test_an_entry_is_readable_on_three_screens(method: str) -> None:
    assert len((TRL / method / "template" / "train.py").read_text("utf-8").splitlines()) <= 90
