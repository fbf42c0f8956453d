"""The memory forecast (P51): each term by hand, what ZeRO, LoRA, precision and recomputation change, and the verdict."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hollow import LLAMA, llama_shapes, write_safetensors

from hpc.errors import Refusal
from hpc.plan.arithmetic import batches, disk
from hpc.plan.fit import fit
from hpc.plan.memory import BUCKET, CPU_PROCESS, GPU_PROCESS, LIVE, Setting, forecast, trainable, with_teacher
from hpc.plan.model_facts import ModelFacts, read_model

BILLION = ModelFacts(
    10**9, 16, 2048, 5632, 2048, 32_000, True, linears=(("q_proj", 2048, 2048), ("down_proj", 5632, 2048)) * 16
)
PLAIN = Setting(8, True, 2, True, False, 0, "all-linear", 0.0, 4, 1, 1024)


def of(**changes: Any) -> Any:
    return forecast(BILLION, replace(PLAIN, **changes))


def test_p51_the_forecast_has_states_gradients_activations_logits_and_fragmentation() -> None:
    found = of()
    layer = 2 * (4 * 2048 + 2 * 2048 + 2 * 2048) + 5 * 2048 * 2 + 4 * 5632 * 2
    assert found.weights == 2e9
    assert found.optimiser == 12 * 1e9 / 8
    assert found.gradients == 2 * 1e9 / 8
    assert found.buffers == 2 * BUCKET
    assert found.activations == 4 * 1024 * (16 * layer + 2048 * 8)
    assert found.logits == 12 * 4 * 1024 * 32_000
    assert found.update == 6 * 1e9 / 8
    assert found.process == GPU_PROCESS
    peak = (
        found.weights
        + found.optimiser
        + max(found.buffers + found.activations + found.logits, found.gradients + found.update)
    )
    assert found.slack == pytest.approx(0.1 * (found.activations + found.logits))
    assert found.total == pytest.approx(found.process + found.slack + peak)
    assert found.terms()["total"] == round(found.total)


@pytest.mark.parametrize(
    ("stage", "weights", "gradients", "optimiser"),
    [(0, 4e9 + 2e9, 4e9, 8e9), (1, 2e9, 2e9, 12e9 / 8), (2, 2e9, 2e9 / 8, 12e9 / 8), (3, 2e9 / 8, 2e9 / 8, 12e9 / 8)],
)
def test_p51_each_zero_stage_shares_what_it_says(
    stage: int, weights: float, gradients: float, optimiser: float
) -> None:
    found = of(zero_stage=stage)
    assert (found.weights, found.gradients, found.optimiser) == (weights, gradients, optimiser)


def test_zero_3_holds_a_billion_weights_whole_before_it_lets_go_of_any() -> None:
    assert of(zero_stage=3).buffers == 2 * BUCKET + 2 * 10**9
    large = forecast(replace(BILLION, parameters=7 * 10**9), replace(PLAIN, zero_stage=3))
    assert large.buffers == 2 * BUCKET + 2 * LIVE


def test_a_cpu_s_buffers_are_as_large_as_they_are_used_and_nothing_is_bf16_by_itself() -> None:
    found = of(gpu=False, bf16=False)
    assert (found.buffers, found.weights, found.process) == (4 * BUCKET, 4e9, CPU_PROCESS)
    assert of(gpu=False, bf16=False, lora_rank=8).buffers == 4 * trainable(BILLION, replace(PLAIN, lora_rank=8))


def test_lora_trains_its_adapters_alone() -> None:
    lora = replace(PLAIN, lora_rank=8)
    assert trainable(BILLION, lora) == 16 * 8 * (2048 + 2048 + 5632 + 2048)
    assert trainable(BILLION, replace(lora, lora_targets="q_proj, v_proj")) == 16 * 8 * 4096
    found = forecast(BILLION, lora)
    assert found.optimiser == 12 * trainable(BILLION, lora) / 8
    assert found.weights == 2 * (10**9 + trainable(BILLION, lora))


def test_recomputation_keeps_the_inputs_of_the_layers_and_one_layer_whole() -> None:
    once = replace(PLAIN, checkpointing=True)
    plain, saved = of().activations, forecast(BILLION, once).activations
    tokens, outside = 4096, 4096 * 2048 * 8
    layer = (plain - outside) / 16
    assert saved == 16 * tokens * 2048 * 2 + layer + outside
    assert saved < plain / 5


def test_gradients_are_there_in_the_backward_pass_only_where_micro_batches_add_up() -> None:
    assert of(accumulation=2).backward - of().backward == of().gradients


def test_pairs_put_two_rows_through_the_model_and_a_reward_model_has_no_vocabulary() -> None:
    hyperparams = {
        "precision": "auto", "zero_stage": 2, "gradient_checkpointing": False, "lora_rank": 0, "lora_targets": "all-linear", "lora_dropout": 0.0,
        "micro_batch_size": 4, "gradient_accumulation": 1, "max_length": 512,
    }  # fmt: skip
    sft, dpo, rm = (Setting.of(hyperparams, m, world=8, gpu=True, length=600) for m in ("sft", "dpo", "rm"))
    assert (sft.rows, dpo.rows, sft.length, sft.bf16) == (4, 8, 512, True)
    assert forecast(BILLION, dpo).logits == 2 * forecast(BILLION, sft).logits
    assert forecast(BILLION, rm).logits == 12 * 8 * 512
    assert not Setting.of(hyperparams, "sft", world=8, gpu=False, length=600).bf16


def test_frozen_layers_in_4_bits_and_the_copy_of_a_checkpoint() -> None:
    lora = replace(PLAIN, lora_rank=8)
    linears = 16 * (2048 * 2048 + 5632 * 2048)
    assert (
        forecast(BILLION, lora).weights - forecast(BILLION, replace(lora, four_bit=True)).weights
        == (2 - 0.5625) * linears
    )
    on_cpu = replace(PLAIN, gpu=False, bf16=False, copies=True)
    assert forecast(BILLION, on_cpu).copy == 4e9 + 12e9 / 8
    assert forecast(BILLION, replace(PLAIN, copies=True)).copy == 0  # the GPU's own memory does not hold it


def test_a_teacher_is_whole_on_each_rank() -> None:
    found = with_teacher(of(), BILLION, PLAIN)
    assert (found.teacher, found.logits) == (2e9, 2 * of().logits)


@pytest.mark.parametrize(
    ("available", "verdict"), [(15.9, "not_possible"), (16, "tight"), (19.1, "tight"), (19.2, "ready"), (0, "unknown")]
)
def test_i2_16_gib_of(available: float, verdict: str) -> None:
    assert fit(16 * 2**30, available * 2**30) == verdict


def test_a_model_is_read_from_its_headers(make_model: Callable[..., Path]) -> None:
    facts = read_model(make_model())
    assert (facts.layers, facts.hidden, facts.intermediate, facts.attention, facts.vocabulary, facts.tied) == (
        2,
        64,
        128,
        64,
        100,
        True,
    )
    block = 64 * (64 + 32 + 32 + 64) + 3 * 64 * 128 + 2 * 64
    assert facts.parameters == 100 * 64 + 64 + 2 * block
    assert facts.block == block + 32  # the last norm belongs to no layer
    assert facts.adapters(4, "all-linear") == 2 * 4 * (128 + 96 + 96 + 128 + 192 * 3)
    untied = read_model(make_model("untied", head=True))
    assert (untied.tied, untied.parameters - facts.parameters) == (False, 6400)
    assert untied.adapters(4, "all-linear") == facts.adapters(4, "all-linear")


def test_each_weight_is_counted_once(make_model: Callable[..., Path]) -> None:
    """What transformers opens is counted, and neither the same weights in their authors' own form nor an adapter that was left there."""
    folder = make_model()
    facts, shapes = read_model(folder), llama_shapes(LLAMA)
    write_safetensors(folder / "consolidated.safetensors", {f"own.{name}": shape for name, shape in shapes.items()})
    write_safetensors(folder / "adapter_model.safetensors", {"q_proj.lora_A.weight": (8, 64)})
    write_safetensors(folder / "model-00001-of-00001.safetensors", shapes | {"more": (9, 9)})
    assert read_model(folder) == facts
    (folder / "model.safetensors").unlink()
    half = dict(list(shapes.items())[:5])
    for number, part in ((1, half), (2, {name: shape for name, shape in shapes.items() if name not in half})):
        write_safetensors(folder / f"model-{number:05}-of-00002.safetensors", part)
    where = {name: f"model-{1 if name in half else 2:05}-of-00002.safetensors" for name in shapes}
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {"total_size": 1.5}, "weight_map": where})
    )
    assert read_model(folder) == facts
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(Refusal, match="E-PLAN-001"):
        read_model(folder)


