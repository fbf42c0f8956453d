"""`tp submit` and `tp admit`."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hpc.cli import context
from hpc.errors import Refusal

if TYPE_CHECKING:
    from hpc.submit.dispatch import Clock
    from hpc.submit.flags import Flags
    from hpc.submit.prepare import InProject

# flag, spec.slurm field, type, help
SLURM_FLAGS: tuple[tuple[str, str, Any, str], ...] = (
    ("--time", "time", str, "Time limit (30, 12:00:00, 1-00:00:00)."),
    ("--partition", "partition", str, "Partition(s)."),
    ("--account", "account", str, "Account."),
    ("--qos", "qos", str, "Quality of service."),
    ("--constraint", "constraint", str, "Node features."),
    ("--reservation", "reservation", str, "Reservation."),
    ("--dependency", "dependency", str, "afterok:ID, afterany:ID, singleton, …"),
    ("--array", "array", str, "Array indices, such as 0-9%2."),
    ("--signal", "signal", str, "Warning before the limit, such as B:USR2@300."),
    ("--nice", "nice", int, "Lower the priority by this much."),
    ("--mail-type", "mail_type", str, "BEGIN,END,FAIL,…"),
    ("--mail-user", "mail_user", str, "Mail address."),
    ("--comment", "comment", str, "A word of your own."),
    ("--exclude", "exclude", str, "Nodes to avoid."),
    ("--nodelist", "nodelist", str, "Nodes to use."),
    ("--mem", "mem", str, "Memory a node."),
    ("--mem-per-gpu", "mem_per_gpu", str, "Memory a GPU."),
    ("--cpus-per-task", "cpus_per_task", int, "CPUs a node's task."),
    ("--licenses", "licenses", str, "Licences, name:count."),
    ("--switches", "switches", str, "Switches, count@time."),
    ("--begin", "begin", str, "Earliest start."),
    ("--clusters", "clusters", str, "Cluster(s)."),
    ("--gpu-bind", "gpu_bind", str, "GPU binding."),
)  # fmt: skip
SLURM_SWITCHES = (
    ("exclusive", "Whole nodes."),
    ("requeue", "Requeue after preemption and node failure."),
    ("kill_on_invalid_dep", "End a job whose dependency can never be met."),
)
FLAG_NAMES = (
    "profile", "method", "settings", "init_from", "model", "train_data", "validation_data", "train_dataset", "validation_dataset", "output_dataset",
    "volume", "environment", "taskset", "image", "then", "observability_url", "framework_version", "quality", "peft", "label", "network", "lease",
    "display_name", "requeue_on", "max_attempts", "allow_dirty", "no_validate",
)  # fmt: skip


def job_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Every flag that ends up in the spec, in the order of the help."""
    options = [
        click.option("--profile", multiple=True, help="[ROLE[,ROLE]=]NAME[:GPUS]; again for further pools."),
        click.option("-m", "--method", default="", help="Must be the locked method."),
        click.option(
            "-s",
            "--set",
            "settings",
            multiple=True,
            metavar="NAME=VALUE",
            help="A parameter of the recipe; may be given again.",
        ),
        click.option("--model", default="", help="Base model: a Hugging Face folder."),
        click.option("--init-from", default="", help="run/<run_id>/checkpoint[@step=N]."),
        click.option("--peft", multiple=True, metavar="KEY=VALUE", help="kind, dim, alpha."),
        click.option("--train-data", default="", help="Training data file."),
        click.option("--validation-data", default="", help="Validation data file."),
        click.option("--train-dataset", default="", help="[hub:]owner/name[@version]."),
        click.option("--validation-dataset", default="", help="[hub:]owner/name[@version]."),
        click.option("--output-dataset", default="", help="owner/name@version that the run publishes."),
        click.option("--volume", multiple=True, help="owner/name, mounted read-only."),
        click.option("--environment", default="", help="owner/name@version."),
        click.option("--taskset", default="", help="owner/name@version, for the record."),
        click.option("--quality", multiple=True, metavar="KEY=VALUE", help="max_duplicate_ratio=0.1, …"),
        click.option("--image", default="", help="An allowed image that the site registered as a SIF."),
        click.option("--then", multiple=True, type=click.Choice(["export", "eval"]), help="After success."),
        click.option("--observability-url", default="", help="For recipes with external observability."),
        click.option("--framework-version", default="", help="Must be the locked version."),
        click.option("--network", multiple=True, metavar="KEY=VALUE", help="transport=tcp, interface=ib0."),
        click.option("--lease", multiple=True, metavar="TOOL=SEATS", help="Licensed seats, for the record only."),
        click.option("--label", multiple=True, metavar="KEY=VALUE", help="Free labels of the run."),
        click.option("--display-name", default="", help="A name for people."),
        click.option(
            "--requeue-on", default="", help="Ends that run again: preempted,node_fail,timeout,error or none."
        ),
        click.option("--max-attempts", default=0, type=click.IntRange(0, 100), help="Attempts in all."),
    ]
    options += [
        click.option(flag, f"slurm_{name}", default=None, type=kind, help=text)
        for flag, name, kind, text in SLURM_FLAGS
    ]
    for name, text in SLURM_SWITCHES:
        word = name.replace("_", "-")
        options.append(click.option(f"--{word}/--no-{word}", f"slurm_{name}", default=None, help=text))
    for option in reversed(options):
        function = option(function)
    return function


