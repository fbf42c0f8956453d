"""Host lists without scontrol (P58)."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tuneplane.contract.hosts import MAX_HOSTS, HostListError, compress, expand


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("", []),
        ("n1", ["n1"]),
        ("n[1-3,07-09],login", ["n1", "n2", "n3", "n07", "n08", "n09", "login"]),
        ("n[8,010-12]", ["n8", "n010", "n011", "n012"]),  # what scontrol show hostnames prints for it
        ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]),
        ("n[08-11]-ib", ["n08-ib", "n09-ib", "n10-ib", "n11-ib"]),
        ("gpu-a.example,gpu-b.example", ["gpu-a.example", "gpu-b.example"]),
        ("n[9-11]", ["n9", "n10", "n11"]),
        ("n[3],n[3]", ["n3", "n3"]),
    ],
)
def test_p58_expands_as_scontrol_does(text: str, hosts: list[str]) -> None:
    assert expand(text) == hosts


@pytest.mark.parametrize(
    "text",
    [
        "n[1-3",
        "n1-3]",
        "n[[1]]",
        "n[3-1]",
        "n[a-b]",
        "n[]",
        "n[1,]",
        ",",
        "n1,,n2",
        "n 1",
        "n1\n",
        "n[1-999999999]",
        "n[-1]",
        "ñ1",
        "n[1--3]",
    ],
)
def test_refuses_what_is_no_host_list(text: str) -> None:
    with pytest.raises(HostListError):
        expand(text)


def test_a_product_of_brackets_cannot_eat_the_memory() -> None:
    with pytest.raises(HostListError, match=str(MAX_HOSTS)):
        expand("a[1-9999][1-9999][1-9999][1-9999]")
    with pytest.raises(HostListError, match=str(MAX_HOSTS)):
        expand(",".join(["n[1-60000]"] * 3))


@pytest.mark.parametrize(
    ("hosts", "text"),
    [
        (["n1", "n2", "n3", "n5"], "n[1-3,5]"),
        (["n08", "n09", "n10"], "n[08-10]"),
        (["n9", "n10", "n11"], "n[9-11]"),
        (["n9", "n010"], "n[9,010]"),
        (["n1"], "n1"),
        (["login", "n2", "n1"], "login,n[2,1]"),
        ([], ""),
    ],
)
def test_compresses(hosts: list[str], text: str) -> None:
    assert compress(hosts) == text


def test_compress_refuses_what_is_no_host_name() -> None:
    with pytest.raises(HostListError):
        compress(["n[1]"])


names = st.from_regex(r"\A[a-z][a-z0-9.-]{0,5}[0-9]{0,4}\Z")


@settings(max_examples=200, deadline=None)
@given(st.lists(names, max_size=30))
def test_expand_gives_back_what_compress_took(hosts: list[str]) -> None:
    assert expand(compress(hosts)) == hosts


@settings(max_examples=100, deadline=None)
@given(st.text(alphabet="n19[]-,. ", max_size=16))
def test_any_text_is_hosts_or_a_refusal(text: str) -> None:
    try:
        hosts = expand(text)
    except HostListError:
        return
    assert expand(compress(hosts)) == hosts
