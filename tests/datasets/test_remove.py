"""Who names a version, wherever the name stands; and what nobody can say."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from tuneplane.contract.layout import StorageRoot

from hpc.data.kinds import DATASET
from hpc.data.push import Pusher, push_dataset
from hpc.data.remove import remove_version
from hpc.data.uses import uses_of
from hpc.data.visibility import PRIVATE, Visibility
from hpc.registry.shelf import Ref, Shelf
from hpc.site.layout import init_root
from hpc.site.members import add_user
from hpc.site.sitefile import load_site
from hpc.site.users import User
from tests.datasets.conftest import NOW, as_user, rows, write_rows

RUN = "runs/bob/exp/run-00aa/work"


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (f"{RUN}/.tuneplane/jobspec.json", {"spec": {"data": {"validation": {"dataset": "ann/sums@1.0"}}}}),
        (f"{RUN}/.tuneplane/jobspec.json", {"spec": {"data": {"quality": {"overlap_with": "tp:ann/sums@1.0"}}}}),
        (f"{RUN}/.tuneplane/launch.json", {"inputs": {"train": {"dataset": {"ref": "ann/sums@1.0"}}}}),
        (f"{RUN}/experiments/exp/tp.lock.json", {"inputs": {"train": {"repo": "ann/sums@1.0"}}}),
        ("registry/models/bob/net/2/record.json", {"facts": {"lineage": ["ann/sums@1.0"]}}),
    ],
)
def test_a_name_is_found_wherever_it_stands(tmp_path: Path, path: str, value: dict[str, object]) -> None:
    root = StorageRoot(tmp_path)
    target = tmp_path / path
    target.parent.mkdir(parents=True)
    target.write_text(json.dumps(value))
    assert uses_of(root, "ann/sums@1.0").named == [path]


@pytest.mark.parametrize(
    "other", ["ann/sums@1.0.1", "joann/sums@1.0", "ann/sums@1", "org/ann/sums@1.0", "ann/sums@1.0-rc"]
)
def test_another_name_is_not(tmp_path: Path, other: str) -> None:
    target = tmp_path / f"{RUN}/.tuneplane/jobspec.json"
    target.parent.mkdir(parents=True)
    target.write_text(json.dumps({"dataset": other}))
    assert uses_of(StorageRoot(tmp_path), "ann/sums@1.0").named == []


@pytest.mark.two_users
def test_runs_that_cannot_be_read_may_name_it(scratch: Path, people: tuple[User, User]) -> None:
    root = init_root(scratch / "shared", name="lab").root
    site = load_site(root)
    anna, bert = people
    for user in people:
        add_user(root, user.name)
    write_rows(scratch / "sums/train.jsonl", rows(3))
    os.chmod(root.owner_runs(bert.name), 0o700)
    by = Pusher(root, site, anna, NOW)

    def push(version: str, name: str = "sums", ask: Visibility | None = None) -> Callable[[], object]:
        return lambda: push_dataset(by, name, version, scratch / "sums", ask=ask).version

    def remove(user: User, name: str, version: str, unseen: bool = False) -> str:
        shelf = Shelf(root, DATASET, site=site)
        return as_user(
            user, lambda: remove_version(shelf, Ref(anna.name, name, version), user=user, now=NOW, unseen=unseen).closed
        )

    assert [as_user(anna, push(v)) for v in ("1", "2")] == ["1", "2"]
    assert as_user(anna, push("1", "own", Visibility(PRIVATE))) == "1"
    assert remove(anna, "sums", "1") == "E-DATA-020"
    closed = str([f"runs/{name}" for name in sorted((bert.name, "root"))])
    assert remove(anna, "sums", "1", unseen=True) == closed
    assert remove(anna, "own", "1") == closed
    assert remove(bert, "sums", "2", unseen=True) == "E-REG-003"
    assert remove(User("root", 0, 0), "sums", "2") == "[]"
    assert Shelf(root, DATASET).versions(anna.name, "sums") == []
