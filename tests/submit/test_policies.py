"""The bounds of a training job: the site's, word for word, in the form in which the ranks read them."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from tuneplane.training.place import _policies

from hpc.site.sitefile import parse_site
from hpc.submit.launchplan import policies_of

SPEC: Any = SimpleNamespace(spec=SimpleNamespace(lifecycle=SimpleNamespace(requeue_on=("preempted",), max_attempts=5)))


@pytest.mark.parametrize(
    ("slurm", "read"),
    [
        ({}, (300.0, 1800.0, 1800.0, 120.0)),
        ({"peer_timeout_s": 900, "start_timeout_s": 7200, "save_timeout_s": 14400}, (900.0, 7200.0, 14400.0, 120.0)),
    ],
)
def test_the_site_says_how_long_training_bears_silence(slurm: dict[str, int], read: tuple[float, ...]) -> None:
    site = parse_site(json.dumps({"schema": "tuneplane-hpc/site/v1", "name": "lab", "slurm": slurm}))
    wrong: list[Any] = []
    found = _policies(policies_of(SPEC, site, {}), wrong)
    assert (found.peer_timeout_s, found.start_timeout_s, found.save_timeout_s, found.lead_s) == read
    assert wrong == []
