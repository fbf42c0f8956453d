"""Exact resume: what an interrupted run computes is what an uninterrupted one computes, to the last bit (P35), for every ZeRO stage."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ranks import Attempt, Run, assert_continues, put_together
from tuneplane.record.digest import digest_file
from tuneplane.training.sums import held_out_path

pytestmark = pytest.mark.train
STEPS = 8
SHORT = {"precision": "bf16", "max_steps": 4, "save_steps": 2}
CASES = [(zero, rank, more) for more in ({}, SHORT) for zero in (0, 1, 2, 3) for rank in (0, 4)]
NAMES = [f"zero{z}-{'lora' if rank else 'full'}-{'bf16' if more else 'fp32'}" for z, rank, more in CASES]
LOGITS = (
    "import torch",
    "ids = torch.arange(5, 25).reshape(2, 10)",
    "with deepspeed.asking():",
    "    logits = deepspeed(input_ids=ids).logits.float()",
    "if job.peers.first:",
    "    torch.save(logits, job.place.out_dir / 'logits.pt')",
)
"""What the model in memory answers after its last step, for comparison with what is loaded from its artefact."""

Make = Callable[..., Run]
Straight = Callable[..., Attempt]


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory, tiny: Path, sums: Path, warm: Any) -> Make:
    """A new run on the tiny model; dropout is on where there are adapters, so that random numbers matter. It leaves its last logits."""

    def run(zero: int = 2, rank: int = 0, **more: Any) -> Run:
        settings = {
            "zero_stage": zero,
            "lora_rank": rank,
            "lora_dropout": 0.1 if rank else 0.0,
            "gradient_accumulation": 2,
            "gradient_checkpointing": zero in (1, 3),
            "deterministic": zero == 1,
            "max_steps": STEPS,
            "save_steps": 4,
            "keep_checkpoints": 3,
        }
        made = Run(tmp_path_factory.mktemp("run") / "run", tiny, sums, **(settings | more))
        made.validation, made.warm = held_out_path(sums), warm
        made.after_the_loop(*LOGITS)
        return made

    return run


@pytest.fixture(scope="module")
def straight(make: Make) -> Straight:
    """The uninterrupted run of a case, made once."""
    known: dict[str, Attempt] = {}

    def run(zero: int, rank: int, **more: Any) -> Attempt:
        key = json.dumps([zero, rank, more])
        if key not in known:
            known[key] = make(zero, rank, **more).complete()
        return known[key]

    return run


@pytest.mark.parametrize(("zero", "rank", "more"), CASES, ids=NAMES)
def test_p35_a_resumed_run_is_bit_identical(
    zero: int, rank: int, more: dict[str, Any], make: Make, straight: Straight
) -> None:
    whole, later = straight(zero, rank, **more), make(zero, rank, **more)
    assert whole.result()["precision"] == more.get("precision", "fp32")
    half = later.hyperparams["max_steps"] // 2
    name = f"step-{half:09d}"
    shutil.copytree(whole.root / "checkpoints" / name, later.root / "checkpoints" / name)
    attempt = later.complete()
    assert_continues(attempt, whole, half)
    assert (attempt.out / "logits.pt").read_bytes() == (whole.out / "logits.pt").read_bytes()


@pytest.mark.parametrize(("zero", "rank", "more"), CASES, ids=NAMES)
def test_the_model_in_the_last_checkpoint_is_the_artefact_to_the_byte(
    zero: int, rank: int, more: dict[str, Any], make: Make, straight: Straight, tmp_path: Path
) -> None:
    """Put together by one process from what two ranks wrote, without either of them."""
    whole = straight(zero, rank, **more)
    made, final = put_together(whole, more.get("max_steps", STEPS), tmp_path / "model")
    assert made == final
    assert [p.name for p in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize(
    ("zero", "rank", "number", "warned"),
    [(2, 0, signal.SIGUSR2, [0, 1]), (3, 4, signal.SIGTERM, [1])],
    ids=["usr2-to-all", "term-to-one"],
)
def test_p33_a_warning_makes_all_ranks_save_at_one_step_edge_and_the_run_goes_on(
    zero: int, rank: int, number: signal.Signals, warned: list[int], make: Make, straight: Straight
) -> None:
    whole = straight(zero, rank)
    run = make(zero, rank, save_steps=0)
    run.warm = None
    run.before_the_loop(
        "import time",
        "inner = method.step",
        "def step(engine, number, rate):",
        "    time.sleep(0.3 if job.place.attempt == 1 else 0)  # so that the signal comes in mid-run",
        "    return inner(engine, number, rate)",
        "method.step = step",
    )
    first = run.start()
    first.until_step(2)
    for one in warned:
        first.processes[one].send_signal(number)
    assert first.wait() == [85, 85]
    (done,) = {m["step"] for m in first.metrics()[-1:]}
    assert [first.last_line(r) for r in (0, 1)] == [f"rank {r}: preempted; step {done} is saved" for r in (0, 1)]
    saves = [json.loads(line) for line in (first.out / "saves.jsonl").read_text().splitlines()]
    assert [(s["step"], s["reason"]) for s in saves] == [(done, "warning")]
    pointer = json.loads((run.root / "checkpoints" / "latest.json").read_text())
    assert (pointer["step"], pointer["attempt"]) == (done, 1)
    assert 2 <= done < STEPS
    second = run.complete()
    assert first.losses() | second.losses() == whole.losses()
    assert second.result()["resumed_from"] == {"step": done, "checkpoint": f"step-{done:09d}", "attempt": 1}
    assert second.result()["attempt"]["steps"] == second.result()["steps"] - done
    assert_continues(second, whole, done)


def test_a_warning_ends_a_validation_on_all_ranks_and_the_next_attempt_makes_it_up(make: Make) -> None:
    """Only rank 1 is warned, in the validation of step 2; what is measured of steps 2 and 4 in the end is what a whole run measures."""
    short: dict[str, Any] = {"max_steps": 4, "eval_steps": 2, "save_steps": 0}
    whole, run = make(**short).complete(), make(**short)
    run.warm = None
    run.before_the_loop(
        "import time",
        "inner = method.validate",
        "def validate(engine, between):",
        "    def slowly():",
        "        print('a part of the validation', flush=True)",
        "        time.sleep(1 if job.place.attempt == 1 else 0)",
        "        between()",
        "    return inner(engine, slowly)",
        "method.validate = validate",
    )
    first = run.start()
    first.until(lambda: "a part of the validation" in first.log(1))
    first.processes[1].send_signal(signal.SIGTERM)
    assert first.wait() == [85, 85]
    assert [first.last_line(rank) for rank in (0, 1)] == [f"rank {r}: preempted; step 2 is saved" for r in (0, 1)]
    second = run.complete()
    assert_continues(second, whole, 2)
    assert (validations(first), validations(second)) == ({}, validations(whole))
    assert sorted(validations(whole)) == [2, 4]


def validations(attempt: Attempt) -> dict[int, float]:
    lines = [json.loads(line) for line in (attempt.out / "metrics.jsonl").read_text().splitlines()]
    return {line["step"]: line["validation_loss"] for line in lines if "validation_loss" in line}


def test_p35_after_two_kills_the_final_weights_are_those_of_an_uninterrupted_run(
    make: Make, straight: Straight
) -> None:
    """A killed rank ends its peer at once, and the run goes on from the last checkpoint that was published behind the training."""
    whole = straight(2, 0)
    run = make(2, 0)
    run.warm = None
    run.before_the_loop(
        "import os, signal",
        "inner = method.step",
        "def step(engine, number, rate):",
        "    if (job.place.attempt, job.place.rank, number) in ((1, 1, 6), (2, 1, 7)):",
        "        saver.settle(60.0)  # the checkpoint of step 4 is on its way",
        "        os.kill(os.getpid(), signal.SIGKILL)",
        "    return inner(engine, number, rate)",
        "method.step = step",
    )
    for number, last in ((1, 5), (2, 6)):
        attempt = run.start()
        assert attempt.wait(60) == [87, -9]
        assert (attempt.number, max(attempt.losses())) == (number, last)
        assert attempt.last_line(0).startswith("rank 0: a peer was lost, in ")
        assert attempt.last_line(0).endswith("; this rank stops (exit 87)")
    assert_continues(run.complete(), whole, 4)


def test_p32_a_damaged_newest_checkpoint_is_passed_over_aloud_and_the_one_before_is_used(
    make: Make, straight: Straight
) -> None:
    whole = straight(1, 4)
    run = make(1, 4)
    shutil.copytree(whole.root / "checkpoints", run.root / "checkpoints")
    shard = next((run.root / "checkpoints" / f"step-{STEPS:09d}" / "deepspeed").glob("zero_pp_rank_1*"))
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    attempt = run.complete()
    said = [line for line in attempt.log(0).splitlines() if "passed over" in line]
    assert said == [
        f"checkpoint step-{STEPS:09d} is passed over: deepspeed/{shard.name} is not what was written: its SHA-256 differs"
    ]
    assert_continues(attempt, whole, 4)


def test_a_run_that_was_interrupted_in_its_export_exports_without_training_again(
    make: Make, straight: Straight
) -> None:
    whole = straight(3, 0)
    run = make(3, 0)
    shutil.copytree(whole.root / "checkpoints", run.root / "checkpoints")
    attempt = run.complete()
    assert attempt.metrics() == []
    assert attempt.weights() == whole.weights()
    assert attempt.result()["steps"] == STEPS


def test_p34_other_ranks_that_would_take_other_rows_a_step_are_refused_with_both_numbers(
    make: Make, straight: Straight
) -> None:
    whole = straight(2, 0)
    run = make(2, 0)
    shutil.copytree(whole.root / "checkpoints", run.root / "checkpoints")
    attempt = run.start(world=1)
    assert attempt.wait() == [1]
    log = attempt.log(0)
    assert "E-TRAIN-041 step-000000008: global batch: the checkpoint was written by another number of ranks" in log
    assert "found    4 rows a step on 1 ranks\n    allowed  8 rows a step, as on 2 ranks" in log
    assert attempt.metrics() == []


@pytest.mark.parametrize(
    ("zero", "rank", "world", "batch"),
    [(0, 4, 1, (4, 2)), (1, 4, 4, (1, 2)), (2, 0, 1, (2, 4)), (3, 0, 1, (8, 1))],
    ids=["zero0-lora-2to1", "zero1-lora-2to4", "zero2-2to1", "zero3-2to1"],
)
def test_p34_another_number_of_ranks_goes_on_with_the_same_rows_from_another_run_s_checkpoint(
    zero: int, rank: int, world: int, batch: tuple[int, int], make: Make, straight: Straight
) -> None:
    """ZeRO-3 with decay on some weights only: DeepSpeed's loader would give it to all of them, and count steps twice."""
    more = {"weight_decay": 0.3} if zero == 3 else {"lora_dropout": 0.0} if rank else {}
    whole = straight(zero, rank, **more)
    run = make(zero, rank, micro_batch_size=batch[0], gradient_accumulation=batch[1], **more)
    source = whole.root / "checkpoints" / "step-000000004"
    run.launch_start = {"path": str(source), "manifest_sha256": digest_file(source / "manifest.json")}
    attempt = run.complete(world=world)
    first = {step: loss for step, loss in whole.losses().items() if step > 4}
    assert attempt.losses() == pytest.approx(first, rel=2e-5)
    assert [m["tokens"] for m in attempt.metrics()] == [m["tokens"] for m in whole.metrics()[4:]]
    certificate = json.loads((attempt.out / "continuity.json").read_text())
    assert (certificate["ranks"], certificate["verified"]) == ({"then": 2, "now": world}, True)
    assert certificate["compared"] == ["samples"]
    assert f"2 ranks became {world}, verified: next samples" in attempt.log(0)
    assert not list((run.root / "checkpoints").glob(".new-*"))