def test_a_model_in_a_hub_s_cache_is_links(make_model: Callable[..., Path], tmp_path: Path) -> None:
    folder, links = make_model(), tmp_path / "snapshot"
    links.mkdir()
    for path in folder.iterdir():
        (links / path.name).symlink_to(path)
    assert read_model(links) == read_model(folder)


def test_a_folder_that_says_too_little_is_refused_for_a_forecast(
    make_model: Callable[..., Path], tmp_path: Path
) -> None:
    folder = make_model()
    (folder / "config.json").write_text('{"vocab_size": 100}')
    with pytest.raises(Refusal, match=r"E-PLAN-001.*none of hidden_size"):
        read_model(folder)
    with pytest.raises(Refusal, match="E-PLAN-001"):
        read_model(tmp_path / "nowhere")


def test_batches_steps_and_epochs() -> None:
    hyperparams = {
        "micro_batch_size": 4,
        "gradient_accumulation": 2,
        "max_steps": 0,
        "epochs": 1.5,
        "num_generations": 8,
    }
    found = batches(hyperparams, "sft", 4, 1000)
    assert (found.global_batch, found.steps_an_epoch, found.total_steps) == (32, 31.25, 47)
    assert found.epochs == 47 * 32 / 1000
    assert batches(hyperparams | {"max_steps": 10}, "sft", 4, None).total_steps == 10
    assert batches(hyperparams, "grpo", 4, 1000).global_batch == 4
    assert batches(hyperparams, "sft", 4, None).total_steps is None
    none = batches(hyperparams | {"num_generations": 64}, "grpo", 4, 1000)
    assert (none.global_batch, none.total_steps, none.epochs) == (0, None, None)


def test_a_checkpoint_holds_weights_and_states_but_no_frozen_weight() -> None:
    full, lora = disk(10**9, 10**9, PLAIN, 2), disk(10**9, 10**6, replace(PLAIN, lora_rank=8), 2)
    assert (full.checkpoint, full.kept, full.artefact) == (14 * 10**9, 3 * 14 * 10**9, 2 * 10**9)
    assert (lora.checkpoint, lora.artefact, lora.needed) == (14 * 10**6, 2 * 10**6, 44 * 10**6)
    assert disk(10**9, 10**9, replace(PLAIN, zero_stage=0), 1).checkpoint == 12 * 10**9
