"""Finds a callable in Python source without running it. Pure: source bytes go in, what its top level binds comes out."""

from __future__ import annotations

import ast
import re
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

MAX_SOURCE_BYTES: Final = 4 << 20
_LITERAL = (
    ast.Constant,
    ast.List,
    ast.Tuple,
    ast.Dict,
    ast.Set,
    ast.JoinedStr,
    ast.ListComp,
    ast.DictComp,
    ast.SetComp,
)
_BLOCKS = (ast.If, ast.Try, ast.With, ast.AsyncWith, ast.For, ast.AsyncFor, ast.While, ast.Match)


class NotPythonError(ValueError):
    """The source cannot be parsed by the Python that runs here; the message names the line."""


@dataclass(frozen=True)
class Found:
    """Whether a name is bound at the top level, whether only to plain values, and whether `import *` may bind it."""

    bound: bool
    plain_value: bool = False
    star: bool = False


def find_name(source: bytes, name: str) -> Found:
    """How the module's top level binds `name`: def, class, assignment, import; also within if, try, with and loops.

    Raises NotPythonError. Does not follow imports and cannot say whether what an import or a call gives is callable.
    """
    tree = _parse(source)
    try:
        found = list(_bindings(tree.body))
    except RecursionError:
        raise NotPythonError("nested too deeply to be read") from None
    kinds = [kind for bound, kind in found if bound == name]
    star = any(bound == "*" for bound, _ in found)
    return Found(bool(kinds), bool(kinds) and all(kind == "value" for kind in kinds), star)


def find_by_line(source: bytes, name: str) -> bool:
    """Whether a line at the left margin defines, assigns or imports `name`: for source of a newer Python than ours."""
    text = source.decode("utf-8", "replace")
    word = re.escape(name)
    forms = rf"^(?:(?:async\s+)?def\s+{word}\b|class\s+{word}\b|{word}\s*(?::[^=\n]*)?=(?!=)|(?:from\s+\S+\s+)?import\s[^\n]*\b{word}\b)"
    return re.search(forms, text, re.MULTILINE) is not None


def _parse(source: bytes) -> ast.Module:
    if len(source) > MAX_SOURCE_BYTES:
        raise NotPythonError(f"larger than {MAX_SOURCE_BYTES} bytes")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(source)
    except SyntaxError as exc:
        place = f"line {exc.lineno}: " if exc.lineno else ""
        raise NotPythonError(f"{place}{exc.msg} (read by Python {sys.version_info[0]}.{sys.version_info[1]})") from exc
    except (ValueError, RecursionError, MemoryError) as exc:
        raise NotPythonError(str(exc) or "nested too deeply to be parsed") from exc


def _bindings(body: list[ast.stmt]) -> Iterator[tuple[str, str]]:
    """(name, kind) of every top-level binding; kind `value` for a literal, `*` as name for a star import."""
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name, "definition"
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            for alias in node.names:
                plain = alias.name.partition(".")[0] if isinstance(node, ast.Import) else alias.name
                yield alias.asname or plain, "import"
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                yield from _targets(target, node.value)
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            yield from _targets(node.target, node.value)
        elif isinstance(node, _BLOCKS):
            yield from _blocks(node)


def _targets(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, str]]:
    if isinstance(target, ast.Name):
        yield target.id, "value" if isinstance(value, _LITERAL) else "assignment"
    else:
        for inner in ast.walk(target):
            if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store):
                yield inner.id, "assignment"


def _blocks(node: ast.stmt) -> Iterator[tuple[str, str]]:
    for attribute in ("body", "orelse", "finalbody"):
        yield from _bindings(getattr(node, attribute, []))
    for inner in [*getattr(node, "handlers", []), *getattr(node, "cases", [])]:
        yield from _bindings(inner.body)
