from __future__ import annotations

import re
from pathlib import Path

from tuneplane.training.refusals import Reason, Refused, refuse

from hpc.errors.training import KINDS

TRAINING = Path(__file__).resolve().parents[2] / "hpc" / "kernel" / "tuneplane" / "training"


def test_every_code_that_training_uses_is_declared_and_every_declared_one_is_used() -> None:
    places = [*TRAINING.glob("*.py"), TRAINING.parent / "contract/contradictions.py"]
    used = {c for path in places for c in re.findall(r'"(E-TRAIN-\d{3})"', path.read_text())}
    assert used == set(KINDS)


def test_a_refusal_shows_everything_that_it_knows() -> None:
    exc = refuse("E-TRAIN-011", "too small", field="hyperparams.epochs", found="0", allowed="> 0", hint="try 1")
    assert str(exc) == (
        "E-TRAIN-011 hyperparams.epochs: too small\n    found    0\n    allowed  > 0\n    hint     try 1"
    )


def test_refusals_travel_to_other_ranks_as_json() -> None:
    one = Refused([Reason("E-TRAIN-021", "not an object", "rows.jsonl:3"), Reason("E-TRAIN-025", "none")])
    assert Refused.from_json(one.as_json()).reasons == one.reasons
