"""Elements of a sweep on real ranks: each with its own settings, and a weak one that all of its ranks leave together at a rung."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ranks import Run
from tuneplane.contract.sweeps import Stopping, Sweep
from tuneplane.record.events import read_all
from tuneplane.training.sums import held_out_path

pytestmark = pytest.mark.train
SWEEP = Sweep(({"learning_rate": 1e-2}, {"learning_rate": 1e-8}), Stopping("validation_loss", "min", (3,), 2))


class Element(Run):
    """One element: its folder is `array/<index>/`, its package has the table."""

    index = 0

    def write(self, world: int) -> Path:
        work = super().write(world)
        (work / ".tuneplane" / "variants.json").write_text(json.dumps(SWEEP.as_json()))
        (self.root / "events").mkdir(exist_ok=True)
        return work

    def environment(self, rank: int, world: int, port: int) -> dict[str, str]:
        return super().environment(rank, world, port) | {"TUNEPLANE_ARRAY_INDEX": str(self.index)}


@pytest.fixture(scope="module")
def elements(tmp_path_factory: pytest.TempPathFactory, tiny: Path, sums: Path, warm: Any) -> list[Element]:
    array = tmp_path_factory.mktemp("sweep") / "array"
    made = []
    for index in range(2):
        element = Element(array / str(index), tiny, sums, max_steps=6, save_steps=2, learning_rate=0.5)
        element.index, element.warm, element.validation = index, warm, held_out_path(sums)
        made.append(element)
    return made


def test_a_weak_element_ends_well_at_its_rung_and_stays_ended(elements: list[Element]) -> None:
    good, weak = elements
    first = good.complete()
    assert [m["step"] for m in first.metrics()] == [1, 2, 3, 4, 5, 6]
    assert first.metrics()[0]["lr"] == pytest.approx(1e-2)
    assert len(first.weights()) == 1

    second = weak.complete()
    assert [m["step"] for m in second.metrics()] == [1, 2, 3]
    assert second.metrics()[0]["lr"] == pytest.approx(1e-8)
    assert [second.last_line(rank) for rank in (0, 1)] == [f"rank {rank}: done: stopped at rung 3" for rank in (0, 1)]
    result = second.result()
    assert (result["stopped_at_rung"], result["metric"]) == (3, "validation_loss")
    assert second.weights() == {}
    record = json.loads((weak.root / "rungs" / "3.json").read_text())
    assert (record["decision"], record["place"], record["seen"], record["others"]) == ("stop", 2, 2, "0")
    assert record["value"] == result["value"]
    (chain,) = [c for c in read_all(weak.root / "events") if c.writer == "rungs-1"]
    assert [e["details"]["decision"] for e in chain.events] == ["stop"]

    again = weak.complete()
    assert (again.metrics(), again.result()["stopped_at_rung"]) == ([], 3)
