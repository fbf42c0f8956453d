"""`tp model prefetch` and `tp dataset prefetch`: from a hub into the shared cache, on a host with a connection, so that no job needs one."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from tuneplane.record.times import utc_now

from hpc.cli.context import json_option, print_json, storage_root
from hpc.cli.progress import Bar, size

if TYPE_CHECKING:
    from hpc.data.hub_names import RepoType
    from hpc.data.prefetch import Prefetched
    from hpc.data.prefetch_experiment import Fetch


def _options(function: Callable[..., Any]) -> Callable[..., Any]:
    options = [
        click.argument("exp", required=False),
        click.option("--repo", default="", metavar="hf:ORG/NAME", help="A repository instead of an experiment's."),
        click.option("--revision", default="", help="Branch, tag or commit (with --repo; default: main)."),
        click.option("--file", "patterns", multiple=True, metavar="GLOB", help="Only such files (with --repo); again."),
        click.option("--accept", is_flag=True, help="Take what the hub has now into tp.lock.json."),
        json_option,
    ]
    for option in reversed(options):
        function = option(function)
    return function


@click.command(name="prefetch")
@_options
def prefetch(**values: Any) -> None:
    """Fetch the model that EXP names (or --repo) into the shared cache, and write EXP's tp.lock.json.

    Weights come as safetensors only, never pickles or code. Running it again mends the cache and changes no lock;
    --accept takes a newer commit (and a newer image) into the lock.
    """
    _run("model", **values)


@click.command(name="prefetch")
@_options
def dataset_prefetch(**values: Any) -> None:
    """Fetch the data sets that EXP names on a hub (or --repo) into the shared cache, and write EXP's tp.lock.json."""
    _run("dataset", **values)


def _run(
    kind: RepoType, exp: str | None, repo: str, revision: str, patterns: tuple[str, ...], accept: bool, as_json: bool
) -> None:
    if bool(exp) == bool(repo):
        raise click.UsageError("name an experiment, or a repository with --repo")
    if exp and (revision or patterns):
        raise click.UsageError("--revision and --file go with --repo; an experiment says its own")
    if repo and accept:
        raise click.UsageError("--accept changes an experiment's lock; --repo has none")
    bar = Bar()
    try:
        if exp:
            done, changed, lock = _experiment(exp, kind, accept, _fetch(kind, bar))
        else:
            from hpc.data.hub_names import parse_repo

            named, pinned = parse_repo(repo, kind, "--repo")
            if pinned and revision and pinned != revision:
                raise click.UsageError("two revisions: one in --repo, one in --revision")
            done, changed, lock = [_fetch(kind, bar)(named, revision or pinned, patterns, ())], False, ""
    finally:
        bar.close()
    if as_json:
        print_json({"fetched": [d.as_json() for d in done], "lock": lock, "lock_changed": changed})
        return
    for one in done:
        _say(one)
    if lock:
        click.echo(f"{'wrote' if changed else 'unchanged:'} {lock}" + ("; commit it" if changed else ""))


def _fetch(kind: RepoType, bar: Bar) -> Fetch:
    from hpc.data.certified import Certified
    from hpc.data.hub_client import HuggingFace
    from hpc.data.hub_names import HubCache, Repo
    from hpc.data.prefetch import Clockwork, Watch
    from hpc.data.prefetch import prefetch as bring
    from hpc.site.users import real_user

    root, user = storage_root(), real_user()
    cache, hub = HubCache(root), HuggingFace()
    table = Certified.load(root) if kind == "model" else None

    def fetch(repo: Repo, revision: str, patterns: tuple[str, ...], locks: tuple[str, ...]) -> Prefetched:
        if table is not None:
            revision = table.revision(repo.id, revision, field=str(repo))
        clockwork = Clockwork(time.monotonic, time.sleep, utc_now())
        watch = Watch(bar.say, lambda p: bar.show(p.done, p.total, p.fetched, p.seconds))
        done = bring(
            cache, hub, repo, revision, patterns=patterns, user=user.name, time=clockwork, watch=watch, locks=locks
        )
        bar.close()
        if table is not None:
            table.require_architecture(repo.id, done.folder / "config.json")
        return done

    return fetch


def _experiment(exp: str, kind: RepoType, accept: bool, fetch: Fetch) -> tuple[list[Prefetched], bool, str]:
    from hpc.data.lock import LOCK_NAME
    from hpc.data.prefetch_experiment import prefetch_experiment
    from hpc.project.config import load_config
    from hpc.project.project import find_project

    experiment = find_project(Path.cwd()).experiment(exp)
    config = load_config(experiment.path)
    done, changed = prefetch_experiment(experiment.path, experiment.name, config, kind, fetch, accept=accept)
    return done, changed, f"{experiment.rel}/{LOCK_NAME}"


def _say(done: Prefetched) -> None:
    total = sum(f.size for f in done.files)
    how = f"{size(done.fetched)} fetched" if done.fetched else "all there"
    if done.fetched and done.seconds > 0:
        how += f" at {size(int(done.fetched / done.seconds))}/s"
    click.echo(f"{done.repo}@{done.commit}\n  {len(done.files)} files, {size(total)}; {how}")
    if done.left_out:
        left = ", ".join(f"{count} {why}" for why, count in done.left_out.items())
        click.echo(f"  left on the hub: {left}")
    click.echo(f"  {done.folder}")
