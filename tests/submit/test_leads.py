"""How early the warning comes: as the spec says, as earlier saves of the same kind of run need, as the site says."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tuneplane.contract.layout import StorageRoot

from hpc.submit.leads import measured_lead

SITE_LEAD = 120


def body(**more: Any) -> dict[str, Any]:
    spec = {
        "recipe": {"name": "deepspeed/sft"}, "model": {"base": "/m"}, "resources": {"pools": [{"nodes": 2}]},
        "hyperparams": {"zero_stage": 3, "max_steps": 10},
    }  # fmt: skip
    return {"spec": spec | more}


@pytest.fixture
def root(tmp_path: Path) -> StorageRoot:
    return StorageRoot(tmp_path)


def past(root: StorageRoot, number: int, *seconds: float, exp: str = "sums", **more: Any) -> None:
    run = root.run("bob", exp, f"run-{number:08x}")
    run.jobspec.parent.mkdir(parents=True)
    run.jobspec.write_text(json.dumps(body(**more)))
    saves = run.attempt(0).saves
    saves.parent.mkdir(parents=True)
    saves.write_text("".join(json.dumps({"step": n, "seconds": s}) + "\n" for n, s in enumerate(seconds)))


def lead(root: StorageRoot, **options: str) -> tuple[dict[str, Any], list[str]]:
    spec: Any = SimpleNamespace(normalised=body)
    return measured_lead(root, "bob", "sums", spec, options, SITE_LEAD)


def test_saves_that_took_longer_than_the_site_s_warning_bring_it_forward(root: StorageRoot) -> None:
    past(root, 1, 100.0, 200.0)
    options, (told,) = lead(root, time="12:00:00")
    assert options == {"time": "12:00:00", "signal": "USR2@430"}
    assert (
        told
        == "the warning comes 430 s before the end, since saves of earlier runs took up to 200 s (--signal says otherwise)"
    )
    assert lead(root)[0] == {"signal": "USR2@430"}
    assert lead(root, time="00:10:00")[0]["signal"] == "USR2@300", "never in the first half of the job's time"
    assert lead(root, time="00:04:00") == ({"time": "00:04:00"}, [])


@pytest.mark.parametrize(
    ("seconds", "options", "more"),
    [
        ((100.0, 119.0), {}, {}),
        ((200.0,), {"signal": "USR2@30"}, {}),
        ((200.0,), {}, {"exp": "other"}),
        ((200.0,), {}, {"resources": {"pools": [{"nodes": 1}]}}),
        ((200.0,), {}, {"model": {"base": "/other"}}),
        ((200.0,), {}, {"hyperparams": {"zero_stage": 2}}),
        ((), {}, {}),
    ],
    ids=["soon enough", "the spec's word", "another experiment", "another shape", "another model", "another stage", "no saves"],
)  # fmt: skip
def test_otherwise_it_stays(root: StorageRoot, seconds: tuple[float, ...], options: dict[str, str], more: Any) -> None:
    past(root, 1, *seconds, **more)
    assert lead(root, **options) == (options, [])


def test_without_runs_it_stays(root: StorageRoot) -> None:
    assert lead(root) == ({}, [])
