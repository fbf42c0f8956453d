"""tp.lock.json: what is locked, and what each difference says before anything is queued."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fakehub import FakeHub
from tuneplane.launch.verify import LaunchRefused, verify_inputs
from tuneplane.record.digest import digest_file

from hpc.data.certified import Certified, CertifiedModel
from hpc.data.hub_inputs import HubInput, data_files, hub_input
from hpc.data.hub_names import HubCache, Repo
from hpc.data.lock import LOCK_NAME, Entry, Lock, read_lock, runtime_refusal, write_lock
from hpc.data.prefetch import Prefetched
from hpc.data.prefetch_experiment import prefetch_experiment
from hpc.errors import Refusal
from tests.hub.conftest import MODEL, WEIGHTS

TINY = Repo("model", "org/tiny")
ROWS = Repo("dataset", "org/rows")
Get = Callable[..., Prefetched]


@pytest.fixture
def exp(scratch: Path) -> Path:
    folder = scratch / "exp"
    folder.mkdir()
    return folder


@pytest.fixture
def lock_in(get: Get, exp: Path) -> Callable[..., tuple[list[Prefetched], bool]]:
    """`tp model prefetch EXP`, with the model that the config names."""

    def do(base: str = "hf:org/tiny", *, accept: bool = False, **config: Any) -> tuple[list[Prefetched], bool]:
        def fetch(repo: Repo, revision: str, patterns: tuple[str, ...], locks: tuple[str, ...]) -> Prefetched:
            return get(repo.id, revision, repo.type, patterns=patterns, locks=locks)

        kind = "dataset" if config else "model"
        return prefetch_experiment(exp, "exp", config or {"model": {"base": base}}, kind, fetch, accept=accept)

    return do


@pytest.fixture
def take(cache: HubCache, exp: Path) -> Callable[..., HubInput]:
    """The input as a submission resolves it."""

    def do(repo: Repo = TINY, revision: str = "", role: str = "model", **more: Any) -> HubInput:
        def digest(path: str, info: os.stat_result) -> str:
            return digest_file(path)

        return hub_input(cache, read_lock(exp), role, repo, revision, field="f", exp="exp", digest=digest, **more)

    return do


def refused(call: Callable[[], object]) -> tuple[str, str]:
    """(code, how to mend it)."""
    with pytest.raises(Refusal) as caught:
        call()
    return caught.value.code, caught.value.hint


def edit(path: Path, change: Callable[[bytearray], object]) -> None:
    blob = Path(os.path.realpath(path))
    data = bytearray(blob.read_bytes())
    change(data)
    blob.chmod(0o644)
    blob.write_bytes(data)


def flip(data: bytearray) -> None:
    data[7] ^= 1


def test_the_lock_names_repo_commit_and_a_digest_a_file(hub: FakeHub, lock_in: Get, exp: Path) -> None:
    commit = hub.repo("org/tiny").commit(MODEL)
    (done,), changed = lock_in()
    value = json.loads((exp / LOCK_NAME).read_text())
    assert changed
    assert value == {
        "schema": "tuneplane-hpc/inputs-lock/v1",
        "inputs": {"model": {
            "hub": "hf", "type": "model", "repo": "org/tiny", "requested": "main", "commit": commit,
            "files": {f.path: f.digest for f in done.files},
        }},
    }  # fmt: skip
    assert {d.partition(":")[0] for d in value["inputs"]["model"]["files"].values()} == {"sha256", "git-sha1"}


def test_e2_unpinned_with_a_cached_main_works_offline(hub: FakeHub, get: Get, take: Callable[..., HubInput]) -> None:
    commit = hub.repo("org/rows", "dataset").commit({"train.jsonl": b"{}\n"})
    get("org/rows", kind="dataset")
    hub.close()
    found = take(ROWS, role="train", only=("train.jsonl",))
    assert (found.entry.commit, found.entry.requested) == (commit, "main")
    assert found.row["source"] == f"hf:org/rows@{commit}"
    assert Path(found.row["path"]).read_bytes() == b"{}\n"


def test_e2_missing_is_not_downloaded_with_the_command_that_fetches_it(take: Callable[..., HubInput]) -> None:
    assert refused(take) == ("E-HUB-020", "run: tp model prefetch exp")
    assert refused(lambda: take(ROWS, role="train")) == ("E-HUB-020", "run: tp dataset prefetch exp")


def test_p64_an_input_is_files_with_digests_and_the_job_compares_them(
    hub: FakeHub, lock_in: Get, take: Callable[..., HubInput]
) -> None:
    hub.repo("org/tiny").commit(MODEL)
    lock_in()
    hub.close()
    row = take().row
    assert {f["path"]: f["size"] for f in row["files"]} == {
        p: len(MODEL[p]) for p in ("README.md", "config.json", "model.safetensors", "tokenizer.json")
    }
    assert all(f["sha256"].startswith("sha256:") for f in row["files"])
    assert {r["checked"] for r in verify_inputs({"inputs": {"model": row}})} == {"sha256"}
    edit(Path(row["path"]) / "config.json", flip)
    with pytest.raises(LaunchRefused, match="E-JOB-009"):
        verify_inputs({"inputs": {"model": row}})


def test_a_file_that_is_put_beside_the_weights_after_the_submission_stops_the_job(
    hub: FakeHub, lock_in: Get, take: Callable[..., HubInput]
) -> None:
    hub.repo("org/tiny").commit(MODEL)
    lock_in()
    row = take().row
    (Path(row["path"]) / "adapter_config.json").symlink_to("../../blobs/x")
    with pytest.raises(LaunchRefused, match=r"holds adapter_config\.json, which was not recorded"):
        verify_inputs({"inputs": {"model": row}})


class TestE5EachDifferenceStopsBeforeTheQueue:
    """With its own code, and the command that mends or accepts it."""

    @pytest.fixture(autouse=True)
    def locked(self, hub: FakeHub, lock_in: Get) -> None:
        self.commit = hub.repo("org/tiny").commit(MODEL)
        lock_in()

    def test_another_repository(self, take: Callable[..., HubInput]) -> None:
        assert refused(lambda: take(Repo("model", "org/other"))) == (
            "E-LOCK-002",
            "run: tp model prefetch exp --accept",
        )

    def test_another_commit(self, hub: FakeHub, take: Callable[..., HubInput], lock_in: Get, exp: Path) -> None:
        new = hub.repo("org/tiny").commit(MODEL | {"config.json": b'{"x": 1}'})
        assert refused(lambda: take(revision=new)) == ("E-LOCK-003", "run: tp model prefetch exp --accept")
        assert refused(lambda: lock_in(f"hf:org/tiny@{new}"))[0] == "E-LOCK-003"
        lock_in(f"hf:org/tiny@{new}", accept=True)
        assert read_lock(exp).inputs["model"].commit == new
        assert take(revision=new).entry.commit == new

    def test_a_branch_that_moved_means_the_locked_commit_until_it_is_accepted(
        self, hub: FakeHub, take: Callable[..., HubInput], lock_in: Get, get: Get, exp: Path
    ) -> None:
        new = hub.repo("org/tiny").commit(MODEL | {"config.json": b'{"x": 1}'})
        get()  # somebody else moves the cache's idea of main
        assert take().entry.commit == self.commit
        assert lock_in()[1] is False
        assert take().entry.commit == self.commit
        assert lock_in(accept=True)[1] is True
        assert take().entry.commit == new

    def test_a_missing_file(self, cache: HubCache, take: Callable[..., HubInput], lock_in: Get) -> None:
        (cache.snapshot(TINY, self.commit) / "tokenizer.json").unlink()
        assert refused(take) == ("E-LOCK-004", "run: tp model prefetch exp")
        lock_in()
        assert take().entry.commit == self.commit

    def test_a_missing_blob(self, cache: HubCache, take: Callable[..., HubInput], lock_in: Get) -> None:
        Path(os.path.realpath(cache.snapshot(TINY, self.commit) / "tokenizer.json")).unlink()
        assert refused(take)[0] == "E-HUB-021"
        lock_in()
        assert take().entry.commit == self.commit

    @pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
    def test_a_changed_byte(self, cache: HubCache, take: Callable[..., HubInput], lock_in: Get, name: str) -> None:
        edit(cache.snapshot(TINY, self.commit) / name, flip)
        assert refused(take) == ("E-LOCK-005", "run: tp model prefetch exp")
        lock_in()
        assert take().entry.commit == self.commit

    def test_a_moved_cache(self, cache: HubCache, take: Callable[..., HubInput], lock_in: Get, hub: FakeHub) -> None:
        shutil.move(cache.repo(TINY), cache.hub / "elsewhere")
        assert refused(take) == ("E-LOCK-006", "run: tp model prefetch exp")
        hub.repo("org/tiny").commit(MODEL | {"config.json": b'{"x": 1}'})
        lock_in()  # fetches exactly the locked commit, though main is another one
        assert take().entry.commit == self.commit

    def test_a_cache_that_was_copied_without_its_links(self, cache: HubCache, take: Callable[..., HubInput]) -> None:
        place = cache.snapshot(TINY, self.commit) / "model.safetensors"
        place.unlink()
        place.write_bytes(WEIGHTS)
        assert refused(take)[0] == "E-HUB-023"

    def test_a_link_out_of_the_repository(self, cache: HubCache, take: Callable[..., HubInput], scratch: Path) -> None:
        place = cache.snapshot(TINY, self.commit) / "model.safetensors"
        elsewhere = scratch / Path(os.path.realpath(place)).name
        elsewhere.write_bytes(WEIGHTS)
        place.unlink()
        place.symlink_to(elsewhere)
        assert refused(take)[0] == "E-HUB-023"

    def test_a_file_that_the_lock_does_not_know(self, cache: HubCache, take: Callable[..., HubInput]) -> None:
        blob = os.path.realpath(cache.snapshot(TINY, self.commit) / "config.json")
        (cache.snapshot(TINY, self.commit) / "adapter_config.json").symlink_to(f"../../blobs/{os.path.basename(blob)}")
        assert refused(take) == ("E-LOCK-008", "run: tp model prefetch exp --accept")

    def test_another_image(self) -> None:
        lock = Lock({}, {"runtime_id": "r", "sif": "sha256:" + "1" * 64})
        fault = runtime_refusal(lock, "r", "sha256:" + "2" * 64, accept="tp model prefetch exp --accept")
        assert fault is not None
        assert (fault.code, fault.hint) == ("E-LOCK-007", "run: tp model prefetch exp --accept")
        assert runtime_refusal(lock, "r", "sha256:" + "1" * 64, accept="") is None

    @pytest.mark.parametrize(
        "text",
        [
            "{",
            "[]",
            "{}",
            '{"schema": "x", "inputs": {}}',
            '{"schema": "tuneplane-hpc/inputs-lock/v1", "inputs": {"model": {}}}',
        ],
    )
    def test_a_lock_that_is_not_understood(self, exp: Path, take: Callable[..., HubInput], text: str) -> None:
        (exp / LOCK_NAME).write_text(text)
        assert refused(take)[0] == "E-LOCK-001"


def test_a_lock_cannot_smuggle_a_path(exp: Path) -> None:
    entry = Entry("hf", "model", "org/tiny", "main", "a" * 40, {"../x": "git-sha1:" + "0" * 40})
    (exp / LOCK_NAME).write_text(json.dumps(Lock({"model": entry}).as_json()))
    assert refused(lambda: read_lock(exp))[0] == "E-LOCK-001"


def test_completing_a_lock_changes_nothing_that_it_says(exp: Path) -> None:
    one, two = (Entry("hf", "model", "org/tiny", "main", c * 40, {}) for c in "ab")
    done = Lock({"model": one}, {"runtime_id": "r", "sif": "s"}).completed(
        {"model": two, "train": two}, {"runtime_id": "q", "sif": "t"}
    )
    assert (done.inputs, done.runtime) == ({"model": one, "train": two}, {"runtime_id": "r", "sif": "s"})
    assert write_lock(exp, Lock({"model": one})) is True
    assert write_lock(exp, Lock({"model": one})) is False


def test_p65_data_sets_are_locked_a_role_each_and_only_the_file_that_is_named_comes(
    hub: FakeHub, lock_in: Get, exp: Path, take: Callable[..., HubInput]
) -> None:
    hub.repo("org/rows", "dataset").commit({"a/train.jsonl": b"{}\n", "a/test.jsonl": b'{"x": 1}\n', "b.jsonl": b""})
    config = {
        "train": {"dataset": "hf:org/rows", "path": "a/train.jsonl"},
        "validation": {"dataset": "hf:org/rows", "path": "a/test.jsonl"},
    }
    lock_in(data=config)
    lock = read_lock(exp)
    assert {role: sorted(e.files) for role, e in lock.inputs.items()} == {
        "train": ["a/train.jsonl"],
        "validation": ["a/test.jsonl"],
    }
    row = take(ROWS, role="validation", only=("a/test.jsonl",)).row
    assert (Path(row["path"]).read_bytes(), [f["path"] for f in row["files"]], row["closed"]) == (
        b'{"x": 1}\n',
        [""],
        False,
    )


def test_e3_a_split_that_leads_out_is_refused(take: Callable[..., HubInput]) -> None:
    assert refused(lambda: take(ROWS, role="train", only=("../x.jsonl",)))[0] == "E-HUB-003"


SHARDS = [f"data/train-{n:05}-of-00003.parquet" for n in range(3)]


@pytest.mark.parametrize(
    ("files", "role", "split", "wanted"),
    [
        (["x.jsonl"], "train", "", ["x.jsonl"]),
        (
            ["data/train-00000-of-00001.parquet", "data/test.parquet"],
            "train",
            "",
            ["data/train-00000-of-00001.parquet"],
        ),
        (["data/train.jsonl", "data/dev.jsonl"], "validation", "", ["data/dev.jsonl"]),
        (["train.jsonl", "rare.jsonl"], "train", "rare", ["rare.jsonl"]),
        ([*SHARDS, "test.parquet"], "train", "", SHARDS),
        (SHARDS, "train", "train", SHARDS),
        (SHARDS[:2], "train", "", "E-HUB-008"),
        ([*SHARDS, "other-train-00000-of-00001.parquet"], "train", "", "E-HUB-008"),
        (["train-0.jsonl", "train-1.jsonl"], "train", "", "E-HUB-008"),
        (["x.jsonl"], "train", "rare", "E-HUB-008"),
    ],
)
def test_which_files_a_source_without_a_path_means(
    hub: FakeHub, get: Get, cache: HubCache, files: list[str], role: str, split: str, wanted: str | list[str]
) -> None:
    hub.repo("org/rows", "dataset").commit({name: name.encode() for name in files})
    get("org/rows", kind="dataset")

    def find() -> list[str]:
        return list(data_files(cache, Lock(), role, ROWS, "", split, field="f", exp="exp"))

    assert (refused(find)[0] if isinstance(wanted, str) else find()) == wanted


def test_the_shards_of_a_split_are_one_input_with_a_digest_each(
    hub: FakeHub, get: Get, take: Callable[..., HubInput]
) -> None:
    hub.repo("org/rows", "dataset").commit({name: name.encode() for name in SHARDS})
    get("org/rows", kind="dataset")
    row = take(ROWS, role="train", only=tuple(SHARDS)).row
    assert [f["path"] for f in row["files"]] == SHARDS
    assert all((Path(row["path"]) / f["path"]).read_bytes() == f["path"].encode() for f in row["files"])
    assert (row["closed"], all(f["sha256"] for f in row["files"])) == (False, True)


def test_b1_an_uncertified_model_needs_a_pin_and_a_certified_one_its_commit() -> None:
    pin = "a" * 40
    table = Certified({"org/good": CertifiedModel("org/Good", pin)})
    assert table.revision("ORG/good", "", field="f") == pin
    assert table.revision("org/good", "main", field="f") == pin
    assert refused(lambda: table.revision("org/good", "b" * 40, field="f"))[0] == "E-MODEL-010"
    assert refused(lambda: table.require_pin("org/x", "main", locked=False, field="f", command="C")) == (
        "E-MODEL-012",
        "run: C",
    )
    table.require_pin("org/x", pin, locked=False, field="f", command="")
    table.require_pin("org/x", "main", locked=True, field="f", command="")
    table.require_pin("org/good", "", locked=False, field="f", command="")


def test_the_certified_table_is_the_admins_and_asserts_the_architecture(cache: HubCache, exp: Path) -> None:
    text = """\
