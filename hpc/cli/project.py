"""`tp init`, `new`, `ls`, `methods`, `validate`: what a researcher does before the first submission. None of it needs a storage root."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hpc.cli.context import catalogue_here, json_option, named_root, print_json, storage_root, table
from hpc.errors import Refusal, Refusals

if TYPE_CHECKING:
    from hpc.catalog.recipes import Recipe
    from hpc.project.check import Checked
    from hpc.project.project import Experiment, Project
    from hpc.project.scaffold import Made
    from hpc.spec.jobspec import JobSpec


def _say_made(made: Made, headline: str, hints: list[str], facts: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json({"path": str(made.path), "files": list(made.files), "notes": list(made.notes), **facts})
        return
    click.echo(headline)
    for path in made.files:
        click.echo(f"  {path}")
    for note in made.notes:
        click.echo(f"tp: note: {note}", err=True)
    click.echo("next:")
    for hint in hints:
        click.echo(f"  {hint}")


@click.command()
@click.argument("directory", metavar="[DIR]", default=".")
@click.option("--name", default="", help="The project's name; the folder's name unless it is given.")
@click.option("--no-git", is_flag=True, help="Make no repository and no commit.")
@click.option("-y", "--yes", is_flag=True, hidden=True, help="Accepted for older scripts; tp init never asks.")
@json_option
def init(directory: str, name: str, no_git: bool, yes: bool, as_json: bool) -> None:
    """Scaffold a project in DIR (made if it is not there), with a first commit."""
    import tuneplane

    from hpc.project.scaffold import init_project

    folder = Path(directory).absolute()
    name = name or Path(folder).resolve().name
    made = init_project(folder, name, use_git=not no_git, core_version=tuneplane.__version__)
    into = [] if directory == "." else [f"cd {directory}"]
    hints = [*into, "tp methods", "tp new my-exp --method deepspeed/sft"]
    _say_made(made, f"project {name} in {folder}", hints, {"name": name}, as_json=as_json)


@click.command()
@click.argument("exp")
@click.option("-m", "--method", default="", metavar="F/M", help="The method to start from; `tp methods` lists them.")
@click.option("--from", "source", default="", metavar="EXP", help="Copy this experiment instead.")
@click.option("--framework-version", default="", help="A version of the method's framework other than its default.")
@json_option
def new(exp: str, method: str, source: str, framework_version: str, as_json: bool) -> None:
    """Scaffold experiment EXP from a method's template, or as a copy of another experiment."""
    import tuneplane

    from hpc.project.git import repository
    from hpc.project.project import find_project
    from hpc.project.scaffold import copy_experiment, new_experiment

    if bool(method) == bool(source) or (source and framework_version):
        ids = ", ".join(catalogue_here()[0].ids())
        raise click.UsageError(
            f"say either --method F/M (with or without --framework-version) or --from EXP; methods: {ids}"
        )
    project = find_project(Path.cwd())
    if source:
        made = copy_experiment(project, exp, project.experiment(source))
        how = f"a copy of {source}"
    else:
        recipe = catalogue_here()[0].get(method)
        made = new_experiment(
            project, exp, recipe, framework_version=framework_version, core_version=tuneplane.__version__
        )
        how = f"{recipe.id} {recipe.version}"
    path = made.path.relative_to(project.root).as_posix()
    name = path.removeprefix("experiments/")
    commit = [f"git add {path} && git commit -m 'New experiment {name}'"] if repository(project.root) else []
    hints = [f"$EDITOR {path}/config.yaml", f"tp validate {name}", *commit, f"tp submit {name}"]
    _say_made(made, f"experiment {name}: {how}", hints, {"experiment": name, "rel": path}, as_json=as_json)


@click.command()
@json_option
def ls(as_json: bool) -> None:
    """List the project's experiments, and what each is made from."""
    from hpc.project.project import find_project

    project = find_project(Path.cwd())
    rows = [_row(e) for e in project.experiments()]
    if as_json:
        print_json({"project": project.name, "root": str(project.root), "experiments": rows})
        return
    if not rows:
        click.echo(f"project {project.name} has no experiments yet; `tp new my-exp --method F/M` makes one")
        return
    cells = [
        [r["name"], r["method"] or "-", r["recipe_version"] or "-", r["runtime_id"] or "-", r["note"]] for r in rows
    ]
    click.echo(table(cells, ["EXPERIMENT", "METHOD", "VERSION", "RUNTIME", "NOTE"]))


