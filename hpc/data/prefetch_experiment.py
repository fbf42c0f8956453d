"""What an experiment takes from hubs, fetched and locked.

Without `accept` the lock decides: exactly its commits and files are fetched, so the command mends a cache and changes nothing. With it, every
revision is asked for anew, and the lock says afterwards what was found.
"""

from __future__ import annotations

import glob
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpc.data.hub_names import MAIN, Repo, RepoType, repo_of
from hpc.data.lock import LOCK_NAME, Entry, Lock, accept_command, locked_commit, read_lock, write_lock
from hpc.data.prefetch import Prefetched
from hpc.errors.core import Refusal
from hpc.spec.refs import is_path, parse_hub_ref

Fetch = Callable[[Repo, str, tuple[str, ...], tuple[str, ...]], Prefetched]
"""(repository, revision, patterns, lock files) → what is in the cache then."""


@dataclass(frozen=True)
class Wanted:
    """One input that an experiment names: `only` is the file of a data set, "" for all of it."""

    role: str
    repo: Repo
    revision: str
    field: str
    only: str = ""


def wanted(config: Mapping[str, Any], kind: RepoType) -> Iterator[Wanted]:
    """The hub inputs of that kind in a merged config. Raises Refusal E-SPEC-026, E-HUB-001, E-HUB-002."""
    if kind == "model":
        model = config.get("model") or {}
        base = model if isinstance(model, str) else model.get("base") or ""
        if base and not is_path(str(base)):
            ref = parse_hub_ref(str(base), "config.yaml: model.base", kind="model")
            if ref.hub != "tp":
                yield Wanted("model", repo_of(ref, "model", "config.yaml: model.base"), ref.revision, "model.base")
        return
    for role in ("train", "validation"):
        source = (config.get("data") or {}).get(role)
        if isinstance(source, Mapping) and source.get("dataset"):
            field = f"config.yaml: data.{role}.dataset"
            ref = parse_hub_ref(str(source["dataset"]), field, kind="dataset")
            if ref.hub != "tp":
                yield Wanted(role, repo_of(ref, "dataset", field), ref.revision, field, str(source.get("path") or ""))


def prefetch_experiment(
    folder: Path, exp: str, config: Mapping[str, Any], kind: RepoType, fetch: Fetch, *, accept: bool
) -> tuple[list[Prefetched], bool]:
    """Fetch the experiment's inputs of one kind and write its lock; what was fetched, and whether the lock changed.

    Raises Refusal E-HUB-006 (it names none), E-LOCK-001 … E-LOCK-003, those of `prefetch`, E-STORE-02x.
    """
    lock = read_lock(folder)
    todo = list(wanted(config, kind))
    # What the experiment no longer takes from a hub leaves the lock with the change that is accepted.
    stale = {r for r, e in lock.inputs.items() if e.type == kind} - {t.role for t in todo} if accept else set()
    if not todo and not stale and not (accept and lock.runtime):
        raise Refusal("E-HUB-006", f"{exp} takes no {kind} from a hub", field=f"{exp}/config.yaml")
    done, entries = [], {}
    path = (str(folder / LOCK_NAME),)
    for one in todo:
        if accept:
            commit = ""
        else:
            command = accept_command(exp, kind)
            commit = locked_commit(lock, one.role, one.repo, one.revision, field=one.field, accept=command)
        patterns = tuple(glob.escape(p) for p in lock.inputs[one.role].files) if commit else ()
        if not commit and one.only:
            patterns = (glob.escape(one.only),)
        got = fetch(one.repo, commit or one.revision, patterns, path)
        done.append(got)
        files = {f.path: f.digest for f in got.files}
        entries[one.role] = Entry("hf", kind, one.repo.id, one.revision or MAIN, got.commit, files)
        if commit:
            _require_same(lock.inputs[one.role], entries[one.role], one)
            entries[one.role] = lock.inputs[one.role]
    kept = {role: entry for role, entry in lock.inputs.items() if role not in stale}
    new = Lock({**kept, **entries}, {} if accept else lock.runtime)
    return done, write_lock(folder, new)


def _require_same(locked: Entry, found: Entry, one: Wanted) -> None:
    """The hub must still give, for the locked commit, the locked bytes. Raises Refusal E-LOCK-004, E-LOCK-005."""
    for path, digest in sorted(locked.files.items()):
        have = found.files.get(path, "")
        if have != digest:
            code, text = ("E-LOCK-005", "is another file on the hub") if have else ("E-LOCK-004", "is not on the hub")
            raise Refusal(code, f"{path} {text} than the lock says", field=one.field, found=have, allowed=digest)
