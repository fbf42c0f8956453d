from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpc.catalog.images import check_host, parse_image
from hpc.errors import Refusal

DIGEST = "sha256:" + "ab" * 32


@pytest.mark.parametrize(
    ("text", "canonical", "host"),
    [
        ("registry.example.org/team/image:1.2", "registry.example.org/team/image:1.2", "registry.example.org"),
        ("docker://registry.example.org/team/image:1.2", "registry.example.org/team/image:1.2", "registry.example.org"),
        ("oras://localhost:5000/image", "localhost:5000/image:latest", "localhost:5000"),
        ("Registry.Example.org/image", "registry.example.org/image:latest", "registry.example.org"),
        ("debian", "docker.io/debian:latest", "docker.io"),
        ("team/image", "docker.io/team/image:latest", "docker.io"),
        (f"example.org/a@{DIGEST}", f"example.org/a@{DIGEST}", "example.org"),
        (f"example.org/a:1@{DIGEST}", f"example.org/a:1@{DIGEST}", "example.org"),
    ],
)
def test_a_reference_has_one_canonical_spelling(text: str, canonical: str, host: str) -> None:
    image = parse_image(text)
    assert (str(image), image.host) == (canonical, host)
    assert parse_image(str(image)) == image


@pytest.mark.parametrize(
    "text",
    [
        "",
        "/abs/path.sif",
        "./image.sif",
        "example.org/",
        "example.org/Upper",
        "example.org/a:",
        "example.org/a:-x",
        "example.org/a@sha256:ab",
        "example.org/a@",
        f"example.org/a@{DIGEST}@{DIGEST}",
        "library://a/b",
        "https://example.org/a",
        "example.org:port/a",
        "example.org/a b",
        "example.org/a\nb",
        "example.org/../a",
        "-example.org/a",
    ],
)
def test_what_is_no_reference_is_refused_with_the_form(text: str) -> None:
    with pytest.raises(Refusal) as caught:
        parse_image(text)
    assert (caught.value.code, caught.value.field, caught.value.found) == (
        "E-CATALOG-046",
        "spec.framework.image",
        text,
    )


@settings(max_examples=150, deadline=None)
@given(st.text(max_size=40))
def test_any_text_is_a_reference_with_one_spelling_or_a_refusal(text: str) -> None:
    with contextlib.suppress(Refusal):
        image = parse_image(text)
        assert parse_image(str(image)) == image


def test_the_host_must_be_allowed() -> None:
    check_host(parse_image("example.org/a"), ["Example.org"])
    with pytest.raises(Refusal) as caught:
        check_host(parse_image("evil.example.org/a"), ["example.org", "docker.io"])
    assert (caught.value.code, caught.value.found, caught.value.allowed) == (
        "E-CATALOG-047",
        "evil.example.org",
        "docker.io, example.org",
    )
    with pytest.raises(Refusal) as caught:
        check_host(parse_image("debian"), [])
    assert caught.value.allowed == "no registry at all"
