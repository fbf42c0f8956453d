"""Which files of a model's folder hold its weights: those that transformers opens. Copies in another form that lie beside them are no part of it."""

from __future__ import annotations

import json
from pathlib import Path

SINGLE = "model.safetensors"
INDEX = f"{SINGLE}.index.json"
_MAX_INDEX = 64 << 20


def weight_files(folder: Path) -> list[Path]:
    """model.safetensors, else the files that its index names, else whatever is called model*.safetensors; [] for a folder without any.

    A file that the index names and that is not there is among them: whoever opens it says so. Raises OSError, ValueError for a bad index.
    """
    if (folder / SINGLE).is_file():
        return [folder / SINGLE]
    if not (folder / INDEX).is_file():
        return sorted(folder.glob("model*.safetensors"))
    with open(folder / INDEX, "rb") as stream:  # a hub's cache has links here
        index = json.loads(stream.read(_MAX_INDEX))
    table = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(table, dict):
        raise ValueError(f"{INDEX} has no weight_map")
    names = sorted({str(name) for name in table.values()})
    if odd := [name for name in names if Path(name).name != name]:
        raise ValueError(f"{INDEX} names {odd[0]!r}, which is no file of the folder")
    return [folder / name for name in names]
