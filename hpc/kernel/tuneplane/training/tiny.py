"""A tiny Llama and a byte-level tokenizer, made on the spot, for tests and `SIZE=tiny` demos.

    python -m tuneplane.training.tiny OUT_DIR [--layers 2] [--hidden 128] [--seed 0]

The same arguments and library releases give the same bytes. The weights are random; the chat template is of SmolLM2's kind: no generation
marks, a default system text.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HEAD_DIM = 64
"""Smaller heads are refused by some servers."""
END, START, TEXT_END = "<|im_end|>", "<|im_start|>", "<|endoftext|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if loop.first and message['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a tiny model.<|im_end|>\n' }}"
    "{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def _texts() -> Iterator[str]:
    """What the tokenizer is trained on: the sums' sentences and some plain English of our own."""
    from tuneplane.training.sums import SYSTEM, question

    yield from (
        f"system\n{SYSTEM}\nuser\n{question(a, b)}\nassistant\n{a + b}" for a in range(0, 50, 3) for b in range(50)
    )
    yield from ("You are a tiny model.", "The answer follows the question, and the loss covers the answer only.") * 20


def make_tokenizer(vocabulary: int = 512) -> Any:
    """A byte-level BPE tokenizer with the special tokens of the chat template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    inner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[TEXT_END, START, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    inner.train_from_iterator(_texts(), trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner, bos_token=START, eos_token=END, pad_token=END, unk_token=TEXT_END, model_max_length=2048
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def make_model(vocabulary: int, layers: int, hidden: int, seed: int) -> Any:
    """A Llama with random weights: tied embeddings, grouped heads of size 64, fp32."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=hidden * 2,
        num_hidden_layers=layers,
        num_attention_heads=max(1, hidden // HEAD_DIM),
        num_key_value_heads=1,
        head_dim=HEAD_DIM,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=2,
    )
    return LlamaForCausalLM(config)


def build(out: Path, layers: int = 2, hidden: int = 128, seed: int = 0) -> None:
    """Write the folder. Raises FileExistsError if it holds something."""
    if out.exists() and any(out.iterdir()):
        raise FileExistsError(f"{out} is not empty")
    from tuneplane.training.model import quiet_libraries

    quiet_libraries()
    out.mkdir(parents=True, exist_ok=True)
    tokenizer = make_tokenizer()
    make_model(len(tokenizer), layers, hidden, seed).save_pretrained(out)
    tokenizer.save_pretrained(out)
    for name in os.listdir(out):
        os.chmod(out / name, 0o644)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tuneplane.training.tiny", description="a tiny model with a tokenizer"
    )
    parser.add_argument("out", type=Path, help="folder to write; must not exist or be empty")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    try:
        build(args.out, args.layers, args.hidden, args.seed)
    except FileExistsError as exc:
        parser.error(str(exc))
    print(args.out)


if __name__ == "__main__":
    main()
