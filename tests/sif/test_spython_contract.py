"""What we use of spython, pinned: an upgrade that changes it shows here."""

from __future__ import annotations

from typing import Any

import pytest
from spython.main.inspect import parse_labels
from spython.utils import split_uri


@pytest.mark.parametrize(
    ("labels", "expected"),
    [({"a": "1"}, {"a": "1"}), ('{"a": "1"}', {"a": "1"}), (None, {}), ("plain text", "plain text")],
)
def test_labels_come_as_a_mapping_whatever_the_image_format_gave(labels: Any, expected: Any) -> None:
    assert parse_labels({"attributes": {"labels": labels}})["attributes"]["labels"] == expected


def test_other_attributes_are_left_alone() -> None:
    given = {"attributes": {"labels": {}, "runscript": "exec true"}}
    assert parse_labels(given)["attributes"]["runscript"] == "exec true"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("docker://debian:trixie", ("docker", "debian:trixie")),
        ("oras://example.org/a/b@sha256:00/", ("oras", "example.org/a/b@sha256:00")),
        ("example.org:5000/a", ("", "example.org:5000/a")),
    ],
)
def test_an_agent_is_split_from_its_image(text: str, expected: tuple[str, str]) -> None:
    assert split_uri(text) == expected
