"""An artefact as one folder: merged, in the dtype of its base, loaded again by plain transformers with equal logits; and what is said beside it."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tuneplane.record.digest import digest_file
from tuneplane.training import exporting, gguf
from tuneplane.training.card import model_card
from tuneplane.training.merging import stored_dtype, write_merged
from tuneplane.training.place import Launch, Place
from tuneplane.training.refusals import Refused

from hpc.data.model_check import check_model

REPORT = {
    "run_id": "run-0001", "owner": "alice", "exp": "sums", "package_digest": "sha256:aa", "ended_at": "2026-03-01T12:00:00Z",
    "recipe": {"name": "deepspeed/sft", "version": "1.0.0", "digest": "sha256:bb"}, "provenance": {"git_commit": "c0ffee"},
    "inputs": {
        "model": {"path": "/models/tiny"},
        "train": {"path": "/data/sums.jsonl", "files": [{"path": "", "sha256": "sha256:dd"}]},
    },
    "result": {"steps": 60, "tokens": 4096, "final_loss": 0.25, "validation_loss": None, "parameters_total": 9, "parameters_trainable": 2},
}  # fmt: skip
CHECKED = {
    "dtype": "bfloat16",
    "logits": {"merge": 1e-7, "files": 0.0, "rounding": 0.01, "merge_tolerance": 1e-4, "file_tolerance": 1e-6},
}


@pytest.fixture(scope="module")
def stored(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The tiny model in a dtype."""
    import torch
    from transformers import AutoModelForCausalLM

    def make(dtype: str) -> Path:
        out = tmp_path_factory.mktemp("stored") / dtype
        shutil.copytree(tiny, out)
        model = AutoModelForCausalLM.from_pretrained(tiny, dtype=getattr(torch, dtype))
        model.save_pretrained(out)
        return out

    return make


def adapter_of(base: Path, out: Path, task: str = "CAUSAL_LM") -> Path:
    """An adapter that changes something."""
    import torch
    from peft import LoraConfig, get_peft_model
    from tuneplane.training.merging import _load, model_class

    (out.parent / "task").mkdir()
    (out.parent / "task/adapter_config.json").write_text(json.dumps({"task_type": task}))
    torch.manual_seed(0)
    network = _load(model_class(out.parent / "task"), base, torch.float32, 1)
    dressed = get_peft_model(network, LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", task_type=task))
    for name, weight in dressed.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.05)
    dressed.save_pretrained(out, save_embedding_layers=False)
    return out


def logits(model: Any) -> Any:
    import torch

    asked = torch.arange(40).reshape(2, 20) % 97
    with torch.no_grad():
        return model.eval()(input_ids=asked, attention_mask=torch.ones_like(asked)).logits.float()


@pytest.mark.train
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_merged_adapter_answers_in_plain_transformers_as_on_its_base(
    stored: Callable[[str], Path], tmp_path: Path, dtype: str
) -> None:
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    base = stored(dtype)
    adapter = adapter_of(base, tmp_path / "adapter")
    checked = write_merged(base, adapter, tmp_path / "model", lambda _: None)
    assert (checked.dtype, stored_dtype(tmp_path / "model"), checked.files) == (dtype, dtype, 0.0)
    assert 0.0 <= checked.merge < 1e-5
    assert checked.rounding == 0.0 if dtype == "float32" else 0.0 < checked.rounding < 0.1
    plain = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    untouched = logits(plain)
    wanted = logits(PeftModel.from_pretrained(plain, adapter))
    found = logits(AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype=torch.float32))
    scale = wanted.abs().max()
    assert (found - wanted).abs().max() / scale < (1e-5 if dtype == "float32" else 0.05)
    assert (untouched - wanted).abs().max() / scale > 0.1
    assert check_model(tmp_path / "model")["form"] == "model"


@pytest.mark.train
def test_a_score_head_is_merged_with_its_adapter(tiny: Path, tmp_path: Path) -> None:
    import torch
    from peft import PeftModel
    from transformers import AutoModelForSequenceClassification as Scorer

    adapter = adapter_of(tiny, tmp_path / "adapter", "SEQ_CLS")
    write_merged(tiny, adapter, tmp_path / "model", lambda _: None)
    base = Scorer.from_pretrained(tiny, num_labels=1, dtype=torch.float32)
    base.config.pad_token_id = 1
    wanted = logits(PeftModel.from_pretrained(base, adapter))
    assert torch.allclose(logits(Scorer.from_pretrained(tmp_path / "model", dtype=torch.float32)), wanted, atol=1e-5)


