"""`tp plan`: what a submission would be, before the queue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from hpc.cli import context
from hpc.cli.runview import span
from hpc.cli.submit import chosen_experiment, clock, job_options, read_flags, surroundings
from hpc.errors import Refusal

if TYPE_CHECKING:
    from hpc.plan.faults import Judged
    from hpc.plan.plan import Plan
    from hpc.runs.waiting import Band
    from hpc.slurm.forecast import Start
    from hpc.submit.prepare import InProject

VERDICTS = {
    "not_possible": "NOT POSSIBLE: it needs more than there is",
    "tight": "tight: less than 1.2 x of what is needed",
    "ready": "fits",
    "unknown": "not judged",
}


@click.command(context_settings={"show_default": False})
@click.argument("exp", required=False)
@job_options
@click.option("--allow-dirty", is_flag=True, help="Uncommitted changes are no fault.")
@click.option("--no-validate", is_flag=True, help="Leave out the extra checks of `tp validate`.")
@context.json_option
def plan(exp: str | None, as_json: bool, **values: Any) -> None:
    """Say what `tp submit` with the same flags would be: memory, batches, tokens, disk, time, start, and everything that would refuse it.

    Submits nothing. Of what it found out it keeps, in your own state folder, the digests of inputs, which a submission then need not
    compute, and for an hour how long others' jobs waited. Exit code 1 if the submission would be refused.
    """
    from hpc.cli.main import report
    from hpc.plan.faults import judge
    from hpc.plan.plan import make

    around = surroundings()
    experiment = chosen_experiment(around, exp)
    judged = judge(around, experiment, read_flags(values), clock())
    made = make(around, experiment, judged)
    start, waits = _start(around, judged, made)
    warnings = list(judged.prepared.warnings) if judged.prepared else []
    if as_json:
        value = {
            **made.as_json(),
            "exp": experiment.name,
            "start": start.as_json() if start else None,
            "warnings": warnings,
        }
        value |= {"waits": waits.as_json() if waits else None, "unasked": judged.unasked}
        context.print_json(
            {**value, "verdict": "refuse" if judged.faults else "admit", "errors": [f.as_json() for f in judged.faults]}
        )
    else:
        click.echo(f"{experiment.name}: {_headline(made)}" if made.method else f"{experiment.name}: cannot be prepared")
        for name, text in [*_rows(made), *_start_rows(start, waits)]:
            click.echo(f"  {name:<12} {text}")
        for text in [*made.unknown, *judged.unasked]:
            click.echo(f"  not known    {text}")
        for text in warnings:
            click.echo(f"tp: warning: {text}", err=True)
        if judged.faults:
            click.echo(
                f"  refused      {len(judged.faults)} faults" if len(judged.faults) > 1 else "  refused      1 fault"
            )
            report(judged.faults, as_json=False)
    click.get_current_context().exit(1 if judged.faults else 0)


def _start(around: InProject, judged: Judged, made: Plan) -> tuple[Start | None, Band | None]:
    """Slurm's own estimate, and how long similar jobs waited. What Slurm would refuse joins the faults."""
    from hpc.slurm.forecast import estimate
    from hpc.submit.dispatch import slurm_of

    prepared, script = judged.prepared, judged.script
    if prepared is None or script is None or around.site.fleets[prepared.fleet].kind != "slurm":
        return None, None
    slurm = slurm_of(around.site.fleets[prepared.fleet], around.site)
    try:
        start = estimate(slurm, script.text, str(around.root.path))
    except Refusal as fault:
        if fault.code in ("E-SLURM-001", "E-SLURM-002", "E-SLURM-003", "E-SLURM-005"):
            judged.unasked.append(f"Slurm's start: {fault.message}")
        else:
            judged.note([fault])
        return None, None
    partition = start.partition if start else str(prepared.options.get("partition") or "")
    return start, _waits(around, prepared.fleet, partition, made)


def _waits(around: InProject, fleet: str, partition: str, made: Plan) -> Band | None:
    import time

    from hpc.runs.waiting import band, recent_waits
    from hpc.submit.dispatch import slurm_of

    if not partition:
        return None
    folder = around.root.user_state(around.user)
    cache = folder / f"waits-{fleet or 'default'}-{partition}.json" if folder.is_dir() else None
    past, _ = recent_waits(slurm_of(around.site.fleets[fleet], around.site), partition, cache, time.time())
    return band(past, nodes=made.nodes, limit_s=made.limit_s)


def _headline(made: Plan) -> str:
    what = f"{made.gpus} GPUs" if made.gpus else "no GPU"
    return f"{made.method}, {made.nodes} node{'s' if made.nodes != 1 else ''}, {what}, {made.ranks} rank{'s' if made.ranks != 1 else ''}"


def _rows(made: Plan) -> list[tuple[str, str]]:
    return [*_model_rows(made), *_batch_rows(made), *_disk_rows(made), *_time_rows(made)]


def size_text(size: float) -> str:
    """`0.4 MiB`, `512 MiB`, `16.0 GiB`."""
    if size >= 1 << 30:
        return f"{size / (1 << 30):.1f} GiB"
    return f"{size / (1 << 20):.0f} MiB" if size >= 10 << 20 or not size else f"{size / (1 << 20):.1f} MiB"


