"""Which sources travel in a bundle so that its verify.py runs: everything that the verifier imports beside the standard library.

Found by reading the imports, so that a check that is added to the audit travels without anybody thinking of it.
"""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

from hpc.evidence.bundle import VERIFIER
from hpc.evidence.offline import SCRIPT

START: Final = "hpc.evidence.offline"
OURS: Final = ("hpc", "tuneplane")


@cache
def modules() -> tuple[str, ...]:
    """Names of all modules of ours that importing the verifier imports, packages included."""
    found: set[str] = set()
    todo = [START]
    while todo:
        name = todo.pop()
        if name in found or _path(name) is None:
            continue
        found.add(name)
        todo += [name.rpartition(".")[0], *_imports(name)] if "." in name else _imports(name)
    return tuple(sorted(found))


def _path(name: str) -> Path | None:
    """The source of a module, None for a name that is none."""
    try:
        spec = importlib.util.find_spec(name) if name.partition(".")[0] in OURS else None
    except ModuleNotFoundError:
        return None
    return Path(spec.origin) if spec is not None and spec.origin else None


def _imports(name: str) -> Iterator[str]:
    """What a module imports when it is imported: not for a type checker alone, and not in a function."""
    path = _path(name)
    assert path is not None
    for node in ast.parse(path.read_bytes()).body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def sources() -> dict[str, bytes]:
    """The verifier's files by their path in a bundle."""
    out = {"verify.py": SCRIPT.encode()}
    for name in modules():
        path = _path(name)
        assert path is not None
        place = name.replace(".", "/") + ("/__init__.py" if path.name == "__init__.py" else ".py")
        out[f"{VERIFIER}/{place}"] = path.read_bytes()
    return out