@pytest.mark.train
def test_an_adapter_of_another_model_is_refused(tiny: Path, tmp_path: Path) -> None:
    adapter = adapter_of(tiny, tmp_path / "adapter")
    config = json.loads((adapter / "adapter_config.json").read_text())
    (adapter / "adapter_config.json").write_text(json.dumps({**config, "r": 6}))
    with pytest.raises(Refused, match="E-TRAIN-070 adapter: does not fit the model"):
        write_merged(tiny, adapter, tmp_path / "model", lambda _: None)


def place(out: Path) -> Place:
    names = ("WORK", "RUN", "EXP", "CHECKPOINT")
    folders = {f"TUNEPLANE_{name}_DIR": str(out.parents[2] / name.lower()) for name in names}
    ranks = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1", "NODE_RANK": "0"}
    meeting = {"MASTER_ADDR": "localhost", "MASTER_PORT": "1", "TUNEPLANE_RUN_ID": "run-0002", "TUNEPLANE_ATTEMPT": "0"}
    return Place.from_env({**folders, **ranks, **meeting, "TUNEPLANE_OUT_DIR": str(out)})


@pytest.mark.train
@pytest.mark.parametrize("whole", [False, True])
def test_an_export_is_written_whole_with_its_card_and_its_digests(tiny: Path, tmp_path: Path, whole: bool) -> None:
    source = tiny if whole else adapter_of(tiny, tmp_path / "adapter")
    (tmp_path / "report.json").write_text(json.dumps(REPORT))
    late = {
        "path": str(source), "report": str(tmp_path / "report.json"), "run_id": "run-0001", "exp": "sums", "attempt": 0, "artefact": "final",
        "digest": "sha256:ff",
    }  # fmt: skip
    out = tmp_path / "run-0002/attempts/0/out"
    here = place(out)
    launch = Launch.parse({"inputs": {"model": {"path": str(tiny)}}}, here, needs=("model",))
    result = exporting.export(here, launch, late, {"PATH": os.defpath})
    made = out / result["artefact"]["path"]
    assert {f["path"]: f["sha256"] for f in result["artefact"]["files"]} == {
        p.name: digest_file(p) for p in made.iterdir()
    }
    card = (made / "README.md").read_text()
    assert "`run-0001` of alice" in card
    assert "sha256:dd" in card
    assert "no GGUF: the runtime has no convert_hf_to_gguf.py" in card
    assert (result["gguf"]["state"], result["of"]["digest"]) == ("absent", "sha256:ff")
    assert check_model(made)["form"] == "model"
    assert ((out / "export/adapter").is_dir(), result["adapter"] is None) == (not whole, whole)
    assert [p.name for p in out.iterdir()] == ["export"]


def test_the_card_has_the_runs_facts_and_the_front_matter_of_hugging_face() -> None:
    head, _, body = model_card("sums run-0001", REPORT, CHECKED, "none", adapter=True)[4:].partition("\n---\n")
    assert {k: json.loads(v) for k, _, v in (line.partition(": ") for line in head.splitlines())} == {
        "base_model": "/models/tiny", "library_name": "peft", "tags": ["tuneplane", "sft", "lora"],
    }  # fmt: skip
    for text in ("| steps | 60 |", "| final loss | 0.25 |", "`sha256:aa`", "c0ffee", "9, 2 of them trained"):
        assert text in body
    assert "validation loss" not in body
    assert "rounding to bfloat16 moves one by up to 0.01" in model_card("t", REPORT, CHECKED, "", adapter=False)


CONVERTER = """\
import sys
folder, flag, out, *rest = sys.argv[1:]
assert (flag, rest) == ("--outfile", ["--outtype", "auto"]), sys.argv
if folder.endswith("bad"):
    sys.exit("unknown architecture")
open(out, "wb").write(b"GGUF")
"""


def test_a_converter_that_is_there_is_used_and_what_it_does_is_said(tmp_path: Path) -> None:
    program = tmp_path / "convert_hf_to_gguf.py"
    program.write_text(CONVERTER)
    program.chmod(0o755)
    out, env = tmp_path / "model.gguf", {"PATH": str(tmp_path)}
    good = gguf.write_gguf(tmp_path / "model", out, env)
    assert (good["state"], good["message"], out.read_bytes()) == ("written", "model.gguf, 4 bytes", b"GGUF")
    bad = gguf.write_gguf(tmp_path / "bad", out, env)
    assert (bad["state"], bad["message"]) == ("failed", "no GGUF: exit code 1: unknown architecture")
    assert not out.exists()
    named = gguf.write_gguf(tmp_path / "model", out, {"PATH": "", gguf.VARIABLE: str(tmp_path / "gone.py")})
    assert named["message"].endswith(f"TUNEPLANE_GGUF_CONVERTER names no file: {tmp_path}/gone.py")
