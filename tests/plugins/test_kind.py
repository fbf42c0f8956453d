"""Plugins as the registry sees them: who a folder is, what its record keeps, and that only publishable ones pass."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hpc.errors import Refusals
from hpc.plugins.digests import folder_digests
from hpc.plugins.kind import PLUGIN
from hpc.plugins.validate import validate
from tests.plugins.making import algorithm, build, cases, cleaner


def test_a_sound_package_is_checked(tmp_path: Path) -> None:
    found = PLUGIN.check(algorithm(tmp_path))
    assert (found.name, found.version, found.admin_only) == ("x", "1.0.0", False)
    assert found.facts["manifest"]["capability"] == "algorithm"
    assert (PLUGIN.name, PLUGIN.shelf, PLUGIN.max_bytes) == ("plugin", "plugins", 32 << 20)


def test_a_wheels_requirements_are_kept_in_the_record(tmp_path: Path) -> None:
    found = PLUGIN.check(cleaner(tmp_path))
    assert found.facts["wheel"] == {
        "requires_python": "", "requires_dist": [], "entry_point": "my_company_cleaner:transform", "version": "1.0.0",
    }  # fmt: skip


@pytest.mark.parametrize(("capability", "file"), [("playbook", "playbook.yaml"), ("prompt", "prompt.yaml")])
def test_policy_is_for_admins(tmp_path: Path, capability: str, file: str) -> None:
    text = f"schema: tuneplane/plugin/v1\nname: x\nversion: 1.0.0\ncapability: {capability}\n"
    body = f"schema: tuneplane-hpc/{capability}/v1\nname: x\n" + (
        "prompts: {judge: {text: hi}}\n" if capability == "prompt" else ""
    )
    assert PLUGIN.check(build(tmp_path, {"plugin.yaml": text, file: body})).admin_only is True


@pytest.mark.parametrize(
    "case", [c for c in cases("layout") if c["id"] in ("l04", "l13", "l17", "l22", "l32", "w12")], ids=lambda c: c["id"]
)
def test_what_is_refused_or_only_accepted_is_not_published(tmp_path: Path, case: dict[str, dict[str, str]]) -> None:
    folder = build(tmp_path, case["files"])
    with pytest.raises(Refusals) as caught:
        PLUGIN.check(folder)
    report = validate(folder)
    assert [str(e) for e in caught.value.items] == [str(e) for e in [*report.errors, *report.declarations]]
    assert all(e.code.startswith("E-PLUGIN-0") for e in caught.value.items)


def test_p59_identity_is_the_digest_of_the_bytes_and_not_of_the_definition(tmp_path: Path) -> None:
    """Two packages that say the same of themselves are two packages, and one package is one wherever and whenever it was built."""
    one, other = (
        algorithm(tmp_path / "a"),
        algorithm(tmp_path / "b", {"patch.py": "def install(params, **ctx):\n    return 1\n"}),
    )
    first, second = validate(one), validate(other)
    assert first.as_json()["manifest"] == second.as_json()["manifest"]
    assert (first.digest == second.digest, first.digest_v2 == second.digest_v2) == (False, False)
    again = algorithm(tmp_path / "c")
    for path in sorted(again.rglob("*")):
        os.utime(path, (1, 1))
    (again / "__pycache__").mkdir()
    (again / "__pycache__" / "patch.pyc").write_bytes(b"planted")
    third = validate(again)
    assert (third.digest, third.digest_v2) == (first.digest, first.digest_v2)
    (again / "patch.py").chmod(0o755)
    assert validate(again).digest == first.digest
    assert validate(again).digest_v2 != first.digest_v2


def test_digests_of_any_folder(tmp_path: Path) -> None:
    found = folder_digests(build(tmp_path, {"a": "x"}, symlinks={"b": "a"}))
    assert (bool(found.v1), found.v2, found.reason, found.files) == (True, "", "b is a link or a special file", 2)
