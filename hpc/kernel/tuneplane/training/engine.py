"""DeepSpeed, arranged: the one module that knows it. Every method trains through an `Engine`.

DeepSpeed's own launcher, its host file and its SSH are never used (P43); the ranks are there already.
"""

from __future__ import annotations

import inspect
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tuneplane.record.digest import digest_json
from tuneplane.training import memory
from tuneplane.training.peers import Peers, bound_groups
from tuneplane.training.quantised import true_shape
from tuneplane.training.settings import Settings
from tuneplane.training.shards import Copies, Part, Shards, contents, free_bytes, room

SHARDS = "deepspeed"
"""The folder in a checkpoint that DeepSpeed fills."""


def quiet_start() -> None:
    """Import DeepSpeed without its compiler at start-up, and with warnings only.

    On CPUs its start-up would compile a shared-memory extension that training never uses; a build killed midway leaves a lock, and every
    later start waits for it in silence.
    """
    import deepspeed.ops

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    logging.getLogger("DeepSpeed").setLevel(logging.WARNING)


def seed_all(seed: int) -> None:
    """Seed Python, numpy and torch (all devices)."""
    import random

    import numpy as np
    import torch

    random.seed(seed)
    np.random.seed(seed % (1 << 32))  # the legacy stream is what libraries draw from
    torch.manual_seed(seed)


def be_deterministic() -> None:
    """Refuse operations that have no deterministic form. Before the first GPU operation."""
    import torch

    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = (
        False  # DeepSpeed's buckets of 2 GB would be filled at each step
    )
    torch.backends.cudnn.benchmark = False


@contextmanager
def building(settings: Settings, precision: str, world_size: int) -> Iterator[dict[str, Any]]:
    """DeepSpeed's configuration; while the block lasts, ZeRO-3 models are loaded in shares, so that no rank ever holds all weights."""
    config = deepspeed_config(settings, precision, world_size)
    memory.note_start()
    keeper = None
    if settings.zero_stage == 3:
        import deepspeed
        from transformers.integrations import HfDeepSpeedConfig

        deepspeed.init_distributed(auto_mpi_discovery=False)  # partitioned loading asks DeepSpeed for the world
        bound_groups()
        keeper = HfDeepSpeedConfig(config)
    try:
        yield config
    finally:
        del keeper


def deepspeed_config(settings: Settings, precision: str, world_size: int) -> dict[str, Any]:
    """DeepSpeed's configuration; the optimiser and the learning rate are ours, not its."""
    batch = settings.micro_batch_size * settings.gradient_accumulation
    bf16, stage = precision == "bf16", settings.zero_stage
    return {
        "train_micro_batch_size_per_gpu": settings.micro_batch_size,
        "gradient_accumulation_steps": settings.gradient_accumulation,
        "train_batch_size": batch * world_size,
        "gradient_clipping": settings.grad_clip if stage else 0.0,  # without ZeRO it reports no norm, so we clip
        "zero_optimization": {"stage": stage},
        "zero_allow_untested_optimizer": True,
        # Without ZeRO DeepSpeed keeps no fp32 copy of bf16 weights, and small updates would vanish: weights are fp32 there, under autocast.
        "bf16": {"enabled": bf16 and stage > 0},
        "torch_autocast": {"enabled": bf16 and stage == 0, "dtype": "bfloat16"},
        "steps_per_print": 1 << 62,
        "checkpoint": {"tag_validation": "FAIL"},
    }


def weights_dtype(settings: Settings, precision: str) -> Any:
    """What the weights are in memory: bf16 with fp32 copies in ZeRO's optimiser, or fp32."""
    import torch

    return torch.bfloat16 if precision == "bf16" and settings.zero_stage else torch.float32


