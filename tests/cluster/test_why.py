"""`tp job why` on failures of this very cluster; all kinds of them, as they were once, are in tests/data/failures."""

from __future__ import annotations

from pathlib import Path

import pytest
from failures import FAILURES, Failure, Maker
from lab import Lab, Person, Run
from labcluster import until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]
LIVE = tuple(f for f in FAILURES if f.label in ("out-of-memory", "import-error", "disk-full", "port-clash"))


@pytest.fixture(scope="module")
def failed(lab: Lab, alice: Person, scratch: Path) -> dict[str, Run]:
    """The failures, submitted together."""
    maker = Maker(lab, alice, scratch)
    maker.experiments(LIVE)
    return {f.label: maker.submit(f) for f in LIVE}


@pytest.mark.parametrize("failure", LIVE, ids=[f.label for f in LIVE])
def test_the_cause_of_a_failure_is_found_while_it_is_warm(
    lab: Lab, alice: Person, failed: dict[str, Run], failure: Failure
) -> None:
    run = failed[failure.label]
    run.wait_end()

    def asked() -> object:
        """Accounting tells of memory a moment later; until then it is a likely cause."""
        why = lab.tp(alice, "job", "why", run.id, "--json").json["why"]
        return why if why["cause"] and why["cause"]["confidence"] == failure.confidence else None

    why = until(f"the cause of {run.id}", asked, seconds=30, pause=1.0)
    assert isinstance(why, dict)
    assert why["cause"]["id"] == failure.cause
    assert failure.evidence.lower() in " ".join(e["text"] for e in why["cause"]["evidence"]).lower()
    assert failure.mend in " ".join(why["mend"])
    assert "environment" in [f["name"] for f in why["facts"]], "how the layers' environments compare is said"
