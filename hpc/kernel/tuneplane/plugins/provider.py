"""One callable out of one locked plugin, and proof that it is the plugin's.

The plugin's folder or wheel is the only path that is added for it. Its modules are compiled from their source each time: byte code beside a
module is not covered by the plugin's digest, so neither `__pycache__` nor a sourceless `.pyc` in its folder is ever used, nor written. That holds
for this interpreter; what the program spawns imports by Python's ordinary rules from a package in which the launcher found no file too many.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from importlib.machinery import EXTENSION_SUFFIXES, SOURCE_SUFFIXES, ExtensionFileLoader, FileFinder, SourceFileLoader
from types import CodeType
from typing import Any

from tuneplane.plugins.fault import PluginFault, last_lines
from tuneplane.plugins.locked import LockedPlugin, check_unowned, is_inside
from tuneplane.plugins.wheel import GROUPS, read_wheel


class _SourceOnly(SourceFileLoader):
    """Compiles what the source file says; knows no cache."""

    def get_code(self, fullname: str) -> CodeType | None:
        path = self.get_filename(fullname)
        code: CodeType = self.source_to_code(self.get_data(path), path)
        return code


_guarded: set[str] = set()


def _finder(path: str) -> FileFinder:
    real = os.path.realpath(path)
    if not os.path.isdir(real) or not any(real == folder or real.startswith(folder + os.sep) for folder in _guarded):
        raise ImportError("not a plugin's folder")
    return FileFinder(path, (ExtensionFileLoader, EXTENSION_SUFFIXES), (_SourceOnly, SOURCE_SUFFIXES))


def guard(plugin: LockedPlugin) -> None:
    """From now on, whatever this interpreter imports from below the plugin's folder is compiled from source. Idempotent."""
    _guarded.add(os.path.realpath(plugin.folder))
    if _finder not in sys.path_hooks:
        sys.path_hooks.insert(0, _finder)
    sys.path_importer_cache.clear()


def make_importable(plugin: LockedPlugin) -> None:
    """Put the plugin, and nothing else, on sys.path. Raises PluginFault E-JOB-032 where one of its names is somebody else's."""
    check_unowned(plugin)
    guard(plugin)
    if plugin.path_entry not in sys.path:
        sys.path.insert(0, plugin.path_entry)


def target_of(plugin: LockedPlugin) -> str:
    """`module:attribute` of the plugin's callable: its entrypoint, or the wheel's entry point with the provider's name.

    Only the selected wheel's own metadata is asked. Raises PluginFault E-JOB-036.
    """
    manifest, who = plugin.manifest, f"plugin {plugin.label}"
    if not plugin.wheel:
        target = str(manifest.get("entrypoint") or "")
    else:
        group, name = GROUPS.get(plugin.capability, ""), str(manifest.get("provider") or "")
        target = read_wheel(plugin.wheel, who).entry_points.get(group, {}).get(name, "").strip()
        if not target:
            raise PluginFault("E-JOB-036", f"{who}: its wheel has no entry point {name!r} in the group {group!r}")
    module, colon, attribute = target.partition(":")
    if not colon or not all(part.isidentifier() for part in (*module.split("."), *attribute.split("."))):
        raise PluginFault("E-JOB-036", f"{who}: not module:callable: {target!r}")
    return target


def load(plugin: LockedPlugin) -> Callable[..., Any]:
    """Import the plugin's module and return its callable. Runs the plugin's import code. Raises PluginFault E-JOB-032 or E-JOB-036."""
    who, (module_name, _, attribute) = f"plugin {plugin.label}", target_of(plugin).partition(":")
    make_importable(plugin)
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as exc:
        raise PluginFault("E-JOB-036", f"{who}: importing {module_name} failed: {last_lines(exc)}") from exc
    origin = getattr(getattr(module, "__spec__", None), "origin", None) or getattr(module, "__file__", None) or ""
    if not origin or not is_inside(plugin, origin):
        raise PluginFault("E-JOB-036", f"{who}: {module_name} came from {origin or 'nowhere'}, not from the plugin")
    found: Any = module
    for part in attribute.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        raise PluginFault("E-JOB-036", f"{who}: {module_name} has no callable {attribute}")
    loaded: Callable[..., Any] = found
    return loaded
