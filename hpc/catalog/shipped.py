"""Where the data folders that come with the toolkit lie: in a checkout where they are edited, in a wheel under `hpc/_shipped`."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal

Kind = Literal["recipes", "sbatch_templates", "containers", "plugins"]
IN_CHECKOUT: Final[dict[Kind, str]] = {
    "recipes": "recipes",
    "sbatch_templates": "sbatch_templates",
    "containers": "containers",
    "plugins": "hpc/plugins/shipped",
}
KINDS: Final = tuple(IN_CHECKOUT)


def shipped(kind: Kind) -> Path:
    """The folder of that kind. Raises FileNotFoundError for an installation without it, which is a packaging bug."""
    if kind not in IN_CHECKOUT:
        raise ValueError(f"unknown kind {kind!r}")
    package = Path(__file__).resolve().parent.parent
    for folder in (package / "_shipped" / kind, package.parent / IN_CHECKOUT[kind]):
        if folder.is_dir():
            return folder
    raise FileNotFoundError(f"this installation has no {kind} folder beside {package}")
