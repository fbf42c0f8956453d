"""`tp recipe`: the catalogue, and where the experiments' locks stand against it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpc.cli.context import catalogue_here, json_option, print_json, storage_root, table

if TYPE_CHECKING:
    from hpc.catalog.shelf import Catalogue
    from hpc.catalog.standing import Standing, Upgrade
    from hpc.errors import Refusal
    from hpc.project.project import Experiment


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def recipe() -> None:
    """Recipe packs and locks: ls, status, upgrade, publish."""


@recipe.command("ls")
@json_option
@click.pass_context
def list_recipes(ctx: click.Context, as_json: bool) -> None:
    """List the recipe packs of the catalogue. Exit code 1 if one of them cannot be read."""
    from hpc.cli.main import report

    catalogue, where = catalogue_here()
    good, bad = catalogue.readable()
    if as_json:
        print_json(
            {
                "catalogue": where,
                "recipes": [
                    {
                        "id": r.id,
                        "version": r.version,
                        "title": r.typed.title,
                        "category": r.typed.category,
                        "digest": r.digest,
                        "template_digest": r.template_digest,
                        "runtimes": {v: r.runtime_id(v) for v in r.versions},
                        "default_version": r.default_version,
                        "unknown_keys": r.typed.unknown_keys(),
                    }
                    for r in good
                ],
                "errors": [e.as_json() for e in bad],
            }
        )
    else:
        rows = [
            [r.id, r.version, r.default_version, r.runtime_id() or "-", r.digest[7:19], r.typed.title] for r in good
        ]
        click.echo(f"catalogue: {where}")
        click.echo(table(rows, ["RECIPE", "VERSION", "FRAMEWORK", "RUNTIME", "DIGEST", "TITLE"]))
        for r in good:
            for key in r.typed.unknown_keys():
                click.echo(f"tp: note: {r.id}: recipe.yaml has a key that this tp does not know: {key}", err=True)
        report(bad, as_json=False)
    ctx.exit(1 if bad else 0)


def _experiments(exp: str, every: bool) -> list[Experiment]:
    """One experiment of the project around, or every one. Raises Refusal E-PROJECT-*."""
    from hpc.project.project import find_project

    if exp and every:
        raise click.UsageError("say one experiment or --all, not both")
    project = find_project(Path.cwd())
    return [project.experiment(exp)] if exp else project.experiments()


@recipe.command()
@click.argument("exp", required=False, default="")
@click.option("--all", "every", is_flag=True, help="Every experiment of the project (also when EXP is left out).")
@json_option
@click.pass_context
def status(ctx: click.Context, exp: str, every: bool, as_json: bool) -> None:
    """Show both verdicts on the locks: the lock's own state, and what admission would say.

    Exit code 1 if a submission of one of them would be refused.
    """
    import tuneplane

    from hpc.catalog.standing import standing

    experiments = _experiments(exp, every)
    catalogue, where = catalogue_here()
    found = [(e.name, standing(e.path, catalogue, tuneplane.__version__)) for e in experiments]
    if as_json:
        print_json({"catalogue": where, "experiments": [{"experiment": name, **s.as_json()} for name, s in found]})
    else:
        _print_standings(found, where)
    ctx.exit(0 if all(s.good for _, s in found) else 1)


def _print_standings(found: list[tuple[str, Standing]], where: str) -> None:
    click.echo(f"catalogue: {where}")
    rows = [[name, s.recipe or "-", s.lock.state, "refuses" if s.refusals else "admits"] for name, s in found]
    click.echo(table(rows, ["EXPERIMENT", "RECIPE", "LOCK", "ADMISSION"]))
    for name, s in found:
        # What the lock's state says already is not said again by admission.
        told = {reason.partition(":")[0] for reason in s.lock.reasons} | set(s.lock.reasons)
        more = [f"{r.field}: {r.message}" for r in s.refusals if not {r.field, r.message, str(r)} & told]
        if lines := [*s.lock.reasons, *more]:
            click.echo("\n".join([f"\n{name}:", *(f"  {line}" for line in lines)]))
    lost = [name for name, s in found if s.lock.state == "malformed"]
    behind = [name for name, s in found if not s.good and name not in lost]
    mends = [f"tp recipe upgrade {name} --method FRAMEWORK/METHOD" for name in lost]
    mends += [f"tp recipe upgrade {behind[0] if len(behind) == 1 else '--all'}"] if behind else []
    for number, line in enumerate(mends):
        click.echo(f"{'      ' if number else chr(10) + 'mend: '}{line}")


@recipe.command()
@click.argument("exp", required=False, default="")
@click.option("--all", "every", is_flag=True, help="Every experiment of the project, all or none.")
@click.option("--dry-run", is_flag=True, help="Show what would change; write nothing.")
@click.option("-m", "--method", default="", help="The recipe, where the lock is missing or names none.")
@click.option("--framework-version", default="", help="The framework version to lock; else the locked one is kept.")
@json_option
def upgrade(exp: str, every: bool, dry_run: bool, method: str, framework_version: str, as_json: bool) -> None:
    """Bring recipe.lock.json up to the catalogue. With --all, either every lock is upgraded or none is."""
    from hpc.catalog.standing import apply_upgrades

    if not exp and not every:
        raise click.UsageError("say which experiment, or --all")
    if every and method:
        raise click.UsageError("--method is for one experiment")
    experiments = _experiments(exp, every)
    catalogue, _ = catalogue_here()
    planned = _plan_all(experiments, catalogue, method=method, framework_version=framework_version)
    if not dry_run:
        apply_upgrades([u for _, u in planned])
    if as_json:
        print_json({"dry_run": dry_run, "experiments": [{"experiment": name, **u.as_json()} for name, u in planned]})
    else:
        _print_upgrades(planned, dry_run)


def _plan_all(experiments: list[Experiment], catalogue: Catalogue, **options: str) -> list[tuple[str, Upgrade]]:
    """Every upgrade, or every refusal at once."""
    from hpc.errors import Refusals

    planned: list[tuple[str, Upgrade]] = []
    refused: list[Refusal] = []
    for experiment in experiments:
        found = _plan(experiment, catalogue, options)
        if isinstance(found, list):
            refused += found
        else:
            planned.append((experiment.name, found))
    if refused:
        raise Refusals(refused)
    return planned


def _plan(experiment: Experiment, catalogue: Catalogue, options: dict[str, str]) -> Upgrade | list[Refusal]:
    """One upgrade, or why there is none. A folder of an older project names its method in a file of that name."""
    import tuneplane

    from hpc.catalog.locks import LOCK_NAME
    from hpc.catalog.standing import plan_upgrade
    from hpc.errors import Refusal, Refusals
    from hpc.project.config import load_config

    folder = experiment.path
    if not options["method"] and not (folder / LOCK_NAME).exists():
        options = options | {"method": experiment.legacy_method}
    try:
        return plan_upgrade(folder, load_config(folder), catalogue, core_version=tuneplane.__version__, **options)
    except Refusal as exc:
        refused = [exc]
    except Refusals as exc:
        refused = exc.items
    for refusal in refused:
        refusal.field = f"{experiment.name}: {refusal.field}"
    return refused


def _print_upgrades(planned: list[tuple[str, Upgrade]], dry_run: bool) -> None:
    for name, u in planned:
        word = "is current" if not u.changes else "would be upgraded" if dry_run else "upgraded"
        click.echo(f"{name}: {word} ({u.lock['recipe']['name']} {u.lock['recipe']['version']})")
        for line in u.changes:
            click.echo(f"  {line}")
        for remark in u.remarks:
            click.echo(f"tp: note: {name}: config.yaml: {remark.field}: {remark.message}", err=True)


@recipe.command()
@json_option
def publish(as_json: bool) -> None:
    """Put the packs that come with this tp on the storage root's shelf (admins). Again is safe."""
    from hpc.catalog.shelf import publish_shipped

    done = publish_shipped(storage_root())
    if as_json:
        print_json([{"id": p.id, "version": p.version, "action": p.action} for p in done])
    else:
        click.echo(table([[p.id, p.version, p.action] for p in done], ["RECIPE", "VERSION", "ACTION"]))
