from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from sources import file_source
from tuneplane.training.arrays import clear_leftovers, is_whole
from tuneplane.training.chat import Encoder
from tuneplane.training.data import CACHE, _other_runs
from tuneplane.training.refusals import Refused
from tuneplane.training.tokens import ensure as ensure_source
from tuneplane.training.tokens import open_tokens
from tuneplane.training.warning import Warned

TOKENIZER = "sha256:" + "0" * 64


def encoder(tokenizer: Any, max_length: int = 200, over_long: str = "error") -> Encoder:
    return Encoder(tokenizer, max_length, over_long, "rows.jsonl")


def ensure(cache: Path, path: Path, *args: Any, **more: Any) -> Path:
    return ensure_source(cache, file_source(path), *args, **more)


def write(path: Path, completions: list[str]) -> Path:
    path.write_text("".join(json.dumps({"prompt": "p", "completion": c}) + "\n" for c in completions))
    return path


def test_rows_come_back_as_they_were_encoded(tmp_path: Path, tokenizer: Any) -> None:
    source = write(tmp_path / "rows.jsonl", [" one", " two three", " 4"])
    tokens = open_tokens(ensure(tmp_path / "cache", source, TOKENIZER, encoder(tokenizer)))
    assert len(tokens) == 3
    ids, prompt = tokens.row(1)
    assert tokenizer.decode(ids) == "p two three<|im_end|>"
    assert (prompt, tokens.length(1), tokens.targets(1)) == (1, len(ids), len(ids) - 1)
    assert tokens.meta["tokens"] == sum(tokens.length(i) for i in range(3))
    assert tokens.meta["targets"] == sum(tokens.targets(i) for i in range(3))


def test_p65_the_same_content_is_tokenised_once(tmp_path: Path, tokenizer: Any) -> None:
    source = write(tmp_path / "rows.jsonl", [" one"])
    first = ensure(tmp_path / "cache", source, TOKENIZER, encoder(tokenizer))
    stamp = os.stat(first / "meta.json").st_mtime_ns

    def never() -> None:
        raise AssertionError("tokenised again")

    moved = source.rename(tmp_path / "moved.jsonl")
    assert ensure(tmp_path / "cache", moved, TOKENIZER, encoder(tokenizer), check=never) == first
    assert os.stat(first / "meta.json").st_mtime_ns == stamp


@pytest.mark.parametrize("change", ["rows", "tokenizer", "length", "policy", "form"])
def test_anything_that_changes_the_tokens_changes_the_folder(tmp_path: Path, tokenizer: Any, change: str) -> None:
    source = write(tmp_path / "rows.jsonl", [" one"])
    first = ensure(tmp_path / "cache", source, TOKENIZER, encoder(tokenizer))
    if change == "rows":
        write(source, [" two"])
    if change == "form":
        source.write_text('{"prompt": "p", "completion": " one", "label": true}\n')
        assert ensure(tmp_path / "cache", source, TOKENIZER, encoder(tokenizer)) != first
        first = ensure(tmp_path / "cache", source, TOKENIZER, encoder(tokenizer))
        assert ensure(tmp_path / "cache", source, TOKENIZER, encoder(tokenizer), "judged") != first
        return
    digest = TOKENIZER[:-1] + "1" if change == "tokenizer" else TOKENIZER
    other = encoder(tokenizer, 100 if change == "length" else 200, "skip" if change == "policy" else "error")
    assert ensure(tmp_path / "cache", source, digest, other) != first


@pytest.mark.parametrize("name", ["ids.bin", "offsets.bin", "prompts.bin", "meta.json"])
def test_a_damaged_cache_is_made_again(tmp_path: Path, tokenizer: Any, name: str) -> None:
    source = write(tmp_path / "rows.jsonl", [" one", " two"])
    folder = ensure(tmp_path / "cache", source, TOKENIZER, encoder(tokenizer))
    good = {p.name: p.read_bytes() for p in folder.iterdir()}
    (folder / name).write_bytes(bytes([good[name][0] ^ 1]) + good[name][1:])
    assert not is_whole(folder)
    assert ensure(tmp_path / "cache", source, TOKENIZER, encoder(tokenizer)) == folder
    made = {p.name: p.read_bytes() for p in folder.iterdir()}
    assert is_whole(folder)
    assert made.pop("meta.json")
    assert made == {name: data for name, data in good.items() if name != "meta.json"}


