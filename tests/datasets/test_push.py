"""What a folder is as a data set, that it appears whole or not at all, and who may read it."""

from __future__ import annotations

import grp
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tuneplane.contract.layout import StorageRoot

from hpc.data import cards
from hpc.data.kinds import DATASET
from hpc.data.push import Pusher, push_dataset
from hpc.data.remove import remove_version
from hpc.data.visibility import GROUP, PRIVATE, PUBLIC, Visibility, make_package, visibility_of
from hpc.errors import Refusal, Refusals
from hpc.registry.resolve import require_content
from hpc.registry.seal import seal
from hpc.registry.shelf import Ref, Shelf
from hpc.site.members import add_user
from hpc.site.sitefile import Site, load_site
from hpc.site.users import User
from tests.datasets.conftest import NOW, USERS, as_user, codes, rows, write_rows


def test_rows_columns_and_splits_are_counted(put: Callable, folder: Path, root: StorageRoot) -> None:
    put(folder)
    version = cards.find(root, f"{_me()}/sums")
    splits = version.facts["splits"]
    assert {name: s["rows"] for name, s in splits.items()} == {"train": 100, "validation": 10}
    assert splits["train"]["columns"] == {
        "completion": {"types": ["string"], "rows": 100},
        "prompt": {"types": ["string"], "rows": 100},
    }
    assert (version.facts["rows"], version.facts["format"], len(version.files)) == (110, "jsonl", 3)
    assert cards.card_text(version) == "# Sums\n"
    assert cards.sample(version, 2) == rows(2)
    assert cards.sample(version, 1, "validation") == rows(1, 100)
    assert codes(lambda: cards.sample(version, 1, "nope")) == ["E-DATA-010"]


def _me() -> str:
    import pwd

    return pwd.getpwuid(os.getuid()).pw_name


def test_a_manifest_names_splits_mapping_and_licence(put: Callable, scratch: Path, root: StorageRoot) -> None:
    base = scratch / "set"
    write_rows(base / "parts/a.jsonl", rows(3))
    write_rows(base / "parts/deep/b.jsonl", rows(4))
    write_rows(base / "held/c.jsonl", rows(2))
    (base / "dataset.yaml").write_text(
        'schema: tuneplane/dataset/v1\nsplits:\n  train: ["parts/**/*.jsonl"]\n  eval: [held/c.jsonl]\n'
        "license: CC0-1.0\ncolumns: {input: prompt, output: completion}\n"
    )
    put(base, "set")
    facts = cards.find(root, f"{_me()}/set").facts
    assert facts["splits"]["train"]["files"] == ["parts/a.jsonl", "parts/deep/b.jsonl"]
    assert (facts["splits"]["train"]["rows"], facts["splits"]["eval"]["rows"]) == (7, 2)
    assert facts["manifest"]["columns"] == {"input": "prompt", "output": "completion"}


@pytest.mark.parametrize(
    ("paths", "splits"),
    [
        (
            ["data/train-00000-of-00002.jsonl", "data/train-00001-of-00002.jsonl", "data/test.jsonl"],
            {"train": 2, "test": 1},
        ),
        (["train/a.jsonl", "dev/b.jsonl", "val.jsonl"], {"train": 1, "validation": 2}),
        (["rows.jsonl", "more.jsonl"], {"train": 2}),
        (["trained.jsonl", "eval.jsonl"], {"eval": 1}),
        (["notes.txt"], {}),
    ],
)
def test_without_a_manifest_the_words_of_a_path_say_the_split(paths: list[str], splits: dict[str, int]) -> None:
    from tuneplane.contract.datasets import assign

    assert {name: len(members) for name, members in assign(paths, {}).items()} == splits


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("schema: x\nfoo: 1\nsplits: {train: a}\n", ["E-DATA-001", "E-DATA-001", "E-DATA-001"]),
        ("schema: tuneplane/dataset/v1\nsplits: {train: ['../*.jsonl']}\n", ["E-DATA-001"]),
        ("schema: tuneplane/dataset/v1\nsplits: {train: [none.jsonl]}\n", ["E-DATA-002"]),
        ("schema: tuneplane/dataset/v1\nsplits: {train: ['*.jsonl'], eval: [validation.jsonl]}\n", ["E-DATA-002"]),
        ("schema: tuneplane/dataset/v1\ncolumns: {input: question}\n", ["E-DATA-005", "E-DATA-005"]),
        ("schema: tuneplane/dataset/v1\nformat: parquet\n", ["E-DATA-001"]),
        ("schema: tuneplane/dataset/v1\nname: other\n", ["E-DATA-006"]),
        ("schema: &a tuneplane/dataset/v1\n", ["E-SPEC-002"]),
    ],
)
def test_a_wrong_manifest_is_refused_whole(
    put: Callable, folder: Path, root: StorageRoot, text: str, expected: list[str]
) -> None:
    (folder / "dataset.yaml").write_text(text)
    assert codes(lambda: put(folder)) == expected
    assert not Shelf(root, DATASET).versions(_me(), "sums")


