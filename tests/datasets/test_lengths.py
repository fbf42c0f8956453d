"""How long rows are: figures, a histogram for the terminal, a picture."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tuneplane.contract.layout import StorageRoot

from hpc.cli.dataset_show import show
from hpc.data.lengths import Lengths, characters, chart, lengths, row_text, tokens
from hpc.errors import Refusal
from hpc.site.users import User

PNG = b"\x89PNG\r\n\x1a\n"


def of(*counts: int, limit: int = 0) -> Lengths:
    found = lengths(({"text": "x" * n} for n in counts), characters, "characters", limit)
    assert found is not None
    return found


def test_the_text_of_a_row_is_what_a_model_may_see_of_it() -> None:
    chat = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi"}]
    assert row_text({"messages": chat, "id": 7}) == "Be kind.\nHi"
    assert row_text({"prompt": "a", "completion": "b", "note": "left out"}) == "a\nb"
    assert row_text({"anything": {"deep": [1, "x"]}, "none": None}) == "1\nx"


def test_figures_are_exact_and_buckets_hold_every_row() -> None:
    found = of(*range(1, 101))
    assert (found.rows, found.least, found.median, found.p95, found.most, found.cut) == (100, 1, 50, 95, 100, False)
    assert sum(count for _, _, count in found.buckets) == 100
    assert found.buckets[0] == (1, 9, 9)
    assert found.buckets[-1][1] == 100
    assert [b[0] for b in found.buckets[1:]] == [b[1] + 1 for b in found.buckets[:-1]]


def test_a_few_long_rows_do_not_flatten_the_rest() -> None:
    found = of(*[10] * 500, *[20] * 500, 90_000)
    assert found.buckets[0] == (10, 10, 500)
    assert found.buckets[-1] == (21, 90_000, 1)


def test_rows_beyond_the_limit_are_not_read() -> None:
    def rows() -> Any:
        yield from ({"text": "x"} for _ in range(300))
        raise AssertionError("was read")

    found = lengths(rows(), characters, "characters", 299)
    assert found is not None
    assert (found.rows, found.cut) == (299, True)
    assert lengths(iter(()), characters, "characters", 5) is None


def test_the_chart_is_wide_where_the_rows_are() -> None:
    lines = chart(of(3, 3, 3, 3, 7)).splitlines()
    assert lines[0] == "length in characters of 5 rows: shortest 3, median 3, 95 % up to 3, longest 7"
    assert (lines[1], lines[-1]) == (f"  3 – 3  {'█' * 40} 4", f"  7 – 7  {'█' * 10} 1")


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    """A folder with a tokenizer that knows words."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    made = Tokenizer(models.WordLevel({"[UNK]": 0, "is": 1}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def test_tokens_are_those_of_the_folders_tokenizer(tokenizer: Path) -> None:
    assert list(tokens(tokenizer)(["what is this", "", "one"])) == [3, 0, 1]
    assert list(tokens(tokenizer / "tokenizer.json")(["a b"])) == [2]


@pytest.mark.parametrize("missing", ["folder", "package"])
def test_a_tokenizer_that_cannot_be_used_is_said(
    tokenizer: Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    if missing == "package":
        monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(Refusal) as caught:
        tokens(tokenizer if missing == "package" else tokenizer / "nowhere")
    assert (caught.value.code, caught.value.field) == ("E-DATA-070", "--tokenizer")


def test_show_tells_schema_rows_lengths_and_writes_the_picture(
    put: Callable, folder: Path, root: StorageRoot, me: User, tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(folder)
    monkeypatch.setenv("TUNEPLANE_STORAGE_ROOT", str(root.path))
    ref, picture = f"{me.name}/sums@1.0", tokenizer / "lengths.png"
    said = CliRunner().invoke(show, [ref, "--sample", "2"]).output
    assert ["completion", "string", "100"] in [line.split() for line in said.splitlines()]
    assert '{"prompt": "What is 0 and 0?", "completion": "0"}' in said
    assert "length in characters of 100 rows: shortest 18, median 21" in said
    told = json.loads(
        CliRunner()
        .invoke(show, [ref, "--png", str(picture), "--tokenizer", str(tokenizer), "--rows", "50", "--json"])
        .output
    )
    assert told["lengths"] == {
        "unit": "tokens", "rows": 50, "cut": True, "least": 7, "median": 7, "p95": 7, "most": 7, "buckets": [[7, 7, 50]],
    }  # fmt: skip
    assert "sample" not in told
    assert picture.read_bytes()[:8] == PNG
    with pytest.raises(Refusal) as caught:
        CliRunner().invoke(show, [ref, "--png", str(tokenizer / "no" / "x.png")], catch_exceptions=False)
    assert caught.value.code == "E-DATA-071"
