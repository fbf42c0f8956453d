"""A rank's part of a checkpoint before it is a checkpoint: copies, digests of contents, files; no DeepSpeed."""

from __future__ import annotations

import threading
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tuneplane.record.digest import digest_file
from tuneplane.training.engine import Engine, settle_states
from tuneplane.training.shards import Copies, Part, Shards, contents, free_bytes, room, sizes_of


def state() -> dict[str, Any]:
    """Two weights that are views of one buffer, a tied name, an optimiser with a step, and things that are no tensors."""
    flat = torch.arange(10, dtype=torch.float32)
    module = OrderedDict(a=flat[:6].view(2, 3), b=flat[6:], tied=flat[:6].view(2, 3))
    module._metadata = {"": {"version": 1}}  # type: ignore[attr-defined]
    moments = {0: {"exp_avg": torch.ones(10), "step": torch.tensor(7.0)}}
    inner = {"base_optimizer_state": {"state": moments, "param_groups": [{"lr": 0.1}]}, "fp32_flat_groups": [flat]}
    return {"module": module, "optimizer": None, "optimizer_state_dict": inner, "global_steps": 7}


def items() -> list[tuple[str, Any]]:
    return [("x/model.pt", state())]


def test_a_copy_holds_what_was_taken_whatever_training_does_to_the_original() -> None:
    taken = items()
    before = contents(taken)
    copy = Copies(pinned=False).of(taken)
    assert contents(copy) == before
    for tensor in (
        taken[0][1]["module"]["a"],
        taken[0][1]["optimizer_state_dict"]["base_optimizer_state"]["state"][0]["exp_avg"],
    ):
        tensor.add_(1)
    assert contents(copy) == before
    assert contents(taken) != before


def test_tensors_that_share_memory_share_it_in_the_copy_and_in_the_file(tmp_path: Path) -> None:
    taken = items()
    copy = Copies(pinned=False).of(taken)
    module = copy[0][1]["module"]
    assert module["a"].data_ptr() == module["tied"].data_ptr()
    assert module["a"].untyped_storage().data_ptr() == module["b"].untyped_storage().data_ptr()
    assert module._metadata == {"": {"version": 1}}
    assert sorted(sizes_of(copy)) == sorted(sizes_of(taken)) == [4, 40, 40]
    (file,) = Part(tmp_path, [(str(tmp_path / "x" / "model.pt"), copy[0][1])], True).write()
    assert (file.path, file.size, file.sha256) == (
        "x/model.pt",
        (tmp_path / "x" / "model.pt").stat().st_size,
        digest_file(tmp_path / "x" / "model.pt"),
    )
    loaded = Shards(frozenset()).load(str(tmp_path / "x" / "model.pt"))
    assert contents([("", loaded)]) == contents(taken)


def test_the_memory_of_a_copy_is_used_again_by_the_next_one() -> None:
    copies, taken = Copies(pinned=False), items()
    first = copies.of(taken)
    held = copies.bytes
    taken[0][1]["module"]["a"].add_(1)
    second = copies.of(taken)
    assert (copies.bytes, sum(sizes_of(second))) == (held, held)
    assert first[0][1]["module"]["a"].data_ptr() == second[0][1]["module"]["a"].data_ptr()


def test_copies_are_made_where_half_of_the_free_memory_holds_those_of_the_node_s_ranks() -> None:
    told = [(0, 30), (0, 10), (1, 10), (1, 10)]
    assert [room(told, node, free) for node, free in [(0, 80), (0, 79), (1, 40), (1, 39)]] == [True, False, True, False]


@pytest.mark.parametrize(("pinned", "cost"), [(False, 40 + 40 + 4), (True, 64 + 64 + 4)])
def test_pinned_memory_is_counted_as_torch_takes_it(pinned: bool, cost: int) -> None:
    assert Copies(pinned).cost(items()) == cost


@pytest.mark.parametrize(("free", "copies"), [({0: 1000, 1: 1000}, True), ({0: 1000, 1: 100}, False)])
def test_all_ranks_copy_or_none_of_them(free: dict[int, int], copies: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    here, met, values = threading.local(), threading.Barrier(2, timeout=30), dict[int, Any]()

    def everyone(value: Any) -> list[Any]:
        values[here.rank] = value
        met.wait()
        out = [values[rank] for rank in sorted(values)]
        met.wait()
        return out

    def save(rank: int) -> bool:
        here.rank = rank
        engine = object.__new__(Engine)
        engine.peers = SimpleNamespace(  # type: ignore[assignment]
            place=SimpleNamespace(node_rank=rank), gather=everyone, total=lambda v: [sum(x[0] for x in everyone(v))]
        )
        engine._copies = Copies(pinned=False)
        engine._state = lambda folder: items()  # type: ignore[method-assign]
        return engine.save(Path("x"), copy=True).copied

    monkeypatch.setattr("tuneplane.training.engine.free_bytes", lambda: free[here.rank])
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(save, (0, 1))) == [copies, copies]


def test_states_of_a_universal_checkpoint_are_put_on_their_parameter_s_device() -> None:
    """AdamW's fused form takes no step counter on the CPU beside a parameter on a GPU; `meta` stands for that one here."""
    here, there, step = torch.zeros(2), torch.zeros(2, device="meta"), torch.tensor(7, dtype=torch.int64)
    states: dict[Any, dict[str, Any]] = {
        p: {"step": step, "exp_avg": torch.ones(2), "more": None} for p in (here, there)
    }
    settle_states(states)
    for param, state in states.items():
        assert {value.device for value in state.values() if value is not None} == {param.device}
        assert (state["step"].dtype, state["exp_avg"].dtype) == (torch.float32, torch.float32)
    states[here]["step"] += 1
    assert (float(states[here]["step"]), float(step)) == (8.0, 7.0)


def test_free_memory_is_what_the_job_s_limit_leaves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:       9000 kB\nMemAvailable:   4000000 kB\n")
    monkeypatch.delenv("TUNEPLANE_MEMORY_MB", raising=False)
    assert free_bytes(str(meminfo)) == 4_000_000 << 10
    monkeypatch.setenv("TUNEPLANE_MEMORY_MB", "1000")
    assert free_bytes(str(meminfo)) < 1000 << 20


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (lambda s: s["module"]["b"].add_(1e-6), "parameters"),
        (lambda s: s["optimizer_state_dict"]["fp32_flat_groups"][0].mul_(1.5), "parameters"),
        (lambda s: s["optimizer_state_dict"]["base_optimizer_state"]["state"][0]["step"].add_(1), "optimiser"),
        (lambda s: s["optimizer_state_dict"]["base_optimizer_state"]["state"][0].update(exp_avg=torch.ones(2, 5)), "optimiser"),
    ],
    ids=["weight", "fp32-copy", "step", "shape"],
)  # fmt: skip
def test_contents_tell_parameters_from_the_optimiser_and_notice_one_value(change: Any, kind: str) -> None:
    one, other = items(), items()
    change(other[0][1])
    then, now = contents(one), contents(other)
    assert then[kind] != now[kind]


def test_frozen_weights_stay_out_by_every_name() -> None:
    shards = Shards(frozenset({"tied"}))
    shards.save(state(), "x/model.pt")
    ((_, kept),) = shards.take()
    assert list(kept["module"]) == ["a", "b"]
    assert shards.take() == []
