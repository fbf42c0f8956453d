"""Methods that run on Ray have their nodes to themselves: asked for by themselves, said, and never given up in silence."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from hpc.catalog.shelf import Catalogue
from hpc.site.sitefile import Site
from hpc.spec.jobspec import parse
from hpc.submit.launchplan import limit_refusals, merged_options, whole_node_notes
from tests.submit.test_followups_derived import document

PROFILE = SimpleNamespace(partition="")
SAID = "verl/grpo runs on Ray, which wants whole nodes: the job asks for --exclusive"


def asked(method: str, stated: Any, default: Any = None) -> tuple[Any, list[str], list[tuple[str, str]]]:
    """(exclusive of the job, what is said, refusals) of a method on a Slurm fleet; `stated` by the user, `default` by the site."""
    defaults = {} if default is None else {"exclusive": default}
    site = Site.model_validate({"schema": "tuneplane-hpc/site/v1", "name": "lab", "slurm": {"defaults": defaults}})
    slurm = {"time": "12:00:00"} | ({} if stated is None else {"exclusive": stated})
    spec, recipe = parse(document(slurm=slurm)), Catalogue.shipped().get(method)
    options = merged_options(spec, site, PROFILE, recipe)
    faults = [(f.code, f.field) for f in limit_refusals(options, site, spec, recipe, fleet="cluster")]
    return options.get("exclusive"), whole_node_notes(spec, recipe, "slurm"), faults


@pytest.mark.parametrize(
    ("method", "stated", "default", "found"),
    [
        ("verl/grpo", None, None, (True, [SAID], [])),
        ("verl/grpo", None, False, (True, [SAID], [])),
        ("verl/grpo", True, None, (True, [], [])),
        ("verl/grpo", False, None, (False, [], [("E-SUBMIT-069", "spec.slurm.exclusive")])),
        ("verl/grpo", False, True, (False, [], [("E-SUBMIT-069", "spec.slurm.exclusive")])),
        ("verl/sft", None, None, (None, [], [])),
        ("verl/sft", False, None, (False, [], [])),
    ],
)
def test_a_method_on_ray_asks_for_whole_nodes(method: str, stated: Any, default: Any, found: Any) -> None:
    assert asked(method, stated, default) == found


def test_a_package_whose_options_share_the_nodes_is_not_admitted() -> None:
    site = Site.model_validate(
        {"schema": "tuneplane-hpc/site/v1", "name": "lab", "fleets": {"here": {"kind": "local"}}}
    )
    spec, recipe = parse(document(slurm={"time": "12:00:00"})), Catalogue.shipped().get("openrlhf/grpo")
    assert [f.code for f in limit_refusals({}, site, spec, recipe, fleet="cluster")] == ["E-SUBMIT-069"]
    assert whole_node_notes(spec, recipe, "local") == []
    assert "E-SUBMIT-069" not in [f.code for f in limit_refusals({}, site, spec, recipe, fleet="here")]
