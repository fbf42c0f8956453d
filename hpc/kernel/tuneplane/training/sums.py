"""A data set with known answers: small additions as conversations. Standard library only.

    python -m tuneplane.training.sums OUT.jsonl --rows 400 --seed 1 [--form preference|judged|prompt] [--wrong near|far]

writes OUT.jsonl and OUT.heldout.jsonl; no sum of the second stands in the first. The same arguments give the same bytes. Rows of the form
`preference` have the right and a wrong sum; `judged` rows have either, with a label; `prompt` rows have the right sum as `answer`. A near wrong
sum is off by 1 to 9, a far one by hundreds.
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


def prompt(a: int, b: int) -> list[dict[str, str]]:
    return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question(a, b)}]


def answer(value: int) -> list[dict[str, str]]:
    return [{"role": "assistant", "content": str(value)}]


def row(a: int, b: int) -> str:
    """One line of the form `answer`."""
    return json.dumps({"messages": prompt(a, b) + answer(a + b)})


def wrong_sum(a: int, b: int, kind: str, draw: random.Random) -> int:
    """A number that is not a + b and not below 0."""
    if kind == "far":
        return a + b + 100 * draw.randint(1, 8)
    return draw.choice([n for n in range(a + b - 9, a + b + 10) if n >= 0 and n != a + b])


def preference(a: int, b: int, wrong: str, draw: random.Random) -> str:
    """One line of the form `preference`: the right sum is chosen, a wrong one rejected."""
    rejected = answer(wrong_sum(a, b, wrong, draw))
    return json.dumps({"prompt": prompt(a, b), "chosen": answer(a + b), "rejected": rejected})


def judged(a: int, b: int, wrong: str, draw: random.Random) -> str:
    """One line of the form `judged`: as often right as wrong."""
    good = draw.random() < 0.5
    value = a + b if good else wrong_sum(a, b, wrong, draw)
    return json.dumps({"prompt": prompt(a, b), "completion": answer(value), "label": good})


def make(rows: int, held_out: int, seed: int, form: str = "answer", wrong: str = "near") -> tuple[list[str], list[str]]:
    """Training and held-out lines over disjoint pairs of numbers 0 … 49. Raises ValueError if there are not so many pairs."""
    pairs = [(a, b) for a in range(LARGEST + 1) for b in range(LARGEST + 1)]
    if rows < 1 or held_out < 1 or rows + held_out > len(pairs):
        raise ValueError(f"at least one row each, and at most {len(pairs)} together")
    random.Random(f"tuneplane sums {seed}").shuffle(pairs)  # noqa: S311 - examples, no secrets
    draw = random.Random(f"tuneplane wrong sums {seed}")  # noqa: S311
    lines = {
        "answer": row,
        "preference": lambda a, b: preference(a, b, wrong, draw),
        "judged": lambda a, b: judged(a, b, wrong, draw),
        "prompt": lambda a, b: json.dumps({"prompt": prompt(a, b), "answer": str(a + b)}),
    }[form]
    made = [lines(a, b) for a, b in pairs[: rows + held_out]]
    return made[:rows], made[rows:]


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
    parser.add_argument("--form", choices=("answer", "preference", "judged", "prompt"), default="answer")
    parser.add_argument("--wrong", choices=("near", "far"), default="near", help="how wrong the wrong sums are")
    args = parser.parse_args()
    try:
        train, held_out = make(args.rows, args.held_out, args.seed, args.form, args.wrong)
    except ValueError as exc:
        parser.error(f"--rows and --held-out: {exc}")
    args.out.parent.mkdir(parents=True, exist_ok=True)
    for path, lines in ((args.out, train), (held_out_path(args.out), held_out)):
        replace(path, ("\n".join(lines) + "\n").encode())
        print(f"{path}: {len(lines)} rows")


if __name__ == "__main__":
    main()
