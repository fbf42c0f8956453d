"""The Merkle tree of RFC 6962 (section 2.1) over SHA-256: roots, inclusion and consistency proofs, and their checks. Pure, standard library only.

A tree is known by `node(level, index)`: the hash of the full subtree over leaves `[index << level, (index + 1) << level)`. Proofs are lists of
32-byte hashes from the bottom to the top. Checking a proof needs no tree.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

HASH_BYTES = 32
EMPTY_ROOT = hashlib.sha256(b"").digest()
Node = Callable[[int, int], bytes]
"""(level, index) -> hash of the full subtree there."""


def leaf_hash(entry: bytes) -> bytes:
    return hashlib.sha256(b"\x00" + entry).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(b"\x01" + left + right).digest()


def full_root(hashes: Sequence[bytes]) -> bytes:
    """Root of a full subtree whose 2^k nodes of one level are given."""
    row = list(hashes)
    while len(row) > 1:
        row = [node_hash(row[i], row[i + 1]) for i in range(0, len(row), 2)]
    return row[0]


def _split(count: int) -> int:
    """The largest power of two below `count` (at least 2)."""
    return 1 << ((count - 1).bit_length() - 1)


def range_root(node: Node, start: int, end: int) -> bytes:
    """MTH(D[start:end]). `start` must be a multiple of the smallest power of two that is not below the length."""
    count = end - start
    if count & (count - 1) == 0:
        level = count.bit_length() - 1
        return node(level, start >> level)
    half = _split(count)
    return node_hash(range_root(node, start, start + half), range_root(node, start + half, end))


def root(node: Node, size: int) -> bytes:
    """The tree head over the first `size` leaves."""
    return range_root(node, 0, size) if size else EMPTY_ROOT


def inclusion_proof(node: Node, index: int, size: int) -> list[bytes]:
    """PATH(index, D[0:size]). Raises ValueError unless 0 <= index < size."""
    if not 0 <= index < size:
        raise ValueError(f"there is no leaf {index} in a tree of {size}")
    proof: list[bytes] = []
    start, end = 0, size
    while end - start > 1:
        middle = start + _split(end - start)
        if index < middle:
            proof.append(range_root(node, middle, end))
            end = middle
        else:
            proof.append(range_root(node, start, middle))
            start = middle
    return proof[::-1]


def consistency_proof(node: Node, old: int, new: int) -> list[bytes]:
    """PROOF(old, D[0:new]). Raises ValueError unless 0 <= old <= new; empty for an empty or an equal tree."""
    if not 0 <= old <= new:
        raise ValueError(f"a tree of {new} does not extend one of {old}")
    if old in (0, new):
        return []
    proof: list[bytes] = []
    start, end, whole = 0, new, True
    while end != old:
        middle = start + _split(end - start)
        if old <= middle:
            proof.append(range_root(node, middle, end))
            end = middle
        else:
            proof.append(range_root(node, start, middle))
            start, whole = middle, False
    if not whole:
        proof.append(range_root(node, start, end))
    return proof[::-1]


def root_of_inclusion(leaf: bytes, index: int, size: int, proof: Sequence[bytes]) -> bytes | None:
    """The tree head that the proof leads to, or None where a proof for this place cannot have that length (RFC 9162, 2.1.3.2)."""
    if not 0 <= index < size:
        return None
    here, last, value = index, size - 1, leaf
    for step in proof:
        if last == 0:
            return None
        if here & 1 or here == last:
            value = node_hash(step, value)
            while here and not here & 1:
                here, last = here >> 1, last >> 1
        else:
            value = node_hash(value, step)
        here, last = here >> 1, last >> 1
    return value if last == 0 else None


def is_consistent(old: int, old_root: bytes, new: int, new_root: bytes, proof: Sequence[bytes]) -> bool:
    """True if the proof shows that the tree of `new` leaves begins with the tree of `old` leaves (RFC 9162, 2.1.4.2)."""
    if old > new or old < 0:
        return False
    if old == new:
        return not proof and old_root == new_root
    if old == 0:
        return not proof and old_root == EMPTY_ROOT
    steps = [old_root, *proof] if old & (old - 1) == 0 else list(proof)
    if not steps:
        return False
    here, last = old - 1, new - 1
    while here & 1:
        here, last = here >> 1, last >> 1
    before = after = steps[0]
    for step in steps[1:]:
        if last == 0:
            return False
        if here & 1 or here == last:
            before, after = node_hash(step, before), node_hash(step, after)
            while here and not here & 1:
                here, last = here >> 1, last >> 1
        else:
            after = node_hash(after, step)
        here, last = here >> 1, last >> 1
    return last == 0 and before == old_root and after == new_root
