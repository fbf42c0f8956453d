"""The tree of RFC 6962: the vectors that other implementations use, and every small tree against a naive one."""

from __future__ import annotations

import pytest
from evidencelab import naive_root
from hypothesis import given, settings
from hypothesis import strategies as st

from hpc.evidence import merkle

# Inputs and roots of the Certificate Transparency reference tests, for trees of 1 to 8 leaves.
LEAVES = [
    bytes.fromhex(h)
    for h in ("", "00", "10", "2021", "3031", "40414243", "5051525354555657", "606162636465666768696a6b6c6d6e6f")
]
ROOTS = [
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
]


def node_of(entries: list[bytes]) -> merkle.Node:
    return lambda level, index: naive_root(entries[index << level : (index + 1) << level])


@pytest.mark.parametrize("size", range(1, 9))
def test_the_vectors_of_certificate_transparency(size: int) -> None:
    assert merkle.root(node_of(LEAVES), size).hex() == ROOTS[size - 1]


def test_an_empty_tree_and_its_hash() -> None:
    assert merkle.root(node_of([]), 0).hex() == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


def test_the_audit_path_of_the_rfcs_example() -> None:
    # RFC 6962, 2.1.3: with seven leaves the path of d3 is [c, g, l], and that of d6 is [i, k].
    node = node_of(LEAVES[:7])
    assert merkle.inclusion_proof(node, 3, 7) == [node(0, 2), node(1, 0), merkle.range_root(node, 4, 7)]
    assert merkle.inclusion_proof(node, 6, 7) == [node(1, 2), node(2, 0)]


def test_the_consistency_proofs_of_the_rfcs_example() -> None:
    # RFC 6962, 2.1.3: PROOF(3, D[7]) = [c, d, g, l], PROOF(4, D[7]) = [l], PROOF(6, D[7]) = [i, j, k].
    node = node_of(LEAVES[:7])
    right = merkle.range_root(node, 4, 7)
    assert merkle.consistency_proof(node, 3, 7) == [node(0, 2), node(0, 3), node(1, 0), right]
    assert merkle.consistency_proof(node, 4, 7) == [right]
    assert merkle.consistency_proof(node, 6, 7) == [node(1, 2), node(0, 6), node(2, 0)]


def test_every_leaf_of_every_small_tree_is_proved_and_no_other() -> None:
    entries = [bytes([n]) for n in range(20)]
    node = node_of(entries)
    for size in range(1, 21):
        head = naive_root(entries[:size])
        for index in range(size):
            proof = merkle.inclusion_proof(node, index, size)
            reached = [
                merkle.root_of_inclusion(merkle.leaf_hash(entries[i]), index, size, proof) == head for i in range(20)
            ]
            assert reached == [i == index for i in range(20)]
            assert merkle.root_of_inclusion(merkle.leaf_hash(entries[index]), index, size, [*proof, b"x" * 32]) is None
            elsewhere = (index + 1) % size
            if size > 1:
                assert merkle.root_of_inclusion(merkle.leaf_hash(entries[index]), elsewhere, size, proof) != head


def test_every_small_tree_extends_every_smaller_one() -> None:
    entries = [bytes([n]) for n in range(20)]
    node = node_of(entries)
    for new in range(21):
        for old in range(new + 1):
            proof = merkle.consistency_proof(node, old, new)
            before, after = naive_root(entries[:old]), naive_root(entries[:new])
            assert merkle.is_consistent(old, before, new, after, proof)
            assert not merkle.is_consistent(old, b"x" * 32, new, after, proof)
            assert not merkle.is_consistent(old, before, new, after, [*proof, b"x" * 32])
            if 0 < old < new:
                assert not merkle.is_consistent(old, before, new, b"x" * 32, proof)
                assert not merkle.is_consistent(old, before, new, after, proof[:-1])


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_rewritten_history_has_no_consistency_proof(data: st.DataObject) -> None:
    entries = data.draw(st.lists(st.binary(max_size=3), min_size=2, max_size=40))
    old = data.draw(st.integers(1, len(entries)))
    changed = data.draw(st.integers(0, old - 1))
    forged = [*entries[:changed], entries[changed] + b"!", *entries[changed + 1 :]]
    proof = merkle.consistency_proof(node_of(forged), old, len(forged))
    assert not merkle.is_consistent(old, naive_root(entries[:old]), len(forged), naive_root(forged), proof)


@pytest.mark.parametrize(("index", "size"), [(0, 0), (1, 1), (-1, 3), (7, 7)])
def test_there_is_no_proof_beyond_the_tree(index: int, size: int) -> None:
    with pytest.raises(ValueError, match="there is no leaf"):
        merkle.inclusion_proof(node_of(LEAVES), index, size)
    assert merkle.root_of_inclusion(merkle.leaf_hash(b""), index, size, []) is None


def test_a_smaller_tree_extends_nothing() -> None:
    with pytest.raises(ValueError, match="does not extend"):
        merkle.consistency_proof(node_of(LEAVES), 5, 4)
    assert not merkle.is_consistent(5, b"a" * 32, 4, b"b" * 32, [])
