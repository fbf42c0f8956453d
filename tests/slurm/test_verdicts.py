"""What failures mean (P06), from texts that Slurm really prints."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fakeslurm import ERRORS, FakeSlurm
from tuneplane.contract import exits

from hpc.errors.catalogue import CATALOGUE
from hpc.slurm.commands import Completed, Slurm
from hpc.slurm.verdicts import TABLE, classify, quoted, refusal

ANSWERS = json.loads((Path(__file__).parent.parent / "data/slurm/answers.json").read_text())


@pytest.mark.parametrize("answer", ANSWERS, ids=lambda a: a["err"][:60].strip().replace(" ", "-") or f"rc{a['rc']}")
def test_p06_real_texts_are_classified(answer: dict[str, object]) -> None:
    done = Completed(int(str(answer["rc"])), "", str(answer["err"]), False, str(answer["tool"]))
    assert classify(done) == answer["verdict"]
    if answer["verdict"] != "ok":
        refused = refusal(done, "submit the job")
        assert (refused.code, refused.field) == (answer["code"], answer["field"])
        assert refused.exit == (exits.TRY_LATER if answer["verdict"] == "retry" else exits.REFUSED)


def test_p06_a_deadline_is_a_retry_whatever_was_printed() -> None:
    done = Completed(-15, "", "sbatch: error: Invalid partition name specified\n", True, "sbatch")
    assert classify(done) == "retry"
    assert refusal(done, "submit").code == "E-SLURM-003"
    assert refusal(done, "submit").exit == exits.TRY_LATER


def test_p06_the_last_known_line_decides() -> None:
    text = (
        "sbatch: error: Slurm controller not responding: Connection refused\nsbatch: error: Invalid account specified\n"
    )
    assert classify(Completed(1, "", text, False)) == "refuse"


def test_words_on_stdout_count_too() -> None:
    assert classify(Completed(1, "Socket timed out on send/recv operation\n", "", False)) == "retry"


def test_every_code_is_declared() -> None:
    assert {words.code for words in TABLE} <= CATALOGUE.keys()


def test_quoted_words_are_one_printable_line() -> None:
    done = Completed(1, "", "sbatch: error: a\x1b[31m\n\nsbatch: fatal: b\n" + "x" * 1000, False)
    text = quoted(done)
    assert text.startswith("a [31m; b; xxx")
    assert text.isprintable()
    assert len(text) == 400


@pytest.mark.parametrize("name", sorted(ERRORS))
def test_the_fake_slurms_words_are_known(fake_slurm: FakeSlurm, name: str) -> None:
    slurm = Slurm(bin_dir=str(fake_slurm.bin), conf=fake_slurm.conf)
    fake_slurm.faults(f"sbatch fail {name}")
    expected = {
        "timeout": "retry", "refused": "retry", "busy": "retry", "rate": "retry", "standby": "retry", "database": "retry",
        "internal": "unknown", "gibberish": "unknown",
    }.get(name, "refuse")  # fmt: skip
    assert classify(slurm.run("sbatch", ["--wrap=true"])) == expected
    assert fake_slurm.jobs() == []
