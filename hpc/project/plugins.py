"""plugins.lock.json: the plugins that an experiment is locked to. The form with apiVersion and the older one without are both read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tuneplane.contract import schemas
from tuneplane.record.files import read_json

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
