"""What is read although it is not the canonical spelling, because the documents show it or an older client writes it.

* null anywhere but in `pools`, and an empty object for an optional part, mean "not stated";
* `model.init_from` as the object {run_id, kind, step} becomes its text;
* a gate's metric without a benchmark belongs to the only suite;
* label values of other scalar types become their text (`None` for null, as the documented client writes it);
* `evaluation.limit` 0 is none; `on_checkpoint` takes the suites of `evaluation`.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from hpc.errors import Refusal
from hpc.spec.model import keys_of
from hpc.spec.parts import Pool
from hpc.spec.refs import init_from_text


def canonical(value: dict[str, Any], model: type[BaseModel]) -> tuple[dict[str, Any], list[Refusal]]:
    """A copy of a JobSpec's JSON in the canonical spelling, and what could not be brought there. Pure."""
    found: list[Refusal] = []
    out = stated(value, model)
    body = out.get("spec")
    metadata, start = out.get("metadata"), _object(body, "model")
    if isinstance(metadata, dict) and isinstance(labels := metadata.get("labels"), dict):
        metadata["labels"] = {k: v if isinstance(v, (str, dict, list)) else str(v) for k, v in labels.items()}
    if isinstance(start.get("init_from"), dict):
        try:
            start["init_from"] = init_from_text(start["init_from"], "spec.model.init_from")
        except Refusal as refusal:
            found.append(refusal)
            del start["init_from"]
    _evaluation(_object(body, "evaluation"))
    return out, found


def _object(holder: Any, key: str) -> dict[str, Any]:
    value = holder.get(key) if isinstance(holder, dict) else None
    return value if isinstance(value, dict) else {}


def stated(value: Any, model: type[BaseModel] | None) -> Any:
    """A copy without null and without empty objects where `model` has a field for them; free-form objects are left alone."""
    if isinstance(value, list):
        return [stated(item, model) for item in value]
    if not isinstance(value, dict) or model is None:
        return dict(value) if isinstance(value, dict) else value
    keys, out = keys_of(model), {}
    for key, item in value.items():
        inner, many = keys.get(key, (None, False))
        unsaid = item is None and model is not Pool
        empty = isinstance(item, dict) and not item and inner is not None and not many
        if key not in keys or not (unsaid or empty):
            out[key] = stated(item, inner)
    return out


def _evaluation(evaluation: dict[str, Any]) -> None:
    suites, gates, at = evaluation.get("suites"), evaluation.get("gates"), evaluation.get("on_checkpoint")
    one = suites[0] if isinstance(suites, list) and len(suites) == 1 and isinstance(suites[0], str) else ""
    for gate in gates if isinstance(gates, list) else []:
        metric = gate.get("metric") if isinstance(gate, dict) else None
        if one and isinstance(metric, str) and metric and "/" not in metric:
            gate["metric"] = f"{one}/{metric}"
    for holder in (evaluation, at):
        if isinstance(holder, dict) and type(holder.get("limit")) is int and holder["limit"] == 0:
            del holder["limit"]
    if isinstance(at, dict) and not at.get("suites") and isinstance(suites, list) and suites:
        at["suites"] = list(suites)
