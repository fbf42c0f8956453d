"""What a plugin asks of the core, of this interpreter and of what is installed in it (PEP 440, PEP 508).

`packaging` decides. It travels with the kernel (`tuneplane.vendored.packaging`), since an image need not have it.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import sys
from typing import Any

from tuneplane.plugins.fault import PluginFault
from tuneplane.plugins.locked import LockedPlugin
from tuneplane.plugins.wheel import read_wheel


def _packaging(module: str) -> Any:
    try:
        return importlib.import_module(f"tuneplane.vendored.packaging.{module}")
    except ModuleNotFoundError:
        return importlib.import_module(f"packaging.{module}")


def _admits(wanted: str, version: str, who: str, what: str) -> bool:
    """Pre-releases count as what they are. Raises PluginFault E-JOB-036 for a specifier that is none."""
    specifiers = _packaging("specifiers")
    try:
        return bool(specifiers.SpecifierSet(wanted).contains(version, prereleases=True))
    except ValueError as exc:
        raise PluginFault("E-JOB-036", f"{who}: {what} is not a version range: {wanted!r}") from exc


def _requires(plugin: LockedPlugin, key: str) -> str:
    requires = plugin.manifest.get("requires")
    return str(requires.get(key) or "") if isinstance(requires, dict) else ""


def unmet_core(plugin: LockedPlugin, core_version: str) -> str:
    """The page's words where `requires.core` does not admit `core_version`, else ""."""
    wanted, who = _requires(plugin, "core"), f"plugin {plugin.label}"
    if not wanted or _admits(wanted, core_version, who, "requires.core"):
        return ""
    return f"{who} requires SDK {wanted}, this one is {core_version}"


def unmet_python(plugin: LockedPlugin, version: str = "") -> list[str]:
    """Where this interpreter's version (or `version`) is outside `requires.python` or the wheel's Requires-Python."""
    found = version or ".".join(map(str, sys.version_info[:3]))
    who, asked = f"plugin {plugin.label}", {_requires(plugin, "python"): "requires.python"}
    if plugin.wheel:
        asked.setdefault(read_wheel(plugin.wheel, who).requires_python, "Requires-Python")
    return [
        f"{who} requires Python {wanted} ({what}), this one is {found}"
        for wanted, what in asked.items()
        if wanted and not _admits(wanted, found, who, what)
    ]


def unmet_dependencies(plugin: LockedPlugin) -> list[str]:
    """Each Requires-Dist of the wheel that this interpreter's installed distributions do not satisfy; extras are not looked at."""
    if not plugin.wheel:
        return []
    who, requirements = f"plugin {plugin.label}", _packaging("requirements")
    out = []
    for line in read_wheel(plugin.wheel, who).requires_dist:
        try:
            wanted = requirements.Requirement(line)
            applies = wanted.marker is None or wanted.marker.evaluate({"extra": ""})
        except ValueError as exc:
            raise PluginFault("E-JOB-036", f"{who}: Requires-Dist cannot be read: {line!r}") from exc
        if not applies:
            continue
        found = _installed(wanted.name)
        if not found:
            out.append(f"{who} requires {wanted.name}{wanted.specifier}, which is not installed here")
        elif not _admits(str(wanted.specifier), found, who, "Requires-Dist"):
            out.append(f"{who} requires {wanted.name}{wanted.specifier}, installed is {found}")
    return out


def _installed(name: str) -> str:
    try:
        return importlib.metadata.version(name) or ""
    except importlib.metadata.PackageNotFoundError:
        return ""


def require_here(plugin: LockedPlugin) -> None:
    """Raises PluginFault E-JOB-033 (Python) or E-JOB-034 (an installed distribution), naming all that is unmet of its kind."""
    if lines := unmet_python(plugin):
        raise PluginFault("E-JOB-033", "; ".join(lines))
    if lines := unmet_dependencies(plugin):
        raise PluginFault("E-JOB-034", "; ".join(lines))
