"""Where the data folders that come with the toolkit lie: in a checkout beside `hpc/`, in a wheel inside it."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

Kind = Literal["recipes", "sbatch_templates", "containers"]
KINDS: tuple[Kind, ...] = ("recipes", "sbatch_templates", "containers")


def shipped(kind: Kind) -> Path:
    """The folder of that kind. Raises FileNotFoundError for an installation without it, which is a packaging bug."""
    if kind not in KINDS:
        raise ValueError(f"unknown kind {kind!r}")
    package = Path(__file__).resolve().parent.parent
    for folder in (package / "_shipped" / kind, package.parent / kind):
        if folder.is_dir():
            return folder
    raise FileNotFoundError(f"this installation has no {kind} folder beside {package}")
