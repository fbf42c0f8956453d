"""Both digests of any folder, for people who compare: v1 as documented, links to files followed; v2 where the folder can have one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tuneplane.record.digest import directory_digest_v1, v1_files

from hpc.errors import Refusal
from hpc.plugins.tree import survey


@dataclass(frozen=True)
class FolderDigests:
    """`v2` is "" where the folder holds a link or what else has no place in a package; `reason` says what. `files`: what v1 covers."""

    v1: str
    v2: str
    files: int
    reason: str = ""

    def as_json(self) -> dict[str, Any]:
        return {"digest": self.v1, "digest_v2": self.v2, "files": self.files, "reason": self.reason}


def folder_digests(folder: Path) -> FolderDigests:
    """Both digests. Raises Refusal E-PLUGIN-001 (no folder), E-PLUGIN-025 (a name that has no UTF-8), E-PLUGIN-029 (a file cannot be read)."""
    tree = survey(folder)
    if tree.whole:
        return FolderDigests(*tree.digests(), len(tree.files))
    strange = [*tree.links, *tree.specials]
    reason = tree.faults[0].message if tree.faults else f"{strange[0]} is a link or a special file"
    try:
        files = v1_files(folder)
        return FolderDigests(directory_digest_v1(folder, files), "", len(files), reason)
    except UnicodeEncodeError:
        raise Refusal("E-PLUGIN-025", "a name is not UTF-8", field="package") from None
    except OSError as exc:
        raise Refusal("E-PLUGIN-029", f"cannot be read: {exc.strerror}", field=str(exc.filename)) from exc
