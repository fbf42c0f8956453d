"""POSIX access lists: who they let write, read from the kernel's own form."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc.site.acl import (
    ACCESS,
    DEFAULT,
    GROUP,
    GROUP_OBJ,
    MASK,
    NO_ID,
    OTHER,
    USER,
    USER_OBJ,
    Entry,
    acl_writers,
    added_writers,
    format_acl,
    parse_acl,
)

ENTRIES = st.builds(Entry, st.sampled_from([1, 2, 4, 8, 16, 32]), st.integers(0, 7), st.integers(0, NO_ID))


def acl(*named: Entry, mask: int = 7, group: int = 5) -> bytes:
    """A whole list with these named entries."""
    tail = [Entry(MASK, mask), Entry(OTHER, 5)]
    users = [e for e in named if e.tag == USER]
    groups = [e for e in named if e.tag == GROUP]
    return format_acl([Entry(USER_OBJ, 7), *users, Entry(GROUP_OBJ, group), *groups, *tail])


@given(st.lists(ENTRIES, max_size=8))
def test_parse_is_the_inverse_of_format(entries: list[Entry]) -> None:
    assert parse_acl(format_acl(entries)) == entries


@pytest.mark.parametrize("data", [b"", b"\x01\0\0\0", b"\x02\0\0\0\1", b"\x02\0\0"])
def test_another_form_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="version 2"):
        parse_acl(data)


def test_named_users_and_groups_count_after_the_mask() -> None:
    entries = parse_acl(acl(Entry(USER, 7, 1001), Entry(USER, 5, 1002), Entry(GROUP, 6, 200)))
    assert [str(w) for w in added_writers(entries, default=False)] == ["user 1001 (now)", "group 200 (now)"]
    masked = parse_acl(acl(Entry(USER, 7, 1001), mask=5))
    assert added_writers(masked, default=False) == []


def test_a_default_list_counts_its_group_and_everybody() -> None:
    entries = [Entry(USER_OBJ, 7), Entry(GROUP_OBJ, 7), Entry(OTHER, 2)]
    assert [w.kind for w in added_writers(entries, default=True)] == ["owning group", "everybody"]
    assert added_writers(entries, default=False) == []


def test_the_kernel_keeps_what_we_write(tmp_path: Path) -> None:
    os.chmod(tmp_path, 0o755)
    assert acl_writers(tmp_path) == []
    os.setxattr(tmp_path, ACCESS, acl(Entry(USER, 7, 54321)))
    os.setxattr(tmp_path, DEFAULT, acl(Entry(GROUP, 7, 54322)))
    assert [str(w) for w in acl_writers(tmp_path)] == ["user 54321 (now)", "group 54322 (in new files)"]
    fd = os.open(tmp_path, os.O_RDONLY)
    try:
        assert len(acl_writers(fd)) == 2
    finally:
        os.close(fd)


def test_read_only_entries_add_no_writer(tmp_path: Path) -> None:
    os.setxattr(tmp_path, ACCESS, acl(Entry(USER, 5, 54321)))
    assert acl_writers(tmp_path) == []
