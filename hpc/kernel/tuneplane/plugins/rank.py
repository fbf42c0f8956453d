"""`python -m tuneplane.plugins.rank -m MODULE ARGS…` or `… SCRIPT ARGS…`: apply the locked algorithm plugins, then become the training program.

Everything happens in this interpreter, before the training module is imported, so that what a plugin changes is changed for the training
code. The program then runs as `__main__` with the sys.argv and sys.path[0] that `python -m MODULE` or `python SCRIPT` would give it.
"""

from __future__ import annotations

import copy
import os
import runpy
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tuneplane.contract import exits
from tuneplane.contract.sweeps import variant_of
from tuneplane.plugins.deferred import register
from tuneplane.plugins.fault import PluginFault, last_lines
from tuneplane.plugins.locked import SPEC, LockedPlugin, check_collisions, read_locked, verify
from tuneplane.plugins.provider import guard, load
from tuneplane.plugins.requirements import require_here
from tuneplane.record.files import read_json

USAGE = "usage: python -m tuneplane.plugins.rank -m MODULE [ARGS...] | SCRIPT [ARGS...]"


def apply_plugins(work: Path) -> None:
    """Verify, load and call the package's algorithm plugins in the JobSpec's order; one line on stdout each. Raises PluginFault.

    Environment packages are checked against this interpreter and guarded from planted byte code; putting them on the path was the launcher's.
    """
    plugins = [p for p in read_locked(work) if p.capability in ("algorithm", "environment")]
    for plugin in plugins:
        verify(plugin)
    check_collisions(plugins)
    for plugin in plugins:
        require_here(plugin)
        guard(plugin)
    hyperparams = {**(read_json(work / SPEC)["spec"].get("hyperparams") or {}), **variant_of(work, os.environ)}
    for plugin in plugins:
        if plugin.capability == "algorithm":
            _apply(plugin, hyperparams)


def _apply(plugin: LockedPlugin, hyperparams: Mapping[str, Any]) -> None:
    with _own_place(plugin):
        fn = load(plugin)
        if (plugin.manifest.get("load") or "eager") == "deferred":
            register(plugin.leaf, plugin.label, fn, hyperparams)
            print(f"plugin  : {plugin.label} registered in entrypoint process (deferred)", flush=True)
            return
        # Each plugin gets a dict of its own: what one changes in it is no message to the next.
        fn(copy.deepcopy(dict(hyperparams)))
        print(f"plugin  : {plugin.label} applied in entrypoint process", flush=True)


@contextmanager
def _own_place(plugin: LockedPlugin) -> Iterator[None]:
    """argv and working folder stay the program's own, whatever the plugin does to them. Raises PluginFault E-JOB-037.

    What a plugin takes off sys.path would be missed later, by somebody's import, without the plugin's name.
    """
    argv, path, here = list(sys.argv), list(sys.path), os.getcwd()
    try:
        yield
        if lost := [entry for entry in path if entry not in sys.path]:
            raise PluginFault("E-JOB-037", f"plugin {plugin.label} took {lost[0]!r} off sys.path")
    except (PluginFault, KeyboardInterrupt):
        raise
    except BaseException as exc:
        raise PluginFault("E-JOB-037", f"plugin {plugin.label} raised: {last_lines(exc)}") from exc
    finally:
        sys.argv = argv
        os.chdir(here)


def _become(words: Sequence[str]) -> None:
    """Run MODULE or SCRIPT as `__main__`; returns when it has ended without SystemExit."""
    if words[0] == "-m":
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(words[0], run_name="__main__")


def _arrange(words: Sequence[str]) -> None:
    """sys.argv and sys.path[0] as the interpreter itself would set them for these words."""
    if words[0] == "-m":
        sys.argv = ["-m", *words[2:]]  # run_module puts the module's file in front
        return
    sys.argv = list(words)
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = os.path.dirname(os.path.realpath(words[0]))


def main(words: Sequence[str]) -> int:
    """0 when the program ended by itself; 2 when a plugin cannot be used, with one line that says why; the program's own SystemExit passes."""
    if not words or (words[0] == "-m" and len(words) < 2):
        print(USAGE, file=sys.stderr)
        return exits.USAGE
    _arrange(words)
    try:
        work = os.environ.get("TUNEPLANE_WORK_DIR")
        if not work:
            raise PluginFault("E-JOB-031", "TUNEPLANE_WORK_DIR does not name the job package")
        apply_plugins(Path(work))
    except PluginFault as fault:
        print(f"tp: {fault}", file=sys.stderr, flush=True)
        return exits.LAUNCH_FAILED
    try:
        _become(words)
    except PluginFault as fault:  # install_deferred, from within the training code
        traceback.print_exc()
        print(f"tp: {fault}", file=sys.stderr, flush=True)
        return exits.LAUNCH_FAILED
    return exits.DONE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