schema: tuneplane-hpc/models/v1
models:
  org/tiny: {revision: %s, architecture: {hidden_size: 8, rope.theta: 2}, lora_targets: [q_proj], memory_gib: {train: 16}}
  qwen/qwen3.5-2b: null
""" % ("a" * 40)
    (cache.root.site / "models.yaml").write_text(text)
    table = Certified.load(cache.root)
    assert table.find("Org/Tiny") == CertifiedModel(
        "org/tiny", "a" * 40, {"hidden_size": 8, "rope.theta": 2}, ("q_proj",), {"train": 16}, origin="models.yaml"
    )
    assert table.find("Qwen/Qwen3.5-2B") is None
    assert table.find("meta-models/Muse-Glimmer-30B") is not None
    config = exp / "config.json"
    config.write_text('{"hidden_size": 8, "rope": {"theta": 2}}')
    table.require_architecture("org/tiny", config)
    config.write_text('{"hidden_size": 9, "rope": {"theta": 2}}')
    assert refused(lambda: table.require_architecture("org/tiny", config))[0] == "E-MODEL-011"
    (cache.root.site / "models.yaml").write_text(text.replace("a" * 40, "main"))
    assert refused(lambda: Certified.load(cache.root))[0] == "E-MODEL-001"
    (cache.root.site / "models.yaml").chmod(0o666)
    assert refused(lambda: Certified.load(cache.root))[0] == "E-SITE-011"
