"""What a package's files must be: the entry point is there, no name is somebody else's, declarative packs hold no programs. Runs nothing."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from hpc.errors import Refusal
from hpc.plugins.manifest import Manifest
from hpc.plugins.source import NotPythonError, find_by_line, find_name
from hpc.plugins.standard import STANDARD
from hpc.plugins.tree import Tree
from hpc.spec.text import visible

PACKAGE: Final = "package"
"""The field of a fault that lies in the files rather than in plugin.yaml."""
README: Final = "README.md"
README_BYTES: Final = 64 << 10
RESERVED: Final = frozenset(
    ("tuneplane", "nemo_rl", "common", "ray", "torch", "transformers", "vllm", "trl", "verl", "numpy", "yaml", "json", "os", "sys",
     "sitecustomize", "usercustomize")
)  # fmt: skip
"""Import roots that a package may not bring. Python runs sitecustomize and usercustomize by itself."""
PROGRAMS: Final = frozenset(
    (".py", ".pyc", ".pyo", ".pyd", ".so", ".dylib", ".dll", ".sh", ".bash", ".zsh", ".fish", ".ps1", ".bat", ".cmd", ".exe", ".pl", ".rb",
     ".lua", ".js", ".mjs", ".cjs", ".ts")
)  # fmt: skip
_MODULE = re.compile(r"(?P<stem>[^.]+)(\.py|\.pyd|(\.[^.]+)?\.so)")
_SECRET = re.compile(r"(^|/)(\.env(\..+)?|\.netrc|id_(rsa|ed25519|ecdsa)|[^/]+\.(pem|key|p12)|credentials(\.json)?)$")


def module_of(name: str) -> str:
    """The import root that a top-level file name makes: `patch.py` → `patch`; "" for a file that Python does not import."""
    match = _MODULE.fullmatch(name)
    return match["stem"] if match else ""


def import_roots(paths: Iterable[str]) -> list[str]:
    """The import names at the top of some files: modules, and folders that hold Python at any depth. Sorted."""
    found = set()
    for path in paths:
        top, _, below = path.partition("/")
        if not below:
            found.add(module_of(top))
        elif top.isidentifier() and module_of(path.rsplit("/", 1)[1]):
            found.add(top)
    found.discard("")
    return sorted(found)


def check_layout(tree: Tree, manifest: Manifest) -> tuple[list[Refusal], list[str]]:
    """Every fault of the layout and every remark; the icon and the wheel have checks of their own."""
    remarks: list[str] = []
    faults = list(_strangers(tree, manifest))
    if manifest.is_code:
        faults += _reserved(tree)
    if manifest.is_declarative:
        faults += _programs(tree)
    if manifest.entrypoint:
        found, said = _entrypoint(tree, manifest)
        faults += found
        remarks += said
    remarks += _remarks(tree, manifest)
    return faults, remarks


def _strangers(tree: Tree, manifest: Manifest) -> Iterator[Refusal]:
    """Links and special files. The icon's own check speaks of the icon."""
    for path in tree.links:
        if not (manifest.icon_is_path and path == manifest.icon):
            yield Refusal("E-PLUGIN-024", f"{visible(path)} is a link", field=PACKAGE, found=visible(path))
    for path in tree.specials:
        yield Refusal("E-PLUGIN-024", f"{visible(path)} is a special file", field=PACKAGE, found=visible(path))


def _reserved(tree: Tree) -> Iterator[Refusal]:
    folders = {path.partition("/")[0] for path in tree.files if "/" in path}
    taken = {top for top in tree.tops() if (top if top in folders else module_of(top)) in RESERVED}
    # A module of the standard library's name would be hidden by it, or hide it from everything else in the interpreter.
    taken |= STANDARD.intersection(import_roots(tree.files)) - {module_of(top) for top in taken}
    for top in sorted(taken):
        message = f"the top-level name {top!r} belongs to the platform, a framework or Python"
        yield Refusal("E-PLUGIN-022", message, field=PACKAGE, found=top, allowed="a name of your own")