def test_counts_say_what_the_policy_did(tmp_path: Path, tokenizer: Any) -> None:
    source = write(tmp_path / "rows.jsonl", [" 1", " " + "1" * 30, " 2"])
    skipped = open_tokens(ensure(tmp_path / "cache", source, TOKENIZER, encoder(tokenizer, 10, "skip")))
    assert skipped.meta["counts"] == {"read": 3, "kept": 2, "truncated": 0, "skipped": 1, "unfit": 0}
    cut = open_tokens(ensure(tmp_path / "cache", source, TOKENIZER, encoder(tokenizer, 10, "truncate")))
    assert cut.meta["counts"] == {"read": 3, "kept": 3, "truncated": 1, "skipped": 0, "unfit": 0}
    assert cut.length(1) == 10


def test_over_long_rows_are_named_and_nothing_is_left_behind(tmp_path: Path, tokenizer: Any) -> None:
    source = write(tmp_path / "rows.jsonl", [" " + "1" * 30, " 1", " " + "1" * 31])
    with pytest.raises(Refused) as caught:
        ensure(tmp_path / "cache", source, TOKENIZER, encoder(tokenizer, 10))
    assert [(r.code, r.field) for r in caught.value.reasons] == [
        ("E-TRAIN-024", "rows.jsonl:1"),
        ("E-TRAIN-024", "rows.jsonl:3"),
    ]
    assert list((tmp_path / "cache").iterdir()) == []


def test_no_row_left_is_refused_with_the_counts(tmp_path: Path, tokenizer: Any) -> None:
    source = write(tmp_path / "rows.jsonl", [" " + "1" * 30])
    with pytest.raises(Refused, match=r"E-TRAIN-025(.|\n)*'skipped': 1"):
        ensure(tmp_path / "cache", source, TOKENIZER, encoder(tokenizer, 10, "skip"))


def test_a_warning_stops_the_work_and_leaves_nothing(tmp_path: Path, tokenizer: Any) -> None:
    def warned() -> None:
        raise Warned("SIGUSR2")

    with pytest.raises(Warned):
        ensure(tmp_path / "cache", write(tmp_path / "rows.jsonl", [" 1"]), TOKENIZER, encoder(tokenizer), check=warned)
    assert list((tmp_path / "cache").iterdir()) == []


def test_what_an_attempt_left_half_made_does_not_count(tmp_path: Path, tokenizer: Any) -> None:
    source = write(tmp_path / "rows.jsonl", [" 1"])
    folder = ensure(tmp_path / "cache", source, TOKENIZER, encoder(tokenizer))
    half = folder.with_name(f".{folder.name}.0123.tmp")
    folder.rename(half)
    (half / "meta.json").unlink()
    clear_leftovers(tmp_path / "cache")
    assert ensure(tmp_path / "cache", source, TOKENIZER, encoder(tokenizer)) == folder
    assert is_whole(folder)
    assert not half.exists()


def test_the_answers_of_a_pair_are_neighbours(tmp_path: Path, tokenizer: Any) -> None:
    source = tmp_path / "pairs.jsonl"
    rows = [{"prompt": "p", "chosen": f" {n}", "rejected": f" {n}{n}"} for n in (1, 2, 3)]
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    tokens = open_tokens(ensure(tmp_path / "cache", source, TOKENIZER, encoder(tokenizer), "preference"))
    assert (len(tokens), tokens.examples, tokens.meta["counts"]["kept"]) == (6, 3, 3)
    texts = [[tokenizer.decode(tokens.row(i)[0]) for i in tokens.rows_of(e)] for e in range(3)]
    assert texts == [[f"p {n}<|im_end|>", f"p {n}{n}<|im_end|>"] for n in (1, 2, 3)]
    assert [tokens.row(i)[1] for i in range(6)] == [1] * 6
    assert tokens.labels is None


def test_labels_come_back_with_their_rows_and_their_file_is_guarded(tmp_path: Path, tokenizer: Any) -> None:
    source = tmp_path / "judged.jsonl"
    rows = [{"prompt": "p", "completion": " 1" * n, "label": good} for n, good in ((1, True), (40, True), (2, False))]
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    folder = ensure(tmp_path / "cache", source, TOKENIZER, encoder(tokenizer, 20, "skip"), "judged")
    assert open_tokens(folder).labels.tolist() == [1, 0]
    (folder / "labels.bin").write_bytes(b"\x01\x01")
    assert not is_whole(folder)
    assert (
        open_tokens(ensure(tmp_path / "cache", source, TOKENIZER, encoder(tokenizer, 20, "skip"), "judged")).labels[1]
        == 0
    )


