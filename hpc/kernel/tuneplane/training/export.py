"""The artefact of a run: `OUT_DIR/final` with the adapter or the weights as safetensors, opened again and compared before it counts (P50)."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tuneplane.record.digest import digest_file
from tuneplane.record.files import fsync_dir, publish_dir
from tuneplane.training.engine import Engine
from tuneplane.training.going import size_below
from tuneplane.training.peers import Peers
from tuneplane.training.refusals import Reason, Refused, refuse
from tuneplane.training.watchdog import Watchdog

FINAL = "final"


@dataclass(frozen=True)
class Planned:
    """What a tensor of the artefact must be: its shape, its Euclidean norm in float64."""

    shape: tuple[int, ...]
    norm: float


def export(engine: Engine, tokenizer: Any, out: Path, peers: Peers, watchdog: Watchdog) -> dict[str, Any]:
    """Write `out/final`, verify it and only then give it its name; returns its description. A collective.

    Raises Refused when the files are not what was trained; `final` does not exist then.
    """
    bound = peers.policies.save_timeout_s
    watchdog.beat("gathering the final weights", bound)
    peers.set_timeouts(bound)
    lora = engine.settings.lora
    temp, final, shapes = out / f".{FINAL}.tmp", out / FINAL, engine.shapes(trainable=lora)
    # Under ZeRO-3 all ranks give their shares; else the first one has everything, and the others wait for it below.
    weights = engine.gathered(lora, watchdog.again) if engine.settings.zero_stage == 3 else None

    def write() -> dict[str, Any]:
        for folder in (temp, final):  # an export of this attempt that was cut short
            shutil.rmtree(folder, ignore_errors=True)
        whole = engine.gathered(lora, peers.moves) if weights is None else weights
        return write_artefact(engine.model, tokenizer, temp, final, whole, shapes, adapter=lora, moved=peers.moves)

    value = peers.once("export", write, bound, by=0, seen=lambda: size_below(temp))
    watchdog.rest()
    return dict(value)


def write_artefact(
    model: Any, tokenizer: Any, temp: Path, final: Path, weights: dict[str, Any], shapes: dict[str, tuple[int, ...]], *, adapter: bool,
    moved: Callable[[], None] = lambda: None,
) -> dict[str, Any]:  # fmt: skip
    """Write `weights` of `model`, its adapter's alone where that is what was trained, to `temp`; verify it and rename it to `final`.

    `shapes`: what must be there. `moved` is called for each tensor and file. Raises Refused; `final` does not exist then.
    """
    _check_gathered(weights, shapes)
    temp.mkdir(parents=True)
    if adapter:
        from peft import get_peft_model_state_dict

        plan = plan_of(get_peft_model_state_dict(model, state_dict=weights, save_embedding_layers=False), moved)
        for (
            config
        ) in model.peft_config.values():  # a set, whose order differs from process to process, and so would the file
            config.target_modules = sorted(config.target_modules)
        model.save_pretrained(temp, state_dict=weights, save_embedding_layers=False)
    else:
        plan = plan_of(weights, moved)
        model.config.use_cache = True
        model.save_pretrained(temp, state_dict=weights)
    tokenizer.save_pretrained(temp)
    (temp / "README.md").unlink(missing_ok=True)  # a template without facts; the run's report holds them
    _settle(temp, moved)
    verify(temp, plan, adapter=adapter, moved=moved)
    publish_dir(temp, final)
    names, files = sorted(p.relative_to(final).as_posix() for p in final.rglob("*") if p.is_file()), []
    for name in names:
        files.append({"path": name, "size": (final / name).stat().st_size, "sha256": digest_file(final / name)})
        moved()
    return {
        "kind": "adapter" if adapter else "model",
        "path": final.name,
        "tensors": len(plan),
        "parameters": sum(math.prod(p.shape) for p in plan.values()),
        "norm": math.sqrt(sum(p.norm**2 for p in plan.values())),
        "files": files,
    }


def _check_gathered(weights: dict[str, Any], shapes: dict[str, tuple[int, ...]]) -> None:
    """The gathered tensors must be whole: a partition that was not gathered has the shape (0,)."""
    wrong = [
        Reason("E-TRAIN-060", "was not gathered whole", name, str(tuple(weights[name].shape)), str(shape))
        for name, shape in shapes.items()
        if name in weights and tuple(weights[name].shape) != shape
    ]
    wrong += [
        Reason("E-TRAIN-060", "was not gathered", name, allowed=str(shapes[name]))
        for name in shapes.keys() - weights.keys()
    ]
    if wrong:
        raise Refused(sorted(wrong, key=lambda r: r.field)[:20])


def plan_of(weights: dict[str, Any], moved: Callable[[], None] = lambda: None) -> dict[str, Planned]:
    """What the files must hold, from the tensors in memory."""
    out = {}
    for name, tensor in weights.items():
        out[name] = Planned(tuple(tensor.shape), _norm(tensor))
        moved()
    return out


def _norm(tensor: Any) -> float:
    return float(tensor.double().norm()) if tensor.is_floating_point() else float(tensor.double().abs().sum())


def verify(folder: Path, plan: dict[str, Planned], *, adapter: bool, moved: Callable[[], None] = lambda: None) -> None:
    """Open every safetensors file of `folder` and compare it with the plan. Raises Refused with every difference.

    Names are compared for adapters. A full model may be saved under other names than it has in memory (transformers maps some
    architectures back to their published layout): there, tensors of the same name are compared one by one and the sum of all as a whole.
    """
    found = _read_plan(folder, moved)
    wrong = [
        Reason(
            "E-TRAIN-061",
            "is not what was trained",
            name,
            f"shape {found[name].shape}, norm {found[name].norm:.6g}",
            f"shape {p.shape}, norm {p.norm:.6g}",
        )
        for name, p in sorted(plan.items())
        if name in found and not _same(found[name], p)
    ]
    if adapter:
        wrong += [Reason("E-TRAIN-061", "is missing in the file", name) for name in sorted(plan.keys() - found.keys())]
        if not any(p.norm > 0 for name, p in found.items() if "lora_B" in name):
            wrong.append(
                Reason(
                    "E-TRAIN-062",
                    "the adapter is empty: it changes nothing",
                    os.fspath(folder),
                    f"{len(found)} tensors",
                )
            )
    wanted, got = _sum(plan), _sum(found)
    if not _same(got, wanted) or not wanted.norm > 0:
        wrong.append(
            Reason(
                "E-TRAIN-061",
                "the files together are not what was trained",
                os.fspath(folder),
                f"{got.shape[0]} values, norm {got.norm:.6g}",
                f"{wanted.shape[0]} values, norm {wanted.norm:.6g}",
            )
        )
    if wrong:
        raise Refused(wrong[:20])


def _same(one: Planned, other: Planned) -> bool:
    return one.shape == other.shape and math.isclose(one.norm, other.norm, rel_tol=1e-9, abs_tol=0.0)


def _sum(plan: dict[str, Planned]) -> Planned:
    return Planned((sum(math.prod(p.shape) for p in plan.values()),), math.sqrt(sum(p.norm**2 for p in plan.values())))


def _read_plan(folder: Path, moved: Callable[[], None]) -> dict[str, Planned]:
    from safetensors import SafetensorError, safe_open

    out: dict[str, Planned] = {}
    for path in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(path, framework="pt") as stream:
                for name in stream.keys():  # noqa: SIM118
                    tensor = stream.get_tensor(name)
                    out[name] = Planned(tuple(tensor.shape), _norm(tensor))
                    moved()
        except (SafetensorError, OSError) as exc:
            raise refuse("E-TRAIN-061", f"cannot be opened again: {exc}", field=os.fspath(path)) from exc
    return out


def _settle(folder: Path, moved: Callable[[], None] = lambda: None) -> None:
    """Modes that others can read (safetensors writes 0600), and everything on the disk."""
    for base, folders, files in os.walk(folder):
        for name in files:
            fd = os.open(os.path.join(base, name), os.O_RDONLY | os.O_NOFOLLOW)
            try:
                os.fchmod(fd, 0o644)
                os.fsync(fd)
            finally:
                os.close(fd)
            moved()
        for name in folders:
            os.chmod(os.path.join(base, name), 0o755)
        fsync_dir(base)
    os.chmod(folder, 0o755)
