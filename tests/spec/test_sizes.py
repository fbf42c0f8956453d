"""Memory sizes: whole numbers with K, M, G, T; MiB without a letter."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpc.errors import Refusal
from hpc.spec.sizes import MAX_MIB, format_memory, parse_memory


@pytest.mark.parametrize(
    ("text", "mib", "canonical"),
    [
        ("4096", 4096, "4G"),
        ("4096M", 4096, "4G"),
        ("16G", 16_384, "16G"),
        ("16g", 16_384, "16G"),
        ("1T", 1_048_576, "1T"),
        ("1500M", 1500, "1500M"),
        ("1K", 1, "1M"),
        ("2048K", 2, "2M"),
        ("0", 0, "0"),
    ],
)
def test_sizes(text: str, mib: int, canonical: str) -> None:
    assert parse_memory(text) == mib
    assert format_memory(mib) == canonical


@pytest.mark.parametrize("text", ["", "16GB", "1.5G", "-1", " 4G", "4G\n", "16 G", "2048T", "G", "1P"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(Refusal) as caught:
        parse_memory(text)
    assert caught.value.code == "E-SPEC-041"


@settings(max_examples=200, deadline=None)
@given(st.integers(0, MAX_MIB))
def test_what_is_written_reads_back(mib: int) -> None:
    assert parse_memory(format_memory(mib)) == mib
