"""Your reward: OpenRLHF calls reward_func with a batch."""

import torch


def reward_func(queries, prompts, labels):
    """1 where what follows the prompt ends with the label, else 0. `queries` are prompts with their answers. Replace it."""
    scores = torch.tensor(
        [float(query.strip().endswith(str(label).strip())) for query, label in zip(queries, labels, strict=True)]
    )
    return {"rewards": scores, "scores": scores, "extra_logs": {}}