def test_wrong_rows_are_named_by_line(put: Callable, folder: Path) -> None:
    with open(folder / "train.jsonl", "a") as stream:
        stream.write('\n[1]\n{"a": NaN}\n{"a": \n\xff\n')
    with pytest.raises(Refusals) as caught:
        put(folder)
    assert [(f.code, f.field) for f in caught.value.items] == [
        ("E-DATA-003", f"train.jsonl:{n}") for n in (102, 103, 104, 105)
    ]


@pytest.mark.parametrize(
    "line", [r'{"\ud800": 1}', '{"a": ' + "[" * 5000 + "]" * 5000 + "}", '{"' + "k" * 1001 + '": 1}']
)
def test_a_row_that_no_record_could_hold_is_refused(put: Callable, folder: Path, line: str) -> None:
    (folder / "train.jsonl").write_text(f'{{"a": 1}}\n{line}\n')
    with pytest.raises(Refusal) as caught:
        put(folder)
    assert (caught.value.code, caught.value.field) == ("E-DATA-003", "train.jsonl:2")


def test_a_column_mapping_lists_the_columns_that_are_there(put: Callable, folder: Path) -> None:
    (folder / "dataset.yaml").write_text("schema: tuneplane/dataset/v1\ncolumns: {input: question}\n")
    with pytest.raises(Refusals) as caught:
        put(folder)
    assert caught.value.items[0].allowed == "completion, prompt"


@pytest.mark.parametrize(("name", "version"), [("../x", "1"), ("x", "a/b"), ("", "1"), ("x", ".1"), ("x y", "1")])
def test_names_follow_the_grammar(put: Callable, folder: Path, name: str, version: str) -> None:
    assert codes(lambda: put(folder, name, version))[0] in ("E-SPEC-015", "E-SPEC-017")


def test_links_and_empty_folders_have_no_place(put: Callable, folder: Path, scratch: Path) -> None:
    (scratch / "empty").mkdir()
    assert codes(lambda: put(scratch / "empty")) == ["E-DATA-006"]
    assert codes(lambda: put(scratch / "missing")) == ["E-STORE-025"]
    (folder / "more.jsonl").symlink_to("/etc/passwd")
    assert codes(lambda: put(folder)) == ["E-REG-004"]


