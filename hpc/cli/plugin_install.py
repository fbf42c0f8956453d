"""`tp plugin install` and `remove`: from the registry into a project, and into an experiment's lock."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpc.cli.context import json_option, print_json, storage_root

if TYPE_CHECKING:
    from hpc.project.project import Experiment
    from hpc.registry.resolve import Version


@click.command()
@click.argument("ref")
@click.option("-e", "--exp", default="", help="Lock the version to this experiment.")
@json_option
def install(ref: str, exp: str, as_json: bool) -> None:
    """Download REF into ./tuneplane_plugins/OWNER/NAME/. Every byte is checked before what was there is replaced.

    With --exp its id, version and digest are written into the experiment's plugins.lock.json, and its jobs carry exactly those bytes.
    """
    from hpc.plugins.kind import PLUGIN
    from hpc.project.install import install as put
    from hpc.project.project import find_project, find_root
    from hpc.registry.resolve import resolve

    root = storage_root()
    where = Path.cwd()
    project = find_project(where) if exp or find_root(where) else None
    experiment = project.experiment(exp) if project and exp else None
    version = resolve(root, PLUGIN, ref, for_new=True, field="REF")
    if experiment is not None:
        _check(experiment, version)
    base = project.root if project else where
    folder = put(version, base)
    if experiment is not None:
        _lock(experiment, version)
    said = {"id": version.id, "version": version.version, "digest": version.digest, "digest_v2": version.digest_v2}
    if as_json:
        print_json({**said, "folder": str(folder), "experiment": experiment.name if experiment else ""})
        return
    click.echo(f"{version}  {version.digest}\n  in {folder.relative_to(base)}")
    if experiment is not None:
        click.echo(f"  locked to {experiment.name}: commit {experiment.rel}/plugins.lock.json")
    elif version.facts["manifest"]["capability"] == "recipe":
        click.echo(f"  start an experiment with: tp new EXP --method {version.id}")


def _check(experiment: Experiment, version: Version) -> None:
    """Refuse before anything is written what no job of the experiment could carry. Raises Refusal(s) E-INSTALL-002 … -004."""
    from hpc.errors import Refusal, Refusals
    from hpc.plugins.requires import collisions, travels
    from hpc.project.plugins import read_plugins_lock

    capability = version.facts["manifest"]["capability"]
    if not travels(version.facts["manifest"]):
        message = f"{version} is a {capability} package, which no job carries"
        raise Refusal("E-INSTALL-002", message, field="--exp", found=capability)
    others = [e for e in read_plugins_lock(experiment.path) if e["id"] != version.id]
    facts = {version.id: version.facts} | _facts_of(others)
    if faults := list(collisions(facts)):
        raise Refusals(faults)


def _facts_of(locked: list[dict[str, str]]) -> dict[str, dict[str, object]]:
    """Facts of what is locked already; of what the registry no longer gives, the name alone."""
    from hpc.errors import Refusal, Refusals
    from hpc.plugins.kind import PLUGIN
    from hpc.registry.resolve import resolve

    out: dict[str, dict[str, object]] = {}
    for entry in locked:
        try:
            found = resolve(storage_root(), PLUGIN, f"{entry['id']}@{entry['version']}", for_new=False)
            out[entry["id"]] = dict(found.facts)
        except (Refusal, Refusals):
            out[entry["id"]] = {}  # `tp submit` says what is wrong with it
    return out


def _lock(experiment: Experiment, version: Version) -> None:
    from hpc.project.plugins import alone, read_plugins_lock, with_plugin, write_plugins_lock

    entry = {"id": version.id, "version": version.version, "digest": version.digest}
    with alone(experiment.path):
        write_plugins_lock(experiment.path, with_plugin(read_plugins_lock(experiment.path), entry))


@click.command()
@click.argument("plugin_id", metavar="OWNER/NAME")
@click.option("-e", "--exp", required=True, help="The experiment whose lock names it.")
@json_option
def remove(plugin_id: str, exp: str, as_json: bool) -> None:
    """Take a plugin out of an experiment's lock. What was downloaded stays."""
    from hpc.project.plugins import alone, read_plugins_lock, without_plugin, write_plugins_lock
    from hpc.project.project import find_project

    experiment = find_project(Path.cwd()).experiment(exp)
    with alone(experiment.path):
        left = without_plugin(read_plugins_lock(experiment.path), plugin_id.partition("@")[0])
        write_plugins_lock(experiment.path, left)
    if as_json:
        print_json({"experiment": experiment.name, "plugins": left})
    else:
        click.echo(f"{experiment.name}: {plugin_id} is no longer locked; {len(left)} left")
