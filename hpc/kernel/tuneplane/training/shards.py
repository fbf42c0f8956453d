"""A rank's part of a checkpoint: what DeepSpeed would write, kept until it is written, hashed while it is written.

A save has two halves. At the step edge DeepSpeed hands over its state (`Shards.take`), which is copied to CPU memory (`Copies.of`) or left where
it is. The other half, `Part.write`, needs no other rank and no GPU: with a copy it runs in another thread while training goes on.
"""

from __future__ import annotations

import hashlib
import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tuneplane.record.digest import PREFIX, FileEntry
from tuneplane.record.files import fsync_dir
from tuneplane.training.memory import resident

_MASTERS = ("fp32_flat_groups", "single_partition_of_fp32_groups")
"""Where DeepSpeed's optimisers keep the weights in fp32: parameters, although they are filed under the optimiser."""


class Shards:
    """DeepSpeed's way to files. Saving only notes what is to be written; `take` hands it over."""

    def __init__(self, frozen: frozenset[str]) -> None:
        self.name, self._frozen = "durable", frozen
        self._noted: list[tuple[str, Any]] = []

    def save(self, state_dict: Any, path: str) -> None:
        if self._frozen and isinstance(module := state_dict.get("module"), dict):
            # DeepSpeed leaves frozen weights out by their first name; tied ones (lm_head) would come back by the second.
            state_dict = state_dict | {"module": {n: v for n, v in module.items() if n not in self._frozen}}
        self._noted.append((path, state_dict))

    def take(self) -> list[tuple[str, Any]]:
        """(path, state) of each file since the last call."""
        noted, self._noted = self._noted, []
        return sorted(noted, key=lambda item: item[0])

    def load(self, path: str, map_location: Any = None) -> Any:
        import torch

        return torch.load(path, map_location=map_location, weights_only=False)  # its digest was checked

    def makedirs(self, path: str, exist_ok: bool = False) -> None: ...

    def create(self, info: Any) -> None: ...

    def commit(self, info: Any) -> bool:
        return True

    def cleanup(self) -> None: ...

    def is_data_parallel_writer(self, dp_rank: int) -> bool:
        return bool(dp_rank == 0)

    def is_decoupled(self) -> bool:
        return False

    def set_commit_info(self, info: Any) -> None: ...

    def get_commit_info(self) -> None:
        return None

    def preserves_storage_sharing(self) -> bool:
        return True


def free_bytes(meminfo: str = "/proc/meminfo") -> int:
    """Memory of this node that nobody uses now, within the job's own limit where the launcher knows one."""
    with open(meminfo, encoding="ascii") as stream:
        free = next(int(line.split()[1]) << 10 for line in stream if line.startswith("MemAvailable:"))
    limit, ranks = os.environ.get("TUNEPLANE_MEMORY_MB", ""), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return min(free, (int(limit) << 20) - ranks * resident()[0]) if limit.isdigit() else free


class Copies:
    """CPU memory for one copy of a rank's state; pinned where the state is on a GPU.

    It is kept between saves, since fresh pages would cost as much as the copy: the price is as many bytes of host memory as the rank saves.
    """

    def __init__(self, pinned: bool) -> None:
        self._pinned = pinned
        self._buffers: dict[int, list[Any]] = defaultdict(list)

    @property
    def held(self) -> bool:
        """There was a copy before; its memory is there."""
        return bool(self._buffers)

    @property
    def bytes(self) -> int:
        """Memory that is held."""
        return sum(self._taken(size) * len(buffers) for size, buffers in self._buffers.items())

    def cost(self, state: Any) -> int:
        """Bytes of memory that a first copy of `state` takes."""
        return sum(self._taken(size) for size in sizes_of(state))

    def _taken(self, size: int) -> int:
        """Of pinned memory torch takes the next power of two."""
        return 1 << (size - 1).bit_length() if self._pinned and size else size

    def of(self, state: Any) -> Any:
        """`state` with its tensors on the CPU; tensors that share memory still do. What an earlier call returned is overwritten."""
        import torch

        known: dict[int, Any] = {}
        used: dict[int, int] = defaultdict(int)

        def copied(tensor: Any) -> Any:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in known:
                known[storage.data_ptr()] = self._buffer(storage, used)
            out = torch.empty(0, dtype=tensor.dtype)
            return out.set_(
                known[storage.data_ptr()].untyped_storage(), tensor.storage_offset(), tensor.size(), tensor.stride()
            )

        out = mapped(state, copied)
        if self._pinned:
            torch.cuda.synchronize()
        return out

    def _buffer(self, storage: Any, used: dict[int, int]) -> Any:
        import torch

        size = storage.nbytes()
        buffers = self._buffers[size]
        if used[size] == len(buffers):
            buffers.append(torch.empty(size, dtype=torch.uint8, pin_memory=self._pinned))
        buffer = buffers[used[size]]
        used[size] += 1
        if size:
            source = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage, 0, (size,), (1,))
            buffer.copy_(source, non_blocking=self._pinned)
        return buffer


def mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """A copy of nested dicts, lists and tuples with `change` applied to each tensor; other values stay the same objects."""
    import torch

    if isinstance(value, torch.Tensor):
        return change(value.detach())
    if isinstance(value, dict):
        out: Any = type(value)()
        out.update((key, mapped(item, change)) for key, item in value.items())
        if hasattr(value, "_metadata"):
            out._metadata = value._metadata  # noqa: SLF001 - torch keeps the versions of a state dict there
        return out
    if type(value) in (list, tuple):
        return type(value)(mapped(item, change) for item in value)
    return value


def tensors(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Name and tensor of everything in nested dicts and lists, in an order that depends on the names alone."""
    import torch

    if isinstance(value, torch.Tensor):
        yield name, value
    elif isinstance(value, dict):
        for key in sorted(value, key=str):
            yield from tensors(value[key], f"{name}/{key}")
    elif isinstance(value, (list, tuple)):
        for place, item in enumerate(value):
            yield from tensors(item, f"{name}/{place}")


def sizes_of(items: list[tuple[str, Any]]) -> list[int]:
    """Bytes of each piece of memory under the tensors, shared memory once."""
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for _, t in tensors(items)}
    return list(storages.values())


def room(told: Sequence[tuple[int, int]], node: int, free: int) -> bool:
    """Whether copies of so many bytes, `told` as (node, bytes) of each rank, leave half of the `free` memory of `node` to others."""
    return 2 * sum(size for where, size in told if where == node) <= free


def contents(items: list[tuple[str, Any]]) -> dict[str, str]:
    """Digests of what a rank's part holds, apart from how it is filed: `parameters` (fp32 copies among them) and `optimiser`.

    They are there to notice accidents, and cost one look at the memory: SHA-256 of names, types, shapes and the sums of every 512 bytes, as integers.
    """
    shas = {"parameters": hashlib.sha256(), "optimiser": hashlib.sha256()}
    for _, state in items:
        inner = state.get("optimizer_state_dict") or {}
        _feed(shas["parameters"], [state.get("module"), {k: inner.get(k) for k in _MASTERS}])
        _feed(shas["optimiser"], [state.get("optimizer"), {k: v for k, v in inner.items() if k not in _MASTERS}])
    return {name: PREFIX + sha.hexdigest() for name, sha in shas.items()}


def _feed(sha: Any, value: Any) -> None:
    for name, tensor in tensors(value):
        sha.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        if tensor.numel():
            for piece in _sums(tensor):
                sha.update(piece.cpu().numpy())


def _sums(tensor: Any) -> Iterator[Any]:
    """The sums of every 512 bytes as 64-bit integers, where the tensor is; then the bytes that are left."""
    import torch

    data = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    whole = data.numel() // 512 * 512 if data.data_ptr() % 8 == 0 else 0
    if whole:
        yield data[:whole].view(torch.int64).view(-1, 64).sum(1)
    if not whole or whole < data.numel():
        yield data[whole:]


@dataclass(frozen=True)
class Part:
    """One rank's part of a checkpoint in `folder`: the files' paths and contents. `copied`: training may go on while it is written."""

    folder: Path
    items: list[tuple[str, Any]]
    copied: bool

    def contents(self) -> dict[str, str]:
        return contents(self.items)

    def write(self, moved: Callable[[], None] = lambda: None) -> list[FileEntry]:
        """Write and sync the files; returns them with their digests. Raises OSError. `moved` is called for each piece that is written."""
        out = []
        for path, state in self.items:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            size, sha256 = _write(path, state, moved)
            out.append(FileEntry(os.path.relpath(path, self.folder), False, size, sha256))
        for folder in {os.path.dirname(path) for path, _ in self.items}:
            fsync_dir(folder)
        return out


def _write(path: str, state: Any, moved: Callable[[], None]) -> tuple[int, str]:
    import torch

    with open(path, "wb") as stream:
        hashing: Any = _Hashing(stream, moved)
        torch.serialization.set_crc32_options(False)  # the SHA-256 says more
        try:
            torch.save(state, hashing)
        except RuntimeError:
            if hashing.fault is not None:  # torch reports its own confusion, not the disk's error
                raise hashing.fault from None
            raise
        stream.flush()
        os.fchmod(stream.fileno(), 0o644)
        os.fsync(stream.fileno())
    return hashing.size, PREFIX + hashing.sha.hexdigest()


class _Hashing:
    """A write-only stream that knows the SHA-256 of what went through it."""

    def __init__(self, stream: Any, moved: Callable[[], None]) -> None:
        self._stream, self._moved, self.sha, self.size = stream, moved, hashlib.sha256(), 0
        self.fault: OSError | None = None

    def write(self, data: Any) -> int:
        self.sha.update(data)
        self.size += len(data)
        try:
            self._stream.write(data)
        except OSError as exc:
            self.fault = exc
            raise
        self._moved()
        return len(data)

    def flush(self) -> None:
        self._stream.flush()
