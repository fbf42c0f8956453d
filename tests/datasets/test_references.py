"""From a reference in a JobSpec to files by digest, and what the job compares when it starts."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tuneplane.contract.layout import StorageRoot
from tuneplane.launch.data import await_data, data_variables, verify_data
from tuneplane.launch.verify import LaunchRefused, verify_inputs
from tuneplane.record.digest import digest_file

from hpc.data import references
from hpc.data.kinds import DATASET
from hpc.data.references import resolve_dataset
from hpc.data.remove import remove_version
from hpc.errors import Refusal
from hpc.registry.shelf import Ref, Shelf
from hpc.registry.switches import DISABLED, set_family
from hpc.site.sitefile import Site
from hpc.site.users import User
from tests.datasets.conftest import NOW, clear, codes, rows, write_rows


def digest(path: str, info: os.stat_result) -> str:
    return digest_file(path)


@pytest.fixture
def resolve(root: StorageRoot, site: Site, me: User) -> Callable[..., dict[str, Any]]:
    """resolve("sums@1.0", split, path=…): what launch.json gets."""

    def do(ref: str = "sums", split: str = "", **more: Any) -> dict[str, Any]:
        return resolve_dataset(
            root, site, f"{me.name}/{ref}", split, field="spec.data.train", **{"digest": digest, **more}
        )

    return do


def rewrite(path: Path, data: bytes) -> None:
    path.chmod(0o644)
    path.write_bytes(data)
    path.chmod(0o444)


def test_one_file_is_the_path_and_several_are_the_folder(
    put: Callable, folder: Path, resolve: Callable, root: StorageRoot
) -> None:
    done = put(folder)
    train = resolve()
    content = done.folder / "content"
    assert train["path"] == str(content / "train.jsonl")
    assert train["files"] == [
        {"path": "", "size": (content / "train.jsonl").stat().st_size, "sha256": digest_file(content / "train.jsonl")}
    ]
    facts = train["dataset"]
    assert (facts["dir"], facts["variable"], facts["split"], facts["rows"]) == (
        str(content),
        "SUMS_DATA_DIR",
        "train",
        100,
    )
    assert (facts["digest"], facts["digest_v2"]) == (done.digest, done.digest_v2)
    write_rows(folder / "train-2.jsonl", rows(5))
    put(folder, version="2")
    both = resolve("sums@2")
    assert both["path"] == both["dataset"]["dir"]
    assert [f["path"] for f in both["files"]] == ["train-2.jsonl", "train.jsonl"]


def test_a_validation_source_means_the_split_that_measures(put: Callable, folder: Path, resolve: Callable) -> None:
    put(folder)
    assert resolve(validation=True)["path"].endswith("/validation.jsonl")
    (folder / "validation.jsonl").unlink()
    put(folder, version="2")
    assert codes(lambda: resolve("sums@2", validation=True)) == ["E-DATA-010"]
    assert resolve("sums@2", "train", validation=True)["path"].endswith("/train.jsonl")


@pytest.mark.parametrize(
    ("ref", "split", "path", "code"),
    [
        ("none", "", "", "E-REG-002"),
        ("sums@9", "", "", "E-REG-002"),
        ("sums", "test", "", "E-DATA-010"),
        ("sums", "", "none.jsonl", "E-DATA-011"),
        ("sums", "train", "validation.jsonl", "E-DATA-011"),
    ],
)
def test_what_is_not_there_is_refused(
    put: Callable, folder: Path, resolve: Callable, ref: str, split: str, path: str, code: str
) -> None:
    put(folder)
    assert codes(lambda: resolve(ref, split, path=path)) == [code]


def test_a_file_can_be_named_inside(put: Callable, folder: Path, resolve: Callable) -> None:
    put(folder)
    found = resolve(path="validation.jsonl")
    assert found["path"].endswith("/validation.jsonl")
    assert found["dataset"]["split"] == "validation"


def test_too_many_files_for_a_record(
    put: Callable, folder: Path, resolve: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_rows(folder / "train-2.jsonl", rows(5))
    put(folder)
    monkeypatch.setattr(references, "MAX_FILES", 1)
    assert codes(resolve) == ["E-DATA-012"]


def test_a_changed_byte_stops_the_submission(put: Callable, folder: Path, resolve: Callable) -> None:
    path = put(folder).folder / "content/train.jsonl"
    data = bytearray(path.read_bytes())
    data[20] ^= 1
    rewrite(path, bytes(data))
    with pytest.raises(Refusal) as caught:
        resolve()
    assert (caught.value.code, caught.value.field) == ("E-REG-013", str(path))


def test_a_large_set_starts_without_being_read_and_is_hashed_once_it_was_touched(
    put: Callable, folder: Path, resolve: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(references, "VOUCHED_LIMIT", 10)
    monkeypatch.setattr(references, "FULL_HASH_LIMIT", 10)
    path = put(folder).folder / "content/train.jsonl"
    asked: list[str] = []

    def counted(name: str, info: os.stat_result) -> str:
        asked.append(name)
        return digest_file(name)

    train = resolve(digest=counted)
    assert asked == []
    info = path.stat()
    assert train["files"] == [
        {
            "path": "",
            "size": info.st_size,
            "sha256": digest_file(path),
            "mtime_ns": info.st_mtime_ns,
            "uid": info.st_uid,
        }
    ]
    assert [r["checked"] for r in verify_inputs({"inputs": {"train": train}})] == ["size+mtime+owner"]
    os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns + 10**12))
    with pytest.raises(LaunchRefused, match="changed since submission"):
        verify_inputs({"inputs": {"train": train}})
    resolve(digest=counted)
    assert asked == [str(path)]


def test_disabled_data_is_refused_for_new_jobs(
    put: Callable, folder: Path, resolve: Callable, root: StorageRoot, site: Site, me: User
) -> None:
    put(folder)
    set_family(Shelf(root, DATASET, site=site), me.name, "sums", DISABLED, user=me, site=site, now=NOW)
    assert codes(lambda: resolve("sums@1.0")) == ["E-REG-010"]


def test_the_job_sees_the_folder_and_refuses_another_record(
    put: Callable, folder: Path, resolve: Callable, tmp_path: Path
) -> None:
    done = put(folder, "my-sums.v2")
    launch = {"inputs": {"train": resolve("my-sums.v2")}}
    assert data_variables(launch, tmp_path) == {"MY_SUMS_V2_DATA_DIR": str(done.folder / "content")}
    assert [r["checked"] for r in verify_data(launch)] == ["record"]
    rewrite(done.folder / "record.json", (done.folder / "record.json").read_bytes() + b" ")
    with pytest.raises(LaunchRefused, match="record changed") as caught:
        verify_data(launch)
    assert caught.value.code == "E-JOB-009"


def test_data_that_is_gone_when_the_job_starts(
    put: Callable, folder: Path, resolve: Callable, root: StorageRoot, site: Site, me: User
) -> None:
    put(folder)
    launch = {"inputs": {"train": resolve()}}
    remove_version(Shelf(root, DATASET, site=site), Ref(me.name, "sums", "1.0"), user=me, now=NOW)
    with pytest.raises(LaunchRefused) as caught:
        verify_data(launch)
    assert caught.value.code == "E-JOB-009"


def test_training_and_validation_may_not_share_a_file(put: Callable, folder: Path, resolve: Callable) -> None:
    from hpc.submit.inputs import _refuse_shared

    put(folder)
    inputs = {"train": resolve(), "validation": resolve(split="train", validation=True)}
    assert codes(lambda: _refuse_shared(inputs)) == ["E-DATA-013"]
    assert codes(lambda: _refuse_shared(inputs | {"validation": resolve(validation=True)})) == []
    clear(Path(inputs["train"]["dataset"]["dir"]))


def test_a_node_that_does_not_see_a_new_name_yet_waits_for_it(put: Callable, folder: Path, resolve: Callable) -> None:
    """A directory cache shows a name up to a minute late (P67)."""
    put(folder)
    launch = {"inputs": {"train": resolve()}}
    record = Path(launch["inputs"]["train"]["dataset"]["record"]["path"])
    hidden = record.parents[1] / ".hidden"
    os.rename(record.parent, hidden)
    waited: list[float] = []

    def sleep(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) == 3:
            os.rename(hidden, record.parent)

    await_data(launch, sleep=sleep)
    assert waited == [1.0] * 3
    assert len(verify_data(launch)) == 1
    os.rename(record.parent, hidden)
    now = iter(range(100))
    await_data(launch, lag_s=10, sleep=lambda s: None, clock=lambda: float(next(now)))
    with pytest.raises(LaunchRefused):
        verify_data(launch)


def test_a_record_that_names_a_file_it_does_not_have_is_refused(
    put: Callable, folder: Path, resolve: Callable, root: StorageRoot
) -> None:
    """What the owner's record claims is read by others."""
    from hpc.registry.look import SCHEMA
    from hpc.registry.records import decode_record, encode_record

    path = put(folder).folder / "record.json"
    value = decode_record(path.read_bytes(), SCHEMA)
    value["facts"]["splits"]["train"]["files"] = ["../../../../../etc/passwd"]
    del value["record_digest"]
    rewrite(path, encode_record(value))
    assert codes(resolve) == ["E-REG-012"]


def test_the_engine_reads_rows_of_several_files_and_refuses_others_before_the_queue(
    put: Callable, folder: Path, resolve: Callable
) -> None:
    from hpc.submit.engine import engine_faults

    spec = {"spec": {"framework": {"kind": "deepspeed"}}}
    write_rows(folder / "train-2.jsonl", rows(5))
    put(folder)
    inputs = {"train": resolve(), "validation": resolve(validation=True)}
    assert [len(inputs["train"]["files"]), engine_faults(spec, inputs)] == [2, []]
    odd = {**inputs["train"], "files": [*inputs["train"]["files"], {"path": "train/notes.csv"}]}
    faults = engine_faults(spec, {"train": odd})
    assert [(f.code, f.field, f.found) for f in faults] == [("E-DATA-014", "spec.data.train", "train/notes.csv")]
    assert engine_faults({"spec": {"framework": {"kind": "custom"}}}, {"train": odd}) == []
