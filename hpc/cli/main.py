"""The `tp` command. Groups and their imports are loaded when they are used, so that `tp --help` stays cheap."""

from __future__ import annotations

import gc
import os
import signal
import sys
from typing import Any

import click
import tuneplane
from tuneplane.contract import exits

from hpc.cli.lazy import LazyGroup
from hpc.errors.core import Refusal, Refusals

COMMANDS: dict[str, tuple[str, str]] = {
    # name: (module:attribute, help line)
    "init": ("hpc.cli.project:init", "Scaffold a project."),
    "new": ("hpc.cli.project:new", "Scaffold an experiment."),
    "ls": ("hpc.cli.project:ls", "List the project's experiments."),
    "methods": ("hpc.cli.project:methods", "List training methods, or one method's parameters."),
    "validate": ("hpc.cli.project:validate", "Check an experiment without submitting it."),
    "plan": ("hpc.cli.plan:plan", "What a submission would be: memory, batches, tokens, disk, time, refusals."),
    "submit": ("hpc.cli.submit:submit", "Package, admit, render and submit an experiment."),
    "sweep": ("hpc.cli.sweep:sweep", "Sweeps: many variants as one job array; status, plot, stop."),
    "admit": ("hpc.cli.submit:admit", "Admission of a job package from its bytes alone."),
    "job": ("hpc.cli.job:job", "Jobs: ls, status, logs, wait, stop, retry, resume, why, plot."),
    "runs": ("hpc.cli.runs:runs", "Run records: ls, compare, report, audit."),
    "run": ("hpc.cli.runs:run", "One run: share."),
    "log": ("hpc.cli.log:log", "The witnessed log of records' digests: init, add, prove, verify, witness."),
    "export": ("hpc.cli.evidence:export", "Write a run as an evidence bundle with an offline verifier."),
    "verify": ("hpc.cli.evidence:verify", "Judge an evidence bundle: verified, incomplete, tampered."),
    "publish": (
        "hpc.cli.evidence:publish",
        "Show what sharing a run's evidence would share, or put its bundle into a folder.",
    ),
    "again": ("hpc.cli.again:again", "Render a run's script again from its records, or repeat the run."),
    "eval": ("hpc.cli.evaluate:evaluation", "Evaluations: run, ls, show, compare, gate."),
    "jobspec": ("hpc.cli.jobspec:jobspec", "Validate a JobSpec or print its schema."),
    "recipe": ("hpc.cli.recipe:recipe", "Recipe packs and locks: ls, status, upgrade."),
    "plugin": ("hpc.cli.plugin:plugin", "Plugin packages: validate, publish, install, manage, activate."),
    "model": ("hpc.cli.model:model", "Models: prefetch, export, register, show, promote."),
    "assets": ("hpc.cli.assets:assets", "What was fetched from hubs: ls, path, verify."),
    "dataset": ("hpc.cli.dataset:dataset", "Data sets: push, show, verify, judge."),
    "env": ("hpc.cli.env:env", "Environments of tasks for agents: push, ls, show, rm."),
    "volume": ("hpc.cli.volume:volume", "Volumes: create, push, ls, rm; mounted read-only in jobs."),
    "gc": ("hpc.cli.gc:gc", "What can be removed, why, and how much; --dry-run first."),
    "registry": ("hpc.cli.registry:registry", "The registry: audit, seal, ls, show, verify."),
    "runtime": ("hpc.cli.runtime:runtime", "Runtimes (SIF images): ls, add, verify, build."),
    "template": ("hpc.cli.template:template", "Batch templates: ls, show, lint, diff."),
    "site": ("hpc.cli.site:site", "Lay out and check a storage root (admins)."),
    "mcp": ("hpc.cli.mcp_server:mcp", "Serve runs, specs, plans and diagnoses to a model's client; read-only."),
    "doctor": ("hpc.cli.doctor:doctor", "Check this machine and site, and say what to expect."),
}


