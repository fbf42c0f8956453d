"""How often a model gives the known answer: greedy decoding on held-out conversations, exact match.

python -m tuneplane.training.answers MODEL_DIR ROWS.jsonl [--adapter DIR] [--rows 50] [--json]
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from tuneplane.training.rows import read_rows

_LONGEST = 32
"""Tokens of an answer at most."""


def load(model: Path, adapter: Path | None) -> tuple[Any, Any]:
    """Model (fp32, on the CPU) and tokenizer by plain transformers and peft."""
    from tuneplane.training.model import quiet_libraries

    quiet_libraries()
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    network: Any = AutoModelForCausalLM.from_pretrained(
        model, dtype=torch.float32, local_files_only=True, use_safetensors=True
    )
    if adapter is not None:
        from peft import PeftModel

        network = PeftModel.from_pretrained(network, adapter)
    return network.eval(), AutoTokenizer.from_pretrained(model, local_files_only=True)


def ask(network: Any, tokenizer: Any, messages: list[dict[str, Any]]) -> str:
    """The greedy answer to a conversation that ends with a question."""
    import torch

    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    ids = torch.tensor([tokenizer(text, add_special_tokens=False)["input_ids"]])
    with torch.no_grad():
        out = network.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=_LONGEST,
            do_sample=False,
            pad_token_id=tokenizer.pad_token_id,
            eos_token_id=tokenizer.eos_token_id,
        )
    return str(tokenizer.decode(out[0, ids.shape[1] :], skip_special_tokens=True)).strip()


def exact_match(model: Path, rows: Path, adapter: Path | None = None, limit: int = 50) -> dict[str, Any]:
    """Right answers among the first `limit` conversations of `rows`."""
    network, tokenizer = load(model, adapter)
    right = asked = 0
    for row in read_rows(rows):
        if asked == limit or not row.messages:
            break
        asked += 1
        right += ask(network, tokenizer, list(row.messages[:-1])) == row.messages[-1]["content"].strip()
    return {"right": right, "asked": asked, "exact_match": round(right / asked, 4) if asked else None}


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tuneplane.training.answers", description="exact match on known answers"
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("rows", type=Path)
    parser.add_argument("--adapter", type=Path, default=None)
    parser.add_argument("--rows", dest="limit", type=int, default=50)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    found = exact_match(args.model, args.rows, args.adapter, args.limit)
    print(json.dumps(found) if args.json else f"{found['right']} of {found['asked']} answers are right")


if __name__ == "__main__":
    main()
