from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tuneplane.training.model import check_folder, identity, load_model, load_tokenizer, tokenizer_digest
from tuneplane.training.refusals import Refused
from tuneplane.training.settings import SFT, Settings, parse


def chosen(**hyperparams: Any) -> Settings:
    return parse(hyperparams, None, SFT)


@pytest.fixture
def folder(tiny: Path, tmp_path: Path) -> Path:
    """A copy of the tiny model, to be harmed."""
    return Path(shutil.copytree(tiny, tmp_path / "model"))


HARMS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no config": (lambda m: (m / "config.json").unlink(), "E-TRAIN-030 inputs.model: no config.json"),
    "pickled weights": (
        lambda m: (m / "model.safetensors").rename(m / "pytorch_model.bin"),
        r"E-TRAIN-031 inputs.model: no model\*\.safetensors(.|\n)*pytorch_model\.bin(.|\n)*can run code",
    ),
    "cut weights": (
        lambda m: os.truncate(m / "model.safetensors", 100_000),
        r"E-TRAIN-032 .*has 100000 bytes instead of",
    ),
    "an index that names what is not there": (
        lambda m: (
            (m / "model.safetensors").rename(m / "model-00001-of-00001.safetensors"),
            (m / "model.safetensors.index.json").write_text(
                '{"weight_map": {"w": "model-00002-of-00002.safetensors"}}'
            ),
        ),
        "E-TRAIN-032 .*model-00002-of-00002.safetensors",
    ),
    "an index that is none": (
        lambda m: (
            (m / "model.safetensors").rename(m / "model-00001-of-00001.safetensors"),
            (m / "model.safetensors.index.json").write_text('{"weight_map": {"w": "../../etc/passwd"}}'),
        ),
        "E-TRAIN-032 .*its index cannot be used: .* no file of the folder",
    ),
    "weights in another form alone": (
        lambda m: (m / "model.safetensors").rename(m / "consolidated.safetensors"),
        r"E-TRAIN-031 .*no model\*\.safetensors",
    ),
    "empty weights": (lambda m: os.truncate(m / "model.safetensors", 0), "E-TRAIN-032 .*not a whole safetensors file"),
    "no header": (lambda m: (m / "model.safetensors").write_bytes(b"\xff" * 64), "E-TRAIN-032 .*larger than 100 MB"),
    "header of another kind": (
        lambda m: (m / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"[]"),
        "E-TRAIN-032 .*not a whole safetensors file",
    ),
}


@pytest.mark.parametrize("harm", HARMS, ids=lambda h: h.replace(" ", "-"))
def test_a_folder_at_fault_is_refused_before_anything_is_loaded(folder: Path, harm: str) -> None:
    act, reason = HARMS[harm]
    act(folder)
    with pytest.raises(Refused, match=reason):
        check_folder(folder)


def test_a_good_folder_passes(folder: Path) -> None:
    assert check_folder(folder) == folder


def test_a_copy_in_another_form_beside_the_weights_is_not_looked_at(folder: Path) -> None:
    (folder / "consolidated.safetensors").write_bytes(b"half")
    assert check_folder(folder) == folder


def test_a_tokenizer_that_cannot_be_loaded_is_refused(folder: Path) -> None:
    (folder / "tokenizer.json").write_text("{")
    (folder / "tokenizer_config.json").write_text("{")
    with pytest.raises(Refused, match="E-TRAIN-033"):
        load_tokenizer(folder)


def test_a_model_whose_weights_do_not_fit_its_configuration_is_refused(folder: Path) -> None:
    import torch

    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "nobody-knows-it", "architectures": None}))
    with pytest.raises(Refused, match="E-TRAIN-034"):
        load_model(folder, chosen(), torch.float32)


def test_code_in_a_model_folder_is_not_run(folder: Path, tmp_path: Path) -> None:
    import torch

    witness = tmp_path / "ran"
    (folder / "evil.py").write_text(f"open({str(witness)!r}, 'w')\nclass M: pass\n")
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "evil", "auto_map": {"AutoConfig": "evil.M", "AutoModelForCausalLM": "evil.M"}}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(Refused, match="E-TRAIN-034"):
        load_model(folder, chosen(), torch.float32)
    assert not witness.exists()


def test_lora_targets_that_the_model_has_not_are_refused_with_those_it_has(folder: Path) -> None:
    import torch

    with pytest.raises(
        Refused, match=r"E-TRAIN-015 (.|\n)*allowed  down_proj, gate_proj, k_proj, o_proj, q_proj, up_proj, v_proj"
    ):
        load_model(folder, chosen(lora_rank=4, lora_targets="query"), torch.float32)


def test_lora_goes_where_it_is_told_and_trains_nothing_else(folder: Path) -> None:
    import torch

    model = load_model(folder, chosen(lora_rank=4, lora_targets="q_proj, v_proj"), torch.float32)
    trained = {n for n, p in model.named_parameters() if p.requires_grad}
    assert len(trained) == 2 * 2 * 2
    assert all("lora_" in n and ("q_proj" in n or "v_proj" in n) for n in trained)


def test_the_identity_of_a_model_sees_its_files(folder: Path) -> None:
    first = identity(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 1e-5}))
    assert identity(folder) != first


def test_the_identity_is_that_of_the_input_record_s_digests_where_all_are_there(folder: Path) -> None:
    files = [{"path": "a", "size": 1, "sha256": "sha256:1"}, {"path": "b", "size": 1, "sha256": "sha256:2"}]
    assert identity(folder, files) == identity(folder, files[::-1])
    assert identity(folder, files) != identity(folder, [files[0], {**files[1], "sha256": "sha256:3"}])
    assert identity(folder, [files[0], {"path": "b", "size": 1, "mtime_ns": 5, "uid": 0}]) == identity(folder)


def test_the_tokenizer_s_digest_sees_the_chat_template(folder: Path) -> None:
    first = tokenizer_digest(folder)
    with open(folder / "chat_template.jinja", "a") as stream:
        stream.write(" ")
    assert tokenizer_digest(folder) != first


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_where_a_method_wants_none_a_model_has_no_dropout_and_its_configuration_stays(
    kind: str, tmp_path: Path
) -> None:
    """What is answered in training is then what is answered when asked: GRPO's first ratios are 1."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM
    from tuneplane.training.tables import GRPO

    torch.manual_seed(0)
    small = {"vocab_size": 40, "pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0}
    wide = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    if kind == "gpt2":
        made: Any = GPT2LMHeadModel(GPT2Config(n_embd=16, n_layer=1, n_head=2, n_positions=32, **small))
    else:
        made = LlamaForCausalLM(LlamaConfig(attention_dropout=0.5, **wide, **small))
    made.save_pretrained(tmp_path)
    asked = torch.arange(20).reshape(2, 10)
    network = load_model(tmp_path, parse({}, None, GRPO), torch.float32)
    assert torch.equal(network.train()(asked).logits, network.eval()(asked).logits)
    assert 0.1 in network.config.to_dict().values() or network.config.attention_dropout == 0.5
    other = load_model(tmp_path, chosen(), torch.float32)
    assert not torch.equal(other.train()(asked).logits, other.eval()(asked).logits)