@pytest.mark.parametrize(("policy", "counts"), [("skip", (1, 0, 1, 0)), ("truncate", (2, 1, 0, 0))])
def test_a_pair_is_over_long_when_one_of_its_answers_is(
    tmp_path: Path, tokenizer: Any, policy: str, counts: tuple[int, ...]
) -> None:
    source = tmp_path / "pairs.jsonl"
    rows = [{"prompt": "p", "chosen": " 1", "rejected": " 2" * n} for n in (1, 40)]
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    tokens = open_tokens(ensure(tmp_path / "cache", source, TOKENIZER, encoder(tokenizer, 20, policy), "preference"))
    found = tokens.meta["counts"]
    assert tuple(found[k] for k in ("kept", "truncated", "skipped", "unfit")) == counts
    assert max(tokens.length(i) for i in range(len(tokens))) <= 20


def test_prompts_keep_their_rows_and_their_room(tmp_path: Path, tokenizer: Any) -> None:
    source = tmp_path / "prompts.jsonl"
    source.write_text("".join(json.dumps({"prompt": "p" + " 1" * n, "n": n, "é": [0.5]}) + "\n" for n in (1, 40, 9)))
    tokens = open_tokens(ensure(tmp_path / "cache", source, TOKENIZER, encoder(tokenizer, 19, "skip"), "prompt"))
    assert [tokens.object(i) for i in range(2)] == [{"prompt": "p" + " 1" * n, "n": n, "é": [0.5]} for n in (1, 9)]
    assert [tokenizer.decode(tokens.row(i)[0]) for i in range(2)] == ["p 1", "p" + " 1" * 9]
    assert [tokens.targets(i) for i in range(2)] == [0, 0]
    assert tokens.length(1) == 19
    cut = open_tokens(ensure(tmp_path / "cache", source, TOKENIZER, encoder(tokenizer, 19, "truncate"), "prompt"))
    assert cut.meta["counts"] == {"read": 3, "kept": 2, "truncated": 0, "skipped": 0, "unfit": 1}


def test_p65_what_another_run_of_the_experiment_tokenised_is_taken_over(tmp_path: Path, tokenizer: Any) -> None:
    source = write(tmp_path / "rows.jsonl", [" one", " two"])
    runs = [tmp_path / "exp" / name for name in ("run-a1", "run-b2", "run-c3")]
    for run in (*runs, tmp_path / "exp" / ".run-d4.refused"):
        run.mkdir(parents=True)
    made = ensure(runs[0] / CACHE, source, TOKENIZER, encoder(tokenizer))
    others = list(_other_runs(runs[1]))
    assert others == [runs[0] / CACHE]  # who has none is passed over, and so is the run itself

    def never() -> None:
        raise AssertionError("tokenised again")

    copied = ensure(runs[1] / CACHE, source, TOKENIZER, encoder(tokenizer), elsewhere=others, check=never)
    assert copied == runs[1] / CACHE / made.name
    assert open_tokens(copied).ids.tolist() == open_tokens(made).ids.tolist()
    assert list(_other_runs(tmp_path / "nowhere" / "run-a1")) == []


def test_a_row_without_a_prompt_counts_what_is_learnt_and_not_its_first_token(tmp_path: Path, tokenizer: Any) -> None:
    """The tokenizer has no begin token. Loss, labels of a padded batch, of a packed one, and TRL's: all of one number."""
    import torch
    from tuneplane.training.forward import collate, collate_packed
    from tuneplane.training.trl_methods import TrlSft

    source = tmp_path / "rows.jsonl"
    rows = [{"prompt": "", "completion": "Yes."}, {"prompt": "What is 1 + 1?", "completion": " 2"}]
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    tokens = open_tokens(ensure(tmp_path / "cache", source, TOKENIZER, encoder(tokenizer)))
    assert tokens.row(0)[1] == 0
    assert tokens.meta["targets"] == tokens.targets(0) + tokens.targets(1)
    for i in (0, 1):
        batch, packed = (
            f([r], 0, torch.device("cpu")) for f, r in ((collate, tokens.row(i)), (collate_packed, [tokens.row(i)]))
        )
        example = object.__new__(TrlSft).example(tokens, i)
        assert example["input_ids"] == tokens.row(i)[0].tolist()
        counts = {int((labels >= 0).sum()) for labels in (batch.labels, packed.labels, torch.tensor(example["labels"]))}
        assert counts == {tokens.targets(i)}
        assert torch.equal(batch.labels, packed.labels)


def test_a_row_of_one_token_has_nothing_to_learn(tmp_path: Path, tokenizer: Any) -> None:
    source = tmp_path / "rows.jsonl"
    source.write_text('{"prompt": "", "completion": "1"}\n')
    without_end = encoder(tokenizer)
    without_end._end = []
    with pytest.raises(Refused, match=r"E-TRAIN-023 (.|\n)*no token to learn from"):
        ensure(tmp_path / "cache", source, TOKENIZER, without_end)
