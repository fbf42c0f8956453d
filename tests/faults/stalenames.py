"""A second node's view of a shared file system: names as they were when its cache was filled, for up to 60 seconds.

What an NFS client with its default mount options may do, as a layer over the calls of `os` that this process makes:

* A name that another node made is not there: not to stat, not to open, not in a listing.
* A name that another node removed or replaced still is: stat tells the old facts, open gives the old file. (Its inode is kept alive for that; a
  real server may answer ESTALE instead, which `gone="stale"` does.)
* What changes something goes to the server and is decided there: an exclusive creation of a name that exists fails with EEXIST although the name
  cannot be seen, a rename replaces what it replaces. Own changes are seen at once.
* Attributes of a directory are as old as its names. The bytes of a file that is open are the server's.

`elsewhere()` is the other node; `sleep` lets time pass, and with 60 seconds of it everything is seen as it is. Covered are the calls by path and by
`dir_fd`; calls that programs in C make are not, so nothing that starts another program is tested with it.
"""

from __future__ import annotations

import builtins
import errno
import io
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, final

LAG_S = 60.0
READS = ("stat", "lstat", "open", "listdir", "scandir", "access", "readlink")
CHANGES = ("mkdir", "rmdir", "unlink", "remove", "rename", "replace", "link", "symlink")
REAL = {name: getattr(os, name) for name in (*READS, *CHANGES)}
REAL_OPEN = io.open


class Entry:
    """What scandir gives, from the view."""

    def __init__(self, folder: str, name: str, status: os.stat_result) -> None:
        self.name, self.path, self._status = name, os.path.join(folder, name), status

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        return os.stat(self.path) if follow_symlinks and self.is_symlink() else self._status

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        with suppress(OSError):
            return stat.S_ISDIR(self.stat(follow_symlinks=follow_symlinks).st_mode)
        return False

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        with suppress(OSError):
            return stat.S_ISREG(self.stat(follow_symlinks=follow_symlinks).st_mode)
        return False

    def is_symlink(self) -> bool:
        return stat.S_ISLNK(self._status.st_mode)


