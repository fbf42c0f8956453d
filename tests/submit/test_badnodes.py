"""A bad node eats each retry (P76): what attempts left is remembered a node, and said before the next one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tuneplane.contract.layout import RunPaths
from tuneplane.record.times import parse_utc

from hpc.submit.badnodes import NodeEnd, known_suspects, node_ends, suspects

DAY = 86400.0
NOW = parse_utc("2026-03-10T12:00:00.000000Z").timestamp()


def end(
    node: str, days_ago: float, bad: str = "its launcher disappeared", run: str = "run-0001", attempt: int = 0
) -> NodeEnd:
    return NodeEnd(node, NOW - days_ago * DAY, run, attempt, bad)


def nodes(*ends: NodeEnd) -> list[str]:
    return [s.node for s in suspects(ends, NOW)]


def test_p76_two_distinct_bad_ends_make_a_suspect_with_its_evidence() -> None:
    assert nodes(end("n3", 2)) == []
    found = suspects([end("n3", 2), end("n3", 1, "E-JOB-011 0 GPUs are visible", "run-0002", 1), end("n1", 1)], NOW)
    (suspect,) = found
    assert suspect.text == (
        "node n3 ended 2 attempts lately (run-0001 attempt 0: its launcher disappeared; run-0002 attempt 1: E-JOB-011 0 GPUs are visible): "
        "--exclude n3 avoids it"
    )


def test_p76_suspicion_expires_and_a_good_end_clears_it() -> None:
    assert nodes(end("n3", 8), end("n3", 1)) == []
    assert nodes(end("n3", 3), end("n3", 2), end("n3", 1, "")) == []
    assert nodes(end("n3", 3, ""), end("n3", 2), end("n3", 1)) == ["n3"]


def attempt(run: RunPaths, number: int, klass: str, ended_at: str, **by_node: Any) -> None:
    paths = run.attempt(number)
    paths.nodes.mkdir(parents=True)
    paths.start.write_text(json.dumps({"hosts": ["n1", "n2"]}))
    paths.end.write_text(json.dumps({"class": klass, "ended_at": ended_at}))
    for node, record in by_node.items():
        (paths.nodes / f"{node[1:]}.end.json").write_text(json.dumps(record))


def test_p76_records_of_an_experiment_s_runs_name_the_node_that_was_lost_or_lacked_something(tmp_path: Path) -> None:
    one, other = (RunPaths(tmp_path / name) for name in ("run-0001", "run-0002"))
    attempt(one, 0, "node_fail", "2026-03-08T12:00:00.000000Z", k0={"ranks": []})
    attempt(one, 1, "error", "2026-03-09T12:00:00.000000Z", k0={"ranks": []}, k1={"ranks": []})
    lacking = {"refused": {"code": "E-JOB-011", "message": "2 GPUs asked for, 1 visible on n2"}}
    attempt(other, 0, "refused", "2026-03-10T11:00:00.000000Z", k0={"ranks": []}, k1=lacking)
    assert [(e.node, e.attempt, e.bad) for e in node_ends(one)] == [("n2", 0, "its launcher disappeared")]
    assert [s.node for s in known_suspects(tmp_path, NOW)] == ["n2"]
    attempt(other, 1, "done", "2026-03-10T11:30:00.000000Z", k0={"ranks": []}, k1={"ranks": []})
    assert known_suspects(tmp_path, NOW) == []
    assert known_suspects(tmp_path / "missing", NOW) == []