def test_a_start_that_was_changed_since_the_submission_is_refused_and_not_begun_anew(
    make: Make, straight: Straight, tmp_path: Path
) -> None:
    source = tmp_path / "step-000000004"
    shutil.copytree(straight(2, 0).root / "checkpoints" / source.name, source)
    run = make(2, 0)
    run.launch_start = {"path": str(source), "manifest_sha256": digest_file(source / "manifest.json")}
    (source / "rank-00001.json").unlink()
    attempt = run.start()
    assert attempt.wait() == [1, 1]
    for rank in (0, 1):
        assert "E-TRAIN-051 launch.json: start: the run cannot begin there: rank-00001.json is missing" in attempt.log(
            rank
        )
    assert attempt.metrics() == []


def test_changed_settings_and_rows_are_refused_by_name_and_never_begun_again(
    make: Make, straight: Straight, tmp_path: Path, sums: Path
) -> None:
    whole = straight(2, 0)
    run = make(2, 0, learning_rate=2e-2, save_steps=3)
    shutil.copytree(whole.root / "checkpoints", run.root / "checkpoints")
    run.train = tmp_path / "other.jsonl"
    run.train.write_text("\n".join(sums.read_text().splitlines()[1:]))
    attempt = run.start()
    assert attempt.wait() == [1, 1]
    for rank in (0, 1):
        log = attempt.log(rank)
        assert "E-TRAIN-042 step-000000008: learning_rate: changed since the checkpoint was written" in log
        assert "found    0.02 now\n    allowed  0.01 then" in log
        assert "E-TRAIN-043 step-000000008: train: changed" in log
        assert "save_steps" not in log
    assert attempt.metrics() == []