def read_flags(values: dict[str, Any]) -> Flags:
    """Click's values as Flags."""
    from hpc.submit.flags import Flags

    slurm = {name[6:]: value for name, value in values.items() if name.startswith("slurm_") and value is not None}
    return Flags(**{name: values[name] for name in FLAG_NAMES if name in values}, slurm=slurm)


def clock() -> Clock:
    from tuneplane.record.times import utc_now

    from hpc.submit.dispatch import Clock

    return Clock(utc_now)


def surroundings() -> InProject:
    """Root, site, user and project of this command. Raises Refusal."""
    from hpc.project.project import find_project
    from hpc.site.sitefile import load_site
    from hpc.site.users import real_user
    from hpc.submit.prepare import InProject

    root = context.storage_root()
    user = real_user()
    return InProject(root, load_site(root), user.name, user.uid, find_project(Path.cwd()), Path.cwd())


def _intent(path: str) -> Flags:
    from tuneplane.record.files import read_json

    from hpc.submit.flags import Flags

    try:
        return Flags.from_json(read_json(path), path)
    except (OSError, ValueError) as exc:
        raise Refusal("E-SUBMIT-030", f"{path}: {exc}", field="--intent") from exc


def _say_submitted(done: Any, *, as_json: bool) -> None:
    facts = {
        "run_id": done.run.run_id, "exp": done.run.exp, "owner": done.run.owner, "job_id": done.job_id, "job_name": done.job_name,
        "fleet": done.kind, "run_dir": str(done.run.root), "script_sha256": done.script.sha256, "warnings": list(done.warnings),
        "followups": [one.as_json() for one in done.followed],
    }  # fmt: skip
    if as_json:
        context.print_json(facts)
        return
    from tuneplane.contract.followups import CHECKPOINTS

    where = "on this machine" if done.kind == "local" else f"as Slurm job {done.job_id}"
    click.echo(f"{done.run.run_id}  submitted {where}")
    for one in done.followed:
        place = "beside" if one.action == CHECKPOINTS else "after"
        click.echo(
            f"  {one.action:<6}   {one.run.run_id} {place} {one.after}" + ("" if one.job_id else ": NOT submitted")
        )
    click.echo(f"  follow:  tp job logs -f {done.run.run_id}\n  state:   tp job status {done.run.run_id}")


