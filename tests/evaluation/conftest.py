"""Fixtures of the evaluation tests: tiny models that were taught a few sums by heart, whole and as an adapter."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
os.environ["OMP_NUM_THREADS"] = "1"

from known_sums import KNOWN, OTHERWISE


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model that knows nothing."""
    from tuneplane.training.tiny import build

    out = tmp_path_factory.mktemp("models") / "base"
    build(out)
    return out


def _teach(network: Any, tokenizer: Any, rows: list[dict[str, Any]], steps: int, rate: float) -> None:
    """Learn rows by heart: the loss covers the answers alone."""
    import torch
    from tuneplane.training.chat import Encoder
    from tuneplane.training.rows import parse_row

    torch.manual_seed(0)
    encoded = Encoder(tokenizer, 400, "error").encode([parse_row(row, 1) for row in rows])
    longest = max(len(e.ids) for e in encoded)  # type: ignore[union-attr]
    ids = torch.full((len(encoded), longest), tokenizer.pad_token_id)
    labels, mask = torch.full_like(ids, -100), torch.zeros_like(ids)
    for i, e in enumerate(encoded):
        ids[i, : len(e.ids)] = torch.tensor(e.ids)  # type: ignore[union-attr]
        labels[i, e.prompt : len(e.ids)] = torch.tensor(e.ids[e.prompt :])  # type: ignore[union-attr]
        mask[i, : len(e.ids)] = 1  # type: ignore[union-attr]
    network.train()
    optimiser = torch.optim.AdamW([p for p in network.parameters() if p.requires_grad], lr=rate, weight_decay=0.0)
    for _ in range(steps):
        loss = network(input_ids=ids, attention_mask=mask, labels=labels).loss
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimiser.step()
        if loss.item() < 0.05:
            return
    raise AssertionError(f"the tiny model did not learn: loss {loss.item()}")


def _load(base: Path) -> tuple[Any, Any]:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(1)
    return AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), AutoTokenizer.from_pretrained(base)


@pytest.fixture(scope="session")
def taught(base: Path) -> Path:
    """The model after it learnt `KNOWN`, as an exported folder."""
    network, tokenizer = _load(base)
    _teach(network, tokenizer, KNOWN, 400, 3e-3)
    out = base.parent / "taught"
    network.save_pretrained(out)
    tokenizer.save_pretrained(out)
    return out


@pytest.fixture(scope="session")
def adapter(taught: Path) -> Path:
    """A LoRA adapter of `taught` that has learnt `OTHERWISE`."""
    from peft import LoraConfig, get_peft_model

    network, tokenizer = _load(taught)
    config = LoraConfig(r=16, lora_alpha=32, lora_dropout=0.0, target_modules="all-linear", task_type="CAUSAL_LM")
    dressed = get_peft_model(network, config)
    _teach(dressed, tokenizer, OTHERWISE, 400, 3e-3)
    out = taught.parent / "adapter"
    dressed.save_pretrained(out)
    return out
