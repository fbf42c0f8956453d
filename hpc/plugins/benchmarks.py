"""benchmark.yaml: what a benchmark pack declares (tuneplane/benchmark/v1). Pure."""

from __future__ import annotations

import re
from typing import Final

from hpc.plugins.forms import Form

NAME: Final = "benchmark.yaml"
SCHEMA: Final = "tuneplane/benchmark/v1"
RUNNERS: Final = ("lm-eval", "evalscope", "rtl", "judge", "safety")
_OWN_SUITES: Final = ("judge", "safety", "rtl")
"""Runners that can do without named suites."""
_KEY = re.compile(r"[^\s/]+")


def check_benchmark(form: Form, name: str) -> None:
    """Keep every fault of the declaration in the form. `name` is the package's."""
    form.choice("schema", (SCHEMA,), required=True)
    if (stated := form.text("name", required=True, limit=128)) and stated != name:
        form.no("name", "is not the package's name", found=stated, allowed=name)
    form.text("title")
    form.text("summary")
    runner = form.choice("runner", RUNNERS, required=True)
    if not form.texts("suites", most=1000, limit=256) and runner not in ("", *_OWN_SUITES):
        form.no("suites", f"names none, and {runner} runs suites", allowed="a list of suites")
    _metrics(form)
    form.number("num_fewshot", 0, 1000, 0)
    if form.get("batch_size") != "auto":
        form.number("batch_size", 1, 1 << 20, 1)
    form.number("limit", 0, 1 << 31, 0)
    if isinstance(form.get("extra_args"), list):
        form.texts("extra_args")
    else:
        form.part("extra_args")
    rubric = form.text("rubric", limit=64 << 10, prose=True)
    if runner == "judge" and not rubric:
        form.no("rubric", "is missing; a judge needs one", allowed="text", code=form.codes.missing)
    form.text("category", limit=128)
    form.texts("keywords", most=64, limit=64)
    form.part("i18n")
    form.only()


def _metrics(form: Form) -> None:
    primary: list[str] = []
    seen: set[str] = set()
    metrics = form.parts("metrics", most=256)
    for metric in metrics:
        key = metric.text("key", required=True, limit=256, grammar=_KEY, allowed="a name without spaces and '/'")
        metric.text("label")
        metric.choice("direction", ("higher", "lower", "neutral"))
        metric.flag("ratio", False)
        if metric.flag("primary", False):
            primary.append(key)
        if key and key in seen:
            metric.no("key", "stands twice", found=key, allowed="each metric once")
        seen.add(key)
        metric.only()
    if not metrics:
        form.no("metrics", "names none", allowed="at least one metric")
    elif len(primary) != 1:
        form.no(
            "metrics",
            f"has {len(primary)} primary metrics",
            found=", ".join(primary),
            allowed="exactly one with primary: true",
        )