def _version(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        python = ".".join(map(str, sys.version_info[:3]))
        click.echo(f"tp {tuneplane.__version__} (python {python}, {os.uname().sysname.lower()} {os.uname().machine})")
        ctx.exit()


@click.group(
    cls=LazyGroup,
    commands_at=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.option(
    "-V", "--version", is_flag=True, expose_value=False, is_eager=True, callback=_version, help="Print the version."
)
def cli() -> None:
    """Batch jobs in SIF containers on Slurm, from JobSpecs, with a record that can be audited.

    Start with `tp init`, `tp new EXP --method F/M`, `tp submit EXP`, `tp job logs -f`.
    """


def _empty(args: list[str]) -> str | None:
    """What comes before an empty argument, None where there is none. What goes to a script of the user's own is its own."""
    if "--" in args:
        args = args[: args.index("--")]
    if args[:2] == ["dataset", "prepare"]:
        args = args[:3]
    for before, arg in zip(["tp", *args], args, strict=False):
        if not arg.strip() or (arg.startswith("--") and arg.endswith("=") and arg.count("=") == 1):
            return arg.rstrip("=").strip() or before
    return None


def _require_words(args: list[str]) -> None:
    """Raises UsageError for an argument that is no text or empty.

    An unset variable of a script leaves an empty one: to one command it would be the newest run, to another no limit at all.
    """
    if odd := next((a for a in args if any("\ud800" <= c <= "\udfff" for c in a)), None):
        raise click.UsageError(f"an argument is not UTF-8: {_shown(odd)}")
    if (before := _empty(args)) is not None:
        raise click.UsageError(f"the argument after {_shown(before)} is empty; leave it out, or set its variable")


def _wants_json(argv: list[str]) -> bool:
    return "--json" in argv


def report(refusals: list[Refusal], *, as_json: bool) -> None:
    """Print refusals: one JSON object on stdout, or a paragraph each on stderr."""
    if as_json:
        from tuneplane.record.canonical import pretty_bytes

        errors = [{k: _shown(v) if isinstance(v, str) else v for k, v in r.as_json().items()} for r in refusals]
        sys.stdout.write(pretty_bytes({"verdict": "refuse", "errors": errors}).decode())
        return
    for refusal in refusals:
        click.echo(f"tp: {_shown(str(refusal))}", err=True)
        if refusal.found not in (None, ""):
            click.echo(f"    found:   {_shown(str(refusal.found))}", err=True)
        if refusal.allowed:
            click.echo(f"    allowed: {_shown(refusal.allowed)}", err=True)
        click.echo(f"    mend:    {_shown(refusal.hint)}", err=True)


def _shown(text: str) -> str:
    """The text with escapes for what would steer a terminal or has no UTF-8: names and records come from other people, too."""
    from hpc.spec.text import escaped

    return escaped(text, keep="\n\t")


def _bug(exc: BaseException) -> int:
    import tempfile
    import traceback

    text = "".join(traceback.format_exception(exc))
    with tempfile.NamedTemporaryFile("w", prefix="tp-bug-", suffix=".txt", delete=False, encoding="utf-8") as stream:
        stream.write(f"tp {tuneplane.__version__} {sys.argv!r}\n{text}")
    click.echo(f"tp: this is our bug: {type(exc).__name__}: {exc}\n    details: {stream.name}", err=True)
    return exits.BUG


def _os_error(exc: OSError) -> Refusal | None:
    """What the machine refused, for a fault that is the machine's; None for one that we should have met where it arose."""
    from hpc.store.faults import is_machines, refusal

    try:
        os.getcwd()
    except OSError as gone:
        return refusal(gone, "the current folder", "go on")
    return refusal(exc, exc.filename or "output", "go on") if is_machines(exc) else None


def _streams() -> None:
    """Output that cannot fail for its letters; a stream that the caller closed leads nowhere."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - until the end of the process
        stream = getattr(sys, name)
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def _swift() -> None:
    """A short command ends before collecting garbage pays; and what is installed beside us has no say in what our models accept."""
    gc.set_threshold(100_000)
    os.environ["PYDANTIC_DISABLE_PLUGINS"] = "__all__"


def _interrupted(signum: int, frame: object) -> None:
    raise KeyboardInterrupt


def _signals() -> None:
    """A request to end, of `timeout`, cron or a closed terminal, is taken like Ctrl-C: what was begun is undone or recorded."""
    for signum in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(signum) == signal.SIG_DFL:
            signal.signal(signum, _interrupted)


def _nowhere() -> None:
    """What is still buffered for a stdout that takes no more is dropped, or the interpreter would complain at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def main(argv: list[str] | None = None) -> Any:
    """Run `tp`; never returns. Users' mistakes end with a code and a mend, never with a traceback."""
    args = sys.argv[1:] if argv is None else argv
    _streams()
    _signals()
    _swift()
    try:
        _require_words(args)
        result = cli.main(args=args, prog_name="tp", standalone_mode=False)
        code = result if isinstance(result, int) else exits.DONE
        sys.stdout.flush()
    except click.UsageError as exc:
        refusal = Refusal(
            "E-CLI-001", exc.format_message(), hint=f"see `{exc.ctx.command_path if exc.ctx else 'tp'} --help`"
        )
        report([refusal], as_json=_wants_json(args))
        code = exits.USAGE
    except click.exceptions.Exit as exc:
        code = exc.exit_code
    except (click.Abort, KeyboardInterrupt):
        report([Refusal("E-CLI-005", "interrupted")], as_json=_wants_json(args))
        code = 130
    except click.ClickException as exc:
        report([Refusal("E-CLI-001", exc.format_message())], as_json=_wants_json(args))
        code = exits.USAGE
    except Refusal as exc:
        report([exc], as_json=_wants_json(args))
        code = exc.exit
    except Refusals as exc:
        report(exc.items, as_json=_wants_json(args))
        code = exc.exit
    except BrokenPipeError:
        _nowhere()
        code = 141
    except OSError as exc:
        fault = _os_error(exc)
        if fault is not None:
            _nowhere()
            report([fault], as_json=False)
        code = fault.exit if fault is not None else _bug(exc)
    except Exception as exc:
        code = _bug(exc)
    sys.exit(code)


if __name__ == "__main__":
    main()