@final
class StaleNames:
    """The layer over everything below `root`. A context: it is on for the body, with the view of its beginning."""

    def __init__(self, root: Path, *, gone: str = "kept") -> None:
        self.root, self.gone, self.now = os.path.realpath(root), gone, 0.0
        self.on = False
        self.hidden = 0
        """How often something was asked for that is there and was not shown."""

    # The view: folder → name → what stat said. A folder that this node made itself is not in it, and is seen as it is.

    def __enter__(self) -> StaleNames:
        self.view: dict[str, dict[str, os.stat_result]] = {}
        self.own: set[str] = set()
        self.kept: dict[str, int] = {}
        self._fill(self.root)
        for name in (*READS, *CHANGES):
            setattr(os, name, self._layer(name))
        builtins.open = io.open = self._file  # type: ignore[assignment]
        self.on = True
        return self

    def __exit__(self, *error: object) -> None:
        self.on = False
        for name, real in REAL.items():
            setattr(os, name, real)
        builtins.open = io.open = REAL_OPEN
        for fd in self.kept.values():
            os.close(fd)

    def _fill(self, folder: str) -> None:
        entries = {e.name: e.stat(follow_symlinks=False) for e in REAL["scandir"](folder)}
        self.view[folder] = entries
        for name, status in entries.items():
            path = os.path.join(folder, name)
            if stat.S_ISDIR(status.st_mode):
                self._fill(path)
            elif stat.S_ISREG(status.st_mode):
                self.kept[path] = REAL["open"](path, os.O_RDONLY | os.O_CLOEXEC)

    @contextmanager
    def elsewhere(self) -> Iterator[None]:
        """What the body does happens on the other node."""
        self.on = False
        try:
            yield
        finally:
            self.on = True

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        if self.now >= LAG_S:
            self.view.clear()

    def see(self, folder: Path) -> None:
        """This one folder's names are asked of the server anew: each folder's cache has an age of its own."""
        self.view.pop(os.path.realpath(folder), None)

    def clock(self) -> float:
        return self.now

    # Looking up.

    def _path(self, path: Any, dir_fd: int | None) -> str:
        if isinstance(path, int):
            return REAL["readlink"](f"/proc/self/fd/{path}")
        text = os.fsdecode(path)
        if not os.path.isabs(text):
            text = os.path.join(
                REAL["readlink"](f"/proc/self/fd/{dir_fd}") if dir_fd is not None else os.getcwd(), text
            )
        return os.path.normpath(text)

    def _seen(self, path: str) -> os.stat_result | bool | None:
        """The cached facts of a path; True where it is asked of the server; None where this node thinks that it is not there."""
        if not path.startswith(self.root + "/") or path in self.own or not self.view:
            return True
        parent = os.path.dirname(path)
        if parent != self.root:
            above = self._seen(parent)
            if above is None:
                return None
        if parent not in self.view:
            return True
        status = self.view[parent].get(os.path.basename(path))
        if status is None:
            self.hidden += _is_there(path)
        return status

    def _layer(self, name: str) -> Callable[..., Any]:
        real = REAL[name]

        def call(*args: Any, **more: Any) -> Any:
            if not self.on:
                return real(*args, **more)
            return self._change(real, *args, **more) if name in CHANGES else self._look(name, real, *args, **more)

        return call

    def _look(self, name: str, real: Callable[..., Any], *args: Any, **more: Any) -> Any:
        target = args[0] if args else more.get("path", ".")
        if isinstance(target, int) and name in ("stat", "open"):
            return real(*args, **more)
        path = self._path(target, more.get("dir_fd"))
        creates = name == "open" and (args[1] if len(args) > 1 else more.get("flags", 0)) & os.O_CREAT
        seen = self._seen(path)
        if creates:
            answer = real(*args, **more)
            self._mine(path)
            return answer
        if seen is None:
            if name == "access":
                return False
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.fspath(path))
        if seen is True or (path not in self.view and stat.S_ISDIR(seen.st_mode)):
            return self._server(name, real, path, *args, **more)
        return self._cached(name, real, path, seen, *args, **more)

    def _server(self, name: str, real: Callable[..., Any], path: str, *args: Any, **more: Any) -> Any:
        if name in ("listdir", "scandir") and path in self.view:
            return self._list(name, path)
        return real(*args, **more)

    def _list(self, name: str, path: str) -> Any:
        entries = self.view[path].items()
        return [n for n, _ in entries] if name == "listdir" else _Scan([Entry(path, n, s) for n, s in entries])

    def _cached(
        self, name: str, real: Callable[..., Any], path: str, seen: os.stat_result, *args: Any, **more: Any
    ) -> Any:
        if name in ("listdir", "scandir"):
            return self._list(name, path)
        if name == "lstat" or (
            name == "stat" and (more.get("follow_symlinks", True) is False or not stat.S_ISLNK(seen.st_mode))
        ):
            return seen
        if name == "open" and stat.S_ISREG(seen.st_mode) and not _same(path, seen):
            return self._old(path, *args[1:])
        return real(*args, **more)

    def _old(self, path: str, flags: int = os.O_RDONLY, *more: Any) -> int:
        if self.gone == "stale":
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), path)
        return REAL["open"](f"/proc/self/fd/{self.kept[path]}", flags & ~os.O_NOFOLLOW)

    def _file(self, file: Any, mode: str = "r", *args: Any, **more: Any) -> Any:
        """`open`: what it opens by path is found as `os.open` finds it."""
        if not self.on or isinstance(file, int) or set(mode) & set("wax+"):
            answer = REAL_OPEN(file, mode, *args, **more)
            if self.on and not isinstance(file, int):
                self._mine(self._path(file, None))
            return answer
        return REAL_OPEN(os.open(file, os.O_RDONLY | os.O_CLOEXEC), mode, *args, **more)

    # Changing.

    def _change(self, real: Callable[..., Any], *args: Any, **more: Any) -> Any:
        answer = real(*args, **more)
        name = real.__name__
        if name in ("rename", "replace", "link"):
            source = self._path(args[0], more.get("src_dir_fd"))
            target = self._path(args[1], more.get("dst_dir_fd"))
            if name != "link":
                self._forget(source)
            self._mine(target)
        elif name == "symlink":
            self._mine(self._path(args[1], more.get("dir_fd")))
        elif name == "mkdir":
            self._mine(self._path(args[0], more.get("dir_fd")))
        else:
            self._forget(self._path(args[0], more.get("dir_fd")))
        return answer

    def _mine(self, path: str) -> None:
        """This node made or replaced the name: it sees it, and all below it, as it is."""
        self._forget(path)
        self.own.add(path)
        if (parent := self.view.get(os.path.dirname(path))) is not None:
            parent[os.path.basename(path)] = REAL["lstat"](path)

    def _forget(self, path: str) -> None:
        self.own.discard(path)
        for folder in [f for f in self.view if f == path or f.startswith(path + "/")]:
            del self.view[folder]
        if (parent := self.view.get(os.path.dirname(path))) is not None:
            parent.pop(os.path.basename(path), None)


@final
class _Scan:
    def __init__(self, entries: list[Entry]) -> None:
        self._entries = iter(entries)

    def __iter__(self) -> Iterator[Entry]:
        return self._entries

    def __next__(self) -> Entry:
        return next(self._entries)

    def __enter__(self) -> _Scan:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def close(self) -> None:
        pass


def _is_there(path: str) -> bool:
    with suppress(OSError):
        REAL["lstat"](path)
        return True
    return False


def _same(path: str, seen: os.stat_result) -> bool:
    """True while the name still leads to the file that was seen."""
    with suppress(OSError):
        return REAL["lstat"](path).st_ino == seen.st_ino
    return False
