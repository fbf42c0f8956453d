"""`tp again`: a run's script from its records once more, compared byte for byte; with --run the run itself once more."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click
from tuneplane.contract import exits

from hpc.cli.context import json_option, print_json, table
from hpc.errors import Refusal

if TYPE_CHECKING:
    from hpc.cli.desk import Desk
    from hpc.evidence.capsule import Capsule
    from hpc.submit.dispatch import Submitted


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.argument("run")
@click.option("--owner", default="", metavar="USER", help="Another user's run.")
@click.option(
    "--submission",
    type=click.IntRange(0),
    default=None,
    metavar="N",
    help="The submission whose first attempt is N. Default: the newest.",
)
@click.option("--show", is_flag=True, help="Print the script as it is rendered today.")
@click.option(
    "--run", "submit", is_flag=True, help="Submit the same package as a new run of yours, if nothing differs."
)
@click.option("--anyway", is_flag=True, help="With --run: also where something differs.")
@json_option
def again(run: str, owner: str, submission: int | None, show: bool, submit: bool, anyway: bool, as_json: bool) -> int:
    """Render RUN's script again from its records and the site: exit 0 if it is byte-identical, else 1 with each difference; 2 if the frozen
    script is not the one that was recorded."""
    from hpc.cli.desk import Desk
    from hpc.evidence.capsule import render_again
    from hpc.runs.find import resolve

    if anyway and not submit:
        raise click.UsageError("--anyway says how to --run")
    if show and (submit or as_json):
        raise click.UsageError("--show prints the script and nothing else")
    desk = Desk(owner)
    found = render_again(desk.root, desk.site, resolve(desk.root, run, desk.owner, newest=True), first=submission)
    if show and found.rendered is not None:
        click.echo(found.rendered, nl=False)
        return exits.DONE if found.identical else exits.REFUSED
    done = _submit(desk, found, anyway=anyway) if submit else None
    if as_json:
        print_json(
            {**found.as_json(), "submitted": {"run_id": done.run.run_id, "job_id": done.job_id} if done else None}
        )
    else:
        _say(found)
        if done is not None:
            click.echo(f"{done.run.run_id}  submitted again as {done.job_id}: tp job logs -f {done.run.run_id}")
    if found.tampered:
        return exits.TAMPERED
    return exits.DONE if found.identical or done else exits.REFUSED


def _submit(desk: Desk, found: Capsule, *, anyway: bool) -> Submitted:
    from hpc.evidence.repeat import repeat
    from hpc.submit.dispatch import Clock
    from hpc.submit.prepare import Around

    if found.tampered or not (found.repeatable or anyway):
        first = next((d for d in (*found.lines, *found.around)), None)
        what = (
            f"{first.what}: {first.recorded or '-'} then, {first.now or '-'} now"
            if first
            else "the frozen script was changed"
        )
        count = len(found.lines) + len(found.around)
        raise Refusal("E-EVID-021", f"{count or 1} differences; {what}", field=found.run.run_id)
    actor = desk.actor
    return repeat(
        Around(desk.root, desk.site, desk.user, actor.uid), found.run, clock=Clock(actor.now), sleep=time.sleep
    )


def _say(found: Capsule) -> None:
    from hpc.spec.text import visible

    name = f"{found.run.run_id}  {found.run.exp}  batch/{found.first}.sh"
    if found.tampered:
        click.echo(f"{name}: tampered: recorded {found.recorded_sha256}, found {found.frozen_sha256}")
    elif found.identical:
        click.echo(f"{name}: byte-identical\n  {found.frozen_sha256}")
    else:
        click.echo(f"{name}: {'different' if found.rendered is not None else 'cannot be rendered today'}")
    if found.lines:
        rows = [[d.what, visible(d.recorded, 48), visible(d.now, 48), d.cause] for d in found.lines]
        click.echo(table(rows, ["LINE", "RECORDED", "NOW", "FROM"]))
    if found.around:
        rows = [[d.what, visible(d.recorded, 48) or "-", visible(d.now, 48) or "-", d.cause] for d in found.around]
        click.echo(table(rows, ["AROUND IT", "RECORDED", "NOW", "WHAT"]))
