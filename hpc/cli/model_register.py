"""`tp model register`: a run's model, or a folder, onto the shelf for good."""

from __future__ import annotations

from pathlib import Path

import click
from tuneplane.record.times import utc_now

from hpc.cli.context import current_user, json_option, print_json, storage_root


@click.command()
@click.argument("source", metavar="RUN|DIR")
@click.argument("name")
@click.argument("version")
@click.option(
    "--attempt", type=click.IntRange(min=0), default=None, help="Of the run; by default the one that ended well."
)
@click.option("--base", default="", help="What a folder was made from, for the record: a model's reference.")
@click.option("--owner", default="", help="Publish into this namespace (root).")
@json_option
def register(source: str, name: str, version: str, attempt: int | None, base: str, owner: str, as_json: bool) -> None:
    """Put what RUN exported (or the folder DIR) on the shelf as YOU/NAME@VERSION. A version is never changed afterwards.

    A Hugging Face folder with safetensors, or a PEFT adapter. Every byte is copied once and read back; pickles and code are refused.
    """
    from hpc.data.models import of_folder, of_run
    from hpc.data.models import register as put
    from hpc.site.sitefile import load_site
    from hpc.site.users import real_user

    root = storage_root()
    if "/" in source or Path(source).is_dir():
        if attempt is not None:
            raise click.UsageError("--attempt goes with a run")
        folder, lineage = Path(source), of_folder(Path(source).absolute(), base)
    else:
        if base:
            raise click.UsageError("--base goes with a folder; a run says what it was made from")
        from hpc.runs.find import resolve

        folder, lineage = of_run(resolve(root, source, current_user()), attempt)
    site, user = load_site(root), real_user()
    done = put(root, site, folder, name, version, user=user, now=utc_now(), lineage=lineage, owner=owner)
    if as_json:
        print_json({**done.as_json(), "lineage": lineage})
        return
    click.echo(f"{done.id}@{done.version}  {done.digest}\n  {done.files} files, {done.size} bytes in {done.folder}")
    click.echo(f"  use it:  tp submit EXP --model {done.id}@{done.version}")
