"""The model as lm-eval asks it: what is known is not asked, what comes is kept at once, what does not fit is refused, or asked in less at once.

Imports torch and lm-eval.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from lm_eval.models.huggingface import HFLM

from tuneplane.training.refusals import Reason, Refused
from tuneplane.training.rows import MAX_FAULTS

if TYPE_CHECKING:
    from tuneplane.evaluation.harness import Responses
    from tuneplane.evaluation.loading import Loaded


def asked_model(loaded: Loaded, batch: int, responses: Responses) -> Asked:
    """A loaded model for lm-eval; of one with an adapter the network inside, whose layers have it."""
    network = loaded.network
    plain = network.get_base_model() if hasattr(network, "get_base_model") else network
    model = Asked(pretrained=plain, tokenizer=loaded.tokenizer, backend="causal", batch_size=batch)
    model.responses = responses
    model.set_cache_hook(responses)
    return model


class Asked(HFLM):  # type: ignore[misc]
    """lm-eval's own model class, with the responses that are known. Raises Refused E-EVAL-035 before anything is asked."""

    responses: Responses

    def get_model_info(self) -> dict[str, Any]:
        return {}  # lm-eval would look the model up on a hub

    def loglikelihood(self, requests: Any, disable_tqdm: bool = True) -> Any:
        self._check_room(requests, lambda r: len(self.tok_encode(r.args[0] + r.args[1])) - 1)
        return [tuple(value) for value in self._kept("loglikelihood", requests, super().loglikelihood)]

    def generate_until(self, requests: Any, disable_tqdm: bool = True) -> Any:
        longest = self.max_gen_toks
        self._check_room(
            requests, lambda r: len(self.tok_encode(r.args[0])) + int(r.args[1].get("max_gen_toks", longest))
        )
        return self._kept("generate_until", requests, super().generate_until)

    def _kept(self, kind: str, requests: Sequence[Any], ask: Callable[..., Any]) -> list[Any]:
        """A response to each request. One that is sampled is never known: each of its repeats is to be another."""
        sampled = [kind == "generate_until" and bool(r.args[1].get("do_sample")) for r in requests]

        def known() -> list[Any]:
            pairs = zip(requests, sampled, strict=True)
            return [None if chance else self.responses.get(kind, r.args) for r, chance in pairs]

        self.responses.total += known().count(None)
        while True:
            found = known()
            left = [r for r, value in zip(requests, found, strict=True) if value is None]
            try:
                fresh = iter(ask(left, disable_tqdm=True) if left else ())
            except torch.cuda.OutOfMemoryError:
                if self.batch_size_per_gpu == 1:
                    raise
                torch.cuda.empty_cache()
                self.batch_size_per_gpu //= 2
                continue
            return [next(fresh) if value is None else value for value in found]

    def _check_room(self, requests: Sequence[Any], tokens: Callable[[Any], int]) -> None:
        wrong = []
        for request in requests:
            if (count := tokens(request)) > self.max_length:
                field, allowed = (
                    f"{request.task_name}:{request.doc_id + 1}",
                    f"{self.max_length} tokens with the answer",
                )
                wrong.append(
                    Reason("E-EVAL-035", "longer than the model's context allows", field, f"{count} tokens", allowed)
                )
            if len(wrong) >= MAX_FAULTS:
                break
        if wrong:
            raise Refused(wrong)
