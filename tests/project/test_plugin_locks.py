"""plugins.lock.json as it is written: sorted, one version a plugin, gone when it is empty."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hpc.errors import Refusal
from hpc.project.plugins import read_plugins_lock, with_plugin, without_plugin, write_plugins_lock

A = {"id": "alice/x", "version": "1.0", "digest": "sha256:" + "a" * 64}
B = {"id": "bob/y", "version": "2", "digest": "sha256:" + "b" * 64}


def test_the_written_lock_is_sorted_and_names_its_api_version(tmp_path: Path) -> None:
    write_plugins_lock(tmp_path, [B, A])
    text = (tmp_path / "plugins.lock.json").read_text("utf-8")
    assert json.loads(text) == {"apiVersion": "tuneplane/plugins-lock/v1", "plugins": [A, B]}
    assert text.endswith("}\n")
    assert text.index("alice/x") < text.index("bob/y")
    assert read_plugins_lock(tmp_path) == [A, B]


def test_the_form_of_the_page_without_api_version_is_read(tmp_path: Path) -> None:
    (tmp_path / "plugins.lock.json").write_text(json.dumps({"plugins": [B, A]}), "utf-8")
    assert read_plugins_lock(tmp_path) == [A, B]


def test_an_empty_lock_is_no_file(tmp_path: Path) -> None:
    write_plugins_lock(tmp_path, [A])
    write_plugins_lock(tmp_path, [])
    assert list(tmp_path.iterdir()) == []
    write_plugins_lock(tmp_path, [])
    assert read_plugins_lock(tmp_path) == []


def test_another_version_of_a_plugin_takes_its_place() -> None:
    newer = A | {"version": "1.1"}
    assert with_plugin([A, B], newer) == [B, newer]


def test_removing_what_is_not_locked_names_what_is() -> None:
    assert without_plugin([A, B], "bob/y") == [A]
    with pytest.raises(Refusal) as refused:
        without_plugin([A], "bob/y")
    assert (refused.value.code, refused.value.found, refused.value.allowed) == ("E-INSTALL-006", "bob/y", "alice/x")


def test_a_lock_that_cannot_be_written_is_a_refusal_and_the_old_one_stands(tmp_path: Path) -> None:
    write_plugins_lock(tmp_path, [A])
    (tmp_path / "gone").mkdir()
    with pytest.raises(Refusal) as refused:
        write_plugins_lock(tmp_path / "gone" / "further", [B])
    assert refused.value.code == "E-PROJECT-042"
    assert read_plugins_lock(tmp_path) == [A]
