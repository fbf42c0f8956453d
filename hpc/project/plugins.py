"""plugins.lock.json: the plugins that an experiment is locked to. The form with apiVersion and the one without are read; the first is written."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from tuneplane.contract import schemas
from tuneplane.record.files import read_json, replace_json

from hpc.errors import Refusal

LOCK_NAME = "plugins.lock.json"
KEYS = frozenset({"id", "version", "digest"})


def read_plugins_lock(folder: Path) -> list[dict[str, Any]]:
    """`{id, version, digest}` of each locked plugin, by id; [] where there is no lock. Raises Refusal E-PROJECT-050.

    Whether the values are well-formed is the JobSpec's question; whether they exist, the registry's.
    """

    def no(message: str, part: str = "", found: Any = None, allowed: str = "") -> Refusal:
        field = f"{LOCK_NAME}: {part}" if part else LOCK_NAME
        return Refusal("E-PROJECT-050", message, field=field, found=found, allowed=allowed)

    try:
        value = read_json(folder / LOCK_NAME, limit=1 << 20)
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as exc:
        raise no(f"cannot be read: {exc}") from exc
    if (
        not isinstance(value, dict)
        or not isinstance(value.get("plugins"), list)
        or value.keys() - {"apiVersion", "plugins"}
    ):
        raise no("is no plugins lock", allowed="an object with apiVersion and plugins")
    if (version := value.get("apiVersion", schemas.PLUGINS_LOCK)) != schemas.PLUGINS_LOCK:
        raise no("is of another version", "apiVersion", str(version), schemas.PLUGINS_LOCK)
    for index, entry in enumerate(value["plugins"]):
        if not isinstance(entry, dict) or entry.keys() != KEYS or not all(isinstance(v, str) for v in entry.values()):
            raise no("is no locked plugin", f"plugins[{index}]", allowed="id, version and digest as text")
    return sorted(value["plugins"], key=lambda entry: entry["id"])


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Hold off others who change this experiment's lock, so that of two installations none is lost. Where folders cannot be locked, nobody is."""
    with ExitStack() as stack:
        with suppress(OSError):
            fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            stack.callback(os.close, fd)
            fcntl.flock(fd, fcntl.LOCK_EX)
        yield


def write_plugins_lock(folder: Path, entries: Iterable[Mapping[str, Any]]) -> None:
    """The lock with exactly these plugins, sorted by id; no file where there are none. Raises Refusal E-PROJECT-042."""
    plugins = sorted(({k: e[k] for k in sorted(KEYS)} for e in entries), key=lambda e: e["id"])
    path = folder / LOCK_NAME
    try:
        if plugins:
            replace_json(path, {"apiVersion": schemas.PLUGINS_LOCK, "plugins": plugins})
        else:
            path.unlink(missing_ok=True)
    except OSError as exc:
        raise Refusal("E-PROJECT-042", f"{path}: {exc.strerror}", field=LOCK_NAME) from exc


def with_plugin(entries: Iterable[Mapping[str, Any]], entry: Mapping[str, Any]) -> list[dict[str, Any]]:
    """`entries` with `entry` in the place of any other version of the same plugin. Pure."""
    return [*(dict(e) for e in entries if e["id"] != entry["id"]), dict(entry)]


def without_plugin(entries: Iterable[Mapping[str, Any]], plugin_id: str) -> list[dict[str, Any]]:
    """`entries` without one plugin. Pure. Raises Refusal E-INSTALL-006 where it is not among them."""
    kept = [dict(e) for e in entries]
    left = [e for e in kept if e["id"] != plugin_id]
    if len(left) == len(kept):
        allowed = ", ".join(e["id"] for e in kept) or "nothing is locked"
        raise Refusal("E-INSTALL-006", "is not locked here", field=LOCK_NAME, found=plugin_id, allowed=allowed)
    return left
