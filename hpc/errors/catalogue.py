"""All areas' tables in one catalogue. A code that two areas declare is a bug that import reports."""

from __future__ import annotations

from hpc.errors import (
    archive,
    catalog,
    cli,
    data,
    evaluate,
    evidence,
    frameworks,
    gc,
    hub,
    install,
    job,
    lock,
    models,
    plan,
    plugins,
    project,
    registry,
    runs,
    sif,
    site,
    slurm,
    spec,
    store,
    submit,
    sweep,
    training,
)
from hpc.errors.core import ErrorKind

AREAS = (
    cli,
    spec,
    site,
    store,
    archive,
    slurm,
    sif,
    catalog,
    registry,
    plugins,
    project,
    install,
    frameworks,
    submit,
    plan,
    sweep,
    runs,
    data,
    hub,
    lock,
    models,
    gc,
    evidence,
    evaluate,
    job,
    training,
)


def _join() -> dict[str, ErrorKind]:
    out: dict[str, ErrorKind] = {}
    for area in AREAS:
        if twice := out.keys() & area.KINDS.keys():
            raise ValueError(f"error codes declared twice: {sorted(twice)}")
        out |= area.KINDS
    return out


CATALOGUE = _join()
