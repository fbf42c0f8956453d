"""Which runs carried a plugin: read from the runs' own JobSpecs, so that nothing has to be kept in step with them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from tuneplane.contract.layout import RunPaths, StorageRoot
from tuneplane.record.files import read_json

from hpc.runs.find import all_runs


@dataclass(frozen=True)
class Use:
    """One run that was packed with a version of the plugin."""

    owner: str
    experiment: str
    run_id: str
    version: str
    digest: str

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def uses(root: StorageRoot, plugin_id: str, *, owners: Iterable[str], version: str = "") -> Iterator[Use]:
    """Every run of these owners whose JobSpec names the plugin; runs that cannot be read are left out."""
    for owner in owners:
        for run in all_runs(root, owner):
            for row in _plugins(run):
                if row.get("id") == plugin_id and version in ("", row.get("version")):
                    yield Use(owner, run.exp, run.run_id, str(row.get("version")), str(row.get("digest")))


def _plugins(run: RunPaths) -> list[dict[str, Any]]:
    try:
        rows = read_json(run.jobspec)["spec"].get("plugins", [])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return []
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