@pytest.mark.parametrize(("zero", "rank", "more"), CASES, ids=NAMES)
def test_p50_the_artefact_answers_as_the_trained_model_did_in_plain_transformers_and_peft(
    zero: int, rank: int, more: dict[str, Any], straight: Straight, tiny: Path, sums: Path
) -> None:
    import torch
    from tuneplane.training.answers import load

    attempt = straight(zero, rank, **more)
    final = attempt.out / "final"
    network, tokenizer = load(tiny, final) if rank else load(final, None)
    loss = loss_of(network, tokenizer, held_out_path(sums))
    assert loss == pytest.approx(attempt.result()["validation_loss"], rel=5e-3 if more else 1e-5)
    trained = torch.load(attempt.out / "logits.pt")
    for param in network.parameters():
        param.data = param.to(
            torch.bfloat16 if more and zero else torch.float32
        )  # not the rotary tables: they stay fp32
    with torch.no_grad():
        loaded = network(input_ids=torch.arange(5, 25).reshape(2, 10)).logits.float()
    # The artefact rounds what was fp32 in memory: all weights without ZeRO, adapters under ZeRO-3. The rest is the same arithmetic again.
    rounded = more and (not zero or (zero == 3 and rank))
    near = 0.02 if rounded else 1e-6
    assert float((loaded - trained).abs().max()) <= near * float(trained.abs().max())
    assert {oct(p.stat().st_mode & 0o777) for p in final.iterdir()} == {"0o644"}
    assert oct(final.stat().st_mode & 0o777) == "0o755"


