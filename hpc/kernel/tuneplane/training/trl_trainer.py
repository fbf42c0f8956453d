"""TRL's trainers, arranged: the one module that knows them.

A trainer of TRL collates, draws answers, computes its loss and goes back through it. The steps, the order of the rows, the learning rate,
checkpoints, warnings and metrics are those of `tuneplane.training.loop`, as with deepspeed/*: a trainer's own loop coordinates no ranks at a
warning and counts a half-written folder as a checkpoint. Accelerate's launcher and its dotfile have no part in it (P42): all is said here.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from tuneplane.training.engine import Engine, adamw, deepspeed_config
from tuneplane.training.peers import Peers, bound_groups
from tuneplane.training.program import Job
from tuneplane.training.settings import Settings
from tuneplane.training.trl_settings import EXTRA

TRAINERS = {"sft": "SFT", "dpo": "DPO", "kto": "KTO", "rm": "Reward", "grpo": "GRPO"}
KNOWN = {
    "rewards/accuracies": "accuracy",
    "rewards/margins": "reward_margin",
    "rewards/chosen": "reward_chosen",
    "rewards/rejected": "reward_rejected",
    "completions/mean_length": "completion_length",
    "completions/clipped_ratio": "truncated",
}
"""TRL's names of what deepspeed/* measures as well."""
UNTOLD = ("num_tokens", "step_time")
"""What metrics.jsonl has of its own for every method."""


def config_of(settings: Settings, precision: str, world_size: int) -> dict[str, Any]:
    """DeepSpeed's configuration: deepspeed/*'s, and clipping as transformers wants it said in both places."""
    return deepspeed_config(settings, precision, world_size) | {"gradient_clipping": settings.grad_clip}


def arguments(method: str, settings: Settings, precision: str, job: Job, total_steps: int) -> Any:
    """TRL's configuration of the method. It must be alive before the model is loaded: under ZeRO-3 it is why no rank ever holds all weights."""
    import deepspeed
    import trl

    deepspeed.init_distributed(auto_mpi_discovery=False)
    bound_groups()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of transformers, for a name that TRL's own default uses
        return getattr(trl, f"{TRAINERS[method]}Config")(
            output_dir=os.fspath(job.place.out_dir / "trl"),
            per_device_train_batch_size=settings.micro_batch_size,
            gradient_accumulation_steps=settings.gradient_accumulation,
            max_steps=total_steps,
            max_grad_norm=settings.grad_clip,
            seed=settings.seed % (1 << 32),
            use_cpu=job.device.type == "cpu",  # without this word two ranks on CPUs train as two jobs
            bf16=precision == "bf16",
            fp16=False,
            gradient_checkpointing=False,  # the model was loaded with it, where it is wanted
            deepspeed=config_of(settings, precision, job.place.world_size),
            save_strategy="no",
            logging_strategy="no",
            report_to="none",
            disable_tqdm=True,
            remove_unused_columns=False,
            **({} if method == "grpo" else {"max_length": settings.max_length}),
            **EXTRA[method](settings),
        )


def trainer(
    method: str, arguments: Any, network: Any, tokenizer: Any, example: Mapping[str, Any], rewards: Sequence[Any] = ()
) -> Any:
    """TRL's trainer over `network`. `example` stands for the rows, which come as `inputs` of each step: nothing is tokenised or sampled here."""
    import trl
    from datasets import Dataset

    kind = getattr(trl, f"{TRAINERS[method]}Trainer")

    class Arranged(kind):  # type: ignore[misc, valid-type]
        def _prepare_dataset(self, dataset: Any, *_: Any, **__: Any) -> Any:
            return dataset  # rows are ids already

        def _precompute_ref_logps(self, dataset: Any, *_: Any, **__: Any) -> Any:
            return dataset  # the reference's values come with the rows

        def create_model_card(self, *_: Any, **__: Any) -> None:
            """A run's facts stand in its report."""

    more: dict[str, Any] = {"reward_funcs": list(rewards)} if method == "grpo" else {}
    return Arranged(
        model=network,
        args=arguments,
        processing_class=tokenizer,
        train_dataset=Dataset.from_list([dict(example)] * 2),
        **more,
    )


class TrainerEngine(Engine):
    """The DeepSpeed engine that accelerate makes for a trainer, with everything that checkpoints, validation and the artefact want of an Engine."""

    framework = "trl"

    def __init__(self, trainer: Any, settings: Settings, precision: str, peers: Peers) -> None:
        wrapped, optimizer = trainer.accelerator.prepare(trainer.model, adamw(trainer.model, settings))
        trainer.model_wrapped = trainer.deepspeed = wrapped
        trainer.optimizer = optimizer
        trainer.current_gradient_accumulation_steps = settings.gradient_accumulation
        self.trainer = trainer
        config = config_of(settings, precision, peers.place.world_size)
        self._hold(trainer.model, wrapped, wrapped.optimizer, settings, precision, peers, config)

    def update(self, batches: Sequence[Any], learning_rate: float, again: Callable[[], None]) -> tuple[float, float]:
        """One optimiser step over these micro batches of this rank: (TRL's loss of this rank, the global gradient norm before clipping).

        `again` is called before each micro batch, and at each forward: TRL draws all answers of a step within its first micro batch.
        """
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        own, count = self.trainer.get_batch_samples(iter(batches), len(batches), self.peers.device)
        lost = 0.0
        with at_each_forward(self.model, again):
            for index, inputs in enumerate(own):
                again()
                self.trainer.accelerator.gradient_state._set_sync_gradients(index == len(own) - 1)  # noqa: SLF001 - as transformers' own loop does
                lost += float(self.trainer.training_step(self._deepspeed, inputs, count))
        self.trainer.state.global_step += 1
        return lost, float(self._deepspeed.get_global_grad_norm())

    def told(self) -> dict[str, float]:
        """What the trainer measured in the last step, by our names; the same on every rank."""
        measured = self.trainer._metrics["train"]  # noqa: SLF001 - what its log() would average and forget
        out = {}
        for name, values in measured.items():
            mean = sum(values) / len(values) if values else math.nan
            if name not in UNTOLD and math.isfinite(mean):
                out[KNOWN.get(name) or name.replace("/", "_")] = float(mean)
        measured.clear()
        return out


@contextmanager
def at_each_forward(model: Any, again: Callable[[], None]) -> Iterator[None]:
    """Call `again` wherever tokens go into the model: PEFT's generation passes by the outer module, its training forward by the inner one."""
    hook = model.get_input_embeddings().register_forward_pre_hook(lambda *_: again())
    try:
        yield
    finally:
        hook.remove()
