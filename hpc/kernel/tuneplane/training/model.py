"""The model and its tokenizer from a local Hugging Face folder: safetensors only, no remote code, no network."""

from __future__ import annotations

import json
import os
import struct
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tuneplane.contract.weights import weight_files
from tuneplane.record.digest import digest_file, digest_json
from tuneplane.training.place import Place
from tuneplane.training.quantised import loading
from tuneplane.training.refusals import refuse
from tuneplane.training.settings import Settings

_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "special_tokens_map.json",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
)


def quiet_libraries(accelerator: str = "cpu") -> None:
    """No network, no progress bars in logs, no search for an accelerator that the shape names already. Before the heavy imports."""
    os.environ.update(
        HF_HUB_OFFLINE="1",
        TRANSFORMERS_OFFLINE="1",
        HF_DATASETS_OFFLINE="1",
        HF_HUB_DISABLE_PROGRESS_BARS="1",
        HF_HUB_DISABLE_TELEMETRY="1",
        DS_ACCELERATOR=accelerator,
    )
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # a lost peer is one line of ours, not pages of C++ frames
    # Calls that peft and DeepSpeed make, not we.
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"transformers\.modeling_utils|torch\.distributed")
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()


def check_folder(path: Path, field: str = "inputs.model") -> Path:
    """The folder itself if it can hold a model. Raises Refused."""
    if not (path / "config.json").is_file():
        raise refuse("E-TRAIN-030", "no config.json in it", field=field, found=os.fspath(path))
    try:
        files = weight_files(path)
    except (OSError, ValueError) as exc:
        raise refuse("E-TRAIN-032", f"its index cannot be used: {exc}", field=field, found=os.fspath(path)) from exc
    if not files:
        found = sorted(p.name for p in path.iterdir())[:12]
        raise refuse(
            "E-TRAIN-031",
            "no model*.safetensors in it",
            field=field,
            found=", ".join(found),
            allowed="weights as safetensors; pickled weights (.bin, .pt) can run code and are not read",
        )
    for file in files:
        _header(file)
    return path


def identity(path: Path, files: Sequence[Mapping[str, Any]] = ()) -> str:
    """Digest that tells two models apart: of the digests in `files` (launch.json's input record) where all are there.

    Else of small files whole and of safetensors by size and header (names, shapes, offsets): no digest of the weights, which would cost a
    full read by each attempt.
    """
    if files and all(f.get("sha256") for f in files):
        return digest_json(sorted([str(f["path"]), str(f["sha256"])] for f in files))
    parts: list[Any] = []
    for file in sorted(path.iterdir()):
        if file.suffix == ".safetensors":
            parts.append([file.name, file.stat().st_size, digest_json(_header(file))])
        elif file.suffix in (".json", ".jinja", ".txt", ".model") and file.is_file():
            parts.append([file.name, digest_file(file, follow=True)])
    return digest_json(parts)


def _header(path: Path) -> Any:
    """The header of a safetensors file, which must be as long as its tensors say (a copy that was cut is not)."""
    try:
        with open(path, "rb") as stream:
            (size,) = struct.unpack("<Q", stream.read(8))
            if size > 100 << 20:
                raise ValueError("its header is larger than 100 MB")
            header = json.loads(stream.read(size))
            ends = [t["data_offsets"][1] for n, t in header.items() if n != "__metadata__"]
            length, wanted = os.fstat(stream.fileno()).st_size, 8 + size + max(ends, default=0)
            if length != wanted:
                raise ValueError(f"it has {length} bytes instead of {wanted}")
            return header
    except (OSError, ValueError, KeyError, TypeError, AttributeError, struct.error) as exc:
        raise refuse("E-TRAIN-032", f"not a whole safetensors file: {exc}", field=os.fspath(path)) from exc


def tokenizer_digest(path: Path) -> str:
    """Digest of everything that decides how text becomes ids, the libraries' releases included."""
    import tokenizers
    import transformers

    files = {n: digest_file(path / n, follow=True) for n in _TOKENIZER_FILES if (path / n).is_file()}
    return digest_json([files, tokenizers.__version__, transformers.__version__])


