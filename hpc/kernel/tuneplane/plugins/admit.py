"""All that is asked of locked plugins before any of their code runs, in one call for the launcher."""

from __future__ import annotations

from pathlib import Path

from tuneplane.plugins.fault import PluginFault
from tuneplane.plugins.locked import (
    SPEC,
    LockedPlugin,
    check_collisions,
    missing_recipe_plugins,
    read_locked,
    verify,
)
from tuneplane.plugins.requirements import unmet_core
from tuneplane.record.files import read_json


def admit_plugins(work: Path, core_version: str) -> list[LockedPlugin]:
    """Read, verify and compare every locked plugin of a package: bytes, identity, core range, collisions, what the recipe asks for.

    Python's version and installed distributions are the rank's question (`requirements.require_here`): another interpreter may run there.
    Raises PluginFault E-JOB-030, -031, -032, -035 or -039.
    """
    plugins = read_locked(work)
    for plugin in plugins:
        verify(plugin)
    for plugin in plugins:
        if unmet := unmet_core(plugin, core_version):
            raise PluginFault("E-JOB-035", unmet)
    check_collisions(plugins)
    if missing := missing_recipe_plugins(read_json(work / SPEC)):
        raise PluginFault("E-JOB-039", f"the recipe needs plugins that are not locked: {', '.join(missing)}")
    return plugins
