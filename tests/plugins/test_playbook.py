"""A site's playbook: it adds wording, thresholds and known errors, and one fault anywhere keeps all of it out."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from hpc.errors import Refusals
from hpc.plugins.playbook import BUILTIN, ENDS, EndWording, KnownError, ReasonWording, Thresholds, load
from hpc.plugins.validate import validate
from tests.plugins.making import build

HEAD = "schema: tuneplane/plugin/v1\nname: team-rules\nversion: 1.0.0\ncapability: playbook\n"
TEXT = """\
schema: tuneplane-hpc/playbook/v1
name: team-rules
title: How we read a failed run
contact: hpc-help@example.org
thresholds: {quick_end_s: 20, ranks_shown: 4}
ends:
  timeout: {mend: ["Ask for the long QOS."]}
  out_of_memory:
    headline: out of memory on our fat nodes
    mend: ["Take --partition fat.", "Read the page on memory."]
    replace: true
reasons:
  QOSGrpGRES: {meaning: The group's GPUs are all in use., outlook: wait, mend: ["See the dashboard."]}
errors:
  - id: nccl-timeout
    pattern: "NCCL.*[Tt]imeout"
    headline: a link of the fabric is down
    mend: ["Tell us the node."]
    ends: [error, timeout]
  - {id: licence, contains: [license, expired], ignore_case: true, headline: the licence has expired}
"""


def pack(folder: Path, text: str) -> Path:
    return build(folder, {"plugin.yaml": HEAD, "playbook.yaml": text})


def faults(tmp_path: Path, **changes: Any) -> list[tuple[str, str]]:
    value = copy.deepcopy(yaml.safe_load(TEXT)) | changes
    folder = pack(tmp_path, json.dumps({key: item for key, item in value.items() if item is not ...}))
    report = validate(folder)
    found = [(e.code[-3:], e.field.removeprefix("playbook.yaml: ")) for e in report.declarations]
    if found and found != [("064", "name")]:
        with pytest.raises(Refusals) as caught:
            load(folder)
        assert len(caught.value.items) == len(found)
    return found


def test_a_whole_playbook_is_read(tmp_path: Path) -> None:
    folder = pack(tmp_path, TEXT)
    report = validate(folder)
    assert (report.publishable, [str(e) for e in report.declarations]) == (True, [])
    book = load(folder)
    assert (book.name, book.contact, book.thresholds) == (
        "team-rules",
        "hpc-help@example.org",
        Thresholds(20, 4, 4000, 256),
    )
    assert book.end("timeout") == EndWording("", ("Ask for the long QOS.",))
    assert book.end("timeout").lines(["own"]) == ["own", "Ask for the long QOS."]
    assert book.end("out_of_memory").lines(["own"]) == ["Take --partition fat.", "Read the page on memory."]
    assert book.end("cancelled").lines(["own"]) == ["own"]
    wording = ReasonWording("The group's GPUs are all in use.", "wait", ("See the dashboard.",))
    assert book.reason("QOSGrpGRES") == book.reason("(qosgrpgres, extra)") == wording
    assert book.reason("Priority") == ReasonWording()


def test_known_errors_are_found_by_their_lines(tmp_path: Path) -> None:
    book = load(pack(tmp_path, TEXT))

    def known(line: str, end: str = "") -> str:
        found = book.known_error(line, end)
        return found.id if found else ""

    assert known("[E] NCCL watchdog timeout on rank 3") == "nccl-timeout"
    assert known("[E] NCCL watchdog timeout on rank 3", "timeout") == "nccl-timeout"
    assert known("[E] NCCL watchdog timeout on rank 3", "cancelled") == ""
    assert known("The LICENSE of x has Expired") == "licence"
    assert known("the license is fine") == ""
    assert known("x" * 400 + "NCCL timeout") == ""


def test_the_built_in_playbook_adds_nothing() -> None:
    assert all(BUILTIN.end(end) == EndWording() for end in ENDS)
    assert (BUILTIN.known_error("NCCL timeout"), BUILTIN.reason("Priority"), BUILTIN.thresholds) == (
        None,
        ReasonWording(),
        Thresholds(),
    )


ERROR = {"id": "a", "headline": "h", "contains": ["x"]}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"schema": ...}, [("062", "schema")]),
        ({"name": "other"}, [("064", "name")]),
        ({"thresholds": {"quick_end_s": 0}}, [("064", "thresholds.quick_end_s")]),
        ({"thresholds": {"quick_end": 1}}, [("063", "thresholds.quick_end")]),
        ({"thresholds": {"log_tail_lines": 10**6}}, [("064", "thresholds.log_tail_lines")]),
        ({"ends": {"failed": {}}}, [("063", "ends.failed")]),
        ({"ends": {"error": {"mend": "x"}}}, [("064", "ends.error.mend")]),
        ({"ends": {"error": {"mend": ["x"] * 9}}}, [("064", "ends.error.mend")]),
        ({"ends": {"error": {"mend": ["a\x1b[2Jb"]}}}, [("009", "ends.error.mend[0]")]),
        ({"ends": {"error": {"mend": ["two\nlines"]}}}, [("009", "ends.error.mend[0]")]),
        ({"ends": {"error": {"replace": True}}}, [("064", "ends.error.replace")]),
        ({"ends": {"error": {"headline": "h" * 121}}}, [("064", "ends.error.headline")]),
        ({"reasons": {"a b": {}}}, [("064", "reasons.a b")]),
        ({"reasons": {"Priority": {"outlook": "soon"}}}, [("064", "reasons.Priority.outlook")]),
        ({"reasons": {"Priority": "x"}}, [("064", "reasons.Priority")]),
        ({"errors": [ERROR, ERROR]}, [("064", "errors")]),
        ({"errors": [{"id": "a", "headline": "h"}]}, [("062", "errors[0].pattern")]),
        ({"errors": [ERROR | {"id": "A b"}]}, [("064", "errors[0].id")]),
        ({"errors": [ERROR | {"headline": ""}]}, [("062", "errors[0].headline")]),
        ({"errors": [ERROR | {"pattern": "(a+)+"}]}, [("065", "errors[0].pattern")]),
        ({"errors": [ERROR | {"pattern": ".*"}]}, [("065", "errors[0].pattern")]),
        ({"errors": [ERROR | {"ends": ["failed"]}]}, [("064", "errors[0].ends")]),
        ({"errors": [ERROR | {"regex": "x"}]}, [("063", "errors[0].regex")]),
        ({"errors": [ERROR | {"id": f"e{n}"} for n in range(201)]}, [("064", "errors")]),
        ({"rules": []}, [("063", "rules")]),
    ],
    ids=lambda v: str(v)[:60],
)
def test_a_playbook_at_fault_names_the_key_and_is_not_loaded(
    tmp_path: Path, changes: dict[str, Any], expected: list[tuple[str, str]]
) -> None:
    assert faults(tmp_path, **changes) == expected


@pytest.mark.parametrize(
    ("text", "code"),
    [("a: [\n", "061"), ("- a\n", "061"), ("a: &x 1\nb: *x\n", "061"), (b"\xff", "061"), (None, "060")],
)
def test_a_playbook_that_cannot_be_read(tmp_path: Path, text: str | bytes | None, code: str) -> None:
    folder = build(tmp_path, {"plugin.yaml": HEAD, **({"playbook.yaml": text} if text is not None else {})})
    with pytest.raises(Refusals) as caught:
        load(folder)
    assert [e.code[-3:] for e in caught.value.items] == [code]
    assert [e.code[-3:] for e in validate(folder).declarations] == [code]


def test_a_known_error_needs_all_of_its_words() -> None:
    error = KnownError("a", "h", contains=("x", "y"))
    assert (error.matches("x y"), error.matches("x"), error.matches("X Y")) == (True, False, False)
