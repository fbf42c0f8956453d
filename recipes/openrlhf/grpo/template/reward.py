"""Your reward: OpenRLHF calls reward_func with a batch."""

import re

import torch

SPECIAL = re.compile(r"(?:\s*<[^<>\s]+>)+\s*$")
"""Tokens such as <|im_end|> or </s>: OpenRLHF leaves them in, and a finished answer ends with one."""


def score(query, prompt, label):
    """1 where what follows the prompt ends with the label as a word or number of its own, else 0. Replace it."""
    before, found, after = query.partition(prompt)
    answer, wanted = (after if found else before).strip(), str(label).strip()
    ends = re.compile(r"(?<![0-9A-Za-z.,-])" + re.escape(wanted) + "$")
    return float(bool(wanted) and any(ends.search(text) for text in (answer, SPECIAL.sub("", answer))))


def reward_func(queries, prompts, labels):
    """The rewards of a batch. `queries` are prompts with their answers."""
    scores = torch.tensor([score(*one) for one in zip(queries, prompts, labels, strict=True)])
    return {"rewards": scores, "scores": scores, "extra_logs": {}}