def _row(experiment: Experiment) -> dict[str, str]:
    """One experiment as its lock describes it. A lock that cannot be read is a note, so that one bad folder spoils no list."""
    from hpc.catalog.locks import malformed_reason, read_lock, text_at

    lock: object = None
    note = ""
    method = ""
    try:
        method = experiment.legacy_method
        lock = read_lock(experiment.path)
        note = malformed_reason(lock)
    except Refusal as refusal:
        note = "no lock" if refusal.code == "E-CATALOG-020" else "the lock cannot be read"
    return {
        "name": experiment.name,
        "path": experiment.rel,
        "method": text_at(lock, "recipe.name") or method,
        "recipe_version": text_at(lock, "recipe.version"),
        "framework_version": text_at(lock, "framework.version"),
        "runtime_id": text_at(lock, "framework.runtime_id"),
        "note": note,
    }


@click.command()
@click.argument("method", metavar="[F/M]", required=False, default="")
@json_option
@click.pass_context
def methods(ctx: click.Context, method: str, as_json: bool) -> None:
    """List the training methods, or show one method's parameters."""
    from hpc.cli.main import report

    catalogue, where = catalogue_here()
    if method:
        recipe = catalogue.get(method)
        print_json(_method_json(recipe)) if as_json else _print_method(recipe)
        return
    good, bad = catalogue.readable()
    if as_json:
        print_json(
            {"catalogue": where, "methods": [_method_json(r) for r in good], "errors": [e.as_json() for e in bad]}
        )
    else:
        click.echo(table([[r.id, r.typed.category, r.typed.title] for r in good], ["METHOD", "CATEGORY", "TITLE"]))
        click.echo("\ntp methods F/M shows one method's parameters")
        report(bad, as_json=False)
    ctx.exit(1 if bad else 0)


def _method_json(recipe: Recipe) -> dict[str, Any]:
    version = recipe.default_version
    return {
        "id": recipe.id,
        "version": recipe.version,
        "title": recipe.typed.title,
        "summary": recipe.typed.summary,
        "category": recipe.typed.category,
        "framework_versions": recipe.versions,
        "default_framework_version": version,
        "runtime_id": recipe.runtime_id(),
        "roles": recipe.roles,
        "required_inputs": recipe.required_inputs,
        "actions": recipe.actions,
        "params": {
            name: {**p.model_dump(exclude_defaults=True), "path": p.path_for(name, version), "allowed": p.allowed}
            for name, p in recipe.typed.params.items()
        },
    }


def _print_method(recipe: Recipe) -> None:
    from hpc.project.parameters import yaml_scalar

    click.echo(f"{recipe.id} {recipe.version}: {recipe.typed.title}")
    if recipe.typed.summary:
        click.echo(f"\n{click.wrap_text(recipe.typed.summary.strip(), 100, '  ', '  ')}\n")
    versions = ", ".join(f"{v} (runtime {recipe.runtime_id(v) or '-'})" for v in recipe.versions)
    for label, text in (
        ("versions", versions),
        ("starts", recipe.entrypoint().value),
        ("needs", ", ".join(recipe.required_inputs) or "nothing"),
        ("roles", ", ".join(recipe.roles) or "none"),
        ("after it", ", ".join(recipe.actions) or "nothing"),
    ):
        click.echo(f"  {label:9} {text}")
    rows = [
        [
            name,
            yaml_scalar(p.default) if p.default is not None else "required" if p.required else "-",
            p.allowed,
            p.path_for(name, recipe.default_version),
            p.doc,
        ]
        for name, p in recipe.typed.params.items()
    ]
    click.echo(
        "\n"
        + (
            table(rows, ["PARAMETER", "DEFAULT", "ALLOWED", "IN CONFIG.YAML", "WHAT IT IS"])
            if rows
            else "no parameters"
        )
    )


