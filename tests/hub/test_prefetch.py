"""From the hub into the shared cache: chosen, resumed, compared, and visible to everybody."""

from __future__ import annotations

import hashlib
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from fakehub import FakeHub, git_sha1

from hpc.data import hub_client
from hpc.data.hub_cache import snapshot
from hpc.data.hub_choice import RemoteFile, choose
from hpc.data.hub_client import HuggingFace
from hpc.data.hub_names import HubCache, Repo, parse_repo
from hpc.data.prefetch import Prefetched, Progress, Watch
from hpc.data.retry import PassingError
from hpc.errors import Refusal
from tests.hub.conftest import CONFIG, MODEL, WEIGHTS

TINY = Repo("model", "org/tiny")
Get = Callable[..., Prefetched]


def refused(call: Callable[[], object]) -> Refusal:
    with pytest.raises(Refusal) as caught:
        call()
    return caught.value


def modes(folder: Path) -> set[tuple[str, str]]:
    """(kind, mode) of everything below the folder."""
    out = set()
    for base, folders, files in os.walk(folder):
        for name in [*folders, *files]:
            found = os.lstat(os.path.join(base, name))
            if not stat.S_ISLNK(found.st_mode):
                out.add(("folder" if stat.S_ISDIR(found.st_mode) else "file", f"{stat.S_IMODE(found.st_mode):04o}"))
    return out


def test_the_cache_has_the_layout_of_huggingface_hub_and_the_library_finds_it_offline(
    hub: FakeHub, cache: HubCache, get: Get
) -> None:
    commit = hub.repo("org/tiny").commit(MODEL)
    done = get()
    assert (done.commit, done.requested) == (commit, "main")
    code = (
        "import sys; from huggingface_hub import hf_hub_download, snapshot_download\n"
        "print(snapshot_download('org/tiny')); print(open(hf_hub_download('org/tiny', 'config.json')).read())"
    )
    env = {"PATH": os.environ["PATH"], "HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(cache.hub), "HOME": "/nonexistent"}
    out = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True).stdout
    assert out.splitlines() == [str(done.folder), CONFIG.decode()]


def test_weights_tokenizer_and_config_come_and_what_stays_is_counted(hub: FakeHub, get: Get) -> None:
    hub.repo("org/tiny").commit(MODEL)
    done = get()
    assert [f.path for f in done.files] == ["README.md", "config.json", "model.safetensors", "tokenizer.json"]
    assert done.left_out == {"code": 1, "other": 1, "other format": 1, "pickle": 1}
    assert sorted(os.listdir(done.folder)) == ["README.md", "config.json", "model.safetensors", "tokenizer.json"]
    assert {f.path: f.digest for f in done.files}["config.json"] == "git-sha1:" + git_sha1(CONFIG)
    assert {f.path: f.digest for f in done.files}["model.safetensors"] == "sha256:" + hashlib.sha256(
        WEIGHTS
    ).hexdigest()


def test_nothing_but_the_plan_and_the_files_is_asked_of_the_hub(hub: FakeHub, get: Get) -> None:
    hub.repo("org/tiny").commit({"config.json": CONFIG, "model.safetensors": WEIGHTS})
    get()
    assert sorted({s.path.split("/")[1] for s in hub.log}) == ["api", "cdn", "org"]
    assert len(hub.log) == 4  # the plan, config.json, and the weights by their redirect


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_what_was_fetched_is_readable_for_the_group_whatever_the_umask(
    hub: FakeHub, cache: HubCache, get: Get, umask: int
) -> None:
    hub.repo("org/tiny").commit(MODEL)
    before = os.umask(umask)
    try:
        get()
    finally:
        os.umask(before)
    assert modes(cache.repo(TINY)) == {("folder", "3775"), ("folder", "2775"), ("file", "0444"), ("file", "0644")}
    assert modes(cache.assets) == {("folder", "3775"), ("file", "0644")}


