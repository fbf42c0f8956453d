"""The shared vectors: verdict, the field that a refusal names, the normalised view, and both digests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hpc.plugins.digests import folder_digests
from hpc.plugins.manifest import parse_manifest
from hpc.plugins.validate import validate
from tests.plugins.making import build, build_case, cases

DIGESTS = {case["id"]: case for case in cases("digest")}


@pytest.mark.parametrize("case", cases("manifest"), ids=lambda c: c["id"])
def test_manifest(case: dict[str, Any]) -> None:
    manifest, faults, _ = parse_manifest(case["manifest"])
    assert ("accept" if manifest else "refuse") == case["verdict"], case["what"]
    if manifest is None:
        assert case["field"] is None or case["field"] in [f.field for f in faults]
    else:
        view = manifest.as_json()
        assert {key: view[key] for key in case["normalised"]} == case["normalised"]


@pytest.mark.parametrize("case", cases("layout"), ids=lambda c: c["id"])
def test_layout(tmp_path: Path, case: dict[str, Any]) -> None:
    report = validate(build_case(tmp_path / "pkg", case))
    assert report.verdict == case["verdict"], (case["what"], list(map(str, report.errors)))
    if case.get("field"):
        assert case["field"] in [e.field for e in report.errors]


@pytest.mark.parametrize("case", [c for c in cases("layout") if c["verdict"] == "accept"], ids=lambda c: c["id"])
def test_an_accepted_pack_is_publishable_unless_its_declaration_is_at_fault(
    tmp_path: Path, case: dict[str, Any]
) -> None:
    report = validate(build_case(tmp_path / "pkg", case))
    assert report.publishable is (case["id"] not in ("l13", "l17", "l23"))


@pytest.mark.parametrize("case", list(DIGESTS.values()), ids=lambda c: c["id"])
def test_digest(tmp_path: Path, case: dict[str, Any]) -> None:
    folder = build_case(tmp_path / "pkg", case)
    found = folder_digests(folder)
    assert found.v1 == case["digest"]
    assert found.files == len(case["hashed_files"])
    assert bool(found.v2) is not bool(case.get("symlinks"))


@pytest.mark.parametrize("case", [c for c in DIGESTS.values() if not c.get("symlinks")], ids=lambda c: c["id"])
def test_validation_sees_the_files_that_the_digest_covers(tmp_path: Path, case: dict[str, Any]) -> None:
    report = validate(build_case(tmp_path / "pkg", case))
    assert report.digest == case["digest"]


def test_two_trees_with_one_v1_digest_have_two_v2_digests(tmp_path: Path) -> None:
    one, other = (
        folder_digests(build(tmp_path / i, DIGESTS[i]["files"]))
        for i in ("d10-framing-two-files", "d11-framing-one-file")
    )
    assert one.v1 == other.v1
    assert one.v2 != other.v2
