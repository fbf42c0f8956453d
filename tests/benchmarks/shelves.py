"""The registry: publishing against copying, resolving among many versions, audits against bare walks and sha256sum."""

from __future__ import annotations

import hashlib
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from report import Figure, bound, ratio
from timing import Samples, in_turn

MB = 1 << 20
NOW = "2026-01-01T00:00:00.000000Z"
FILES = {"README.md": b"# a plugin\n" * 20, "lib/__init__.py": b"", "lib/mod.py": b"print(1)\n" * 30, "toy.json": b"{}"}
A_PACKAGE = 100
"""Versions of one package in the large registry."""


def _kind() -> Any:
    """A kind whose check costs nothing, so that the engine is measured."""
    from hpc.registry.kinds import Checked, Kind

    def check(folder: Path) -> Checked:
        name, _, version = (folder / "toy.json").read_text(encoding="ascii").partition(" ")
        return Checked(name, version)

    return Kind("plugin", "plugins", check, 1 << 30, 10_000)


def _root(folder: Path) -> Any:
    from hpc.site.layout import init_root

    return init_root(folder, name="bench").root


def _ms(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return (time.perf_counter() - begin) * 1000


def publishing(folder: Path) -> list[Figure]:
    """32 MiB in 200 files, published, against hashing, copying and fsyncing them twice."""
    from hpc.registry.publish import publish
    from hpc.site.sitefile import load_site
    from hpc.site.users import real_user

    root, source, me, kind = _root(folder / "publish"), folder / "publish-source", real_user(), _kind()
    for number in range(199):
        path = source / f"{number // 20:02d}/{number:03d}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.urandom(32 * MB // 199))
    site = load_site(root)
    files = sorted(str(p.relative_to(source)) for p in source.rglob("*") if p.is_file())

    def ours(n: int) -> float:
        (source / "toy.json").write_text(f"toy 1.{n}", encoding="ascii")
        words = {"user": me, "owner": me.name, "site": site, "method": "publish", "core_version": "0", "now": NOW}
        return _ms(lambda: publish(root, kind, source, **words))

    def peer(n: int) -> float:
        return _ms(lambda: [_hash_and_copy(source, folder / f"peer-{n}-{turn}", files) for turn in (0, 1)])

    mine, theirs = in_turn(9, ours, peer)
    return [ratio("publishing 32 MiB in 200 files", mine, theirs, "hashing, copying, fsyncing twice", 1.5)]


def _hash_and_copy(source: Path, target: Path, files: list[str]) -> None:
    for path in files:
        data = (source / path).read_bytes()
        hashlib.sha256(data).hexdigest()
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        with open(target / path, "wb") as out:
            out.write(data)
            out.flush()
            os.fsync(out.fileno())


def lay_out(folder: Path, versions: int) -> Any:
    """A root with that many small versions, a hundred a package, written as publishing leaves them but without its fsyncs."""
    from tuneplane.record.digest import FileEntry, digest_bytes, tree_digest_v2

    from hpc.registry.look import SCHEMA
    from hpc.registry.records import encode_record
    from hpc.site.users import real_user

    root, me, v1 = _root(folder), real_user(), hashlib.sha256()
    files = [FileEntry(path, False, len(data), digest_bytes(data)) for path, data in sorted(FILES.items())]
    for path, data in sorted(FILES.items()):
        v1.update(path.encode() + b"\0" + data + b"\0")
    same = {
        "schema": SCHEMA, "kind": "plugin", "owner": me.name, "digest": f"sha256:{v1.hexdigest()}", "digest_v2": tree_digest_v2(files),
        "size": sum(f.size for f in files), "files": [f.as_json() for f in files], "starts": "enabled",
        "published": {"method": "publish", "actor": me.name, "uid": me.uid, "at": NOW, "archive_sha256": "", "core_version": "0"},
    }  # fmt: skip
    for number in range(versions):
        name, version = f"p{number // A_PACKAGE:04d}", f"1.{number % A_PACKAGE}"
        place = root.shelf("plugins") / me.name / name / version
        (place / "content/lib").mkdir(parents=True)
        for path, data in FILES.items():
            _write(f"{place}/content/{path}", data)
        facts = {
            "manifest": {"name": name, "version": version, "capability": "algorithm", "entrypoint": "lib.mod:install"}
        }
        _write(f"{place}/record.json", encode_record({**same, "name": name, "version": version, "facts": facts}))
        for part in ("content/lib", "content", "."):
            os.chmod(place / part, 0o555)
    return root


def _write(path: str, data: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o444)
    os.write(fd, data)
    os.close(fd)


def resolving(folder: Path, large: Any) -> list[Figure]:
    """One pinned reference and one without a version, among very many versions and among one package's."""
    from hpc.registry.resolve import resolve
    from hpc.site.users import real_user

    small, kind, me = lay_out(folder / "resolve-small", A_PACKAGE), _kind(), real_user().name

    def turn(root: Any, ref: str) -> Callable[[int], float]:
        return lambda n: _ms(lambda: [resolve(root, kind, ref, for_new=True) for _ in range(20)]) / 20

    out = []
    for words, ref in (("pinned", f"{me}/p0000@1.7"), ("without a version", f"{me}/p0000")):
        mine, theirs = in_turn(15, turn(large, ref), turn(small, ref))
        ratios = mine.over(theirs)
        name = f"resolving a reference ({words}) among many versions"
        missed = ratios.misses(1.2)
        out.append(
            Figure(
                name,
                mine.text("ms", 2),
                f"among {A_PACKAGE}: {theirs.text('ms', 2)}",
                ratios.text("x", 2),
                "≤ 1.2 x",
                missed,
            )
        )
    return out


def quick(root: Any, versions: int, rounds: int) -> list[Figure]:
    """The quick pass against a walk that does nothing but scandir and stat, and its memory in a process of its own."""
    shelf = str(root.shelf("plugins"))
    mine, theirs = in_turn(rounds, lambda n: _ms(lambda: _audit(root)), lambda n: _ms(lambda: bare(shelf)))
    return [
        ratio(f"quick audit of {versions} versions of five files", mine, theirs, "bare scandir and stat walk", 4.0),
        bound(f"quick audit of {versions} versions, peak memory", Samples((_peak(root),)), "MB", 150),
    ]


def bare(folder: str) -> int:
    """Names and status of everything below."""
    count = 0
    with os.scandir(folder) as entries:
        for entry in entries:
            entry.stat(follow_symlinks=False)
            count += 1
            if entry.is_dir(follow_symlinks=False):
                count += bare(entry.path)
    return count


def _audit(root: Any, **options: Any) -> Any:
    from hpc.registry.audit import Options, audit
    from hpc.site.sitefile import load_site
    from hpc.site.users import real_user

    report = audit(
        root, [_kind()], site=load_site(root), user=real_user(), options=Options(**options), core_version="0", now=NOW
    )
    if report.exit:
        raise SystemExit(f"bench: the audited registry is {report.verdict}: {report.problems[:3]}")
    return report


def _peak(root: Any) -> float:
    """Peak MB of a fresh process that audits the root."""
    code = f"import sys; sys.path[:0] = {sys.path!r}; import shelves; shelves.tell_peak({str(root.path)!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return float(done.stdout)


def tell_peak(path: str) -> None:
    from tuneplane.contract.layout import StorageRoot

    _audit(StorageRoot(Path(path)))
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def deep(folder: Path) -> list[Figure]:
    """The deep pass over sealed versions of 512 MiB in all, in one process and in two, against one and two sha256sum."""
    from hpc.registry.publish import publish
    from hpc.registry.seal import seal
    from hpc.site.sitefile import load_site
    from hpc.site.users import real_user

    root, me, kind, source = _root(folder / "deep"), real_user(), _kind(), folder / "deep-source"
    source.mkdir()
    site = load_site(root)
    for number in range(32):
        (source / "toy.json").write_text(f"toy 1.{number}", encoding="ascii")
        for part in range(4):
            (source / f"{part}.bin").write_bytes(os.urandom(4 * MB))
        publish(root, kind, source, user=me, owner=me.name, site=site, method="publish", core_version="0", now=NOW)
    seal(root, [kind], site=site, user=me, now=NOW)
    files = sorted(str(p) for p in root.shelf("plugins").rglob("content/*"))

    def ours(jobs: int) -> Callable[[int], float]:
        return lambda n: 512 / (_ms(lambda: _audit(root, deep=True, jobs=jobs)) / 1000)

    def peer(jobs: int) -> Callable[[int], float]:
        return lambda n: 512 / (_ms(lambda: _sums(files, jobs)) / 1000)

    out = []
    for jobs in (1, 2):
        mine, theirs = in_turn(7, ours(jobs), peer(jobs))
        ratios = mine.over(theirs)
        missed = theirs.over(mine).misses(1 / 0.9)
        name = f"deep audit of 512 MiB in 32 sealed versions, --jobs {jobs}"
        out.append(
            Figure(
                name,
                mine.text("MB/s"),
                f"{jobs} sha256sum: {theirs.text('MB/s')}",
                ratios.text("x", 2),
                "≥ 0.9 x",
                missed,
            )
        )
    return out


def _sums(files: list[str], jobs: int) -> None:
    started = [subprocess.Popen(["sha256sum", "--", *files[n::jobs]], stdout=subprocess.DEVNULL) for n in range(jobs)]
    if any(p.wait() for p in started):
        raise SystemExit("bench: sha256sum failed")


def shelves(folder: Path, *, large: bool) -> list[Figure]:
    """All of it. `large`: a hundred thousand versions, which takes minutes to lay out."""
    versions = 100_000 if large else 10_000
    root = lay_out(folder / "many", versions)
    return [
        *publishing(folder),
        *resolving(folder, root),
        *quick(root, versions, 5 if large else 9),
        *deep(folder),
    ]