class Engine:
    """A model under DeepSpeed with AdamW. `model` is the plain module below it."""

    framework = "deepspeed"
    """Whose recipes train through it; a checkpoint of another one's is not gone on from."""
    config_sha256: str | None = None

    def __init__(self, model: Any, settings: Settings, precision: str, peers: Peers, config: dict[str, Any]) -> None:
        import deepspeed

        self.config_sha256 = digest_json(config)
        wrapped, optimizer, _, _ = deepspeed.initialize(
            model=model, optimizer=adamw(model, settings), config=config, dist_init_required=False
        )
        self._hold(model, wrapped, optimizer, settings, precision, peers, config)

    def _hold(
        self, model: Any, wrapped: Any, optimizer: Any, settings: Settings, precision: str, peers: Peers, config: dict[str, Any]
    ) -> None:  # fmt: skip
        """Take over a model that is under DeepSpeed: from now on its checkpoints are ours."""
        self.settings, self.precision, self.peers, self.model = settings, precision, peers, model
        self._deepspeed, self._optimizer = wrapped, optimizer
        frozen = [n for n, p in model.named_parameters(remove_duplicate=False) if not p.requires_grad]
        self._shards = Shards(frozenset(frozen if settings.lora else ()))
        self._deepspeed.checkpoint_engine = self._shards
        self._deepspeed._copy_recovery_script = lambda folder: None  # noqa: SLF001 - programs have no place in a checkpoint
        peers.set_timeouts(peers.policies.start_timeout_s)  # of the groups that DeepSpeed has made since
        self._copies = Copies(pinned=peers.device.type != "cpu")
        self.train()  # models are loaded for asking: without this nothing is recomputed, and dropout begins with the first validation

    def __call__(self, **inputs: Any) -> Any:
        """Forward of the model."""
        return self._deepspeed(**inputs)

    def accepts(self, name: str) -> bool:
        """True if the model's forward has an argument of this name."""
        base = self.model.get_base_model() if self.settings.lora else self.model
        return name in inspect.signature(base.forward).parameters

    def train(self, mode: bool = True) -> None:
        self._deepspeed.train(mode)

    @contextmanager
    def asking(self) -> Iterator[None]:
        """No gradients and no dropout while the block lasts."""
        import torch

        before = self.model.training
        self._deepspeed.train(False)
        with torch.no_grad():
            yield
        self._deepspeed.train(before)

    @contextmanager
    def initially(self) -> Iterator[None]:
        """The model as it was before training, while the block lasts: its adapters are off. With LoRA only."""
        with self.asking(), self.model.disable_adapter():
            yield

    def backward(self, loss: Any) -> None:
        """Add this rank's gradients of one micro batch; after the last of a step they are averaged over the ranks.

        `loss` is taken as it is: no division by the accumulation.
        """
        self._deepspeed.backward(loss, scale_wrt_gas=False)
        if not self._deepspeed.is_gradient_accumulation_boundary():
            self._deepspeed.step()

    def step(self, learning_rate: float) -> float:
        """One optimiser step after the last `backward`; returns the global gradient norm before clipping."""
        import torch

        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        norm = None
        if not self.settings.zero_stage:
            params = [p for p in self.model.parameters() if p.grad is not None]
            norm = torch.nn.utils.clip_grad_norm_(params, self.settings.grad_clip or float("inf"))
        self._deepspeed.step()
        return float(self._deepspeed.get_global_grad_norm() if norm is None else norm)

    def save(self, folder: Path, copy: bool = False) -> Part:
        """This rank's part of a checkpoint below `folder/deepspeed`, not written yet. A collective.

        With `copy` it is a copy in CPU memory that further steps do not touch, where every node has room for those of its ranks: on all ranks, or on
        none. The part of an earlier call must have been written then.
        """
        items = self._state(folder)
        copy = copy and self._room(items)
        return Part(folder, self._copies.of(items) if copy else items, copy)

    def _room(self, items: list[tuple[str, Any]]) -> bool:
        """Whether every node has room for its ranks' copies. A collective: where some went on training while others wait, all would be lost."""
        if self._copies.held:  # so it is on all ranks
            return True
        node = self.peers.place.node_rank
        told = self.peers.gather([node, self._copies.cost(items)])
        return not self.peers.total([float(not room(told, node, free_bytes()))])[0]

    def contents(self) -> dict[str, str]:
        """Digests of the parameters and the optimiser's state as this rank holds them now (`shards.contents`). A collective."""
        return contents(self._state(Path("nowhere")))

    def _state(self, folder: Path) -> list[tuple[str, Any]]:
        done = self._deepspeed.save_checkpoint(
            os.fspath(folder), tag=SHARDS, save_latest=False, exclude_frozen_parameters=self.settings.lora
        )
        if not done:
            raise OSError(f"DeepSpeed gave no checkpoint for {folder}")
        return self._shards.take()

    def load(self, folder: Path) -> None:
        """Take weights, optimiser and step counters from a checkpoint of the same shape. A collective."""
        self._load(folder, SHARDS)

    def load_universal(self, folder: Path) -> None:
        """The same from a universal checkpoint (`reshape`), whatever number of ranks wrote what it was made from. A collective."""
        config = self._deepspeed._config  # noqa: SLF001 - the engine is there before it is known which checkpoint it takes up
        own = [{k: v for k, v in group.items() if k != "params"} for group in self._optimizer.param_groups]
        config.load_universal_checkpoint = True
        try:
            self._load(folder.parent, folder.name)
        finally:
            config.load_universal_checkpoint = False
        # ZeRO-3 gives all groups the decay of the first.
        for group, values in zip(self._optimizer.param_groups, own, strict=True):
            group.update(values)
        settle_states(self._optimizer.optimizer.state)

    def _load(self, folder: Path, tag: str) -> None:
        path, _ = self._deepspeed.load_checkpoint(os.fspath(folder), tag=tag, load_module_strict=not self.settings.lora)
        if path is None:
            raise OSError(f"DeepSpeed found nothing to load in {folder}")

    def shapes(self, trainable: bool) -> dict[str, tuple[int, ...]]:
        """Name and true shape of each parameter, of the trainable ones only where asked; ZeRO-3's partitions do not blur it."""
        return {
            name: true_shape(param)
            for name, param in self.model.named_parameters()
            if param.requires_grad or not trainable
        }

    def lookups(self) -> set[str]:
        """Names of an input embedding that is not the output head as well: rows of it are picked, nothing is multiplied."""
        inputs, outputs = self.model.get_input_embeddings(), self.model.get_output_embeddings()
        if inputs is None or (outputs is not None and outputs.weight is inputs.weight):
            return set()
        return {name for name, param in self.model.named_parameters() if param is inputs.weight}

    def gathered(self, trainable: bool, moved: Callable[[], None] = lambda: None) -> dict[str, Any]:
        """Whole weights in the run's precision on the CPU of rank 0; the others get an empty dict.

        Under ZeRO-3 it is a collective: one at a time from all ranks (P50). Without `trainable` the buffers come too. `moved` is called for each.
        """
        import deepspeed
        import torch

        out: dict[str, Any] = {}
        dtype = torch.bfloat16 if self.precision == "bf16" else torch.float32
        for name, param in self.model.named_parameters():
            if trainable and not param.requires_grad:
                continue
            with deepspeed.zero.GatheredParameters([param], enabled=self.settings.zero_stage == 3):
                moved()
                if self.peers.first:
                    out[name] = param.detach().to("cpu", dtype, copy=True)
        if self.peers.first and not trainable:
            out |= {
                n: b.detach().to("cpu", copy=True)
                for n, b in self.model.named_buffers()
                if n in _saved_names(self.model)
            }
        return out


