"""`tp model register`: a run's model, or a folder, onto the shelf for good."""

from __future__ import annotations

from pathlib import Path

import click
from tuneplane.contract.layout import RunPaths, StorageRoot
from tuneplane.record.times import utc_now

from hpc.cli.context import current_user, json_option, print_json, storage_root
from hpc.errors import Refusal


@click.command()
@click.argument("source", metavar="RUN|DIR")
@click.argument("name")
@click.argument("version")
@click.option(
    "--attempt", type=click.IntRange(min=0), default=None, help="Of the run; by default the one that ended well."
)
@click.option(
    "--part",
    type=click.Choice(["final", "export", "adapter"]),
    default=None,
    help="What of the run: its export where one is done, else what training left.",
)
@click.option("--base", default="", help="What a folder was made from, for the record: a model's reference.")
@click.option("--owner", default="", help="Publish into this namespace (root).")
@json_option
def register(
    source: str, name: str, version: str, attempt: int | None, part: str | None, base: str, owner: str, as_json: bool
) -> None:
    """Put what RUN left (or the folder DIR) on the shelf as YOU/NAME@VERSION. A version is never changed afterwards.

    RUN is the training run or its export. Of a run whose export is done, that is taken; --part says otherwise.

    A Hugging Face folder with safetensors, or a PEFT adapter. Every byte is copied once and read back; pickles and code are refused.
    """
    from hpc.data.models import of_folder, of_run
    from hpc.data.models import register as put
    from hpc.site.sitefile import load_site
    from hpc.site.users import real_user

    root = storage_root()
    if Path(source).is_dir() or source.startswith(("/", ".")):
        if attempt is not None or part is not None:
            raise click.UsageError("--attempt and --part go with a run")
        _require_no_run(root, Path(source))
        folder, lineage = Path(source), of_folder(Path(source).absolute(), base)
    else:
        if base:
            raise click.UsageError("--base goes with a folder; a run says what it was made from")
        from hpc.runs.find import resolve

        run, chosen, number = _chosen(root, resolve(root, source, current_user()), part, attempt)
        folder, lineage = of_run(run, number, chosen)
    site, user = load_site(root), real_user()
    done = put(root, site, folder, name, version, user=user, now=utc_now(), lineage=lineage, owner=owner)
    if as_json:
        print_json({**done.as_json(), "lineage": lineage})
        return
    click.echo(f"{done.id}@{done.version}  {done.digest}\n  {done.files} files, {done.size} bytes in {done.folder}")
    click.echo(f"  use it:  tp submit EXP --model {done.id}@{done.version}")


def _require_no_run(root: StorageRoot, folder: Path) -> None:
    """What a run left is registered by the run's name: its record then says where it comes from, and which gates it had.

    Raises Refusal E-MODEL-032.
    """
    real = folder.resolve()
    if root.runs.resolve() in real.parents:
        raise Refusal(
            "E-MODEL-032", "lies in a run's folder", field=str(folder), found=str(real), allowed="tp model register RUN"
        )


def _chosen(
    root: StorageRoot, run: RunPaths, part: str | None, attempt: int | None
) -> tuple[RunPaths, str, int | None]:
    """(run, part, attempt) to take: of a training run its newest export that is done, unless `final` is asked for or nothing was exported.

    `attempt` is the named run's: of a training run only an export of what that attempt left will do.
    """
    from hpc.submit.followlist import children

    if run.exp.endswith(".export"):
        return run, part or "export", attempt
    exports = [child for action, child in children(root, run) if action == "export" and child.report.exists()]
    fitting = [child for child in exports if attempt in (None, _exported(child))]
    if part == "final" or (part is None and not fitting):
        return run, "final", attempt
    if not fitting:
        which = "" if attempt is None else f" of attempt {attempt}"
        allowed = f"tp model export {run.run_id}"
        raise Refusal("E-MODEL-030", f"{run.run_id} has no export{which} that is done", field="RUN", allowed=allowed)
    return fitting[-1], part or "export", None


def _exported(export: RunPaths) -> int | None:
    """The attempt of the training run whose model an export holds; None where its report does not say."""
    from tuneplane.record.files import read_json

    try:
        number = read_json(export.report)["result"]["of"]["attempt"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return number if type(number) is int else None
