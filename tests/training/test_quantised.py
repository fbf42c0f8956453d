"""Weights in 4 bits: what transformers is asked for, and where there is no backend the refusal. The arithmetic itself is bitsandbytes'."""

from __future__ import annotations

import sys
import types
from typing import Any

import pytest
from tuneplane.training.quantised import check_backend, loading, true_shape
from tuneplane.training.refusals import Refused
from tuneplane.training.settings import SFT, Settings, parse

pytestmark = pytest.mark.train


def settings(**values: Any) -> Settings:
    return parse({"lora_rank": 4} | values, None, SFT)


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """A stand-in for bitsandbytes.functional that quantises nothing."""
    package, functional = types.ModuleType("bitsandbytes"), types.ModuleType("bitsandbytes.functional")
    functional.quantize_4bit = lambda x, quant_type: (x, quant_type)  # type: ignore[attr-defined]
    functional.dequantize_4bit = lambda x, state, quant_type: x  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "bitsandbytes", package)
    monkeypatch.setitem(sys.modules, "bitsandbytes.functional", functional)
    return functional


def test_without_it_nothing_is_asked_for() -> None:
    assert loading(settings(), None) == {}


def test_where_there_is_no_backend_it_is_refused_with_the_reason(
    library: types.ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(*_: Any, **__: Any) -> Any:
        raise NotImplementedError("no kernel for this device")

    library.quantize_4bit = none  # type: ignore[attr-defined]
    with pytest.raises(Refused, match=r"E-TRAIN-036 hyperparams\.load_in_4bit: .*NotImplementedError: no kernel"):
        loading(settings(load_in_4bit=True), None)
    monkeypatch.setitem(sys.modules, "bitsandbytes.functional", None)
    with pytest.raises(Refused, match=r"E-TRAIN-036 hyperparams\.load_in_4bit: bitsandbytes is not in this image"):
        check_backend("cpu")


def test_a_backend_that_gives_back_other_values_is_refused(library: types.ModuleType) -> None:
    library.dequantize_4bit = lambda x, state, quant_type: x * 2  # type: ignore[attr-defined]
    with pytest.raises(Refused, match=r"E-TRAIN-036 .*does not come back"):
        check_backend("cpu")


def test_transformers_is_asked_for_nf4_with_double_quantisation_on_this_rank_s_device(
    library: types.ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch
    import transformers

    seen: dict[str, Any] = {}
    monkeypatch.setattr(transformers, "BitsAndBytesConfig", lambda **values: seen.update(values) or seen)
    asked = loading(settings(load_in_4bit=True), torch.bfloat16)
    assert asked == {"quantization_config": seen, "device_map": {"": torch.device("cpu")}}
    assert seen == {
        "load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True,
        "bnb_4bit_compute_dtype": torch.bfloat16,
    }  # fmt: skip


def test_the_shape_of_a_packed_weight_is_the_weight_s_own() -> None:
    packed = types.SimpleNamespace(shape=(32, 1), quant_state=types.SimpleNamespace(shape=(8, 8)))
    shared = types.SimpleNamespace(shape=(0,), ds_shape=(4, 4))
    assert [true_shape(p) for p in (packed, shared, types.SimpleNamespace(shape=(2, 3)))] == [(8, 8), (4, 4), (2, 3)]


def test_a_job_without_bitsandbytes_ends_refused_before_the_model_is_loaded(lessons: Any) -> None:
    run = lessons.run("sft", lora_rank=4, load_in_4bit=True, zero_stage=2)
    attempt = run.start(1)
    assert attempt.wait() == [1]
    assert "E-TRAIN-036 hyperparams.load_in_4bit: bitsandbytes is not in this image" in attempt.log(0)
