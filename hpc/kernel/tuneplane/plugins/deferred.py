"""Algorithm plugins with `load: deferred`: registered before training starts, called when the training code asks for them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

from tuneplane.plugins.fault import PluginFault, last_lines

_registered: dict[str, tuple[str, Callable[..., Any], Mapping[str, Any]]] = {}


def register(leaf: str, label: str, fn: Callable[..., Any], hyperparams: Mapping[str, Any]) -> None:
    """Keep `fn` for `install_deferred(leaf)`; `label` is `id@version`."""
    _registered[leaf] = (label, fn, hyperparams)


def install_deferred(leaf: str, **ctx: Any) -> None:
    """Call the deferred plugin `leaf` as `fn(hyperparams, **ctx)`; what it returns is ignored. It may be called more than once.

    Raises PluginFault E-JOB-038 where no deferred plugin of that name is locked, E-JOB-037 where the plugin raises.
    """
    if leaf not in _registered:
        known = ", ".join(sorted(_registered)) or "none"
        raise PluginFault("E-JOB-038", f"no deferred plugin {leaf!r} is locked to this job (deferred here: {known})")
    label, fn, hyperparams = _registered[leaf]
    try:
        fn(copy.deepcopy(dict(hyperparams)), **ctx)
    except KeyboardInterrupt:
        raise
    except BaseException as exc:
        raise PluginFault("E-JOB-037", f"plugin {label} raised: {last_lines(exc)}") from exc
