"""Submits a recorded run as a new one: the same package under a new run id, admitted and rendered by today's site."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from tuneplane.contract.layout import RunPaths, StorageRoot
from tuneplane.contract.sweeps import RECORD
from tuneplane.record.digest import FileEntry
from tuneplane.record.events import EventWriter
from tuneplane.record.files import read_json

from hpc.errors import Refusals
from hpc.submit import package
from hpc.submit.again import load_prepared
from hpc.submit.dispatch import Clock, Submitted, slurm_of
from hpc.submit.intents import IntentBook
from hpc.submit.pieces import dispatch_whole
from hpc.submit.pipeline import admit, ensure_owner_folder, new_run
from hpc.submit.usage import newest_number, queued_jobs

if TYPE_CHECKING:
    from hpc.project.files import Travelling
    from hpc.submit.prepare import Around

WRITER: Final = "again-0"
RECORDS: Final = ".tuneplane/"


def _moved(value: Any, old: str, new: str) -> Any:
    """The record with every path below the old run's package replaced by the new one's. Pure."""
    if isinstance(value, str):
        return new + value[len(old) :] if value == old or value.startswith(f"{old}/") else value
    if isinstance(value, dict):
        return {k: _moved(v, old, new) for k, v in value.items()}
    return [_moved(v, old, new) for v in value] if isinstance(value, list) else value


def _contents(run: RunPaths, work: str, new_work: str) -> tuple[list[Travelling], dict[str, Any]]:
    """(files, records) of the new package: the listed ones, read from the old. The spec and the recipe stay as they are."""
    from hpc.project.files import Travelling

    listed = [FileEntry.from_json(e) for e in read_json(run.package)["files"]]
    files = [Travelling(run.work / e.path, e.path) for e in listed if not e.path.startswith(RECORDS)]
    names = [e.path.removeprefix(RECORDS) for e in listed if e.path.startswith(RECORDS)]
    records = {name: read_json(run.work / RECORDS / name) for name in names}
    kept = ("jobspec.json", "recipe.json")
    return files, {n: v if n in kept else _moved(v, work, new_work) for n, v in records.items()}


def repeat(around: Around, run: RunPaths, *, clock: Clock, sleep: Callable[[float], None]) -> Submitted:
    """Submit the run's package as a new run of the caller's. A refusal before sbatch leaves no run.

    The kernel is this tp's, as admission demands; spec, code, inputs and image are the run's, or it is refused.
    Raises Refusal(s): what a submission is refused for, E-SUBMIT-071 for a package that is not what its list says.
    """
    from hpc.store.locks import held
    from hpc.submit.admission import read_package
    from hpc.submit.kernelzip import find_kernels
    from hpc.submit.preflight import check_array, check_dependency

    read_package(run)
    ensure_owner_folder(around, run.exp)
    with held(around.root.user_state(around.user) / f"submit-{run.exp}.lock", timeout_s=0):
        new = new_run(around.root, around.user, run.exp, clock)
        old_work, new_work = (next(_works(around.root, around.site.admission.mode, r)) for r in (run, new))
        files, records = _contents(run, old_work, new_work)
        records["launch.json"]["kernel"] = find_kernels(around.root).as_json()
        limit = int(around.site.packages.max_mb) << 20
        package.write_package(new, files, records, max_bytes=limit, created_at=clock.now())
        try:
            prepared = load_prepared(around.root, around.site, new)
            fleet = around.site.fleets[prepared.fleet]
            slurm = slurm_of(fleet, around.site) if fleet.kind == "slurm" else None
            if slurm is not None and (
                faults := [
                    *check_dependency(slurm, around.user, prepared.options),
                    *(check_array(slurm, prepared.options) if RECORD not in records else ()),
                ]
            ):
                raise Refusals(faults)
            admit(around, new, clock, queued_jobs(slurm, around.user) if slurm else None)
            done = dispatch_whole(around, prepared, first=0, clock=clock, sleep=sleep, slurm=slurm)
        except BaseException:
            _forget(around.root, around.user, new)
            raise
    events = EventWriter(new.events, WRITER, run_id=new.run_id, now=clock.now)
    events.append("queued", "queued", f"again of {run.run_id}", owner=run.owner, exp=run.exp, run=run.run_id)
    return done


def _works(root: StorageRoot, mode: str, run: RunPaths) -> Iterator[str]:
    """Where a job of the run finds its package: the service user's copy first, where there is or will be one."""
    admitted = root.admitted / run.run_id
    if os.path.isdir(admitted) or (mode == "enforced" and not os.path.lexists(run.root)):
        yield str(admitted / "work")
    yield str(run.work)


def _forget(root: StorageRoot, user: str, run: RunPaths) -> None:
    """Remove a run that was certainly never handed to a fleet."""
    try:
        refused = IntentBook(root.user_state(user) / "intents").outcome(run.run_id, 0) == "refused"
    except FileNotFoundError:
        refused = newest_number(run, "submissions") is None
    if refused:
        hidden = run.root.with_name(f".{run.root.name}.refused")
        os.rename(run.root, hidden)
        package.discard(hidden)
