"""Plugins as a kind of the registry: what the shelf engine calls to judge a folder of bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from hpc.plugins.tree import MAX_BYTES, MAX_FILES
from hpc.plugins.validate import validate
from hpc.registry.kinds import Checked, Kind


def check(folder: Path) -> Checked:
    """Who the package is, and what its record keeps. Raises Refusals (E-PLUGIN-…) for whatever is not publishable."""
    report = validate(folder, digests=False)  # the shelf engine computes them over what it stores
    manifest = report.require()
    return Checked(manifest.name, manifest.version, report.facts, admin_only=manifest.is_policy)


PLUGIN: Final = Kind("plugin", "plugins", check, MAX_BYTES, MAX_FILES)
