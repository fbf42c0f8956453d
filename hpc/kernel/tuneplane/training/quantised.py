"""Frozen weights in 4 bits under adapters: NF4 with double quantisation, by bitsandbytes, where it has a backend for this rank's device."""

from __future__ import annotations

from typing import Any

from tuneplane.training.refusals import Refused, refuse
from tuneplane.training.settings import Settings

_FIELD = "hyperparams.load_in_4bit"


def loading(settings: Settings, dtype: Any) -> dict[str, Any]:
    """What `from_pretrained` is given beside the rest; nothing where weights keep their bits. Raises Refused E-TRAIN-036."""
    if not settings.load_in_4bit:
        return {}
    device = _device()
    check_backend(device)
    from transformers import BitsAndBytesConfig

    kind = BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype=dtype
    )
    return {"quantization_config": kind, "device_map": {"": device}}


def _device() -> Any:
    import torch

    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")


def check_backend(device: Any) -> None:
    """Quantise something small where the model is to stand. Raises Refused E-TRAIN-036 with what came of it."""
    try:
        import torch
        from bitsandbytes.functional import dequantize_4bit, quantize_4bit

        ones = torch.ones(64, 64, device=device)
        back = dequantize_4bit(*quantize_4bit(ones, quant_type="nf4"), quant_type="nf4")
        if not torch.equal(back, ones):
            raise RuntimeError("what was quantised does not come back")
    except ImportError as exc:
        raise _refused(f"bitsandbytes is not in this image: {exc}", device) from exc
    except Exception as exc:  # a library without a backend for the device says so in its own ways
        raise _refused(f"bitsandbytes has no backend for it: {type(exc).__name__}: {exc}", device) from exc


def _refused(why: str, device: Any) -> Refused:
    return refuse(
        "E-TRAIN-036", why[:300], field=_FIELD, found=str(device), allowed="false, or a GPU that bitsandbytes knows"
    )


def true_shape(param: Any) -> tuple[int, ...]:
    """The shape that the weight had before two of its values went into one byte; of other weights their own, ZeRO-3's partitions undone."""
    state = getattr(param, "quant_state", None)
    return tuple(state.shape if state is not None else getattr(param, "ds_shape", param.shape))
