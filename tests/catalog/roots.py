"""A storage root laid out for tests, by the code that lays out real ones."""

from __future__ import annotations

from pathlib import Path

from tuneplane.contract.layout import StorageRoot

from hpc.site.layout import init_root

SITE = "schema: tuneplane-hpc/site/v1\nname: test\nfleets: {local: {kind: local}}\n"


def new_root(tmp_path: Path, site_lines: str = "") -> StorageRoot:
    """A root in `tmp_path` whose admin is whoever runs the test, with a small site file and `site_lines` in it."""
    root = init_root(tmp_path / "root", name="test").root
    root.site_file.write_text(SITE + site_lines, "utf-8")
    return root
