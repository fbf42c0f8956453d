"""What a wheel says of itself, read from the archive: nothing is installed, unpacked or run."""

from __future__ import annotations

import configparser
import os
import zipfile
from dataclasses import dataclass
from email.parser import HeaderParser

from tuneplane.plugins.fault import PluginFault

GROUPS = {
    "algorithm": "tuneplane.algorithms",
    "environment": "tuneplane.environments",
    "data-prep": "tuneplane.transforms",
}
MAX_METADATA = 1 << 20
BYTE_CODE = (".pyc", ".pyo")


@dataclass(frozen=True)
class Wheel:
    """The parts of a wheel that decide whether and how it is used. `entry_points` maps group and name to `module:attribute`."""

    path: str
    requires_python: str
    requires_dist: tuple[str, ...]
    entry_points: dict[str, dict[str, str]]
    import_roots: tuple[str, ...]


def read_wheel(path: str, who: str) -> Wheel:
    """Raises PluginFault E-JOB-036 for a file that is no wheel, or that carries byte code: the archive's importer would prefer it to the source."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            infos = {n.split("/")[0] for n in names if n.split("/")[0].endswith(".dist-info")}
            if len(infos) != 1:
                raise PluginFault("E-JOB-036", f"{who}: {os.path.basename(path)} holds {len(infos)} dist-info folders")
            if planted := next((n for n in names if n.endswith(BYTE_CODE)), ""):
                raise PluginFault("E-JOB-036", f"{who}: {os.path.basename(path)} holds byte code: {planted}")
            info = infos.pop()
            metadata = HeaderParser().parsestr(_text(archive, f"{info}/METADATA"))
            points = _text(archive, f"{info}/entry_points.txt") if f"{info}/entry_points.txt" in names else ""
    except (OSError, KeyError, ValueError, zipfile.BadZipFile) as exc:
        raise PluginFault("E-JOB-036", f"{who}: {os.path.basename(path)} cannot be read: {exc}") from exc
    python, dists = metadata.get("Requires-Python", ""), metadata.get_all("Requires-Dist", [])
    return Wheel(path, python, tuple(dists), _entry_points(points, who), _import_roots(names))


def _text(archive: zipfile.ZipFile, name: str) -> str:
    if archive.getinfo(name).file_size > MAX_METADATA:
        raise ValueError(f"{name} is larger than {MAX_METADATA} bytes")
    return archive.read(name).decode("utf-8")


def _entry_points(text: str, who: str) -> dict[str, dict[str, str]]:
    parser = configparser.ConfigParser(delimiters=("=",), interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    try:
        parser.read_string(text)
    except configparser.Error as exc:
        raise PluginFault("E-JOB-036", f"{who}: entry_points.txt: {str(exc).splitlines()[0]}") from exc
    return {group: dict(parser.items(group)) for group in parser.sections()}


def _import_roots(names: list[str]) -> tuple[str, ...]:
    """Top-level modules and packages; a folder counts when some Python source lies below it."""
    roots = set()
    for name in names:
        head, slash, _ = name.partition("/")
        if name.endswith(".py") and not head.endswith(".dist-info"):
            roots.add(head if slash else head[:-3])
    return tuple(sorted(roots))