def test_parquet_without_pyarrow_is_refused_not_guessed(
    put: Callable, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    (folder / "test.parquet").write_bytes(b"PAR1")
    assert codes(lambda: put(folder)) == ["E-DATA-004"]


def test_a_version_is_for_good(put: Callable, folder: Path) -> None:
    first = put(folder)
    write_rows(folder / "train.jsonl", rows(5))
    assert codes(lambda: put(folder)) == ["E-REG-001"]
    assert put(folder, version="1.1").digest != first.digest


def test_a_card_can_come_from_elsewhere_and_the_folder_stays(
    put: Callable, folder: Path, scratch: Path, root: StorageRoot
) -> None:
    (scratch / "card.md").write_text("# Other\n")
    put(folder, readme=scratch / "card.md")
    assert cards.card_text(cards.find(root, f"{_me()}/sums")) == "# Other\n"
    assert (folder / "README.md").read_text() == "# Sums\n"
    assert sorted(p.name for p in scratch.iterdir()) == ["card.md", "root", "sums"]


def test_a_flipped_byte_is_found_and_its_file_named(put: Callable, folder: Path, root: StorageRoot) -> None:
    path = put(folder).folder / "content/train.jsonl"
    data = bytearray(path.read_bytes())
    data[7] ^= 1
    path.chmod(0o644)
    path.write_bytes(data)
    path.chmod(0o444)
    version = cards.find(root, f"{_me()}/sums")
    with pytest.raises(Refusal, match="recorded") as caught:
        require_content(version)
    assert (caught.value.code, caught.value.field) == ("E-REG-013", str(path))


def test_reading_a_large_set_takes_little_memory(tmp_path: Path) -> None:
    """200 MB of rows are counted and judged in less than 60 MiB beyond what the modules take."""
    big = tmp_path / "big"
    big.mkdir()
    line = json.dumps({"prompt": "x" * 2000, "completion": "y" * 2000}) + "\n"
    with open(big / "train.jsonl", "w") as stream:
        stream.writelines(line * 1000 for _ in range(50))
    program = (
        "import re, sys; from pathlib import Path; from hpc.data.kinds import DatasetCheck; from hpc.data.duplicates import exact_duplicates;"
        "from hpc.data.rows import find_sources;"
        "peak = lambda: int(re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1]); base = peak();"
        "facts = DatasetCheck('big', '1')(Path(sys.argv[1])).facts; found = exact_duplicates(find_sources(sys.argv[1], root=None));"
        "print(facts['rows'], found['duplicates'], peak() - base)"
    )
    done = subprocess.run([sys.executable, "-c", program, str(big)], capture_output=True, text=True, check=True)
    counted, duplicates, grown = map(int, done.stdout.split())
    assert (counted, duplicates) == (50_000, 49_999)
    assert grown < 60 << 10, f"{grown} KiB"


def _killed(call: Callable[[], object], after_s: float) -> None:
    pid = os.fork()
    if pid == 0:
        try:
            call()
        finally:
            os._exit(0)
    time.sleep(after_s)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def test_killed_at_any_moment_a_push_is_there_whole_or_not_at_all(by: Pusher, scratch: Path, root: StorageRoot) -> None:
    base = scratch / "sums"
    for part in range(12):
        write_rows(base / f"train-{part}.jsonl", rows(2000, part * 2000))
    whole = 0
    for number in range(12):
        _killed(lambda n=number: push_dataset(by, "sums", f"1.{n}", base), 0.03 * number)
        for version in Shelf(root, DATASET).versions(by.user.name, "sums"):
            require_content(cards.find(root, f"{by.user.name}/sums@{version}"))
            whole += 1
    push_dataset(by, "sums", "2", base)
    assert cards.find(root, f"{by.user.name}/sums@2").facts["rows"] == 24_000


@pytest.fixture
def small(scratch: Path) -> Iterator[Path]:
    """A file system of 2 MiB."""
    place = scratch / "small"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m,mode=755", "tmpfs", place], check=True)
    yield place
    subprocess.run(["umount", place], check=True)


@pytest.mark.two_users
def test_a_full_disk_leaves_nothing(small: Path, scratch: Path, me: User) -> None:
    from hpc.site.layout import init_root

    root = init_root(small / "root", name="lab").root
    base = scratch / "sums"
    write_rows(base / "train.jsonl", rows(60_000))
    by = Pusher(root, load_site(root), me, NOW)
    assert codes(lambda: push_dataset(by, "sums", "1", base)) == ["E-STORE-020"]
    package = Shelf(root, DATASET).package(me.name, "sums")
    assert not package.exists() or os.listdir(package) == []
    write_rows(base / "train.jsonl", rows(10))
    assert push_dataset(by, "sums", "1", base).files == 1


def test_what_a_run_names_stays_and_the_rest_goes(
    put: Callable, folder: Path, root: StorageRoot, site: Site, me: User
) -> None:
    put(folder)
    put(folder, version="1.0.1")
    run = root.run(me.name, "exp", "run-00aa")
    run.jobspec.parent.mkdir(parents=True)
    run.jobspec.write_text(json.dumps({"spec": {"data": {"train": {"dataset": f"{me.name}/sums@1.0"}}}}))
    shelf = Shelf(root, DATASET, site=site)
    with pytest.raises(Refusal) as caught:
        remove_version(shelf, Ref(me.name, "sums", "1.0"), user=me, now=NOW)
    assert caught.value.code == "E-DATA-020"
    assert "run-00aa" in str(caught.value.found)
    remove_version(shelf, Ref(me.name, "sums", "1.0.1"), user=me, now=NOW)
    assert shelf.versions(me.name, "sums") == ["1.0"]
    assert sorted(os.listdir(shelf.package(me.name, "sums"))) == ["1.0"]


def test_a_sealed_version_that_was_removed_stays_known_as_gone(
    put: Callable, folder: Path, root: StorageRoot, site: Site, me: User
) -> None:
    put(folder)
    seal(root, [DATASET], site=site, user=me, now=NOW)
    remove_version(Shelf(root, DATASET, site=site), Ref(me.name, "sums", "1.0"), user=me, now=NOW)
    with pytest.raises(Refusal, match="was removed by") as caught:
        cards.find(root, f"{me.name}/sums@1.0")
    assert caught.value.code == "E-REG-002"
    write_rows(folder / "train.jsonl", rows(3))
    assert codes(lambda: put(folder)) == ["E-REG-001"]


@pytest.mark.two_users
def test_visibility_is_what_other_accounts_meet(scratch: Path, people: tuple[User, User]) -> None:
    from hpc.site.layout import init_root

    root = init_root(scratch / "shared", name="lab").root
    site = load_site(root)
    anna, bert = people
    for user in people:
        add_user(root, user.name)
    gid = grp.getgrnam(USERS).gr_gid
    base = scratch / "sums"
    write_rows(base / "train.jsonl", rows(10))
    by = Pusher(root, site, anna, NOW)

    def sees(user: User, groups: tuple[int, ...] = ()) -> str:
        return as_user(user, lambda: cards.find(root, f"{anna.name}/sums").facts["rows"], groups)

    def set_to(word: str, group: str = "") -> str:
        package = Shelf(root, DATASET).package(anna.name, "sums")
        return as_user(
            anna,
            lambda: make_package(package, Visibility(word, group), user=anna, uid=anna.uid, root=root, site=site),
            (gid,),
        )

    assert as_user(anna, lambda: push_dataset(by, "sums", "1", base, ask=Visibility(PRIVATE)).files, (gid,)) == "1"
    assert (sees(anna), sees(bert)) == ("10", "E-STORE-021")
    assert as_user(bert, lambda: cards.listing(root, DATASET).closed) == f"['{anna.name}/sums']"
    assert set_to(GROUP, USERS) == "False"
    assert (sees(bert, (gid,)), sees(bert)) == ("10", "E-STORE-021")
    assert visibility_of(Shelf(root, DATASET).package(anna.name, "sums")) == Visibility(GROUP, USERS)
    assert set_to(PUBLIC) == "False"
    assert sees(bert) == "10"
    assert set_to(GROUP, "daemon") == "E-DATA-021"
    refused = as_user(
        bert, lambda: remove_version(Shelf(root, DATASET, site=site), Ref(anna.name, "sums", "1"), user=bert, now=NOW)
    )
    assert refused == "E-REG-003"


@pytest.mark.two_users
def test_the_service_user_can_still_look_at_what_is_private(scratch: Path, people: tuple[User, User]) -> None:
    """Seals and audits run as the service user; an access list lets it in without a word about anybody else."""
    from hpc.site.layout import init_root

    anna, service = people
    root = init_root(scratch / "shared", name="lab", service_user=service.name).root
    site = load_site(root)
    add_user(root, anna.name)
    write_rows(scratch / "sums/train.jsonl", rows(10))
    by = Pusher(root, site, anna, NOW)
    as_user(anna, lambda: push_dataset(by, "sums", "1", scratch / "sums", ask=Visibility(PRIVATE)))
    package = Shelf(root, DATASET).package(anna.name, "sums")
    assert visibility_of(package) == Visibility(PRIVATE)
    assert as_user(service, lambda: cards.find(root, f"{anna.name}/sums").facts["rows"]) == "10"
    nobody = User("nobody", 65534, 65534)
    assert as_user(nobody, lambda: cards.find(root, f"{anna.name}/sums")) == "E-STORE-021"
    assert as_user(nobody, lambda: cards.find(root, f"{anna.name}/sums"), (anna.gid,)) == "E-STORE-021"
    as_user(anna, lambda: make_package(package, Visibility(PUBLIC), user=anna, uid=anna.uid, root=root, site=site))
    assert visibility_of(package) == Visibility(PUBLIC)
    assert as_user(nobody, lambda: cards.find(root, f"{anna.name}/sums").facts["rows"]) == "10"
    assert as_user(nobody, lambda: cards.find(root, f"{anna.name}/sums").facts["rows"], (anna.gid,)) == "10"
    as_user(anna, lambda: make_package(package, Visibility(PRIVATE), user=anna, uid=anna.uid, root=root, site=site))
    assert (visibility_of(package), as_user(nobody, lambda: cards.find(root, f"{anna.name}/sums"))) == (
        Visibility(PRIVATE),
        "E-STORE-021",
    )


def test_parquet_is_counted_by_its_footer_and_judged_like_jsonl(
    put: Callable, scratch: Path, root: StorageRoot
) -> None:
    import pyarrow
    from pyarrow import parquet

    from hpc.data.duplicates import exact_duplicates
    from hpc.data.rows import find_sources

    base = scratch / "set"
    base.mkdir()
    for codec in ("snappy", "gzip", "brotli", "zstd", "lz4", "none"):
        parquet.write_table(
            pyarrow.Table.from_pylist([*rows(9), rows(1)[0]]), base / f"train-{codec}.parquet", compression=codec
        )
    put(base, "set")
    version = cards.find(root, f"{_me()}/set")
    assert (version.facts["rows"], version.facts["format"]) == (60, "parquet")
    assert cards.sample(version, 2) == rows(2)
    found = exact_duplicates(find_sources(f"{_me()}/set", root=root))
    assert (found["rows"], found["duplicates"]) == (60, 51)
    (base / "train-zstd.parquet").write_bytes(b"PAR1 and no more")
    assert codes(lambda: put(base, "set", "2")) == ["E-DATA-003"]
    assert codes(lambda: exact_duplicates(find_sources(str(base), root=root))) == ["E-DATA-003"]
