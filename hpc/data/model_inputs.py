"""A model of this platform's shelf as the input of a job."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tuneplane.contract.layout import StorageRoot

from hpc.data.channels import find
from hpc.errors.core import Refusal
from hpc.spec.text import leaf_variable
from hpc.store.faults import refusal

if TYPE_CHECKING:
    from hpc.site.sitefile import Site

DEAR = 8 << 30


def shelf_input(
    root: StorageRoot, site: Site, model: str, version: str, *, field: str, digest: Callable[[str, os.stat_result], str]
) -> dict[str, Any]:  # fmt: skip
    """`{path, files, closed, source, model, variables}` of `<owner>/<name>` at a version or channel, every file compared with the shelf's record.

    Above DEAR bytes nothing is hashed here, and the job compares size, time and owner, as it does for paths. Raises Refusal E-REG-*, E-MODEL-024
    (an adapter), E-MODEL-041, E-STORE-02x.
    """
    found = find(root, site, f"{model}@{version}" if version else model, field=field)
    if found.facts.get("form") == "adapter":
        base = str(found.facts.get("base_model") or "not recorded")
        raise Refusal(
            "E-MODEL-024", f"{found} is an adapter", field=field, found=str(found), allowed=f"its base: {base}"
        )
    dear, rows = found.size > DEAR, []
    for entry in found.files:
        path = found.content / entry.path
        try:
            info = os.stat(path, follow_symlinks=False)
            have = entry.sha256 if dear else digest(str(path), info)
        except OSError as exc:
            raise refusal(exc, path, "read") from exc
        if have != entry.sha256:
            text = f"has other bytes: recorded {entry.sha256}, found {have}"
            raise Refusal("E-REG-013", text, field=str(path), found=have, allowed=entry.sha256)
        row: dict[str, Any] = {"path": entry.path, "size": entry.size, "sha256": entry.sha256}
        rows.append(row | ({"mtime_ns": info.st_mtime_ns, "uid": info.st_uid} if dear else {}))
    facts = {"ref": str(found), "digest": found.digest}
    variables = {f"{leaf_variable(found.name)}_MODEL_DIR": str(found.content)}
    return {
        "path": str(found.content), "files": rows, "closed": True, "source": str(found), "model": facts, "variables": variables,
    }  # fmt: skip
