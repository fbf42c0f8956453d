"""A checkpoint is put together, asked in every suite, and its copy is gone afterwards, however that ends."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace as Plain
from typing import Any

import pytest
from tuneplane.evaluation import checkpointed
from tuneplane.evaluation.followup import Subject, Suite, Where
from tuneplane.training.warning import Warned

FILES = [{"path": "model.safetensors", "size": 1, "sha256": "sha256:1"}]
LATE = {"run_id": "run-0001", "exp": "sums", "attempt": 1, "artefact": "checkpoint", "step": 20, "digest": "sha256:2"}


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The second attempt of an element; the first was killed while its model lay there."""
    path = tmp_path / "sums/step-000000020"
    path.mkdir(parents=True)
    (path / "manifest.json").write_text('{"step": 20}')
    (tmp_path / "attempts/0/out/.checkpoint/model").mkdir(parents=True)
    out = tmp_path / "attempts/1/out"
    out.mkdir(parents=True)

    def write_model(checkpoint: Path, manifest: Any, base: Path, folder: Path) -> dict[str, Any]:
        assert (checkpoint, manifest, base) == (path, {"step": 20}, Path("/models/base"))
        folder.mkdir(parents=True)
        return {"kind": "model", "tensors": 3, "files": FILES}

    monkeypatch.setattr(checkpointed, "write_model", write_model)
    launch = Plain(input_path=lambda name, place: Path("/models/base"), inputs={"model": {"path": "/models/base"}})
    late = {"candidate": {**LATE, "path": str(path)}}
    return Plain(place=Plain(out_dir=out), launch=launch, late=late, wanted={"limit": 4}, kept=tmp_path / "kept")


def leftovers(job: Any) -> list[str]:
    return [str(p) for p in job.place.out_dir.parent.parent.rglob(".checkpoint")]


def test_every_suite_is_asked_of_it_and_its_copy_goes(job: Any) -> None:
    asked: list[tuple[str, Subject, Where]] = []

    def suite(name: str, score: float) -> Suite:
        def ask(one: Subject, where: Where) -> dict[str, Any]:
            asked.append((name, one, where))
            assert one.model.is_dir()
            value = {"value": score}
            return {"suite": name, "decides": "score", "metrics": {"score": value, "pass_rate": value}}

        return Suite(name, ask)

    checkpointed.run_checkpoint(job, [suite("behaviour", 0.25), suite("sums", 0.5)])
    out = job.place.out_dir
    assert [(name, one.adapter, list(one.files)) for name, one, _ in asked] == [
        ("behaviour", None, FILES), ("sums", None, FILES),
    ]  # fmt: skip
    assert [where.out for _, _, where in asked] == [out / "suites/behaviour", out / "suites/sums"]
    result = json.loads((out / "result.json").read_text())
    assert (result["step"], result["tier"], result["of"]) == (20, "screening", LATE)
    assert result["metrics"]["sums/score"] == 0.5
    assert leftovers(job) == []


def test_a_warning_in_between_takes_the_copy_away_and_leaves_no_result(job: Any) -> None:
    def warned(one: Subject, where: Where) -> dict[str, Any]:
        raise Warned("SIGUSR2")

    with pytest.raises(Warned):
        checkpointed.run_checkpoint(job, [Suite("behaviour", warned)])
    assert leftovers(job) == []
    assert not (job.place.out_dir / "result.json").exists()
