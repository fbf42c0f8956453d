"""A data set with known answers: small additions as conversations. Standard library only.

    python -m tuneplane.training.sums OUT.jsonl --rows 400 --seed 1

writes OUT.jsonl and OUT.heldout.jsonl; no sum of the second stands in the first. The same arguments give the same bytes.
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path

from tuneplane.record.files import replace

LARGEST = 49
SYSTEM = "Answer with the sum, as a number."


def question(a: int, b: int) -> str:
    return f"What is {a} + {b}?"


def row(a: int, b: int) -> str:
    """One line of the file."""
    messages = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": question(a, b)},
        {"role": "assistant", "content": str(a + b)},
    ]
    return json.dumps({"messages": messages})


def make(rows: int, held_out: int, seed: int) -> tuple[list[str], list[str]]:
    """Training and held-out lines over disjoint pairs of numbers 0 … 49. Raises ValueError if there are not so many pairs."""
    pairs = [(a, b) for a in range(LARGEST + 1) for b in range(LARGEST + 1)]
    if rows < 1 or held_out < 1 or rows + held_out > len(pairs):
        raise ValueError(f"at least one row each, and at most {len(pairs)} together")
    random.Random(f"tuneplane sums {seed}").shuffle(pairs)  # noqa: S311 - examples, no secrets
    return [row(a, b) for a, b in pairs[:rows]], [row(a, b) for a, b in pairs[rows : rows + held_out]]


def held_out_path(out: Path) -> Path:
    return out.with_name(f"{out.stem}.heldout{out.suffix}")


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tuneplane.training.sums", description="small additions with known answers"
    )
    parser.add_argument("out", type=Path, help="JSONL file to write; the held-out rows go beside it")
    parser.add_argument("--rows", type=int, default=400)
    parser.add_argument("--held-out", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    try:
        train, held_out = make(args.rows, args.held_out, args.seed)
    except ValueError as exc:
        parser.error(f"--rows and --held-out: {exc}")
    args.out.parent.mkdir(parents=True, exist_ok=True)
    for path, lines in ((args.out, train), (held_out_path(args.out), held_out)):
        replace(path, ("\n".join(lines) + "\n").encode())
        print(f"{path}: {len(lines)} rows")


if __name__ == "__main__":
    main()