def _programs(tree: Tree) -> Iterator[Refusal]:
    # Byte code is not covered by the digest, but has no business here either.
    loose = [path for path in tree.left_out if "." in path.rsplit("/", 1)[-1]]
    for path in [*tree.files, *loose]:
        dot = path.rfind(".")
        if path.partition("/")[0] != "template" and path[dot:].lower() in PROGRAMS and "/" not in path[dot:]:
            message = f"{visible(path)} is a program"
            yield Refusal(
                "E-PLUGIN-023",
                message,
                field=PACKAGE,
                found=visible(path),
                allowed="declarations; programs under template/",
            )


def _entrypoint(tree: Tree, manifest: Manifest) -> tuple[list[Refusal], list[str]]:
    module, _, name = manifest.entrypoint.partition(":")
    path = module_file(module, tree.files)
    if not path:
        base = module.replace(".", "/")
        message = f"the module {module!r} is not in the package"
        return [
            Refusal(
                "E-PLUGIN-020",
                message,
                field="entrypoint",
                found=manifest.entrypoint,
                allowed=f"{base}.py or {base}/__init__.py",
            )
        ], []
    return check_callable(lambda: tree.read(path), path, name, "entrypoint", manifest.requires.python)


def module_file(module: str, files: Iterable[str]) -> str:
    """The file that an import of `module` would run, as Python's own finder chooses; "" where the import would fail."""
    names, parts = set(files), module.split(".")
    for end in range(1, len(parts)):
        above = "/".join(parts[:end])
        # A module beside a folder without __init__.py hides it.
        if f"{above}/__init__.py" not in names and f"{above}.py" in names:
            return ""
    base = "/".join(parts)
    return next((path for path in (f"{base}/__init__.py", f"{base}.py") if path in names), "")


def check_callable(
    read: Callable[[], bytes], path: str, name: str, field: str, python: str
) -> tuple[list[Refusal], list[str]]:
    """Whether the module at `path` binds `name` to something that can be a callable. `python`: the range that the package asks for."""
    try:
        source = read()
    except Refusal as exc:
        return [exc], []
    try:
        found = find_name(source, name)
    except NotPythonError as exc:
        if _newer(python) and find_by_line(source, name):
            return [], [f"{path}: cannot be parsed by the Python here ({exc}); {name} was found by its line alone"]
        return [
            Refusal("E-PLUGIN-028", f"{path}: {exc}", field=field, found=path, allowed="a module of Python source")
        ], []
    if found.bound and not found.plain_value:
        return [], []
    if not found.bound and found.star:
        return [], [f"{path}: {name} can only come from an `import *`, which was not followed"]
    said = f"binds {name} to a plain value" if found.bound else f"has no {name} at its top level"
    return [
        Refusal("E-PLUGIN-021", f"{path} {said}", field=field, found=name, allowed="def, class, assignment or import")
    ], []


def _newer(python: str) -> bool:
    """True where the range leaves out the Python that runs here."""
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    try:
        return bool(python) and not SpecifierSet(python).contains(
            ".".join(map(str, sys.version_info[:3])), prereleases=True
        )
    except InvalidSpecifier:
        return False


def _remarks(tree: Tree, manifest: Manifest) -> Iterator[str]:
    if tree.files.get(README, 0) > README_BYTES:
        yield f"{README}: only the first {README_BYTES >> 10} KiB are shown; the digest covers all of it"
    if tree.left_out:
        some = ", ".join(visible(p) for p in tree.left_out[:3])
        yield f"{len(tree.left_out)} files or folders are no part of the package (byte code, caches, version control): {some}"
    for path in tree.files:
        if _SECRET.search(path):
            yield f"{visible(path)} looks like a secret, and everybody can read a published package"
