"""`tp template ls / show / lint / diff`: the batch templates in force, and whether an edit is safe."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from hpc.cli import context
from hpc.errors import Refusal, Refusals

if TYPE_CHECKING:
    from tuneplane.contract.layout import StorageRoot

    from hpc.errors.core import Refusal as RefusalType

SAMPLE_DIRECTIVES = "#SBATCH --job-name=sample\n#SBATCH --nodes=2"
_root_option = click.option("--shipped", is_flag=True, help="Without the site's own copies.")


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def template() -> None:
    """Batch templates. A copy under <storage>/site/sbatch_templates/ wins over the shipped one."""


def _root(shipped: bool) -> StorageRoot | None:
    if shipped or not context.named_root()[0]:
        return None
    return context.storage_root()


@template.command("ls")
@_root_option
@context.json_option
def list_templates(shipped: bool, as_json: bool) -> None:
    """List the templates and where each comes from."""
    from tuneplane.record.digest import digest_bytes

    from hpc.submit.template import NAMES, find

    root = _root(shipped)
    rows = [find(root, name) for name in NAMES]
    facts: list[dict[str, Any]] = [
        {"name": s.name, "site": s.site, "path": str(s.path), "sha256": digest_bytes(s.text().encode())} for s in rows
    ]
    if as_json:
        context.print_json(facts)
        return
    table = [[f["name"], "site" if f["site"] else "shipped", f["sha256"][7:19], f["path"]] for f in facts]
    click.echo(context.table(table, ["TEMPLATE", "FROM", "SHA256", "PATH"]))


@template.command("show")
@click.argument("name")
@_root_option
def show(name: str, shipped: bool) -> None:
    """Print a template."""
    from hpc.submit.template import find

    click.echo(find(_root(shipped), name).text(), nl=False)


def lint_faults(root: StorageRoot | None, name: str) -> list[RefusalType]:
    """Every fault of one template in force: rendering, sbatch's rules, bash's syntax. Lines are those of the rendered script."""
    from hpc.submit.template import CHECKPOINTS, find, render

    if name == "functions.sh.j2":
        return []
    if name == CHECKPOINTS:  # a piece of other scripts, which have holes of their own
        return _bash_faults(find(root, name).text(), str(find(root, name).path))
    settings = {"TP_SAMPLE": "1"}
    try:
        text = render(
            root, name, directives=SAMPLE_DIRECTIVES if name != "local.sh.j2" else "", about="sample", settings=settings
        )
    except Refusals as exc:
        return exc.items
    except Refusal as exc:
        return [exc]
    return _bash_faults(text, str(find(root, name).path))


def _bash_faults(text: str, place: str) -> list[RefusalType]:
    import subprocess

    done = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True, timeout=30, check=False)
    if done.returncode == 0:
        return []
    line = done.stderr.strip().splitlines()[0] if done.stderr.strip() else "syntax error"
    return [Refusal("E-SUBMIT-024", "bash cannot read the script", field=place, found=line)]


@template.command("lint")
@click.argument("names", nargs=-1)
@_root_option
@context.json_option
def lint(names: tuple[str, ...], shipped: bool, as_json: bool) -> None:
    """Check templates: what sbatch would ignore, read otherwise, or what would run a job twice. Exit 1 on a fault."""
    from hpc.submit.template import NAMES, find

    root = _root(shipped)
    faults: list[Any] = []
    for name in names or NAMES:
        find(root, name)
        faults += lint_faults(root, name)
    if faults:
        raise Refusals(faults)
    if as_json:
        context.print_json({"verdict": "accept", "errors": []})
    else:
        click.echo(f"{len(names or NAMES)} templates: no fault")


@template.command("diff")
@click.argument("names", nargs=-1)
@context.json_option
def diff(names: tuple[str, ...], as_json: bool) -> None:
    """Show how the site's copies differ from the shipped templates."""
    import difflib

    from hpc.submit.template import NAMES, find

    root = context.storage_root()
    changes = {}
    for name in names or NAMES:
        ours, theirs = find(None, name), find(root, name)
        if theirs.site:
            lines = difflib.unified_diff(
                ours.text().splitlines(True), theirs.text().splitlines(True), f"shipped/{name}", str(theirs.path)
            )
            changes[name] = "".join(lines)
    if as_json:
        context.print_json(changes)
        return
    click.echo("".join(changes.values()) or "no site template differs", nl=not any(changes.values()))