def test_e6_503_twice_then_ok_is_two_waits_of_2_and_4_seconds(hub: FakeHub, get: Get, slept: list[float]) -> None:
    hub.repo("org/tiny").commit(MODEL)
    hub.fail("/api/models", times=2, status=503)
    get()
    assert slept == [2.0, 4.0]


def test_e6_404_is_not_tried_again(hub: FakeHub, get: Get, slept: list[float]) -> None:
    hub.repo("org/tiny").commit(MODEL)
    assert refused(lambda: get(revision="nope")).code == "E-HUB-011"
    assert slept == []
    assert hub.asked("/api/models") == 1


def test_waits_double_up_to_a_minute_and_end_with_try_later(hub: FakeHub, get: Get, slept: list[float]) -> None:
    hub.repo("org/tiny").commit(MODEL)
    hub.fail("/api/models", times=99, status=502)
    fault = refused(get)
    assert (fault.code, fault.exit) == ("E-HUB-010", 75)
    assert slept == [2, 4, 8, 16, 32, 60, 60, 60, 60]


def test_the_hubs_own_retry_after_is_respected_up_to_a_minute(hub: FakeHub, get: Get, slept: list[float]) -> None:
    hub.repo("org/tiny").commit(MODEL)
    hub.fail("/api/models", status=429, headers={"Retry-After": "30"})
    hub.fail("/api/models", status=429, headers={"Retry-After": "9999"})
    get()
    assert slept == [30.0, 60.0]


def test_no_hub_at_all_is_try_later(cache: HubCache, get: Get, hub: FakeHub, slept: list[float]) -> None:
    hub.close()
    fault = refused(get)
    assert (fault.code, fault.exit, len(slept)) == ("E-HUB-010", 75, 9)


