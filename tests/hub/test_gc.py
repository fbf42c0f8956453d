"""`tp gc`: what nobody needs goes, what somebody names stays, and nothing goes that is being made."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from fakehub import FakeHub
from tuneplane.contract.layout import RunPaths, StorageRoot
from tuneplane.record.files import write_json_new

from hpc.data import gc
from hpc.data.gc_survey import Item, Survey, survey
from hpc.data.hub_names import HubCache, Repo
from hpc.data.lock import LOCK_NAME, Entry, Lock, write_lock
from hpc.data.prefetch import Prefetched
from hpc.errors import Refusal
from hpc.site.users import real_user
from tests.hub.conftest import MODEL

TINY = Repo("model", "org/tiny")
DAY = 86_400.0
Get = Callable[..., Prefetched]


@pytest.fixture
def look(root: StorageRoot) -> Callable[..., Survey]:
    """The survey as it would be so many days from now."""

    def do(days: float = 31) -> Survey:
        return survey(root, now_s=time.time() + days * DAY)

    return do


def found(what: Survey) -> set[tuple[str, str]]:
    return {(i.kind, i.path.name) for i in what.items}


def make_run(root: StorageRoot, commit: str = "", submitted: bool = True) -> RunPaths:
    run = root.run(real_user().name, "exp", "run-00ab")
    (run.work / ".tuneplane").mkdir(parents=True)
    write_json_new(run.launch, {"inputs": {"model": {"source": f"hf:org/tiny@{commit}"}}})
    if submitted:
        run.submissions.mkdir()
        write_json_new(run.submissions / "0.json", {})
    return run


def test_a_commit_that_nobody_names_goes_with_its_files_refs_and_records(
    hub: FakeHub, get: Get, root: StorageRoot, cache: HubCache, look: Callable[..., Survey]
) -> None:
    commit = hub.repo("org/tiny").commit(MODEL)
    size = sum(f.size for f in get().files)
    assert look(29).items == []
    (item,) = look().items
    assert (item.kind, item.path.name, item.size) == ("commit", commit, size)
    assert gc.remove(root, item) == size
    assert list(cache.blobs(TINY).iterdir()) == []
    assert not cache.ref(TINY, "main").exists()
    assert list((cache.assets / TINY.folder).iterdir()) == []
    assert get().fetched == size  # and it can come again


def test_files_that_another_commit_leads_to_stay(
    hub: FakeHub, get: Get, root: StorageRoot, look: Callable[..., Survey], cache: HubCache
) -> None:
    repo = hub.repo("org/tiny")
    old = repo.commit(MODEL)
    get()
    new = repo.commit(MODEL | {"config.json": b'{"x": 1}'})
    folder = get().folder
    make_run(root, new)
    what = look()
    assert (found(what), what.size) == ({("commit", old)}, len(MODEL["config.json"]))
    gc.remove(root, what.items[0])
    assert all((folder / n).exists() for n in ("config.json", "model.safetensors", "tokenizer.json"))
    assert what.kept == {f"hf:org/tiny@{new}": f"run {real_user().name}/exp/run-00ab"}


def test_what_a_lock_names_stays_until_the_lock_is_gone(
    hub: FakeHub, get: Get, scratch: Path, look: Callable[..., Survey]
) -> None:
    commit = hub.repo("org/tiny").commit(MODEL)
    exp = scratch / "exp"
    exp.mkdir()
    write_lock(exp, Lock({"model": Entry("hf", "model", "org/tiny", "main", commit, {})}))
    get(locks=(str(exp / LOCK_NAME),))
    assert look().items == []
    (exp / LOCK_NAME).write_text("{")  # what is not understood may name it
    assert look().items == []
    write_lock(exp, Lock({"model": Entry("hf", "model", "org/tiny", "main", "f" * 40, {})}))
    assert found(look()) == {("commit", commit)}
    (exp / LOCK_NAME).unlink()
    assert found(look()) == {("commit", commit)}


def test_what_a_model_was_made_from_stays(
    hub: FakeHub, get: Get, root: StorageRoot, look: Callable[..., Survey]
) -> None:
    commit = hub.repo("org/tiny").commit(MODEL)
    get()
    folder = root.shelf("models") / "ann" / "toy" / "1.0"
    folder.mkdir(parents=True)
    (folder / "record.json").write_text(json.dumps({"facts": {"lineage": {"base_source": f"hf:org/tiny@{commit}"}}}))
    assert look().kept == {f"hf:org/tiny@{commit}": "model ann/toy@1.0"}


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody who may not look")
def test_where_records_cannot_be_read_no_cached_commit_goes(
    hub: FakeHub, get: Get, root: StorageRoot, look: Callable[..., Survey]
) -> None:
    hub.repo("org/tiny").commit(MODEL)
    get()
    make_run(root)
    code = (
        "import sys; from pathlib import Path; from tuneplane.contract.layout import StorageRoot; from hpc.data.gc_survey import survey\n"
        "found = survey(StorageRoot(Path(sys.argv[1])), now_s=float(sys.argv[2])); print(len(found.items), found.closed)"
    )
    out = subprocess.run(
        [sys.executable, "-c", code, str(root.path), str(time.time() + 31 * DAY)], user=65534, group=65534, extra_groups=[], cwd="/",
        check=True, capture_output=True, text=True, timeout=60,
    ).stdout  # fmt: skip
    assert out == f"0 ['runs/{real_user().name}']\n"


def test_litter_parts_claims_and_orphans_go_after_a_day(
    hub: FakeHub, get: Get, root: StorageRoot, cache: HubCache, look: Callable[..., Survey]
) -> None:
    hub.repo("org/tiny").commit(MODEL)
    get()
    shelf = root.shelf("plugins") / "ann" / "toy"
    (shelf / ".1.0.abc.tmp").mkdir(parents=True)
    (shelf / ".1.0.abc.tmp" / "x").write_bytes(b"12345")
    (cache.blobs(TINY) / f".{'a' * 64}.00000000-1-1-1.part").write_bytes(b"123")
    (cache.blobs(TINY) / ("b" * 64)).write_bytes(b"12")
    (cache.claims / "x.json").write_bytes(b"1")
    (cache.claims / ".x.json.abc.tmp").write_bytes(b"1")
    (cache.snapshot(TINY, get().commit) / ".x.abc.tmp").symlink_to("nowhere")
    assert found(look(0.5)) == set()
    what = look(1.5)
    assert len(found(what)) == len(what.items)
    assert found(what) == {
        ("litter", ".1.0.abc.tmp"), ("litter", ".x.abc.tmp"), ("litter", ".x.json.abc.tmp"),
        ("part", f".{'a' * 64}.00000000-1-1-1.part"), ("blob", "b" * 64), ("claim", "x.json"),
    }  # fmt: skip
    assert sum(gc.remove(root, i) for i in what.items if i.kind != "litter") == 3 + 2 + 1
    for item in what.items:
        if item.kind == "litter":
            gc.remove(root, item)
    assert look(1.5).items == []


def test_a_package_that_was_never_submitted_goes_and_one_with_an_intent_stays(
    root: StorageRoot, look: Callable[..., Survey]
) -> None:
    run = make_run(root, submitted=False)
    intents = root.user_state(real_user().name) / "intents"
    intents.mkdir()
    (intents / "run-00ab-0.json").write_text("{}")
    assert look().items == []
    (intents / "run-00ab-0.json").unlink()
    assert look(0.5).items == []
    (item,) = look().items
    assert (item.kind, item.path) == ("run", run.root)
    run.submissions.mkdir()
    write_json_new(run.submissions / "0.json", {})
    with pytest.raises(Refusal, match="E-GC-001"):
        gc.remove(root, item)
    assert look().items == []


def test_the_admitted_copy_of_a_run_that_never_began_goes_with_it_and_others_stay(
    root: StorageRoot, look: Callable[..., Survey]
) -> None:
    run = make_run(root, submitted=False)
    for name in (run.run_id, "run-00cd", "stray"):
        (root.admitted / name / "work").mkdir(parents=True)
    what = look()
    assert found(what) == {("run", run.run_id), ("admitted", run.run_id)}
    run.submissions.mkdir()
    write_json_new(run.submissions / "0.json", {})
    assert look().items == []
    copy = next(i for i in what.items if i.kind == "admitted")
    with pytest.raises(Refusal, match="E-GC-001"):
        gc.remove(root, copy)
    (run.submissions / "0.json").unlink()
    gc.remove(root, copy)
    assert sorted(p.name for p in root.admitted.iterdir()) == ["run-00cd", "stray"]


def test_a_commit_that_is_taken_up_between_looking_and_removing_stays(
    hub: FakeHub, get: Get, root: StorageRoot, cache: HubCache, look: Callable[..., Survey]
) -> None:
    commit = hub.repo("org/tiny").commit(MODEL)
    folder = get().folder
    (item,) = look().items
    make_run(root, commit)
    with pytest.raises(Refusal, match="E-GC-001"):
        gc.remove(root, item)
    assert (folder / "model.safetensors").exists()


def test_a_file_that_is_linked_while_it_is_removed_comes_back(
    hub: FakeHub, get: Get, root: StorageRoot, cache: HubCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.repo("org/tiny").commit(MODEL)
    folder = get().folder
    blob = Path(os.path.realpath(folder / "config.json"))
    place = folder / "config.json"
    target = os.readlink(place)
    place.unlink()
    rename = os.rename

    def late(one: Path, other: Path) -> None:
        rename(one, other)
        if not place.is_symlink():
            place.symlink_to(target)

    monkeypatch.setattr(os, "rename", late)
    with pytest.raises(Refusal, match="E-GC-001"):
        gc.remove(root, Item("blob", blob, "", 1, 0, TINY))
    assert place.read_bytes() == MODEL["config.json"]


def test_a_file_that_a_clean_up_takes_while_it_is_linked_is_fetched_again(
    hub: FakeHub, get: Get, cache: HubCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hpc.data import prefetch

    hub.repo("org/tiny").commit(MODEL)
    taken = []
    link = prefetch.link

    def late(where: HubCache, repo: Repo, commit: str, path: str, digest: str) -> None:
        link(where, repo, commit, path, digest)
        if path == "config.json" and not taken:
            taken.append(path)
            os.unlink(os.path.realpath(where.snapshot(repo, commit) / path))

    monkeypatch.setattr(prefetch, "link", late)
    assert (get().folder / "config.json").read_bytes() == MODEL["config.json"]


def test_a_checkpoint_that_only_an_evaluation_kept_goes_once_both_have_ended(
    root: StorageRoot, look: Callable[..., Survey]
) -> None:
    def write(path: Path, value: object) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(value))

    owner = real_user().name
    run, beside = root.run(owner, "e", "run-01ab"), root.run(owner, "e.checkpoints", "run-02ab")
    later = root.run(owner, "f", "run-03ab")
    for step in (2, 4, 6, 8):
        write(run.checkpoints / f"step-00000000{step}/manifest.json", {})
    write(run.launch, {"hyperparams": {"keep_checkpoints": 1}})
    write(run.root / "followups/run-02ab.json", {"action": "checkpoints", "run_id": "run-02ab", "exp": "e.checkpoints"})
    write(beside.launch, {"follows": {"run_id": "run-01ab"}, "late": {"candidate": {"steps": [2, 4, 6, 8]}}})
    write(run.evaluations / "7_0", {})
    for element in (0, 1, 2):
        write(beside.element(element).attempt(0).end, {"requeue": False})
    for one in (run, beside):
        write(one.submissions / "0.json", {"job_id": "7"})
    write(run.attempt(0).end, {"requeue": True})
    assert found(look(2)) == set()
    write(run.attempt(0).end, {"requeue": False})
    assert found(look(0.5)) == set()
    gone = {("checkpoint", "step-000000002"), ("checkpoint", "step-000000004"), ("checkpoint", "step-000000006")}
    assert found(look(2)) == gone
    # What still is asked, or begins another run, stays.
    write(beside.element(1).attempt(1).start, {})
    write(later.launch, {"start": {"path": str(run.checkpoints / "step-000000006")}})
    write(later.submissions / "0.json", {})
    assert found(look(2)) == {("checkpoint", "step-000000002")}
    (item,) = look(2).items
    gc.remove(root, item)
    assert sorted(os.listdir(run.checkpoints)) == ["step-000000004", "step-000000006", "step-000000008"]
