"""Host lists."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpc.errors import Refusal
from hpc.spec.hostlists import check_hostlist


@pytest.mark.parametrize(
    "text", ["gpu01", "node[1-4,7]", "a,b,c", "rack[1-2]n[01-16]", "n[1]", "gpu-a.site_1", "node[1-4],gpu[7]"]
)
def test_forms(text: str) -> None:
    assert check_hostlist(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a b",
        "a,,b",
        "node[1-4",
        "node1-4]",
        "node[4-1]",
        "node[]",
        "node[a-b]",
        "/etc/hosts",
        "../x",
        "*",
        "a;b",
        "a\n",
        "[1-4]",
        "node[1-[2]]",
    ],
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(Refusal) as caught:
        check_hostlist(text)
    assert caught.value.code == "E-SPEC-048"


NAME = st.from_regex(r"[a-z][a-z0-9]{0,5}", fullmatch=True)
PART = st.tuples(st.integers(0, 9), st.integers(0, 9)).map(lambda p: f"{min(p)}-{max(p)}")
HOST = st.builds(lambda name, parts: f"{name}[{','.join(parts)}]" if parts else name, NAME, st.lists(PART, max_size=3))


@settings(max_examples=100, deadline=None)
@given(st.lists(HOST, min_size=1, max_size=4))
def test_built_lists_are_accepted(hosts: list[str]) -> None:
    assert check_hostlist(",".join(hosts)) == ",".join(hosts)
