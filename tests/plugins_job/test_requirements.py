"""What a plugin asks of the core, the interpreter and the image, in the page's words."""

from __future__ import annotations

import importlib.metadata
import io
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tuneplane.plugins import requirements
from tuneplane.plugins.fault import PluginFault
from tuneplane.plugins.locked import LockedPlugin, read_locked

from hpc.submit.kernelzip import PARTS, archive

HERE = ".".join(map(str, sys.version_info[:3]))


def plugin(work: Any, **requires: str) -> LockedPlugin:
    work.add("alice/x@1.2.0", {"x_mod.py": ""}, entrypoint="x_mod:go", requires=requires)
    return read_locked(work.lock())[0]


@pytest.mark.parametrize(
    ("wanted", "core", "unmet"),
    [
        (">=0.3,<1", "0.4.0", ""),
        (">=0.3,<1", "0.2.9", "plugin alice/x@1.2.0 requires SDK >=0.3,<1, this one is 0.2.9"),
        (">=0.3,<1", "1.0", "plugin alice/x@1.2.0 requires SDK >=0.3,<1, this one is 1.0"),
        ("", "0.0.1", ""),
        (">=0.3", "0.4.0.dev1", ""),
        ("~=0.3.56", "0.4.0", "plugin alice/x@1.2.0 requires SDK ~=0.3.56, this one is 0.4.0"),
    ],
)
def test_the_core_range_is_refused_in_the_pages_words(work: Any, wanted: str, core: str, unmet: str) -> None:
    assert requirements.unmet_core(plugin(work, core=wanted), core) == unmet


def test_a_range_that_is_none_is_a_fault_and_no_crash(work: Any) -> None:
    broken = plugin(work, core="as new as possible")
    with pytest.raises(PluginFault) as caught:
        requirements.unmet_core(broken, "0.4.0")
    assert caught.value.code == "E-JOB-036"


def test_python_outside_the_manifests_range_has_its_own_code(work: Any) -> None:
    newer = plugin(work, python=">=3.99")
    words = f"plugin alice/x@1.2.0 requires Python >=3.99 (requires.python), this one is {HERE}"
    assert requirements.unmet_python(newer) == [words]
    with pytest.raises(PluginFault) as caught:
        requirements.require_here(newer)
    assert (caught.value.code, caught.value.message) == ("E-JOB-033", words)
    assert requirements.unmet_python(newer, "3.99.1") == []


def wheel_plugin(work: Any, make_wheel: Callable[..., Path], metadata: str) -> LockedPlugin:
    folder = work.add("alice/x@1.2.0", wheel="x_w-1-py3-none-any.whl", provider="p")
    make_wheel(folder / "x_w-1-py3-none-any.whl", {"x_w.py": ""}, metadata=metadata)
    return read_locked(work.lock())[0]


def test_the_wheels_own_python_range_counts_too(work: Any, make_wheel: Callable[..., Path]) -> None:
    one = wheel_plugin(work, make_wheel, "Requires-Python: >=3.99\n")
    assert requirements.unmet_python(one) == [
        f"plugin alice/x@1.2.0 requires Python >=3.99 (Requires-Python), this one is {HERE}"
    ]


def test_requires_dist_is_checked_against_what_is_installed(work: Any, make_wheel: Callable[..., Path]) -> None:
    installed = importlib.metadata.version("click")
    lines = [
        "click>=1",
        "click>=999",
        "no-such-distribution-here>=2",
        'no-such-on-windows; sys_platform == "win32"',
        'only-with-extra; extra == "gpu"',
        "click[with-an-extra]>=1",
    ]
    one = wheel_plugin(work, make_wheel, "".join(f"Requires-Dist: {line}\n" for line in lines))
    assert requirements.unmet_dependencies(one) == [
        f"plugin alice/x@1.2.0 requires click>=999, installed is {installed}",
        "plugin alice/x@1.2.0 requires no-such-distribution-here>=2, which is not installed here",
    ]
    with pytest.raises(PluginFault) as caught:
        requirements.require_here(one)
    assert caught.value.code == "E-JOB-034"


def test_a_requirement_that_is_none_is_a_fault(work: Any, make_wheel: Callable[..., Path]) -> None:
    one = wheel_plugin(work, make_wheel, "Requires-Dist: ???\n")
    with pytest.raises(PluginFault) as caught:
        requirements.unmet_dependencies(one)
    assert caught.value.code == "E-JOB-036"


@pytest.mark.parametrize("part", sorted(PARTS))
def test_both_archives_carry_packaging_and_need_none_installed(part: str, tmp_path: Path) -> None:
    """An interpreter that sees the standard library and the archive alone can compare versions."""
    (tmp_path / "kernel.zip").write_bytes(archive(part))
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); from tuneplane.plugins import requirements as r; "
        "s = r._packaging('specifiers'); m = r._packaging('requirements'); print(s.__name__, "
        "s.SpecifierSet('>=0.3,<1').contains('0.4.0'), m.Requirement('a>1; python_version>\"3\"').marker.evaluate())"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code, str(tmp_path / "kernel.zip")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "tuneplane.vendored.packaging.specifiers True True\n"


def test_the_archives_are_the_same_bytes_each_time_and_hold_no_licence_tables() -> None:
    first = {part: archive(part) for part in PARTS}
    assert first == {part: archive(part) for part in PARTS}
    for data in first.values():
        names = zipfile.ZipFile(io.BytesIO(data)).namelist()
        assert "tuneplane/vendored/packaging/specifiers.py" in names
        assert names == sorted(names)
        assert all(n.endswith(".py") and "licenses" not in n for n in names)
