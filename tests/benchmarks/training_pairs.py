"""One rank of a training benchmark: our step and a peer's in turn, in one process, on the same rows. Writes pairs.json (milliseconds, tokens).

    BENCH_PEER=deepspeed | ddp | trl | synthetic | unpacked

Started as the job's launcher starts an entry. What a pair compares is a whole step: rows to tensors, forward, backward, optimiser, the loss as a
number; ours also agrees with the other ranks on going on and writes its line of metrics.jsonl.
"""

from tuneplane.training import warning

warning.install()

import json  # noqa: E402
import os  # noqa: E402
import time  # noqa: E402
from collections.abc import Callable  # noqa: E402
from dataclasses import replace  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

from tuneplane.training import settings  # noqa: E402
from tuneplane.training.program import Job, run  # noqa: E402

Timed = Callable[[], None]


def train(job: Job) -> None:
    """Both sides are built, then step in turn, each first in every other pair; the first two pairs warm up."""
    chosen = settings.parse(job.launch.hyperparams, job.launch.peft, settings.SFT)
    job.connect()
    kind, rounds = os.environ["BENCH_PEER"], int(os.environ["BENCH_ROUNDS"])
    ours, method, loaded = _ours(job, chosen, packing=kind == "unpacked")
    pairs: list[list[float]] = []
    if kind == "trl":
        _beside_trl(job, chosen, ours, rounds, pairs)
    else:
        peer = {"deepspeed": _deepspeed, "ddp": _ddp, "synthetic": _synthetic, "unpacked": _unpacked}[kind]
        theirs = peer(job, chosen, method, loaded)
        for turn in range(rounds + 2):
            pair = [(0, ours), (1, theirs)]
            took = {side: _timed(job, step) for side, step in (pair if turn % 2 else reversed(pair))}
            pairs.append([took[0], took[1]])
    if job.peers.first:
        tokens = [m["tokens"] for m in map(json.loads, (job.place.out_dir / "metrics.jsonl").open()) if "loss" in m]
        value = {"pairs": pairs[2:], "tokens": tokens[2:], "theirs": getattr(job, "their_tokens", [])[2:]}
        (job.place.out_dir / "pairs.json").write_text(json.dumps(value))


def _timed(job: Job, step: Timed) -> float:
    job.peers.barrier()
    begin = time.perf_counter()
    step()
    return (time.perf_counter() - begin) * 1000


def _method(job: Job, chosen: Any, folder: Path, *, packing: bool) -> Any:
    from tuneplane.training import data, model
    from tuneplane.training.supervised import Supervised

    tokenizer = model.load_tokenizer(folder)
    rows = data.tokens(job, "train", folder, tokenizer, chosen, packing=packing)
    return Supervised(rows, None, chosen, job.peers, tokenizer.pad_token_id, job.watchdog)


def _engine(job: Job, chosen: Any, folder: Path) -> Any:
    from tuneplane.training import engine, model

    engine.quiet_start()
    engine.seed_all(chosen.seed)
    with engine.building(chosen, "fp32", job.place.world_size) as config:
        network = model.load_model(folder, chosen, engine.weights_dtype(chosen, "fp32"))
        return engine.Engine(network, chosen, "fp32", job.peers, config)


def _ours(job: Job, chosen: Any, *, packing: bool) -> tuple[Timed, Any, Path]:
    from tuneplane.training import model
    from tuneplane.training.loop import Loop, Progress
    from tuneplane.training.metrics import Reporter

    folder = model.check_folder(job.launch.input_path("model", job.place))
    method, engine = _method(job, chosen, folder, packing=packing), _engine(job, chosen, folder)
    reporter = Reporter(job.place.out_dir, job.peers.first, chosen.log_steps, method.total_steps)
    loop = Loop(engine, method, chosen, job.peers, None, reporter, job.watchdog)
    reporter.begin()
    done = Progress(0)
    return lambda: loop._step(done) and None, method, folder


def _batches(method: Any) -> Callable[[], dict[str, Any]]:
    """The rows of our next step for this rank, padded by torch; labels as transformers wants them."""
    import torch
    from torch.nn.utils.rnn import pad_sequence

    taken = iter(range(1, 1 << 30))

    def batch() -> dict[str, Any]:
        rows = [method.train.row(i) for i in method._mine(method.rows_of(next(taken))[0])]
        ids = [torch.tensor(r.tolist()) for r, _ in rows]
        labels = [torch.tensor([-100] * p + r.tolist()[p:]) for r, p in rows]
        return {
            "input_ids": pad_sequence(ids, batch_first=True, padding_value=method._pad),
            "attention_mask": pad_sequence([torch.ones_like(i) for i in ids], batch_first=True),
            "labels": pad_sequence(labels, batch_first=True, padding_value=-100),
        }

    return batch


