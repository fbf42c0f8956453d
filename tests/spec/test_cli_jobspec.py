"""`tp jobspec`: files, stdin, text for people, JSON for programs, exit codes."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from hpc.cli.main import main

GOOD: dict[str, Any] = {
    "apiVersion": "tuneplane/v1",
    "kind": "TrainingJob",
    "metadata": {"name": "e"},
    "spec": {
        "recipe": {"name": "f/m", "version": "1", "digest": "x"},
        "source": {"exp": "experiments/e/"},
        "framework": {"kind": "f", "version": "1"},
        "resources": {"pools": [{"name": "a"}]},
    },
    "provenance": {"core_version": "0.4.0"},
}


def tp(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as caught:
        main(list(args))
    out, err = capsys.readouterr()
    return int(caught.value.code or 0), out, err


def test_an_accepted_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "spec.json"
    file.write_text(json.dumps(GOOD))
    code, out, err = tp(capsys, "jobspec", "validate", str(file))
    assert (code, err) == (0, "")
    assert out.startswith(f"{file}: accepted\ndigest  sha256:")


def test_json_for_programs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "spec.json"
    file.write_text(json.dumps(GOOD))
    code, out, _ = tp(capsys, "jobspec", "validate", "--json", str(file))
    found = json.loads(out)
    assert (code, found["verdict"], found["errors"]) == (0, "accept", [])
    assert found["normalised"]["spec"]["source"] == {"exp": "experiments/e"}


def test_a_refused_file_names_every_fault(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "spec.yaml"
    file.write_text(json.dumps(GOOD | {"kind": "X", "extra": 1}))
    code, out, err = tp(capsys, "jobspec", "validate", str(file))
    assert (code, out) == (1, "")
    assert "tp: E-SPEC-010 kind: " in err
    assert "tp: E-SPEC-012 extra: " in err
    assert err.endswith(f"{file}: refused, 2 faults\n")
    code, out, _ = tp(capsys, "jobspec", "validate", str(file), "--json")
    errors = json.loads(out)["errors"]
    assert code == 1
    assert [set(e) for e in errors] == [{"code", "field", "message", "found", "allowed", "hint"}] * 2


def test_yaml_by_name_and_from_stdin(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "apiVersion: tuneplane/v1\nkind: TrainingJob\nkind: TrainingJob\n"
    file = tmp_path / "spec.yaml"
    file.write_text(text)
    code, out, _ = tp(capsys, "jobspec", "validate", "--json", str(file))
    assert (code, json.loads(out)["errors"][0]["field"]) == (1, f"{file}:3")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(json.dumps(GOOD).encode())))
    assert tp(capsys, "jobspec", "validate", "-")[0] == 0


@pytest.mark.parametrize(
    ("name", "data", "code"),
    [
        ("a.json", b'{"a": 1, "a": 2}', "E-SPEC-001"),
        ("a.json", b"\xff", "E-SPEC-001"),
        ("a.json", b"{" + b" " * (4 << 20), "E-SPEC-004"),
        ("a", b"a: [", "E-SPEC-001"),
    ],
)
def test_what_cannot_be_parsed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, data: bytes, code: str
) -> None:
    (tmp_path / name).write_bytes(data)
    exit_code, out, _ = tp(capsys, "jobspec", "validate", "--json", str(tmp_path / name))
    assert (exit_code, json.loads(out)["errors"][0]["code"]) == (1, code)


def test_a_missing_file_and_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in (tmp_path / "none", tmp_path):
        exit_code, _, err = tp(capsys, "jobspec", "validate", str(path))
        assert exit_code == 1
        assert err.startswith(f"tp: E-SPEC-005 {path}: cannot be read: ")


def test_the_schema_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = tp(capsys, "jobspec", "schema")
    assert code == 0
    assert json.loads(out)["title"] == "JobSpec"


def test_no_file_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert tp(capsys, "jobspec", "validate")[0] == 64
