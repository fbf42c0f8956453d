"""What is opened again after a save (P50), without training."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tuneplane.training.export import _check_gathered, _settle, export, plan_of, verify
from tuneplane.training.refusals import Refused

A, B = "layer.lora_A.weight", "layer.lora_B.weight"


def adapter() -> dict[str, Any]:
    torch.manual_seed(0)
    return {A: torch.randn(4, 8), B: torch.randn(8, 4)}


def codes(folder: Path, plan: dict[str, Any], *, is_adapter: bool = True) -> list[tuple[str, str]]:
    with pytest.raises(Refused) as caught:
        verify(folder, plan_of(plan), adapter=is_adapter)
    return [(r.code, r.message) for r in caught.value.reasons]


def test_a_file_that_holds_what_was_planned_is_good(tmp_path: Path) -> None:
    save_file(adapter(), tmp_path / "adapter_model.safetensors")
    verify(tmp_path, plan_of(adapter()), adapter=True)


def test_p50_empty_tensors_are_noticed(tmp_path: Path) -> None:
    save_file({n: torch.empty(0) for n in adapter()}, tmp_path / "adapter_model.safetensors")
    assert ("E-TRAIN-061", "is not what was trained") in codes(tmp_path, adapter())
    assert ("E-TRAIN-062", "the adapter is empty: it changes nothing") in codes(tmp_path, adapter())


def test_p50_shares_that_were_not_gathered_are_noticed_before_the_save() -> None:
    shapes = {A: (4, 8), B: (8, 4)}
    _check_gathered(adapter(), shapes)
    with pytest.raises(
        Refused, match=r"E-TRAIN-060 layer\.lora_A\.weight: was not gathered whole\n    found    \(0,\)"
    ):
        _check_gathered({**adapter(), A: torch.empty(0)}, shapes)
    with pytest.raises(Refused, match=r"E-TRAIN-060 layer\.lora_B\.weight: was not gathered"):
        _check_gathered({A: adapter()[A]}, shapes)


def test_p50_an_adapter_whose_b_is_zero_changes_nothing_and_is_refused(tmp_path: Path) -> None:
    weights = {**adapter(), B: torch.zeros(8, 4)}
    save_file(weights, tmp_path / "adapter_model.safetensors")
    assert codes(tmp_path, weights) == [("E-TRAIN-062", "the adapter is empty: it changes nothing")]


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    save_file({B: adapter()[B]}, tmp_path / "adapter_model.safetensors")
    with pytest.raises(Refused, match=r"layer\.lora_A\.weight: is missing in the file"):
        verify(tmp_path, plan_of(adapter()), adapter=True)


def test_a_changed_value_is_noticed(tmp_path: Path) -> None:
    weights = adapter()
    changed = {**weights, A: weights[A] * 1.0001}
    save_file(changed, tmp_path / "adapter_model.safetensors")
    assert codes(tmp_path, weights)[0] == ("E-TRAIN-061", "is not what was trained")


def test_a_cut_file_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "adapter_model.safetensors"
    save_file(adapter(), path)
    os.truncate(path, path.stat().st_size - 4)
    with pytest.raises(Refused, match=r"E-TRAIN-061 .*cannot be opened again"):
        verify(tmp_path, plan_of(adapter()), adapter=True)


def test_no_file_at_all_is_noticed(tmp_path: Path) -> None:
    assert ("E-TRAIN-061", "the files together are not what was trained") in codes(
        tmp_path, adapter(), is_adapter=False
    )


def test_values_that_are_no_numbers_are_noticed(tmp_path: Path) -> None:
    weights = {"w": torch.tensor([1.0, float("nan")])}
    save_file(weights, tmp_path / "model.safetensors")
    assert codes(tmp_path, weights, is_adapter=False)[0] == ("E-TRAIN-061", "is not what was trained")


def test_a_model_may_be_saved_under_its_published_names(tmp_path: Path) -> None:
    save_file({"published.name": adapter()[A], "other": adapter()[B]}, tmp_path / "model.safetensors")
    verify(tmp_path, plan_of(adapter()), adapter=False)


def test_files_can_be_read_by_others(tmp_path: Path) -> None:
    folder = tmp_path / "final"
    (folder / "sub").mkdir(parents=True, mode=0o700)
    for name in ("a.safetensors", "sub/b.json"):
        (folder / name).write_text("x")
        os.chmod(folder / name, 0o600)
    _settle(folder)
    modes = {p.relative_to(tmp_path).as_posix(): oct(p.stat().st_mode & 0o777) for p in (folder, *folder.rglob("*"))}
    assert modes == {
        "final": "0o755",
        "final/a.safetensors": "0o644",
        "final/sub": "0o755",
        "final/sub/b.json": "0o644",
    }


@pytest.mark.parametrize(("stage", "signs"), [(2, 10), (3, 8)])
def test_every_tensor_and_file_of_an_export_is_a_sign_for_those_who_wait(
    stage: int, signs: int, tmp_path: Path
) -> None:
    """Gathered, planned, written to disk, read again, digested: two tensors in one file beside the tokenizer's. Under ZeRO-3 all ranks gather."""
    given, again = [0], [0]

    def count(counter: list[int]) -> None:
        counter[0] += 1

    def gathered(trainable: bool, moved: Callable[[], None]) -> dict[str, Any]:
        moved()
        moved()
        return adapter()

    model = SimpleNamespace(
        config=SimpleNamespace(), save_pretrained=lambda folder, state_dict: save_file(state_dict, folder / "model.safetensors")
    )  # fmt: skip
    engine: Any = SimpleNamespace(
        settings=SimpleNamespace(lora=False, zero_stage=stage), model=model, gathered=gathered,
        shapes=lambda trainable: {A: (4, 8), B: (8, 4)},
    )  # fmt: skip
    peers: Any = SimpleNamespace(
        policies=SimpleNamespace(save_timeout_s=9.0), set_timeouts=lambda seconds: None, moves=lambda: count(given),
        once=lambda name, work, bound, by, seen: work(),
    )  # fmt: skip
    watchdog: Any = SimpleNamespace(beat=lambda *_: None, rest=lambda: None, again=lambda: count(again))
    tokenizer = SimpleNamespace(save_pretrained=lambda folder: (folder / "tokenizer.json").write_text("{}"))
    made = export(engine, tokenizer, tmp_path, peers, watchdog)
    assert [f["path"] for f in made["files"]] == ["model.safetensors", "tokenizer.json"]
    assert (given[0], again[0]) == (signs, 0 if stage < 3 else 2)