def _saved_names(model: Any) -> set[str]:
    """Names that a state dict of the model holds; rotary tables and the like are buffers that it does not."""
    lost = {
        f"{prefix}.{name}" if prefix else name
        for prefix, module in model.named_modules()
        for name in module._non_persistent_buffers_set  # noqa: SLF001 - torch has no public list
    }
    return {name for name, _ in model.named_buffers()} - lost


def settle_states(states: dict[Any, dict[str, Any]]) -> None:
    """Put an optimiser's states, as a universal checkpoint left them, where AdamW's fused form wants them: on their parameter's device.

    Each gets a step counter of its own: ZeRO-3 gives all of them one, which each would count up.
    """
    import torch

    for param, state in states.items():
        for name, value in state.items():
            if name == "step" and value is not None:
                state[name] = torch.as_tensor(value).to(param.device, torch.float32, copy=True)
            elif isinstance(value, torch.Tensor) and value.device != param.device:
                state[name] = value.to(param.device)


def adamw(model: Any, settings: Settings) -> Any:
    """The optimiser of every method: decay on matrices only."""
    import torch

    decayed: list[Any] = []
    plain: list[Any] = []
    for param in model.parameters():
        if param.requires_grad:
            (decayed if len(getattr(param, "ds_shape", param.shape)) > 1 else plain).append(param)
    groups = [
        {"params": params, "weight_decay": decay}
        for params, decay in ((decayed, settings.weight_decay), (plain, 0.0))
        if params
    ]
    return torch.optim.AdamW(
        groups,
        lr=settings.learning_rate,
        betas=(settings.adam_beta1, settings.adam_beta2),
        eps=settings.adam_epsilon,
        fused=True,
    )
