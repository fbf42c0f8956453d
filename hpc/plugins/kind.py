"""Plugins as a kind of the registry: what the shelf engine calls to judge a folder of bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from hpc.plugins.tree import MAX_BYTES, MAX_FILES
from hpc.plugins.validate import validate
from hpc.registry.kinds import Checked, Kind
from hpc.registry.shapes import TEXTS


def check(folder: Path) -> Checked:
    """Who the package is, and what its record keeps. Raises Refusals (E-PLUGIN-…) for whatever is not publishable."""
    report = validate(folder, digests=False)  # the shelf engine computes them over what it stores
    manifest = report.require()
    return Checked(manifest.name, manifest.version, report.facts, admin_only=manifest.is_policy)


FACTS: Final = {
    "manifest": {
        **dict.fromkeys(("name", "version", "capability", "execution", "entrypoint", "load", "wheel", "provider"), str),
        **dict.fromkeys(("schema?", "group?", "api?", "summary?", "icon?", "author?", "license?", "homepage?"), str),
        "requires": {
            "core": str, "python": str, "frameworks": TEXTS, "methods": [str], "backends": [str],
        },
        "keywords?": [str],
    },
    "readme?": bool,
    "icon_digest?": str,
    "import_roots": [str],
    "wheel?": {"requires_python": str, "requires_dist": [str], "entry_point": str, "version": str},
}  # fmt: skip
"""What readers rely on, whoever wrote the record. Other keys may come with a later release."""
PLUGIN: Final = Kind("plugin", "plugins", check, MAX_BYTES, MAX_FILES, FACTS, reader_codes=frozenset({"E-PLUGIN-028"}))