@click.command(context_settings={"show_default": False})
@click.argument("exp", required=False)
@job_options
@click.option("--upgrade-recipe", is_flag=True, help="Upgrade the recipe lock first.")
@click.option("--allow-dirty", is_flag=True, help="Submit with uncommitted changes; their digests are recorded.")
@click.option("--no-validate", is_flag=True, help="Leave out the extra checks of `tp validate`.")
@click.option("--intent", "intent_file", type=context.GivenPath(dir_okay=False), help="Flags from a JSON file.")
@click.option("--preview", is_flag=True, help="Show and save what would be submitted.")
@click.option(
    "--commit", "commit_file", type=context.GivenPath(dir_okay=False), help="Submit exactly what was previewed."
)
@click.option("--dry-run", is_flag=True, help="Print the batch script and write nothing.")
@click.option("--again", is_flag=True, help="Submit although the same spec was submitted a moment ago.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask (a submission asks nothing; accepted for scripts).")
@context.json_option
def submit(exp: str | None, as_json: bool, **values: Any) -> Any:
    """Package, admit, render and submit an experiment, exactly once.

    EXP is a folder below experiments/; without it, the experiment of the current folder.
    """
    from hpc.submit import pipeline

    around = surroundings()
    experiment = chosen_experiment(around, exp)
    flags = _intent(str(values["intent_file"])) if values["intent_file"] else read_flags(values)
    _before(around, experiment, values)
    if values["dry_run"] or values["preview"]:
        prepared, script = pipeline.preview(around, experiment, flags, clock())
        return _show(around, prepared, script, preview=values["preview"], as_json=as_json)
    if values["commit_file"]:
        _check_commit(around, experiment, flags, str(values["commit_file"]))
    done = pipeline.submit(around, experiment, flags, clock=clock(), sleep=time.sleep, again=values["again"])
    lost = [
        f"{o.action} {o.run.run_id} was not submitted: {o.fault}; `tp job retry {o.run.run_id}`"
        for o in done.followed
        if o.fault
    ]
    for warning in (*done.warnings, *lost):
        click.echo(f"tp: warning: {warning}", err=True)
    _say_submitted(done, as_json=as_json)
    return None


def chosen_experiment(around: InProject, exp: str | None) -> Any:
    if exp is None:
        try:
            parts = around.cwd.relative_to(around.project.root / "experiments").parts
        except ValueError:
            parts = ()
        if not parts:
            raise click.UsageError("name the experiment, or run this inside its folder")
        exp = "/".join(parts)
    return around.project.experiment(exp)


def _before(around: InProject, experiment: Any, values: dict[str, Any]) -> None:
    """Settle what an earlier, interrupted command left open; upgrade the lock if asked."""
    from tuneplane.record.times import utc_now

    from hpc.submit.dispatch import settle

    settle(around.root, around.site, around.user, utc_now)
    if values["upgrade_recipe"]:
        import tuneplane

        from hpc.catalog.shelf import Catalogue
        from hpc.catalog.standing import apply_upgrades, plan_upgrade
        from hpc.project.config import load_config

        catalogue, version = Catalogue.load(around.root), values["framework_version"]
        config = load_config(experiment.path)
        planned = plan_upgrade(
            experiment.path, config, catalogue, core_version=tuneplane.__version__, framework_version=version
        )
        apply_upgrades([planned])


def _summary(prepared: Any, script: Any) -> dict[str, Any]:
    from tuneplane.record.digest import digest_json

    launch = prepared.records["launch.json"]
    gpus = sum(p["nodes"] * p["gpus_per_node"] for p in launch["shape"]["pools"])
    return {
        "exp": prepared.run.exp, "fleet": prepared.fleet, "shape": launch["shape"], "gpus": gpus,
        "recipe": prepared.recipe.id, "runtime": launch["runtime"].get("runtime_id") or "none", "template": script.template,
        "spec_digest": digest_json(prepared.records["jobspec.json"]), "jobspec": prepared.records["jobspec.json"], "files": len(prepared.files),
        "entry": launch["entry"], "plan": prepared.records.get("plan.json"),
    }  # fmt: skip