@pytest.mark.parametrize(
    ("attribute", "code"), [("gated", "E-HUB-012"), ("private", "E-HUB-013"), ("forbidden", "E-HUB-014")]
)
def test_gated_401_and_403_each_have_a_code_and_no_second_try(
    hub: FakeHub, get: Get, slept: list[float], attribute: str, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    repo = hub.repo("org/tiny")
    repo.commit(MODEL)
    setattr(repo, attribute, True)
    assert (refused(get).code, slept) == (code, [])


def test_a_cut_connection_is_resumed_where_it_was_cut(hub: FakeHub, get: Get, slept: list[float]) -> None:
    hub.repo("org/tiny").commit(MODEL)
    hub.fail("/cdn/", cut_after=10_000)
    hub.fail("/cdn/", cut_after=20_000)
    get()
    asked = [s.range for s in hub.log if s.path.startswith("/cdn/")]
    assert asked == ["", "bytes=10000-", "bytes=30000-"]
    assert hub.sent("/cdn/") == len(WEIGHTS)
    assert slept == [2.0, 2.0]  # there was progress in between


@pytest.mark.parametrize("cut", [100, 1 << 20, (2 << 20) + 77])
def test_a_large_file_comes_in_blocks_and_goes_on_where_it_was_cut(
    hub: FakeHub, get: Get, slept: list[float], cut: int
) -> None:
    data = os.urandom((2 << 20) + 12_345)
    hub.repo("org/tiny").commit({"config.json": CONFIG, "model.safetensors": data})
    hub.fail("/cdn/", cut_after=cut)
    done = get()
    assert (done.folder / "model.safetensors").read_bytes() == data
    assert [s.range for s in hub.log if s.path.startswith("/cdn/")] == ["", f"bytes={cut}-"]
    assert (hub.sent("/cdn/"), slept) == (len(data), [2.0])


def test_a_connection_that_goes_silent_in_a_large_file_is_tried_again(hub: FakeHub) -> None:
    import httpcore2

    class Silent:
        def read(self, count: int, timeout: float) -> bytes:
            raise httpcore2.ReadTimeout("timed out")

    with pytest.raises(PassingError) as caught, hub_client._worded("reading"):
        list(hub_client._blocks(Silent(), 5))
    assert caught.value.message == "reading: timed out"


def test_a_coded_or_framed_body_is_left_to_the_library() -> None:
    class Response:
        def __init__(self, version: bytes = b"HTTP/1.1", **headers: str) -> None:
            self.headers = {k.replace("_", "-"): v for k, v in headers.items()}
            self.extensions = {"http_version": version, "network_stream": object()}

    rest = hub_client._plain_rest
    assert rest(Response(Content_Length="7")) == 7
    assert rest(Response(Content_Length="7", Content_Encoding="gzip")) == 0
    assert rest(Response(Content_Length="7", Transfer_Encoding="chunked")) == 0
    assert rest(Response(b"HTTP/2", Content_Length="7")) == 0
    assert rest(Response()) == 0


def test_a_hub_that_ignores_ranges_gives_the_whole_file_again(hub: FakeHub, get: Get) -> None:
    hub.repo("org/tiny").commit(MODEL)
    hub.fail("/cdn/", cut_after=10_000)
    hub.fail("/cdn/", no_range=True)
    done = get()
    assert (done.folder / "model.safetensors").read_bytes() == WEIGHTS


@pytest.mark.parametrize("length", [len(WEIGHTS) - 1, len(WEIGHTS) + 1])
def test_a_wrong_length_is_refused_at_once(hub: FakeHub, get: Get, slept: list[float], length: int) -> None:
    hub.repo("org/tiny").commit(MODEL)
    hub.fail("/cdn/", length=length, times=99)
    fault = refused(get)
    assert (fault.code, fault.found, fault.allowed) == ("E-HUB-015", f"{length} bytes", f"{len(WEIGHTS)} bytes")
    assert slept == []


def test_flipped_bytes_of_the_right_length_never_get_a_name(hub: FakeHub, cache: HubCache, get: Get) -> None:
    hub.repo("org/tiny").commit(MODEL)
    hub.fail("/cdn/", flip_at=5000)
    fault = refused(get)
    assert (fault.code, fault.field) == ("E-HUB-015", "model.safetensors")
    assert not any(n.startswith(hashlib.sha256(WEIGHTS).hexdigest()) for n in os.listdir(cache.blobs(TINY)))
    assert not cache.assets.joinpath(TINY.folder).exists()
    get()  # the next try brings it


def test_the_second_fetch_moves_no_byte(hub: FakeHub, get: Get) -> None:
    hub.repo("org/tiny").commit(MODEL)
    get()
    before = hub.sent()
    again = get(user="ben")
    assert (again.fetched, again.adopted, hub.sent()) == (0, 4, before)


def test_a_new_commit_fetches_only_what_changed(hub: FakeHub, get: Get, cache: HubCache) -> None:
    repo = hub.repo("org/tiny")
    old = repo.commit(MODEL)
    get()
    before = hub.sent()
    new = repo.commit(MODEL | {"config.json": b"{}"})
    assert get().commit == new
    assert hub.sent() - before == 2
    assert sorted(os.listdir(cache.repo(TINY) / "snapshots")) == sorted([old, new])


def test_a_damaged_file_of_ours_is_fetched_again(hub: FakeHub, get: Get) -> None:
    hub.repo("org/tiny").commit(MODEL)
    blob = Path(os.path.realpath(get().folder / "model.safetensors"))
    blob.chmod(0o644)
    blob.write_bytes(WEIGHTS[:-1] + b"x")
    done = get()
    assert (done.fetched, blob.read_bytes()) == (len(WEIGHTS), WEIGHTS)


def test_weights_that_are_pickles_only_are_refused(hub: FakeHub, get: Get) -> None:
    hub.repo("org/tiny").commit({k: v for k, v in MODEL.items() if not k.endswith("safetensors")})
    fault = refused(get)
    assert (fault.code, fault.found) == ("E-HUB-004", "pytorch_model.bin")
    assert hub.sent() == 0


@pytest.mark.parametrize("path", ["../x.jsonl", "/etc/passwd", "a/../../x.jsonl", "a\\b.jsonl", "a\nb.jsonl"])
def test_e3_a_path_that_leaves_its_folder_is_refused(hub: FakeHub, get: Get, cache: HubCache, path: str) -> None:
    hub.repo("org/rows", "dataset").commit({"train.jsonl": b"{}\n", path: b"{}\n"})
    assert refused(lambda: get("org/rows", kind="dataset")).code == "E-HUB-003"
    assert hub.sent() == 0


def test_data_comes_from_folders_and_a_pattern_narrows_it(hub: FakeHub, get: Get) -> None:
    files = {"data/train.jsonl": b"{}\n", "data/test.parquet": b"PAR1", "data/x.csv": b"a", "load.py": b""}
    hub.repo("org/rows", "dataset").commit(files)
    whole = get("org/rows", kind="dataset")
    assert ([f.path for f in whole.files], whole.left_out) == (
        ["data/test.parquet", "data/train.jsonl"],
        {"code": 1, "other format": 1},
    )
    narrow = get("org/rows", kind="dataset", patterns=("data/tr*",))
    assert ([f.path for f in narrow.files], narrow.left_out["not asked for"]) == (["data/train.jsonl"], 1)


def test_the_standard_weights_win_over_a_second_copy_of_them() -> None:
    names = [
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "consolidated.safetensors",
        "model.fp16.safetensors",
    ]
    found = choose(TINY, [RemoteFile(n, 1, "git-sha1:" + "0" * 40) for n in names])
    assert ([f.path for f in found.files], found.left_out) == (names[:2], {"other weights": 2})


def test_what_a_killed_process_left_is_gone_on_with(hub: FakeHub, get: Get, cache: HubCache, tmp_path: Path) -> None:
    """Kill -9 in the middle of a body: the next process asks for the rest only, and nothing half is visible meanwhile."""
    hub.repo("org/tiny").commit(MODEL)
    hub.fail("/cdn/", cut_after=40_000)
    code = (
        "import os, sys, signal; from pathlib import Path; from tuneplane.contract.layout import StorageRoot\n"
        "from hpc.data.hub_client import HuggingFace; from hpc.data.hub_names import HubCache, Repo\n"
        "from hpc.data.prefetch import Clockwork, prefetch\n"
        "die = lambda s: os.kill(os.getpid(), signal.SIGKILL)\n"
        "prefetch(HubCache(StorageRoot(Path(sys.argv[1]))), HuggingFace(sys.argv[2]), Repo('model', 'org/tiny'), user='ann',\n"
        "         time=Clockwork(lambda: 0.0, die, ''))"
    )
    root = cache.root.path
    done = subprocess.run([sys.executable, "-c", code, str(root), hub.endpoint], capture_output=True, check=False)
    assert done.returncode == -9, done.stderr
    assert not os.path.lexists(cache.blobs(TINY) / hashlib.sha256(WEIGHTS).hexdigest())
    assert len(os.listdir(cache.claims)) == 1
    before = hub.sent("/cdn/")
    done = get()
    assert (done.folder / "model.safetensors").read_bytes() == WEIGHTS
    assert hub.sent("/cdn/") - before == len(WEIGHTS) - before
    assert len(WEIGHTS) - before <= done.fetched < len(WEIGHTS)
    assert os.listdir(cache.claims) == []
    assert [n for n in os.listdir(cache.blobs(TINY)) if n.endswith(".part")] == []


def leave(path: Path, count: int) -> None:
    """Fill the disk with a file but for `count` bytes."""
    with open(path, "wb", buffering=0) as stream:
        try:
            while True:
                stream.write(b"x" * 4096)
        except OSError:
            stream.truncate(stream.tell() - count)


def test_a_full_disk_leaves_nothing_half_written(hub: FakeHub, scratch: Path, get: Get, cache: HubCache) -> None:
    if os.geteuid() != 0:
        pytest.skip("mounts a small tmpfs")
    hub.repo("org/tiny").commit(MODEL | {"model.safetensors": os.urandom(3 << 20)})
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m,mode=3775", "tmpfs", str(cache.hub)], check=True)
    try:
        assert refused(get).code == "E-STORE-020"
        assert hub.sent() == 0  # what cannot fit is not begun
        # And where the space goes while it is coming:
        os.posix_fallocate(fd := os.open(cache.hub / "x", os.O_CREAT | os.O_WRONLY), 0, 1900 << 10)
        os.close(fd)
        hub.repo("org/other").commit({"config.json": b"{}", "model.safetensors": os.urandom(60_000)})
        statvfs = os.statvfs

        class Roomy:
            f_bavail, f_frsize = 1 << 40, 1

        os.statvfs = lambda path: Roomy  # type: ignore[assignment,return-value]
        try:
            leave(cache.hub / "y", 40_000)
            assert refused(lambda: get("org/other")).code == "E-STORE-020"
        finally:
            os.statvfs = statvfs
        left = [p.stat().st_size for p in cache.blobs(Repo("model", "org/other")).glob(".*.part")]
        assert sum(left) < 100  # the weights' part is gone
    finally:
        subprocess.run(["umount", str(cache.hub)], check=True)


def test_progress_ends_at_the_whole(hub: FakeHub, get: Get) -> None:
    hub.repo("org/tiny").commit({"config.json": CONFIG, "model.safetensors": WEIGHTS})
    seen: list[Progress] = []
    get(watch=Watch(progress=seen.append))
    total = len(CONFIG) + len(WEIGHTS)
    assert (seen[-1].done, seen[-1].total, seen[-1].fetched) == (total, total, total)
    assert [p.done for p in seen] == sorted(p.done for p in seen)


@pytest.mark.parametrize(
    ("text", "code"),
    [("ms:org/x", "E-HUB-001"), ("org/x", "E-HUB-001"), ("hf:a--b/c", "E-HUB-002"), ("hf:a/b.git", "E-HUB-002")],
)
def test_other_hubs_and_odd_names_are_refused_with_their_code(text: str, code: str) -> None:
    assert refused(lambda: parse_repo(text, "model")).code == code


@pytest.mark.parametrize("revision", ["../../../x", "/etc/x", "a/../b", "a b", "x\n", "-x", "a/.hidden"])
def test_a_revision_that_would_be_a_path_elsewhere_is_refused(hub: FakeHub, get: Get, revision: str) -> None:
    hub.repo("org/tiny").refs[revision] = hub.repo("org/tiny").commit(MODEL)
    assert refused(lambda: get(revision=revision)).code == "E-HUB-002"
    assert hub.log == []


@pytest.mark.parametrize("digest", ["../../../../x", "", "g" * 64, "a" * 63])
def test_a_digest_that_would_be_a_path_elsewhere_is_refused(hub: FakeHub, get: Get, digest: str) -> None:
    hub.repo("org/tiny").commit(MODEL)
    row = {
        "rfilename": "model.safetensors",
        "size": 3,
        "blobId": "x",
        "lfs": {"sha256": digest, "size": 3, "pointerSize": 1},
    }
    hub.edit["siblings"] = [row]
    assert refused(get).code == "E-HUB-017"


@pytest.mark.parametrize(
    "edit", [{"sha": "main"}, {"sha": None}, {"siblings": [{"rfilename": "a.safetensors"}]}, {"siblings": 3}]
)
def test_an_answer_that_is_not_understood_is_refused_and_not_asked_again(
    hub: FakeHub, get: Get, slept: list[float], edit: dict[str, object]
) -> None:
    hub.repo("org/tiny").commit(MODEL)
    hub.edit = dict(edit)
    assert (refused(get).code, slept) == ("E-HUB-017", [])


def test_an_offline_shell_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert refused(HuggingFace).code == "E-HUB-016"


def test_the_files_are_reached_through_the_snapshot_only(hub: FakeHub, get: Get, cache: HubCache) -> None:
    commit = hub.repo("org/tiny").commit(MODEL)
    get()
    assert {p: f.size for p, f in snapshot(cache, TINY, commit).items()} == {
        p: len(MODEL[p]) for p in ("README.md", "config.json", "model.safetensors", "tokenizer.json")
    }
