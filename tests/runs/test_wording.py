"""A site's playbook words a diagnosis and advises; it changes no class and no fact."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from hpc.plugins.playbook import BUILTIN, EndWording, KnownError, Playbook, ReasonWording
from hpc.runs.clues import Clues
from hpc.runs.diagnosis import Diagnosis
from hpc.runs.logs import Line, Source
from hpc.runs.state import RunState
from hpc.runs.wording import worded

FAILED = Diagnosis("the job failed", "error", [("class", "error")], ["Look."], ["Traceback"], "error")
WAITS = Diagnosis(
    "queued: wait", "wait", [("reason", "Licenses"), ("means", "The licences are in use.")], ["Nothing to do."]
)


def state(cls: str, reason: str = "") -> RunState:
    return RunState(cls, "own record", "", reason=reason)  # type: ignore[arg-type]


def clues(line: str = "") -> Clues:
    if not line:
        return Clues()
    source = Source(0, "rank", 0, Path("rank-00000.log"))
    return Clues(first_error=Line(source, "2026-01-01T00:00:00Z", line))


def test_the_built_in_playbook_changes_nothing() -> None:
    assert worded(FAILED, state("error"), clues("boom"), BUILTIN) is FAILED


def test_an_end_gets_the_site_s_headline_and_further_advice() -> None:
    book = Playbook(ends={"error": EndWording("it broke", ("Ask in #hpc.",))})
    found = worded(FAILED, state("error"), clues(), book)
    assert (found.headline, found.mend) == ("it broke", ["Look.", "Ask in #hpc."])
    assert (found.verdict, found.facts, found.end) == ("error", FAILED.facts, "error")
    assert worded(replace(FAILED, end="timeout"), state("timeout"), clues(), book).headline == "the job failed"


def test_advice_replaces_the_toolkit_s_only_where_it_says_so() -> None:
    book = Playbook(ends={"error": EndWording("", ("Only this.",), replace=True)})
    assert worded(FAILED, state("error"), clues(), book).mend == ["Only this."]


def test_a_known_error_comes_first_and_is_named() -> None:
    known = KnownError(
        "bad-cable", "a cable is loose", ("Drain the node.",), pattern=re.compile("link down"), ends=("error",)
    )
    book = Playbook(errors=(known,))
    found = worded(FAILED, state("error"), clues("NCCL: link down on eth0"), book)
    assert (found.headline, found.mend) == ("a cable is loose", ["Drain the node.", "Look."])
    assert ("known here as", "bad-cable") in found.facts
    assert worded(FAILED, state("error"), clues("something else"), book) == FAILED


def test_a_pending_reason_gets_the_site_s_meaning_and_outlook() -> None:
    book = Playbook(
        reasons={"licenses": ReasonWording("The site owns four seats.", "user", ("Ask Bob to close his.",))}
    )
    found = worded(WAITS, state("queued", "Licenses"), clues(), book)
    assert found.facts == [("reason", "Licenses"), ("means", "The site owns four seats.")]
    assert found.headline == "queued: you can mend it"
    assert (found.verdict, found.mend) == ("user", ["Nothing to do.", "Ask Bob to close his."])


def test_the_contact_stands_only_where_an_admin_is_needed() -> None:
    book = Playbook(contact="hpc-help@site.example")
    assert worded(FAILED, state("error"), clues(), book).mend == ["Look."]
    lost = replace(FAILED, verdict="node_fail", end="node_fail")
    assert worded(lost, state("node_fail"), clues(), book).mend == ["Look.", "hpc-help@site.example"]
