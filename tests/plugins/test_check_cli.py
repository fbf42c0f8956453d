"""`tp plugin validate` and `digest` as a person and a program meet them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hpc.cli.main import main
from tests.plugins.making import ALGORITHM, algorithm, build, cases


def run(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as caught:
        main(["plugin", *args])
    out, err = capsys.readouterr()
    return int(caught.value.code or 0), out, err


def as_json(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, dict[str, Any]]:
    code, out, err = run(capsys, *args, "--json")
    assert err == ""
    return code, json.loads(out)


def test_a_sound_package(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = algorithm(tmp_path, manifest="requires: {core: '>=0.3,<1', frameworks: {custom: ''}}\nicon: 👩🏽‍💻\n")
    code, out, err = run(capsys, "validate", str(folder))
    assert (code, err) == (0, "")
    assert out.splitlines()[0] == "package   : x 1.0.0, algorithm"
    assert out.splitlines()[-1] == "verdict   : accept"
    code, found = as_json(capsys, "validate", str(folder))
    assert (code, found["verdict"], found["publishable"], found["errors"], found["declarations"]) == (
        0,
        "accept",
        True,
        [],
        [],
    )
    assert found["manifest"]["icon"] == "👩🏽‍💻"
    assert found.keys() == {
        "verdict",
        "publishable",
        "errors",
        "declarations",
        "warnings",
        "digest",
        "digest_v2",
        "manifest",
    }


def test_every_fault_is_printed_with_its_mend(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = build(tmp_path, {"plugin.yaml": ALGORITHM.replace("1.0.0", "+") + "typ: x\n"})
    code, out, err = run(capsys, "validate", str(folder))
    assert code == 1
    assert [line.split()[1] for line in err.splitlines() if line.startswith("tp: E-")] == [
        "E-PLUGIN-006",
        "E-PLUGIN-005",
    ]
    assert out.splitlines()[-1] == "verdict   : refuse"
    code, found = as_json(capsys, "validate", str(folder))
    assert (code, found["verdict"], found["manifest"]) == (1, "refuse", None)
    assert [(e["code"], e["field"]) for e in found["errors"]] == [("E-PLUGIN-006", "version"), ("E-PLUGIN-005", "typ")]
    assert all(e["message"] and e["hint"] for e in found["errors"])


def test_a_pack_with_a_broken_declaration_is_accepted_and_not_publishable(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    case = next(c for c in cases("layout") if c["id"] == "l17")
    folder = build(tmp_path, case["files"])
    code, found = as_json(capsys, "validate", str(folder))
    assert (code, found["verdict"], found["publishable"]) == (1, "accept", False)
    assert [e["code"] for e in found["declarations"]] == ["E-PLUGIN-060"]
    assert "not publishable" in run(capsys, "validate", str(folder))[1]


def test_manifest_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = build(tmp_path, {"plugin.yaml": ALGORITHM})
    assert as_json(capsys, "validate", str(folder), "--manifest-only")[1]["publishable"] is None
    assert run(capsys, "validate", str(folder), "--manifest-only")[0] == 0
    assert run(capsys, "validate", str(folder))[0] == 1


def test_a_hostile_name_does_not_steer_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = algorithm(tmp_path, {"a\x1b]0;x\x07": "", "b\u202ec": ""})
    code, out, err = run(capsys, "validate", str(folder))
    assert code == 1
    assert all(c.isprintable() or c == "\n" for c in out + err)
    _, text, _ = run(capsys, "validate", str(folder), "--json")
    assert all(c.isprintable() or c == "\n" for c in text)


def test_no_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, found = as_json(capsys, "validate", str(tmp_path / "nope"))
    assert (code, [e["code"] for e in found["errors"]]) == (1, ["E-PLUGIN-001"])


def test_digests_of_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    case = next(c for c in cases("digest") if c["id"] == "d14-symlink-to-file-inside")
    folder = build(tmp_path, case["files"], symlinks=case["symlinks"])
    code, found = as_json(capsys, "digest", str(folder))
    assert (code, found["digest"], found["digest_v2"], found["files"]) == (0, case["digest"], "", 3)
    code, out, err = run(capsys, "digest", str(folder))
    assert (code, out) == (0, f"v1 {case['digest']}\nv2 none\n")
    assert "link.py" in err