def _model_rows(made: Plan) -> list[tuple[str, str]]:
    model, found, setting = made.model, made.forecast, made.setting
    if model is None or found is None or setting is None:
        return []
    adapted = f" (LoRA of rank {setting.lora_rank})" if setting.lora_rank else ""
    rows = [("parameters", f"{model.parameters / 1e6:.1f} M, {made.trained / 1e6:.2f} M of them trained{adapted}" if not setting.lora_rank
             else f"{model.parameters / 1e6:.1f} M frozen, {made.trained / 1e6:.2f} M trained{adapted}")]  # fmt: skip
    there = f" of {size_text(made.available)}: {VERDICTS[made.verdict]}" if made.available else ""
    rows.append(("memory", f"{size_text(found.total)} a {'GPU' if setting.gpu else 'rank'}{there}"))
    terms = found.terms()
    parts = [
        f"{name} {size_text(terms[name])}" for name in ("process", "weights", "teacher", "optimiser") if terms[name]
    ]
    rows.append(("", ", ".join([*parts, f"slack {size_text(terms['slack'])}"])))
    both = (
        ("backward", found.backward, ("buffers", "activations", "logits")),
        ("update", found.stepping, ("gradients", "update")),
    )
    for name, whole, members in both:
        mark = "" if whole == max(found.backward, found.stepping) else ", not the peak"
        rows.append(
            ("", f"{name} {size_text(whole)} ({', '.join(f'{m} {size_text(terms[m])}' for m in members)}{mark})")
        )
    if made.calibration:
        low, high = min(made.calibration), max(made.calibration)
        several = f"{low:.2f} to {high:.2f} x such a forecast, in {len(made.calibration)} earlier runs"
        rows.append(
            ("measured", several if len(made.calibration) > 1 else f"{low:.2f} x such a forecast, in one earlier run")
        )
    else:
        rows.append(
            ("measured", "by no earlier run of this model and shape; docs/plan.md has the error that was measured")
        )
        rows.append(
            (
                "probe",
                "tp submit with the same flags, --set max_steps=1 and one node's profile shows the peak in result.json",
            )
        )
    return rows


def _batch_rows(made: Plan) -> list[tuple[str, str]]:
    b, rows, out = made.batches, made.rows, []
    if rows is not None:
        many = f"{rows.rows:,}".replace(",", " ")
        out.append(("rows", f"{many}, {rows.mean_tokens:.0f} tokens each, longest {rows.longest_tokens}; {rows.how}"))
    if made.packed is not None:
        many = f"{made.packed.sequences:,}".replace(",", " ")
        full = f"{made.packed.fill * 100:.0f} % full"
        out.append(("packed", f"into about {many} sequences, {full}, by the lengths of these rows or of the sample"))
    if b is not None:
        prompts = " prompts" if made.method.endswith("/grpo") else ""
        out.append(
            ("batch", f"{b.micro_batch} x {b.accumulation} x {b.ranks} ranks = {b.global_batch}{prompts} a step")
        )
    if b is not None and b.total_steps:
        an_epoch = f", {b.steps_an_epoch:.1f} an epoch, {b.epochs:.2f} epochs" if b.steps_an_epoch and b.epochs else ""
        tokens = f", about {_tokens(made.tokens)} tokens" if made.tokens else ""
        out.append(("steps", f"{b.total_steps}{an_epoch}{tokens}"))
    return out


def _tokens(count: float) -> str:
    """In millions where that says something."""
    return f"{count / 1e6:.2f} M" if count >= 1e5 else f"{count:,.0f}".replace(",", " ")


def _disk_rows(made: Plan) -> list[tuple[str, str]]:
    if made.disk is None:
        return []
    need = made.disk.needed
    lack = "" if need <= made.disk_free else ": NOT ENOUGH"
    kept = f"{size_text(made.disk.kept)} for those that are kept and one being written"
    text = f"a checkpoint {size_text(made.disk.checkpoint)}, {kept}, artefact {size_text(made.disk.artefact)}"
    return [("disk", f"{text}; {size_text(made.disk_free)} free{lack}")]


def _time_rows(made: Plan) -> list[tuple[str, str]]:
    if made.band is None:
        return []
    b = made.band
    runs = f"{b.runs} earlier run{'s' if b.runs != 1 else ''} of this recipe, model and shape"
    rows = [("time", f"{span(b.low_s)} to {span(b.high_s)}, middle {span(b.mid_s)}, by {runs}")]
    if made.gpus:
        rows.append(("GPU-hours", f"{b.low_s * made.gpus / 3600:.2f} to {b.high_s * made.gpus / 3600:.2f}"))
    if made.limit_s:
        attempts = -(-b.high_s // made.limit_s)
        over = (
            ""
            if b.high_s <= made.limit_s
            else f"; up to {attempts:.0f} attempts, each goes on from the last checkpoint"
        )
        rows.append(("time limit", span(made.limit_s) + over))
    return rows


def _start_rows(start: Start | None, waits: Band | None) -> list[tuple[str, str]]:
    rows = []
    if waits is not None:
        among = f"{waits.similar} similar jobs of {waits.all_jobs}, 7 days"
        rows.append(
            (
                "others began",
                f"after {span(waits.low_s)} to {span(waits.high_s)}, half of them within {span(waits.mid_s)} ({among})",
            )
        )
    if start is not None:
        rows.append(
            ("Slurm says", f"start {start.at.replace('T', ' ')}" + (f" on {start.nodes}" if start.nodes else ""))
        )
    return rows
