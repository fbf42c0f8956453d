"""A deep audit reads the rows again: it believes what was published in any way, and names a record that says of its rows what they do not."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from tuneplane.launch.output import publish_output
from tuneplane.record.digest import digest_json

from hpc.cli.registry import _kinds
from hpc.data.output import make_place, plan_output
from hpc.data.push import Pusher, push_volume
from hpc.data.visibility import PUBLIC, Visibility
from hpc.data.volumes import create
from hpc.registry.audit import Options, audit
from tests.datasets.conftest import NOW, rows, write_rows


def deep(by: Pusher) -> list[tuple[str, str, str]]:
    report = audit(
        by.root, _kinds(), site=by.site, user=by.user, options=Options(deep=True), core_version="0.4.0", now=NOW
    )
    return [(p.level, p.path, p.message) for p in report.problems]


def test_what_was_pushed_and_what_a_run_produced_is_believed(
    put: Callable, folder: Path, scratch: Path, by: Pusher
) -> None:
    put(folder)
    create(by, "ref", Visibility(PUBLIC))
    push_volume(by, "ref", folder)
    output = plan_output(by.root, by.site, by.user.name, f"{by.user.name}/half@1", array=False)
    make_place(by, output)
    write_rows(scratch / "made" / "train.jsonl", rows(7))
    made_by = {"run_id": "run-00aa", "attempt": 0, "owner": by.user.name}
    assert publish_output(by.root, output, scratch / "made", made_by, now=NOW, left_s=None)["state"] == "published"
    assert deep(by) == []


def test_a_record_that_states_other_rows_than_there_are_is_named(put: Callable, folder: Path, by: Pusher) -> None:
    record = put(folder).folder / "record.json"
    value = json.loads(record.read_text())
    value["facts"]["rows"] = 10_000
    del value["record_digest"]
    value["record_digest"] = digest_json(value)
    record.chmod(0o644)
    record.write_text(json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False))
    record.chmod(0o444)
    where = f"registry/datasets/{by.user.name}/sums/1.0"
    assert deep(by) == [("tampered", where, "records other facts than its content gives")]
