"""Finds runs by the beginning of a run id or of an experiment's name."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from tuneplane.contract.layout import RUN_ID, SEGMENT, RunPaths, StorageRoot
from tuneplane.record.files import read_json

from hpc.errors import Refusal
from hpc.runs.records import read_facts

MAX_LISTED = 12


Spot = tuple[str, str, int]
"""(experiment, run id, modification time of the run folder in nanoseconds). Bare, since there may be ten thousand of them."""


def owners(root: StorageRoot) -> list[str]:
    """Users who have a run folder."""
    return sorted(name for name, _ in _folders(root.runs))


def scan(root: StorageRoot, owner: str) -> list[Spot]:
    """Every run of `owner` that can be seen, in no order. Folders that cannot be read, links and hidden names are left out."""
    base = root.owner_runs(owner)
    out: list[Spot] = []
    for exp, _ in _folders(base):
        if SEGMENT.match(exp):
            out += _spots(exp, base / exp)
    return out


def _spots(exp: str, folder: os.PathLike[str]) -> list[Spot]:
    out: list[Spot] = []
    is_run = RUN_ID.match
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                name = entry.name
                if is_run(name) and entry.is_dir(follow_symlinks=False):
                    try:
                        out.append((exp, name, entry.stat(follow_symlinks=False).st_mtime_ns))
                    except OSError:
                        continue
    except OSError:
        pass
    return out


def all_runs(root: StorageRoot, owner: str) -> list[RunPaths]:
    """Every run of `owner` that can be seen, by experiment and id."""
    return [root.run(owner, exp, run_id) for exp, run_id, _ in sorted(scan(root, owner))]


def _folders(path: os.PathLike[str]) -> Iterator[tuple[str, os.DirEntry[str]]]:
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                if not entry.name.startswith(".") and entry.is_dir(follow_symlinks=False):
                    yield entry.name, entry
    except OSError:
        return


def begun_at(run: RunPaths) -> float:
    """When the run was first submitted, else when its package was written; what "newest" means."""
    facts = read_facts(run)
    if facts.submissions:
        return facts.submissions[0].submitted_at
    try:
        return run.work.stat().st_mtime
    except OSError:
        return 0.0


def _newest(root: StorageRoot, owner: str, spots: list[Spot]) -> RunPaths:
    # A folder's time is never before its submission; so only the few that changed last can be the newest.
    latest = sorted(spots, key=lambda s: s[2], reverse=True)[:200]
    return max((root.run(owner, exp, run_id) for exp, run_id, _ in latest), key=lambda r: (begun_at(r), r.run_id))


def resolve(root: StorageRoot, prefix: str, owner: str, *, newest: bool = False) -> RunPaths:
    """The one run that `prefix` means: a run id, the beginning of one, an experiment, or the beginning of one.

    An exact name wins over a beginning. Where an experiment has several runs, `newest` takes the one submitted last. An empty prefix is the
    newest run of all. `EXPERIMENT/RUN_ID` is looked up, not searched: a shared run lies in folders that others may pass and not list. Any other path
    is an experiment's in its project: nested experiments with one last part share a folder, and only their paths tell them apart.
    Raises Refusal E-RUNS-001 (none), E-RUNS-002 (several, listed in `allowed`), E-RUNS-003 (no runs), E-RUNS-004 (not this user's to read).
    """
    exp, _, run_id = prefix.rpartition("/")
    if SEGMENT.match(exp) and RUN_ID.match(run_id) and os.path.isdir(root.run(owner, exp, run_id).root):
        return _readable(root.run(owner, exp, run_id))
    spots = scan(root, owner)
    if not spots:
        _require_reading(root.owner_runs(owner), owner)
        raise Refusal("E-RUNS-003", f"{owner} has no runs in {root.path}")
    if not prefix:
        return _newest(root, owner, spots)
    if "/" in prefix:
        return _by_path(root, prefix, owner, spots, newest=newest)
    of_experiment = [s for s in spots if s[0] == prefix]
    by_id = [s for s in spots if s[1] == prefix]
    if not by_id and not of_experiment:
        of_experiment = [s for s in spots if s[0].startswith(prefix)]
        # run-12ab may be typed as 12ab.
        by_id = [s for s in spots if s[1].startswith((prefix, f"run-{prefix}"))]
    fits = by_id + [s for s in of_experiment if s not in by_id]
    if not fits:
        raise Refusal("E-RUNS-001", f"no run and no experiment of {owner} begins with {prefix!r}", found=prefix)
    if len(fits) > 1 and newest and not by_id and len({s[0] for s in fits}) == 1:
        return _newest(root, owner, fits)
    if len(fits) > 1:
        raise _ambiguous(prefix, fits)
    return _readable(root.run(owner, fits[0][0], fits[0][1]))


def _by_path(root: StorageRoot, path: str, owner: str, spots: list[Spot], *, newest: bool) -> RunPaths:
    """The run of the experiment at `path` of its project, with or without `experiments/` before it."""
    leaf, wanted = path.rpartition("/")[2], {path, f"experiments/{path}"}
    fits = [s for s in spots if s[0] == leaf and _source(root.run(owner, s[0], s[1])) in wanted]
    if not fits:
        raise Refusal("E-RUNS-001", f"no run of {owner} was made from an experiment at {path!r}", found=path)
    if len(fits) > 1 and not newest:
        raise _ambiguous(path, fits)
    return _readable(_newest(root, owner, fits))


def _source(run: RunPaths) -> str:
    """The experiment's path in its project, "" where the package does not say."""
    try:
        return str(read_json(run.jobspec)["spec"]["source"]["exp"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def _readable(run: RunPaths) -> RunPaths:
    _require_reading(run.root, run.owner)
    return run


def _require_reading(folder: Path, owner: str) -> None:
    """Raises Refusal E-RUNS-004 for a folder that is there and not open to this user."""
    try:
        os.scandir(folder).close()
    except PermissionError as exc:
        raise Refusal(
            "E-RUNS-004",
            f"{folder} is not open to you",
            field=str(folder),
            found=exc.strerror,
            allowed=f"a run that {owner} shared",
        ) from exc
    except OSError:
        return


def _ambiguous(prefix: str, fits: list[Spot]) -> Refusal:
    shown = sorted(fits)
    listed = ", ".join(f"{run_id} ({exp})" for exp, run_id, _ in shown[:MAX_LISTED])
    more = f" and {len(shown) - MAX_LISTED} more" if len(shown) > MAX_LISTED else ""
    return Refusal("E-RUNS-002", f"{len(shown)} runs fit {prefix!r}", found=prefix, allowed=listed + more)
