"""Names that can be stored and shown anywhere, and names that are one name elsewhere."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc.store.names import fault_of, folded, path_fault, twins


@pytest.mark.parametrize(
    "path", ["a", "a/b.py", ".env", "..a", "a..b", "日本/é", "console.py", "com", "aux1", "a b", "-x", "~", "%2e%2e"]
)
def test_ordinary_paths_are_sound(path: str) -> None:
    assert path_fault(path) == ""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("", "form"), ("/a", "form"), ("a//b", "form"), ("a/", "form"), ("./a", "form"), ("a/..", "form"), ("c:a", "form"), ("a\\b", "form"),
        ("a\tb", "characters"), ("a\u0085", "characters"), ("a\u200e", "characters"), ("a\u2066b", "characters"), ("a.", "characters"),
        ("a /b", "characters"), ("CON", "characters"), ("nul.txt", "characters"), ("x/LPT9.py", "characters"), ("\ud800", "characters"),
        ("n" * 241, "length"), ("é" * 121, "length"), ("/".join(["n" * 100] * 11), "length"),
    ],
)  # fmt: skip
def test_other_paths_have_a_fault_of_one_kind(path: str, kind: str) -> None:
    assert fault_of(path)[0] == kind
    assert path_fault(path)


def test_twins_are_found_in_files_and_folders() -> None:
    assert list(twins(["a", "A"])) == [("a", "A")]
    assert list(twins(["src/a", "SRC/b"])) == [("src", "SRC")]
    assert list(twins(["caf\u00e9", "cafe\u0301"])) == [("caf\u00e9", "cafe\u0301")]
    assert list(twins(["stra\u00dfe", "STRASSE"])) == [("stra\u00dfe", "STRASSE")]
    assert list(twins(["a", "b", "a/b/c", "ab"])) == []


@given(st.text(max_size=20))
def test_folding_again_changes_nothing(text: str) -> None:
    assert folded(folded(text)) == folded(text)
    assert folded(unicodedata.normalize("NFD", text)) == folded(unicodedata.normalize("NFC", text))
