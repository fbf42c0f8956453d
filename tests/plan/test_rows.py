"""Rows and tokens: counted, sampled, or known from an earlier run; never guessed in silence."""

from __future__ import annotations

import json
import random
from array import array
from dataclasses import replace
from pathlib import Path

import pytest
from tuneplane.contract.packing import pack
from tuneplane.record.digest import digest_json

from hpc.data.rows import Source
from hpc.plan import rows as module
from hpc.plan.plan import _longest
from hpc.plan.rows import Packed, Rows, content_digests, from_caches, measured, packed, tokenizer_counter
from hpc.plan.template import chat_template, messages_of


def written(path: Path, texts: list[str]) -> Source:
    path.write_text("".join(json.dumps({"prompt": "", "completion": t}) + "\n" for t in texts))
    return Source(path.name, path, path.stat().st_size)


def words(texts: object) -> list[int]:
    return [len(t.split()) for t in texts]  # type: ignore[attr-defined]


def test_rows_are_counted_and_their_lengths_sampled(tmp_path: Path) -> None:
    found = measured([written(tmp_path / "a.jsonl", ["one two three"] * 999 + ["word " * 50])], 1024, words)
    assert found is not None
    assert (found.rows, round(found.mean_tokens, 1), found.exact) == (1000, 3.0, False)
    assert found.longest_tokens == 50  # the longest is looked at, whether it is in the sample or not
    assert "rows counted; tokens from a sample of" in found.how


def test_no_row_counts_for_more_than_its_limit(tmp_path: Path) -> None:
    found = measured([written(tmp_path / "a.jsonl", ["word " * 50] * 4)], 10, words)
    assert found is not None
    assert (found.mean_tokens, found.longest_tokens) == (10, 10)


def test_a_file_too_large_to_read_is_estimated_and_said_to_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = written(tmp_path / "a.jsonl", ["one two three"] * 200_000)
    monkeypatch.setattr(module, "COUNTED", 1 << 20)
    found = measured([source], 1024, words)
    assert found is not None
    assert found.rows == pytest.approx(200_000, rel=0.01)
    assert (found.longest_tokens, "estimated from the first" in found.how) == (1024, True)


def test_without_a_tokenizer_the_assumption_is_named(tmp_path: Path) -> None:
    found = measured([written(tmp_path / "a.jsonl", ["x" * 40])], 1024, None)
    assert found is not None
    assert (found.mean_tokens, "4 bytes a token, which is assumed" in found.how) == (10, True)
    assert tokenizer_counter(tmp_path) is None


def test_rows_that_cannot_be_read_are_no_rows(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("no json\n\n[]\n")
    assert measured([Source("a", tmp_path / "a.jsonl", 9)], 8, words) is None
    assert measured([], 8, words) is None


def test_an_earlier_run_s_tokens_are_taken_where_the_file_is_the_same(tmp_path: Path) -> None:
    folder = tmp_path / "k"
    folder.mkdir()
    (folder / "offsets.bin").write_bytes(array("q", [0, 5, 25, 30]).tobytes())
    meta = {"source_sha256": "sha256:aa", "counts": {"kept": 3}, "tokens": 30}
    (folder / "meta.json").write_text(json.dumps(meta))
    found = from_caches([tmp_path / "other", folder], {"sha256:aa"}, 64)
    assert found is not None
    assert (found.rows, found.mean_tokens, found.longest_tokens, found.exact) == (3, 10, 20, True)
    assert found.lengths == (5, 20, 5)
    assert from_caches([folder], {"sha256:bb"}, 64) is None
    assert from_caches([folder], {"sha256:aa"}, 16) is None  # made with another limit


def test_packed_rows_are_counted_by_the_job_s_own_packing() -> None:
    lengths = tuple(random.Random(1).choices([40, 100, 212, 400, 900], [5, 4, 4, 2, 1], k=3000))
    whole = Rows(3000, sum(lengths) / 3000, max(lengths), True, "", lengths)
    real = sum(1 for _ in pack(enumerate(lengths), 1024))
    found = packed(whole, 1024)
    assert found is not None
    assert found.sequences == pytest.approx(real, rel=0.01)
    assert found.mean_tokens == pytest.approx(sum(lengths) / found.sequences)
    assert found.fill == pytest.approx(found.mean_tokens / 1024)
    sample = packed(replace(whole, lengths=lengths[::8]), 1024)
    assert sample is not None
    assert sample.sequences == pytest.approx(real, rel=0.05)


def test_many_more_rows_than_are_packed_stand_in_proportion() -> None:
    found = packed(Rows(1_000_000, 256, 256, False, "", (256,) * 100), 1024)
    assert found == Packed(250_000, 1.0, 1024.0)
    assert packed(Rows(10, 256, 256, False, ""), 1024) is None


def test_an_input_of_several_files_is_known_by_their_digests_in_order_of_name() -> None:
    one = {"path": "", "sha256": "sha256:aa"}
    many = [
        {"path": "b.jsonl", "sha256": "sha256:bb"},
        {"path": "a.jsonl", "sha256": "sha256:aa"},
        {"path": "README.md", "sha256": "sha256:cc"},
    ]
    assert content_digests([one]) == {"sha256:aa"}
    assert content_digests(many) == {digest_json(["sha256:aa", "sha256:bb"])}
    assert content_digests([]) == set()


def test_a_conversation_is_written_by_the_model_s_template(tmp_path: Path) -> None:
    template = "{{ bos_token }}{% for m in messages %}[{{ m.role }}] {{ m.content }}{% endfor %}"
    config = {"bos_token": {"content": "<s>"}, "chat_template": template}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    render = chat_template(tmp_path)
    assert render is not None
    row = {"messages": [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}]}
    assert render(messages_of(row) or []) == "<s>[user] 2 + 2?[assistant] 4"
    assert messages_of({"prompt": "plain", "completion": "text"}) is None
    assert messages_of({"prompt": row["messages"][:1], "chosen": row["messages"][1:]}) == row["messages"]


def test_a_template_that_reaches_out_or_fails_leaves_the_texts(tmp_path: Path) -> None:
    source = Source("a", tmp_path / "a.jsonl", 90)
    source.path.write_text('{"messages": [{"role": "user", "content": "one two"}]}\n')
    (tmp_path / "chat_template.jinja").write_text("{{ ''.__class__.__mro__[1].__subclasses__() }}")
    found = measured([source], 64, words, chat_template(tmp_path))
    assert found is not None
    assert found.mean_tokens == 2
    (tmp_path / "chat_template.jinja").write_text("{% for %}")
    assert chat_template(tmp_path) is None


def test_sequences_that_are_packed_or_drawn_may_be_as_long_as_any() -> None:
    rows = Rows(10, 20, 100, True, "")
    assert _longest({"max_length": 512}, "sft", rows) == 100
    assert _longest({"max_length": 512, "packing": True}, "sft", rows) == 512
    assert _longest({"max_length": 512}, "grpo", rows) == 512
    assert _longest({"max_length": 512}, "sft", None) == 0
