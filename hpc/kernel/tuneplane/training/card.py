"""The model card of an export: the run's facts, taken from its own report. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any


def model_card(title: str, report: Mapping[str, Any], checked: Mapping[str, Any], gguf: str, *, adapter: bool) -> str:
    """README.md with Hugging Face's front matter. `report` is the training run's report.json, `checked` what the export measured."""
    base = _base(report)
    recipe = report.get("recipe") or {}
    head = {"base_model": base, "library_name": "peft" if adapter else "transformers", "tags": _tags(recipe, adapter)}
    lines = [
        "---",
        *(f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in head.items() if value),
        "---",
        "",
        f"# {title}",
        "",
    ]
    kind = "A LoRA adapter" if adapter else "A model"
    lines += [
        f"{kind} made by `{recipe.get('name', '')}` {recipe.get('version', '')} from `{base}`.",
        "",
        "| | |",
        "|---|---|",
    ]
    lines += [
        f"| {name} | {value} |" for name, value in _facts(report, checked, gguf, adapter) if value not in ("", None)
    ]
    lines += [
        "",
        "The facts are those of the run's report; `tp runs audit` of the run checks them against its event chain.",
        "",
    ]
    return "\n".join(lines)


def _base(report: Mapping[str, Any]) -> str:
    model = (report.get("inputs") or {}).get("model") or {}
    named = (report.get("provenance") or {}).get("model_name") or model.get("source") or model.get("path") or ""
    return str(named)


def _tags(recipe: Mapping[str, Any], adapter: bool) -> list[str]:
    return ["tuneplane", str(recipe.get("name", "")).rpartition("/")[2], *(["lora"] if adapter else [])]


def _facts(
    report: Mapping[str, Any], checked: Mapping[str, Any], gguf: str, adapter: bool
) -> Iterator[tuple[str, Any]]:
    result, inputs = report.get("result") or {}, report.get("inputs") or {}
    yield "run", f"`{report.get('run_id')}` of {report.get('owner')}, experiment {report.get('exp')}"
    yield "ended", report.get("ended_at")
    yield "package", f"`{report.get('package_digest')}`"
    yield "recipe digest", f"`{(report.get('recipe') or {}).get('digest')}`"
    yield "git commit", (report.get("provenance") or {}).get("git_commit")
    yield "image", (report.get("runtime") or {}).get("sha256") or "none: the job ran without a container"
    for name in ("train", "validation"):
        if source := inputs.get(name):
            yield f"{name} data", _source(source)
    yield "steps", result.get("steps")
    yield "tokens", result.get("tokens")
    yield "final loss", result.get("final_loss")
    yield "validation loss", result.get("validation_loss")
    yield "parameters", f"{result.get('parameters_total')}, {result.get('parameters_trainable')} of them trained"
    if not adapter:
        logits = checked["logits"]
        yield "dtype", checked["dtype"]
        yield (
            "checked",
            (
                f"largest difference of a logit: merge {logits['merge']:.2g} (at most {logits['merge_tolerance']:g}), files {logits['files']:.2g} "
                f"(at most {logits['file_tolerance']:g}); rounding to {checked['dtype']} moves one by up to {logits['rounding']:.2g} of the largest"
            ),
        )
        yield "GGUF", gguf


def _source(source: Mapping[str, Any]) -> str:
    ref = (source.get("dataset") or {}).get("ref") or source.get("path")
    files = source.get("files") or []
    digests = ", ".join(f"`{f['sha256']}`" for f in files[:3] if f.get("sha256"))
    return f"{ref}{' ' + digests if digests else ''}{f' and {len(files) - 3} more files' if len(files) > 3 else ''}"