def load_tokenizer(path: Path, field: str = "inputs.model") -> Any:
    """The folder's tokenizer. Raises Refused."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(os.fspath(path), local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, KeyError) as exc:
        raise refuse("E-TRAIN-033", f"no usable tokenizer: {exc}", field=field, found=os.fspath(path)) from exc
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def choose_device(place: Place, gpus_per_node: int) -> Any:
    """`cuda:<local rank>` where the shape has GPUs, else the CPU. Raises Refused when the machine is not what the shape says (P48)."""
    import torch

    if not gpus_per_node:
        if not os.environ.get("OMP_NUM_THREADS"):
            torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // place.local_world_size))
        return torch.device("cpu")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if place.local_rank >= count:
        raise refuse(
            "E-TRAIN-005",
            "this rank has no GPU of its own",
            field="launch.json: shape.gpus_per_node",
            found=f"{count} visible on this node, local rank {place.local_rank}",
            allowed=f"{gpus_per_node} GPUs",
        )
    device = torch.device("cuda", place.local_rank)
    torch.cuda.set_device(device)
    return device


def choose_precision(settings: Settings, device: Any) -> str:
    """`bf16` or `fp32`. Raises Refused where bf16 was asked for and the GPU has none."""
    import torch

    able = device.type == "cpu" or torch.cuda.is_bf16_supported(including_emulation=False)
    if settings.precision == "auto":
        return "bf16" if able and device.type != "cpu" else "fp32"
    if settings.precision == "bf16" and not able:
        raise refuse(
            "E-TRAIN-014",
            "this GPU has no bf16",
            field="hyperparams.precision",
            found=torch.cuda.get_device_name(device),
        )
    return settings.precision


def load_model(path: Path, settings: Settings, dtype: Any, field: str = "inputs.model") -> Any:
    """The causal language model with weights of `dtype`, with fresh LoRA adapters where the settings say so.

    Seed torch before: adapters start at random. Under ZeRO-3 an `HfDeepSpeedConfig` must be alive, so that no rank ever holds all weights.
    """
    from transformers import AutoModelForCausalLM

    found = _from_folder(AutoModelForCausalLM, path, dtype, field, **loading(settings, dtype))
    return _dressed(found, settings, "CAUSAL_LM")


def load_scorer(path: Path, settings: Settings, dtype: Any, pad_id: int) -> Any:
    """The model with a head that gives one score a row, read at its last token that is not `pad_id`; else as `load_model`.

    The head is new, and random by torch's seed, unless the folder holds such a model already. With LoRA the whole head is trained.
    """
    from transformers import AutoModelForSequenceClassification

    more = {"num_labels": 1, **loading(settings, dtype)}
    model = _from_folder(AutoModelForSequenceClassification, path, dtype, "inputs.model", **more)
    model.config.pad_token_id = pad_id
    return _dressed(model, settings, "SEQ_CLS")


def _from_folder(kind: Any, path: Path, dtype: Any, field: str, **more: Any) -> Any:
    try:
        return kind.from_pretrained(
            os.fspath(path),
            dtype=dtype,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            **more,
        )
    except (OSError, ValueError, KeyError) as exc:
        raise refuse("E-TRAIN-034", f"cannot be loaded: {exc}", field=field, found=os.fspath(path)) from exc


def _dressed(model: Any, settings: Settings, task: str) -> Any:
    model.config.use_cache = False
    if not settings.model_dropout:
        end_dropout(model)
    if settings.gradient_checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    return _add_lora(model, settings, task) if settings.lora else model


def end_dropout(model: Any) -> None:
    """No dropout of any kind in this model from now on; its configuration, which goes into the artefact, stays."""
    for module in model.modules():
        if "Dropout" in type(module).__name__ and hasattr(module, "p"):
            module.p = 0.0
        for name, value in list(vars(module).items()):
            if "drop" in name and isinstance(value, float):
                setattr(module, name, 0.0)


def _add_lora(model: Any, settings: Settings, task: str) -> Any:
    from peft import LoraConfig, get_peft_model

    targets: str | list[str] = settings.lora_targets
    if targets != "all-linear":
        targets = [t.strip() for t in settings.lora_targets.split(",") if t.strip()]
    if settings.gradient_checkpointing:
        model.enable_input_require_grads()  # else the frozen embedding gives checkpointed blocks nothing to differentiate
    config = LoraConfig(
        r=settings.lora_rank,
        lora_alpha=settings.lora_alpha,
        lora_dropout=settings.lora_dropout,
        target_modules=targets,
        task_type=task,
    )
    # A head that is trained whole has the model's dtype, and ZeRO-3 wants one dtype of all that is trained.
    keep_dtype = task == "SEQ_CLS"
    try:
        return get_peft_model(model, config, autocast_adapter_dtype=not keep_dtype)
    except ValueError as exc:
        raise refuse(
            "E-TRAIN-015",
            f"LoRA cannot be put there: {exc}",
            field="hyperparams.lora_targets",
            found=settings.lora_targets,
            allowed=", ".join(_linear_names(model)),
        ) from exc


def _linear_names(model: Any) -> list[str]:
    import torch

    names = {n.rpartition(".")[2] for n, m in model.named_modules() if isinstance(m, torch.nn.Linear)}
    return sorted(names - {"lm_head"})