@click.command()
@click.argument("exp")
@json_option
@click.pass_context
def validate(ctx: click.Context, exp: str, as_json: bool) -> None:
    """Check experiment EXP without submitting it: every fault at once. Exit code 1 if there is one.

    Looks at the lock, the merged config, hyperparameters, the entry, the plugins lock and the files that would travel.
    """
    import tuneplane

    from hpc.project.check import check
    from hpc.project.project import find_project
    from hpc.submit.followups import sections

    project = find_project(Path.cwd())
    experiment = project.experiment(exp)
    catalogue, where = catalogue_here()
    checked = check(
        project,
        experiment,
        catalogue,
        core_version=tuneplane.__version__,
        sections=sections,
        spec_faults=lambda config, recipe, version: _spec_faults(project, experiment, config, recipe, version),
    )
    _print_json_checked(checked, where) if as_json else _print_checked(checked, where)
    ctx.exit(1 if checked.faults else 0)


def _spec_faults(
    project: Project, experiment: Experiment, config: dict[str, Any], recipe: Recipe, version: str
) -> list[Refusal]:
    """What is wrong with the JobSpec that the config makes; pools are placeholders, as the profile is chosen at submit."""
    import tuneplane

    from hpc.spec.jobspec import parse
    from hpc.spec.profiles import PlacedPool, Placement, ProfileShape
    from hpc.submit.engine import SPLITS, add_columns, settings_faults
    from hpc.submit.flags import Flags, Locked, document

    locked = Locked(
        name=experiment.name.rpartition("/")[2],
        exp=experiment.rel,
        project=project.name,
        recipe={"name": recipe.id, "version": recipe.version, "digest": recipe.digest},
        framework={"kind": recipe.framework, "version": version, "runtime_id": recipe.runtime_id(version)},
        recipe_plugins=tuple(recipe.typed.plugins),
        plugins=tuple(_locked_plugins(experiment)),
        provenance={"core_version": tuneplane.__version__},
    )
    placement = Placement("any", (PlacedPool("all", "any", ProfileShape()),), {})
    faults = []
    try:
        add_columns({name: {} for name in SPLITS}, Flags(), config)
    except Refusal as refusal:
        faults.append(refusal)
    try:
        spec = parse(document(Flags(), config, locked, placement, recipe.configured(config, version)))
    except Refusal as refusal:
        return [*faults, refusal]
    except Refusals as refusals:
        return [*faults, *refusals.items]
    return [*faults, *settings_faults(spec, recipe, version), *_plugin_faults(spec, recipe)]


def _locked_plugins(experiment: Experiment) -> list[dict[str, Any]]:
    """What the plugins lock names; a lock that cannot be read is told by the check itself."""
    from hpc.project.plugins import read_plugins_lock

    try:
        return read_plugins_lock(experiment.path)
    except Refusal:
        return []


def _plugin_faults(spec: JobSpec, recipe: Recipe) -> list[Refusal]:
    """What locked plugins and the recipe ask of each other and of the job; the backend is chosen at submit. Needs the site's registry."""
    from hpc.site.sitefile import load_site
    from hpc.submit.plugins import conditions, job_facts, locate, triples

    if not (spec.spec.plugins or spec.spec.recipe.plugins) or not named_root()[0]:
        return []
    root = storage_root()
    site = load_site(root)
    faults, found = locate(root, site, triples(spec))
    return [*faults, *conditions(found, spec.spec.recipe.plugins, job_facts(spec, recipe, site, fleet=""))]


def _print_json_checked(checked: Checked, where: str) -> None:
    print_json(
        {
            "experiment": checked.experiment.name,
            "catalogue": where,
            "method": checked.method,
            "framework_version": checked.framework_version,
            "lock": checked.lock_state,
            "files": checked.files,
            "verdict": "refuse" if checked.faults else "accept",
            "errors": [r.as_json() for r in checked.faults],
            "notes": checked.notes,
        }
    )


def _print_checked(checked: Checked, where: str) -> None:
    from hpc.cli.main import report

    report(checked.faults, as_json=False)
    for note in checked.notes:
        click.echo(f"tp: note: {note}", err=True)
    about = (
        f"{checked.method or 'no method'}, lock {checked.lock_state}, {checked.files} files travel; catalogue: {where}"
    )
    faults = f"{len(checked.faults)} {'fault' if len(checked.faults) == 1 else 'faults'}"
    click.echo(f"{checked.experiment.name}: {faults if checked.faults else 'valid'} ({about})")
