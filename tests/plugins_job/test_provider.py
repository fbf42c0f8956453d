"""A provider's callable comes from the plugin's own source, whatever lies beside it or elsewhere on the path."""

from __future__ import annotations

import json
import os
import py_compile
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tuneplane

KERNEL = Path(tuneplane.__file__).parents[1]
LOAD = """
import json, sys
from pathlib import Path
from tuneplane.plugins.fault import PluginFault
from tuneplane.plugins.locked import read_locked
from tuneplane.plugins.provider import load
try:
    fn = load(read_locked(Path(sys.argv[1]))[0])
    print(json.dumps({"said": fn({}), "path": sys.path}))
except PluginFault as fault:
    print(json.dumps({"code": fault.code, "message": fault.message}))
"""


def loaded(root: Path, *path: str) -> dict[str, Any]:
    """Load the first plugin of a work folder in an interpreter of its own and call it."""
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join([str(KERNEL), *path])}
    done = subprocess.run(
        [sys.executable, "-c", LOAD, str(root)], env=env, capture_output=True, text=True, check=True, timeout=60
    )
    value: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return value


def test_a_source_entrypoint_is_loaded_and_only_its_folder_is_added_to_the_path(work: Any) -> None:
    folder = work.add("a/p", {"p_mod/sub.py": "def go(h): return 'sub'\n"}, entrypoint="p_mod.sub:go")
    found = loaded(work.lock())
    assert found["said"] == "sub"
    assert [entry for entry in found["path"] if str(work.root) in entry] == [str(folder)]


def test_a_wheels_provider_is_imported_from_the_archive(work: Any, make_wheel: Callable[..., Path]) -> None:
    folder = work.add("a/p", wheel="p_w-1-py3-none-any.whl", provider="chosen")
    points = "[tuneplane.algorithms]\nother = p_w.b:go\nchosen = p_w.a:Thing.go\n[console_scripts]\nchosen = p_w.b:go\n"
    sources = {
        "p_w/__init__.py": "", "p_w/b.py": "def go(h): return 'wrong'\n",
        "p_w/a.py": "class Thing:\n    @staticmethod\n    def go(h): return __file__\n",
    }  # fmt: skip
    make_wheel(folder / "p_w-1-py3-none-any.whl", sources, entry_points=points)
    assert loaded(work.lock())["said"] == str(folder / "p_w-1-py3-none-any.whl" / "p_w" / "a.py")
    assert sorted(p.name for p in folder.iterdir()) == ["p_w-1-py3-none-any.whl", "plugin.yaml"]


def test_an_entry_point_of_another_group_or_name_does_not_count(work: Any, make_wheel: Callable[..., Path]) -> None:
    folder = work.add("a/p", wheel="p_w-1-py3-none-any.whl", provider="chosen")
    points = "[tuneplane.environments]\nchosen = p_w:go\n[tuneplane.algorithms]\nOther = p_w:go\n"
    make_wheel(folder / "p_w-1-py3-none-any.whl", {"p_w.py": "def go(h): return 1\n"}, entry_points=points)
    found = loaded(work.lock())
    assert found["code"] == "E-JOB-036"
    assert "no entry point 'chosen' in the group 'tuneplane.algorithms'" in found["message"]


def plant(source: Path, cached: Path) -> None:
    """Byte code for `source` as it is now, at `cached`, that says it belongs to whatever the source is later."""
    cached.parent.mkdir(exist_ok=True)
    py_compile.compile(str(source), cfile=str(cached), invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)


def test_byte_code_planted_beside_a_module_never_runs(work: Any, tmp_path: Path) -> None:
    """Unchecked byte code beside the entrypoint's module and beside a sub-module; the same files fool a plain import."""
    good = {"p_mod/__init__.py": "from p_mod import sub\n", "p_mod/sub.py": "def go(h): return 'source'\n"}
    folder = work.add("a/p", good, entrypoint="p_mod.sub:go")
    root, evil = work.lock(), tmp_path / "evil.py"
    evil.write_text("def go(h): return 'planted'\n")
    tag = sys.implementation.cache_tag
    plant(evil, folder / "p_mod/__pycache__" / f"sub.{tag}.pyc")
    plain = subprocess.run(
        [sys.executable, "-c", "from p_mod.sub import go; print(go({}))"],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(folder)}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert plain.stdout == "planted\n"
    assert loaded(root)["said"] == "source"
    assert loaded(root, str(folder))["said"] == "source"  # the folder is on PYTHONPATH already


def test_byte_code_without_a_source_is_no_module(work: Any, tmp_path: Path) -> None:
    folder = work.add("a/p", {"p_mod.py": "try:\n    import p_gone\nexcept ImportError:\n    p_gone = None\n"
                              "def go(h): return 'none' if p_gone is None else 'planted'\n"}, entrypoint="p_mod:go")  # fmt: skip
    evil = tmp_path / "evil.py"
    evil.write_text("")
    plant(evil, folder / "p_gone.pyc")
    assert loaded(work.lock())["said"] == "none"


def test_loading_leaves_no_byte_code_behind(work: Any) -> None:
    folder = work.add("a/p", {"p_mod.py": "def go(h): return 1\n"}, entrypoint="p_mod:go")
    assert loaded(work.lock())["said"] == 1
    assert sorted(p.name for p in folder.iterdir()) == ["p_mod.py", "plugin.yaml"]


def test_a_wheel_with_byte_code_is_refused(work: Any, make_wheel: Callable[..., Path]) -> None:
    folder = work.add("a/p", wheel="p_w-1-py3-none-any.whl", provider="p")
    make_wheel(folder / "p_w-1-py3-none-any.whl", {"p_w.py": "", "p_w.pyc": "x"})
    found = loaded(work.lock())
    assert found["code"] == "E-JOB-036"
    assert "byte code: p_w.pyc" in found["message"]


def test_a_module_of_the_same_name_elsewhere_is_refused_before_either_runs(work: Any, tmp_path: Path) -> None:
    work.add("a/p", {"p_mod.py": "raise SystemExit('ran')\n"}, entrypoint="p_mod:go")
    image = tmp_path / "image"
    image.mkdir()
    (image / "p_mod.py").write_text("raise SystemExit('ran')\n")
    found = loaded(work.lock(), str(image))
    assert found["code"] == "E-JOB-032"
    assert str(image / "p_mod.py") in found["message"]


@pytest.mark.parametrize(
    ("source", "entrypoint", "word"),
    [
        ("x = 1\n", "p_mod:go", "has no callable go"),
        ("go = 1\n", "p_mod:go", "has no callable go"),
        ("def go(h): pass\n", "p_other:go", "importing p_other failed"),
        ("1/0\n", "p_mod:go", "ZeroDivisionError: division by zero"),
        ("import sys; sys.exit(0)\n", "p_mod:go", "SystemExit: 0"),
        ("", "os:getcwd", "came from"),
        ("", "p_mod", "not module:callable"),
        ("", "", "not module:callable"),
    ],
)
def test_what_cannot_be_loaded_is_refused_with_the_reason(work: Any, source: str, entrypoint: str, word: str) -> None:
    work.add("a/p", {"p_mod.py": source}, entrypoint=entrypoint)
    found = loaded(work.lock())
    assert found["code"] == "E-JOB-036"
    assert word in found["message"]
    assert "\n" not in found["message"]
