"""What a config asks of an evaluation: its `eval:` section, by the grammar of `spec.evaluation`. Pure.

`baseline` is `base` (the candidate's own model without its adapter), a run, or a model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from pydantic import ValidationError
from tuneplane.contract.layout import RUN_ID

from hpc.errors import Refusal, Refusals
from hpc.spec import rules
from hpc.spec.lenient import canonical
from hpc.spec.model import Strict, refusals
from hpc.spec.parts import Evaluation
from hpc.spec.refs import is_path, parse_hub_ref, parse_init_from


class _Body(Strict):
    evaluation: Evaluation = Evaluation()


class _Document(Strict):
    spec: _Body = _Body()


@dataclass(frozen=True)
class Baseline:
    """Where the numbers of a baseline come from; `value` is the run id, the model's reference or its path."""

    kind: Literal["none", "base", "run", "model"]
    value: str = ""


def parse_evaluation(section: Any) -> Evaluation:
    """The typed section; what is not stated has its default. Raises Refusals E-SPEC-…, every fault at once."""
    if section is not None and not isinstance(section, dict):
        raise Refusal(
            "E-SPEC-013", "must be an object", field="eval", found=type(section).__name__, allowed="an object"
        )
    document, faults = canonical({"spec": {"evaluation": section or {}}}, _Document)
    body = document.get("spec", {})
    faults += [*rules.gates(body), *rules.on_checkpoint(body)]
    try:
        found = _Document.model_validate(document)
    except ValidationError as exc:
        raise Refusals([*refusals(exc, _Document), *faults]) from None
    if faults:
        raise Refusals(faults)
    return found.spec.evaluation


def parse_baseline(text: str) -> Baseline:
    """Raises Refusal E-EVAL-020 for text that names none of the three."""
    if text in ("", "base"):
        return Baseline("base" if text else "none")
    try:
        if text.startswith("run/"):
            return Baseline("run", parse_init_from(text if text.count("/") > 1 else f"{text}/final").run_id)
        if RUN_ID.match(text):
            return Baseline("run", text)
        if not is_path(text):
            parse_hub_ref(text, "spec.evaluation.baseline")
        return Baseline("model", text)
    except Refusal as refusal:
        allowed = "base, run/<run_id>, or a model (reference or path)"
        raise Refusal(
            "E-EVAL-020", refusal.message, field="spec.evaluation.baseline", found=text, allowed=allowed
        ) from None
