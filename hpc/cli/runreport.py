"""`tp runs report`: everything that is known of one run, for a terminal, as JSON, or as one HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hpc.cli import runview
from hpc.cli.context import GivenPath, json_option, print_json, writing
from hpc.cli.desk import Desk
from hpc.cli.runpage import used_of
from hpc.spec.text import escaped

if TYPE_CHECKING:
    from tuneplane.contract.layout import RunPaths

    from hpc.runs.records import Facts


@click.command()
@click.argument("run", default="", metavar="[RUN]")
@click.option("--element", type=click.IntRange(0), help="One element of an array.")
@click.option("--html", "page", type=GivenPath(dir_okay=False), default=None, help="Write one self-contained page.")
@click.option("--no-accounting", is_flag=True, help="Do not ask sacct.")
@click.option("--owner", default="", metavar="USER", help="Another user's runs.")
@json_option
def report(run: str, element: int | None, page: Path | None, no_accounting: bool, owner: str, as_json: bool) -> None:
    """Report a run: where it came from, what it asked for and used, its attempts, verdict and follow-ups. Without RUN the newest one."""
    from hpc.runs.find import resolve

    desk = Desk(owner)
    paths = resolve(desk.root, run, desk.owner, newest=True)
    if element is not None and not paths.element(element).root.is_dir():
        raise click.UsageError(f"{paths.run_id} has no element {element}, or it has not begun")
    document = gathered(desk, paths, element, accounting=not no_accounting)
    if page is not None:
        from hpc.cli import runpage
        from hpc.runs.dossier import curves

        part = paths if element is None else paths.element(element)
        text = runpage.page(document, curves(part))
        with writing(page):
            page.write_text(text, "utf-8")
    desk.complain()
    if as_json:
        print_json(document)
    elif page is not None:
        click.echo(str(page))
    else:
        click.echo(_text(document))


def gathered(desk: Desk, run: RunPaths, element: int | None = None, *, accounting: bool = True) -> dict[str, Any]:
    """The document of a run with its state, quick audit, verdict and follow-ups. Raises Refusal E-RUNS-*."""
    from tuneplane.contract.followups import CHECKPOINTS

    from hpc.cli import evaluate_steps, followview
    from hpc.runs.audit import audit
    from hpc.runs.dossier import Accounting, dossier

    facts, state = desk.state(run)
    figures = _accounting(desk, facts, element) if accounting else Accounting()
    followers = followview.followups(desk, run)
    verdict = followview.verdict(desk, run, followers)
    asked = any(f["action"] == CHECKPOINTS for f in followers)
    steps = evaluate_steps.checkpoints(desk, run) if asked else None
    return {
        **dossier(facts, figures, element),
        "state": runview.run_json(run, state),
        "audit": f"{audit(run, deep=False).verdict} (quick)",
        "verdict": verdict.as_json() if verdict else None,
        "followups": followers,
        **({"checkpoints": evaluate_steps.as_json(steps)} if steps else {}),
    }


def _accounting(desk: Desk, facts: Facts, element: int | None) -> Any:
    from hpc.runs.arrays import submission_of
    from hpc.runs.dossier import Accounting
    from hpc.slurm.usage import known

    last = facts.last_submission
    if last is None or last.kind != "slurm":
        return Accounting(None, "the job is not Slurm's")
    if element is not None:
        last = submission_of(facts, element)
        job_id = f"{last.job_id}_{element - last.offset}"
    elif last.tasks is not None:
        return Accounting(None, "an array has figures for each element: --element N")
    else:
        job_id = last.job_id
    return Accounting(*known(desk.asker.slurm(last.fleet), job_id, deadline_s=10.0))


def _text(document: dict[str, Any]) -> str:
    state, found = document["state"], document["efficiency"]
    lines = [f"{document['run_id']}  {document['exp']}  {state['state']}  audit {document['audit']}"]
    verdict = document["verdict"]
    rows = [("verdict", f"{verdict['verdict']}: {verdict['reason']}")] if verdict else []
    rows += [(name, used_of(found[name]) or "not known") for name in ("time", "cpu", "memory")]
    rows.append(("GPUs", f"{_known(found['gpus_asked'])} asked; their load: not known"))
    if why := document["accounting"].get("not_known"):
        rows.append(("accounting", why))
    rows += [
        (f"attempt {a['attempt']}", f"{a['class'] or 'goes on'}  {', '.join(a['hosts'])}") for a in document["attempts"]
    ]
    rows += [(f["action"], f"{f['run_id']}  {f['state']}") for f in document["followups"]]
    for step in (document.get("checkpoints") or {}).get("steps", ()):
        if step["metrics"]:
            rows.append((f"step {step['step']}", f"score {_known(step['metrics'].get('score'))} ({step['tier']})"))
    rows.append(("provenance", document["origin_is"]))
    rows += [(f"  {name}", _known(value)) for name, value in _flat(document["origin"])]
    return "\n".join([*map(escaped, lines), *(escaped(f"  {name:<14} {text}") for name, text in rows)])


def _known(value: Any) -> str:
    return "not known" if value in (None, "") else f"{value:.6g}" if isinstance(value, float) else str(value)


def _flat(value: Any, prefix: str = "") -> list[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        return [row for key, item in value.items() for row in _flat(item, f"{prefix}.{key}" if prefix else str(key))]
    return [(prefix, value)]
