"""Which plugins a job has, and that they are, to the byte, what was locked."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tuneplane.plugins import locked
from tuneplane.plugins.admit import admit_plugins
from tuneplane.plugins.fault import PluginFault
from tuneplane.plugins.locked import check_collisions, check_unowned, import_roots, python_path, read_locked, verify
from tuneplane.record.digest import directory_digest_v1


def fault(call: Callable[[], Any]) -> PluginFault:
    with pytest.raises(PluginFault) as caught:
        call()
    return caught.value


def test_plugins_come_in_the_specs_order_with_their_facts(work: Any) -> None:
    work.add("bob/zeta@2.0", {"zeta_mod.py": ""}, entrypoint="zeta_mod:go")
    work.add("alice/alpha@1.2.0", {"alpha_mod.py": ""}, entrypoint="alpha_mod:go")
    found = read_locked(work.lock())
    assert [p.label for p in found] == ["bob/zeta@2.0", "alice/alpha@1.2.0"]
    assert found[1].folder == work.root / "tuneplane_plugins/alpha"
    assert found[1].manifest["entrypoint"] == "alpha_mod:go"
    for plugin in found:
        verify(plugin)


def test_a_work_folder_made_by_hand_is_read_from_plugin_yaml(work: Any) -> None:
    work.add("alice/alpha@1.2.0", {"alpha_mod.py": ""}, entrypoint="alpha_mod:go")
    (found,) = read_locked(work.lock(record=False))
    assert found.manifest["entrypoint"] == "alpha_mod:go"
    verify(found)


def test_without_yaml_and_without_the_record_it_is_refused(work: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    work.add("alice/alpha@1.2.0", {"alpha_mod.py": ""}, entrypoint="alpha_mod:go")
    root = work.lock(record=False)
    monkeypatch.setitem(sys.modules, "yaml", None)
    refused = fault(lambda: read_locked(root))
    assert refused.code == "E-JOB-031"
    assert "needs PyYAML" in refused.message


def test_an_alias_in_a_hand_made_manifest_is_refused(work: Any) -> None:
    folder = work.add("alice/alpha@1.2.0")
    (folder / "plugin.yaml").write_text("a: &x [1]\nb: *x\n")
    root = work.lock(record=False)
    assert "alias" in fault(lambda: read_locked(root)).message


def test_a_changed_byte_is_refused_with_both_digests(work: Any) -> None:
    folder = work.add("alice/opsd-patch@1.2.0", {"patch.py": "x = 1\n"}, entrypoint="patch:install")
    (plugin,) = read_locked(work.lock())
    (folder / "patch.py").write_text("x = 2\n")
    refused = fault(lambda: verify(plugin))
    assert refused.code == "E-JOB-030"
    actual = directory_digest_v1(folder)
    assert actual != plugin.digest
    assert refused.message == (
        f"plugin alice/opsd-patch@1.2.0 content digest mismatch: spec={plugin.digest}, actual={actual}"
    )


def test_byte_code_beside_a_module_is_outside_the_digest(work: Any) -> None:
    folder = work.add("alice/a", {"a_mod.py": "x = 1\n"}, entrypoint="a_mod:go")
    (plugin,) = read_locked(work.lock())
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__/a_mod.cpython-311.pyc").write_bytes(b"planted")
    (folder / "other.pyc").write_bytes(b"planted")
    verify(plugin)


@pytest.mark.parametrize(
    ("damage", "word"),
    [
        (lambda w: (w / "tuneplane_plugins/a").rename(w / "gone"), "not in the package"),
        (lambda w: ((w / "tuneplane_plugins/a").rename(w / "b"), (w / "tuneplane_plugins/a").symlink_to(w / "b")), "not in"),
    ],
)  # fmt: skip
def test_a_plugin_that_is_not_in_the_package_is_refused(work: Any, damage: Callable[[Path], Any], word: str) -> None:
    work.add("alice/a", {"a_mod.py": ""}, entrypoint="a_mod:go")
    root = work.lock()
    damage(root)
    (plugin,) = read_locked(root)
    refused = fault(lambda: verify(plugin))
    assert refused.code == "E-JOB-031"
    assert word in refused.message


@pytest.mark.parametrize("change", [{"name": "other"}, {"version": "9.9"}])
def test_a_manifest_of_another_plugin_or_version_is_refused(work: Any, change: dict[str, str]) -> None:
    folder = work.add("alice/a", {"a_mod.py": ""}, entrypoint="a_mod:go")
    (folder / "plugin.yaml").write_text(json.dumps(json.loads((folder / "plugin.yaml").read_text()) | change))
    (plugin,) = read_locked(work.lock(record=False))
    refused = fault(lambda: verify(plugin))
    assert refused.code == "E-JOB-031"
    assert next(iter(change.values())) in refused.message


def test_records_that_name_different_plugins_are_refused(work: Any) -> None:
    work.add("alice/a", {"a_mod.py": ""})
    record = work.lock() / ".tuneplane/plugins.json"
    record.write_text(record.read_text().replace("1.0.0", "1.0.1"))
    refused = fault(lambda: read_locked(work.root))
    assert refused.code == "E-JOB-031"
    assert "name different plugins" in refused.message


@pytest.mark.parametrize(
    "text",
    ["", "[]", '{"spec": []}', '{"spec": {"plugins": [1]}}', '{"spec": {"plugins": [{"id": "a/b", "version": "1"}]}}',
     '{"spec": {"plugins": [{"id": "../b", "version": "1", "digest": "sha256:' + "0" * 64 + '"}]}}',
     '{"spec": {"plugins": [{"id": "a/b", "version": "1", "digest": "sha256:0"}]}}'],
)  # fmt: skip
def test_a_damaged_jobspec_is_refused(work: Any, text: str) -> None:
    root = work.lock()
    (root / ".tuneplane/jobspec.json").write_text(text)
    assert fault(lambda: read_locked(root)).code == "E-JOB-031"


@pytest.mark.parametrize(
    "text", ["", "[]", '{"plugins": []}', '{"schema": "tuneplane-hpc/locked-plugins/v1", "plugins": [1]}']
)
def test_a_damaged_record_is_refused(work: Any, text: str) -> None:
    work.add("alice/a", {"a_mod.py": ""})
    root = work.lock()
    (root / ".tuneplane/plugins.json").write_text(text)
    assert fault(lambda: read_locked(root)).code == "E-JOB-031"


def test_import_roots_are_what_the_files_make_importable(work: Any, make_wheel: Callable[..., Path]) -> None:
    work.add("a/src", {"one.py": "", "pack/deep/x.py": "", "data/x.json": "", "not-a-name/x.py": "", "README.md": ""})
    folder = work.add("a/whl", capability="data-prep", execution="job", wheel="w_h-1-py3-none-any.whl", provider="p")
    make_wheel(folder / "w_h-1-py3-none-any.whl", {"w_h/__init__.py": "", "w_solo.py": "", "w_data/x.txt": ""})
    work.add("a/local", {"prepare_x.py": ""}, capability="data-prep", execution="local")
    source, wheel, local = read_locked(work.lock())
    assert import_roots(source) == ("one", "pack")
    assert import_roots(wheel) == ("w_h", "w_solo")
    assert import_roots(local) == ()


@pytest.mark.parametrize(
    ("first", "second", "word"),
    [
        (("alice/a", "shared.py"), ("bob/b", "shared/__init__.py"), "both bring the module shared"),
        (("alice/a", "a_mod.py"), ("bob/b", "json.py"), "brings the module json, which is taken"),
        (("alice/a", "a_mod.py"), ("bob/b", "asyncio/__init__.py"), "brings the module asyncio, which is taken"),
        (("alice/a", "a_mod.py"), ("bob/b", "torch.py"), "brings the module torch, which is taken"),
    ],
)
def test_import_names_that_collide_are_refused(work: Any, first: Any, second: Any, word: str) -> None:
    for plugin, path in (first, second):
        work.add(plugin, {path: "raise SystemExit('ran')"}, entrypoint="x:y")
    refused = fault(lambda: check_collisions(read_locked(work.lock())))
    assert refused.code == "E-JOB-032"
    assert word in refused.message


def test_two_plugins_of_one_leaf_are_refused(work: Any) -> None:
    work.add("alice/a", {"a_mod.py": ""})
    work.rows.append(work.rows[0] | {"id": "bob/a"})
    refused = fault(lambda: check_collisions(read_locked(work.lock())))
    assert refused.code == "E-JOB-032"
    assert "would both be tuneplane_plugins/a" in refused.message


def test_a_name_that_is_owned_elsewhere_is_refused(work: Any, tmp_path: Path) -> None:
    work.add("alice/a", {"site_helper.py": "raise SystemExit('ran')"}, entrypoint="site_helper:go")
    (plugin,) = read_locked(work.lock())
    elsewhere = tmp_path / "image"
    elsewhere.mkdir()
    check_unowned(plugin, [str(elsewhere), str(plugin.folder)])
    (elsewhere / "site_helper").mkdir()
    check_unowned(plugin, [str(elsewhere)])  # a folder without code owns no name
    (elsewhere / "site_helper/__init__.py").write_text("")
    refused = fault(lambda: check_unowned(plugin, [str(elsewhere)]))
    assert refused.code == "E-JOB-032"
    assert str(elsewhere / "site_helper/__init__.py") in refused.message


def test_admission_in_the_job_asks_everything_in_one_call(work: Any) -> None:
    work.add("alice/a@1.0.0", {"a_mod.py": ""}, entrypoint="a_mod:go", requires={"core": ">=0.3,<1"})
    root = work.lock(recipe={"plugins": ["a"]})
    assert [p.label for p in admit_plugins(root, "0.4.0")] == ["alice/a@1.0.0"]
    refused = fault(lambda: admit_plugins(root, "0.2.9"))
    assert (refused.code, refused.message) == (
        "E-JOB-035",
        "plugin alice/a@1.0.0 requires SDK >=0.3,<1, this one is 0.2.9",
    )
    work.lock(recipe={"plugins": ["a", "other"]})
    refused = fault(lambda: admit_plugins(root, "0.4.0"))
    assert (refused.code, "not locked: other" in refused.message) == ("E-JOB-039", True)


def test_recipe_plugins_are_satisfied_by_leaves(work: Any) -> None:
    work.add("alice/a", {"a_mod.py": ""})
    work.lock(recipe={"plugins": ["b", "a"]})
    assert locked.missing_recipe_plugins(work.spec) == ["b"]
    assert locked.missing_recipe_plugins({"spec": {"recipe": {}}}) == []


def test_environment_packages_give_path_entries(work: Any, make_wheel: Callable[..., Path]) -> None:
    work.add("a/alg", {"alg.py": ""})
    env = work.add("a/env", {"env_mod.py": ""}, capability="environment", entrypoint="env_mod:E")
    whl = work.add("a/whl", capability="environment", wheel="w_h-1-py3-none-any.whl", provider="p")
    make_wheel(whl / "w_h-1-py3-none-any.whl", {"w_h.py": ""})
    assert python_path(read_locked(work.lock())) == [str(env), os.path.join(whl, "w_h-1-py3-none-any.whl")]