def loss_of(network: Any, tokenizer: Any, rows: Path) -> float:
    """Mean loss over the answer tokens, one row at a time, by transformers' own loss."""
    import torch
    from tuneplane.training.chat import Encoded, Encoder
    from tuneplane.training.rows import read_rows

    lost = count = 0.0
    for got in Encoder(tokenizer, 128, "error").encode(list(read_rows(rows))):
        assert isinstance(got, Encoded)
        ids = torch.tensor([got.ids])
        labels = ids.clone()
        labels[:, : got.prompt] = -100
        with torch.no_grad():
            lost += float(network(input_ids=ids, labels=labels).loss) * (len(got.ids) - got.prompt)
        count += len(got.ids) - got.prompt
    return lost / count


def test_the_losses_are_those_of_a_plain_torch_loop_over_the_same_rows(
    straight: Straight, tiny: Path, sums: Path
) -> None:
    """No DeepSpeed, one process, the whole global batch at once, transformers' own loss, torch's AdamW."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from tuneplane.training.chat import Encoded, Encoder
    from tuneplane.training.rows import read_rows
    from tuneplane.training.sampler import Order

    model = AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float32)
    rows = Encoder(AutoTokenizer.from_pretrained(tiny), 128, "error").encode(list(read_rows(sums)))
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0)
    order, losses, norms = Order(len(rows), 3), [], []
    for step in range(STEPS):
        batch = [rows[i] for i in order.ids(step * 8, 8)]
        width = max(len(r.ids) for r in batch if isinstance(r, Encoded))
        ids, labels, mask = (torch.full((8, width), fill) for fill in (0, -100, 0))
        for line, row in enumerate(batch):
            assert isinstance(row, Encoded)
            ids[line, : len(row.ids)] = torch.tensor(row.ids)
            labels[line, row.prompt : len(row.ids)] = torch.tensor(row.ids[row.prompt :])
            mask[line, : len(row.ids)] = 1
        loss = model(input_ids=ids, attention_mask=mask, labels=labels).loss
        loss.backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)))
        optimiser.param_groups[0]["lr"] = 1e-2 * (1 - step / STEPS)
        optimiser.step()
        optimiser.zero_grad()
        losses.append(float(loss.detach()))
    for zero in (0, 2, 3):
        attempt = straight(zero, 0)
        assert list(attempt.losses().values()) == pytest.approx(losses, rel=2e-4)
        assert [m["grad_norm"] for m in attempt.metrics()] == pytest.approx(norms, rel=2e-3)


def test_ranks_micro_batches_and_accumulation_share_one_global_batch(make: Make, straight: Straight) -> None:
    """Two ranks of two rows, twice = one rank of four rows, twice: the loss is a mean over the tokens of the global batch."""
    two = straight(2, 0)
    run = make(2, 0, micro_batch_size=8, gradient_accumulation=1)
    one = run.complete(world=1)
    assert list(one.losses().values()) == pytest.approx(list(two.losses().values()), rel=2e-4)
    assert [m["tokens"] for m in one.metrics()] == [m["tokens"] for m in two.metrics()]
