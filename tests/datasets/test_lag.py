"""Two nodes of which one sees names up to 60 seconds late (tests/faults/stalenames.py): nothing is lost, and nothing is visible by half."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from stalenames import StaleNames
from tuneplane.contract.layout import StorageRoot
from tuneplane.launch.data import await_data
from tuneplane.launch.output import publish_output
from tuneplane.record.times import utc_now

from hpc.cli.registry import _kinds
from hpc.data import volumes
from hpc.data.kinds import DATASET
from hpc.data.measure import plain_digest
from hpc.data.output import make_place, plan_output
from hpc.data.push import Pusher, push_volume
from hpc.data.references import resolve_dataset
from hpc.data.remove import remove_version
from hpc.data.visibility import PUBLIC, Visibility
from hpc.errors import Refusal
from hpc.registry.audit import Options, audit
from hpc.registry.resolve import require_content, resolve
from hpc.registry.seal import seal
from hpc.registry.shelf import Ref, Shelf
from hpc.site.sitefile import Site
from tests.datasets.conftest import NOW, codes, rows, write_rows

Put = Callable[..., Any]


@pytest.fixture
def lag(root: StorageRoot, by: Pusher) -> Iterator[StaleNames]:
    with StaleNames(root.path) as layer:
        yield layer


def other(scratch: Path, count: int = 7) -> Path:
    write_rows(scratch / f"other-{count}" / "train.jsonl", rows(count))
    return scratch / f"other-{count}"


def whole(by: Pusher, *refs: str) -> list[int]:
    """Rows of each version; every byte of each is as its record says, and the audit has nothing to say."""
    versions = [resolve(by.root, DATASET, f"{by.user.name}/{ref}", for_new=True) for ref in refs]
    for version in versions:
        require_content(version)
    report = audit(
        by.root, _kinds(), site=by.site, user=by.user, options=Options(deep=True), core_version="0.4.0", now=NOW
    )
    assert [(p.level, p.path, p.message) for p in report.problems if p.level != "note"] == []
    return [int(v.facts["rows"]) for v in versions]


def test_of_one_version_pushed_on_two_nodes_the_first_stays_and_the_second_is_told(
    root: StorageRoot, put: Put, folder: Path, scratch: Path, by: Pusher
) -> None:
    put(other(scratch), version="0.9")
    with StaleNames(root.path) as lag:
        with lag.elsewhere():
            put(folder)
        assert codes(lambda: put(other(scratch))) == ["E-REG-001"]
        assert lag.hidden > 0
        lag.sleep(60)
        assert whole(by, "sums@0.9", "sums@1.0") == [7, 110]
        assert sorted(os.listdir(root.shelf("datasets") / by.user.name / "sums")) == ["0.9", "1.0"]


def test_a_version_of_a_name_that_is_not_seen_yet_is_pushed_a_minute_later(
    lag: StaleNames, put: Put, folder: Path, scratch: Path, by: Pusher
) -> None:
    with lag.elsewhere():
        put(folder, ask=Visibility("private"))
    with pytest.raises(Refusal) as caught:
        put(other(scratch), version="2.0")
    assert (caught.value.code, caught.value.exit) == ("E-STORE-023", 75)
    assert "another node" in caught.value.message
    lag.sleep(60)
    put(other(scratch), version="2.0")
    assert whole(by, "sums@1.0", "sums@2.0") == [110, 7]
    assert os.stat(by.root.shelf("datasets") / by.user.name / "sums").st_mode & 0o777 == 0o700


def test_of_two_pushes_into_a_volume_each_is_whole_and_none_is_lost(
    root: StorageRoot, by: Pusher, folder: Path, scratch: Path
) -> None:
    volumes.create(by, "ref", Visibility(PUBLIC))
    with StaleNames(root.path) as lag:
        with lag.elsewhere():
            first = push_volume(by, "ref", folder)
        assert codes(lambda: push_volume(by, "ref", other(scratch))) == ["E-REG-001"]
        lag.sleep(60)
        assert volumes.newest(by.root, by.site, f"{by.user.name}/ref").digest == first.digest
        assert push_volume(by, "ref", other(scratch)).version == "2"


def test_a_job_waits_for_a_version_that_its_node_does_not_see_yet(
    lag: StaleNames, put: Put, folder: Path, root: StorageRoot, site: Site, by: Pusher
) -> None:
    with lag.elsewhere():
        put(folder)
        source = resolve_dataset(root, site, f"{by.user.name}/sums@1.0", "", digest=plain_digest)
    record = Path(source["dataset"]["record"]["path"])
    assert not record.exists()
    await_data({"inputs": {"train": source}}, sleep=lag.sleep, clock=lag.clock)
    assert record.exists()
    assert 60 <= lag.now < 75


@pytest.mark.parametrize("same", [True, False])
def test_the_output_of_a_job_never_replaces_what_another_node_published(
    root: StorageRoot, site: Site, by: Pusher, put: Put, folder: Path, scratch: Path, same: bool
) -> None:
    output = plan_output(root, site, by.user.name, f"{by.user.name}/sums@1.0", array=False)
    make_place(by, output)
    made, made_by = other(scratch), {"run_id": "run-00aa", "attempt": 0, "owner": by.user.name}
    with StaleNames(root.path) as lag:
        with lag.elsewhere():
            if same:
                publish_output(root, output, made, made_by, now=NOW, left_s=None)
            else:
                put(folder)
        done = publish_output(root, output, made, made_by, now=NOW, left_s=None)
        assert lag.hidden > 0
        assert (done["state"], done["message"]) == ("deferred", "the version exists, and this node does not see it yet")
        lag.sleep(60)
        done = publish_output(root, output, made, made_by, now=NOW, left_s=None)
        assert done["state"] == ("published" if same else "refused"), done
        assert whole(by, "sums@1.0") == [7 if same else 110]


def test_a_version_that_another_node_removed_is_known_or_refused(
    put: Put, folder: Path, root: StorageRoot, site: Site, by: Pusher, scratch: Path
) -> None:
    put(folder)
    put(other(scratch), version="2.0")
    with StaleNames(root.path, gone="stale") as lag:
        with lag.elsewhere():
            remove_version(Shelf(root, DATASET, site=site), Ref(by.user.name, "sums", "1.0"), user=by.user, now=NOW)
        refused = codes(lambda: require_content(resolve(root, DATASET, f"{by.user.name}/sums@1.0", for_new=True)))
        assert refused, "bytes that are gone were believed"
        lag.sleep(60)
        assert whole(by, "sums@2.0") == [7]


def verdict(by: Pusher) -> tuple[str, list[str]]:
    report = audit(
        by.root, _kinds(), site=by.site, user=by.user, options=Options(), core_version="0.4.0", now=utc_now()
    )
    return report.verdict, [p.code for p in report.problems if p.level != "note"]


def test_an_audit_accuses_nobody_of_what_another_node_did_a_moment_ago(
    root: StorageRoot, put: Put, folder: Path, scratch: Path, by: Pusher, site: Site
) -> None:
    """It sees the seals as they are, and the shelf, or the tombstones, as they were."""
    put(folder)
    assert seal(root, _kinds(), site=site, user=by.user, now=utc_now()).exit == 0
    shelf, seals = root.shelf("datasets") / by.user.name, root.seals / "datasets" / by.user.name / "sums"
    with StaleNames(root.path) as lag:
        with lag.elsewhere():
            put(other(scratch), version="2.0")
            assert seal(root, _kinds(), site=site, user=by.user, now=utc_now()).exit == 0
        lag.see(seals)
        lag.see(seals / ".log")
        assert verdict(by) == ("incomplete", ["E-STORE-023"])
        assert seal(root, _kinds(), site=site, user=by.user, now=utc_now()).exit == 1
        lag.sleep(60)
        assert verdict(by) == ("verified", [])
    with StaleNames(root.path) as lag:
        with lag.elsewhere():
            remove_version(
                Shelf(root, DATASET, site=site), Ref(by.user.name, "sums", "2.0"), user=by.user, now=utc_now()
            )
        lag.see(shelf / "sums")
        assert verdict(by) == ("incomplete", ["E-STORE-023"])
        lag.sleep(60)
        assert verdict(by) == ("verified", [])
