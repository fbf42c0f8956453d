"""What is refused where a checkpoint's model is to be put together; that it is the artefact to the byte is shown where runs are resumed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tuneplane.training.consolidating import write_model
from tuneplane.training.refusals import Refused

SETTINGS = {"lora_rank": 0, "lora_alpha": 16.0, "lora_dropout": 0.0, "lora_targets": "all-linear", "zero_stage": 1}


def test_a_manifest_without_settings_says_too_little(tmp_path: Path) -> None:
    with pytest.raises(Refused, match=r"E-TRAIN-052 .*its manifest says too little: KeyError"):
        write_model(tmp_path, {"precision": "fp32"}, tmp_path, tmp_path / "model")


@pytest.mark.train
def test_parts_that_are_not_there_or_are_others_leave_no_model(tiny: Path, tmp_path: Path) -> None:
    manifest = {"settings": SETTINGS, "precision": "fp32"}
    with pytest.raises(Refused, match=r"E-TRAIN-052 .*its weights cannot be put together"):
        write_model(tmp_path, manifest, tiny, tmp_path / "model")
    (tmp_path / "deepspeed").mkdir()
    torch.save({"module": {"other": torch.ones(2)}}, tmp_path / "deepspeed/mp_rank_00_model_states.pt")
    with pytest.raises(Refused, match=r"E-TRAIN-060 .*was not gathered"):
        write_model(tmp_path, manifest, tiny, tmp_path / "model")
    assert not (tmp_path / "model").exists()