def _show(around: InProject, prepared: Any, script: Any, *, preview: bool, as_json: bool) -> None:
    summary = _summary(prepared, script)
    if not preview:
        if as_json:
            context.print_json({**summary, "script": script.text})
        else:
            click.echo(script.text, nl=False)
        return
    from tuneplane.record.canonical import pretty_bytes

    folder = around.project.root / ".tuneplane-data" / "submissions"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{os.urandom(16).hex()}.json"
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(fd, "wb") as stream:
        stream.write(pretty_bytes(summary))
    if as_json:
        context.print_json({**summary, "preview": str(path)})
        return
    shape = summary["shape"]
    size = f"{shape['nodes']} nodes, {summary['gpus']} GPUs, {shape['world_size']} ranks"
    click.echo(f"{summary['exp']}: {summary['recipe']} on {summary['fleet']}, {size}")
    click.echo(f"  runtime  {summary['runtime']}\n  files    {summary['files']}\n  spec     {summary['spec_digest']}")
    click.echo(f"  submit exactly this:  tp submit {summary['exp']} --commit {path} (and the same flags)")


def _check_commit(around: InProject, experiment: Any, flags: Flags, path: str) -> None:
    from tuneplane.record.digest import digest_json
    from tuneplane.record.files import read_json

    from hpc.submit import pipeline

    try:
        wanted = read_json(path)["spec_digest"]
    except (OSError, ValueError, KeyError, TypeError) as exc:
        raise Refusal("E-SUBMIT-062", f"{path} is not a preview: {exc}", field="--commit") from exc
    prepared, _ = pipeline.preview(around, experiment, flags, clock())
    found = digest_json(prepared.records["jobspec.json"])
    if found != wanted:
        raise Refusal(
            "E-SUBMIT-062", "the spec is not the one that was previewed", field="--commit", found=found, allowed=wanted
        )


@click.command()
@click.argument("package", type=context.GivenPath(file_okay=False, exists=True))
@click.option("--enforce", "enforced", is_flag=True, help="As the service user: copy, verify and sign.")
@click.option("--check", is_flag=True, help="Judge only; write nothing.")
@context.json_option
def admit(package: Path, enforced: bool, check: bool, as_json: bool) -> None:
    """Admission of PACKAGE (a run's work folder) from its bytes, the registry and your uid."""
    from tuneplane.contract.layout import RunPaths
    from tuneplane.record.files import write_json_new
    from tuneplane.record.times import utc_now

    from hpc.site.sitefile import load_site
    from hpc.submit import admission, enforce
    from hpc.submit.dispatch import slurm_of
    from hpc.submit.usage import queued_jobs, usage_of

    root = context.storage_root()
    site = load_site(root)
    path = package.resolve()
    run = RunPaths(path.parent if path.name == "work" else path)
    if root.runs not in run.root.parents:
        allowed = f"{root.runs}/<owner>/<exp>/<run_id>/work"
        raise Refusal(
            "E-SUBMIT-071", "not a package below the storage root", field="PACKAGE", found=str(package), allowed=allowed
        )
    fleet = next((f for f in site.fleets.values() if f.kind == "slurm"), None)

    def usage(owner: str) -> admission.Usage:
        queued = queued_jobs(slurm_of(fleet, site), owner) if fleet else None
        return usage_of(root, owner, queued, local=any(f.kind == "local" for f in site.fleets.values()))

    if enforced and not check:
        record = enforce.enforce(root, site, run, usage=usage, now=utc_now())
    else:
        record = {**admission.judge(root, site, run, usage=usage), "mode": "advisory", "admitted_at": utc_now()}
        if not check:
            try:
                write_json_new(run.admission, record)
            except FileExistsError as exc:
                raise Refusal("E-SUBMIT-082", f"{run.run_id} was admitted before", field=str(run.admission)) from exc
    if as_json:
        context.print_json(record)
    else:
        click.echo(
            f"{record['verdict']} ({record['mode']}): {run.run_id} of {record['owner']}, package {record['package_digest']}"
        )
    sys.stdout.flush()