def _deepspeed(job: Job, chosen: Any, method: Any, folder: Path) -> Timed:
    """The loop of DeepSpeed's own tutorial: its configuration, torch's AdamW, the loss by the model itself."""
    import deepspeed
    import torch
    from transformers import AutoModelForCausalLM
    from tuneplane.training.engine import building

    with building(chosen, "fp32", job.place.world_size) as config:
        model = AutoModelForCausalLM.from_pretrained(folder)
        optimiser = torch.optim.AdamW(model.parameters(), lr=chosen.learning_rate, fused=True)
        config = config | {"gradient_clipping": chosen.grad_clip}
        engine, *_ = deepspeed.initialize(model=model, optimizer=optimiser, config=config, dist_init_required=False)
    batch = _batches(method)

    def step() -> None:
        loss = engine(**batch(), use_cache=False).loss
        engine.backward(loss)
        engine.step()
        float(loss.detach())

    return step


def _ddp(job: Job, chosen: Any, method: Any, folder: Path) -> Timed:
    """torch's DistributedDataParallel, no sharing of anything."""
    import torch
    from torch.nn.parallel import DistributedDataParallel
    from transformers import AutoModelForCausalLM

    model = DistributedDataParallel(AutoModelForCausalLM.from_pretrained(folder))
    optimiser = torch.optim.AdamW(model.parameters(), lr=chosen.learning_rate, fused=True)
    batch = _batches(method)

    def step() -> None:
        loss = model(**batch(), use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), chosen.grad_clip)
        optimiser.step()
        optimiser.zero_grad()
        float(loss.detach())

    return step


def _synthetic(job: Job, chosen: Any, method: Any, folder: Path) -> Timed:
    """Our own step, its batches made of noise before the clock runs: the same shapes, the same answers' places, no rows and no reading."""
    import torch

    steps = int(os.environ["BENCH_ROUNDS"]) + 2
    other, engine = _method(job, chosen, folder, packing=False), _engine(job, chosen, folder)
    made = []
    for step in range(1, steps + 1):
        real = method.batch_of(method.train, method._mine(method.rows_of(step)[0]))
        noise = torch.randint(3, 300, real.labels.shape)
        inputs = real.inputs | {"input_ids": noise}
        made.append(replace(real, inputs=inputs, labels=torch.where(real.labels < 0, real.labels, noise)))
    ready = iter(made)
    other.batch_of = lambda tokens, ids: next(ready)
    from tuneplane.training.loop import Loop, Progress
    from tuneplane.training.metrics import Reporter

    reporter = Reporter(job.place.out_dir / "synthetic", job.peers.first, chosen.log_steps, other.total_steps)
    loop, done = Loop(engine, other, chosen, job.peers, None, reporter, job.watchdog), Progress(0)
    reporter.begin()
    return lambda: loop._step(done) and None


def _unpacked(job: Job, chosen: Any, method: Any, folder: Path) -> Timed:
    """Our own step without packing, on as many rows as a packed step has on average."""
    rows, packs = len(method.train), method.train.examples
    apart = replace(chosen, micro_batch_size=max(1, round(chosen.micro_batch_size * rows / packs)))
    other, engine, steps = (
        _method(job, apart, folder, packing=False),
        _engine(job, apart, folder),
        iter(range(1, 1 << 30)),
    )
    job.their_tokens = []

    def step() -> None:
        outcome = other.step(engine, next(steps), chosen.learning_rate)
        job.their_tokens.append(outcome.tokens)

    return step


def _beside_trl(job: Job, chosen: Any, ours: Timed, rounds: int, pairs: list[list[float]]) -> None:
    """TRL's trainer runs its own loop; between two of its steps ours takes one. Its step is everything from ours to its end: data, too."""
    from datasets import load_dataset
    from peft import LoraConfig
    from transformers import TrainerCallback
    from trl import SFTConfig, SFTTrainer

    class InTurn(TrainerCallback):
        begin = 0.0

        def on_train_begin(self, *_: Any, **__: Any) -> None:
            job.peers.barrier()
            self.begin = time.perf_counter()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            theirs = (time.perf_counter() - self.begin) * 1000
            job.watchdog.again()
            pairs.append([_timed(job, ours), theirs])
            job.peers.barrier()
            self.begin = time.perf_counter()

    arguments = SFTConfig(
        output_dir=str(job.place.out_dir / "trl"),
        per_device_train_batch_size=chosen.micro_batch_size,
        learning_rate=chosen.learning_rate,
        lr_scheduler_type="linear",
        max_steps=rounds + 2,
        max_length=chosen.max_length,
        max_grad_norm=chosen.grad_clip,
        optim="adamw_torch_fused",
        completion_only_loss=True,
        use_cpu=True,
        bf16=False,
        report_to=[],
        save_strategy="no",
        logging_steps=1 << 30,
        disable_tqdm=True,
        seed=chosen.seed,
    )
    trainer = SFTTrainer(
        model=str(job.launch.input_path("model", job.place)),
        args=arguments,
        train_dataset=load_dataset(
            "json",
            data_files=str(job.launch.input_path("train", job.place)),
            split="train",
            cache_dir=str(job.place.out_dir),
        ),
        peft_config=LoraConfig(
            r=chosen.lora_rank, lora_alpha=chosen.lora_alpha, target_modules="all-linear", task_type="CAUSAL_LM"
        ),
        callbacks=[InTurn()],
    )
    trainer.train()


if __name__ == "__main__":
    run(train)
