"""`tp eval`: what evaluations reported, what changed between two, and whether the gates pass."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from tuneplane.contract import exits
from tuneplane.contract.evaluation import REPORT
from tuneplane.contract.followups import SUITES_FOLDER, report_folders
from tuneplane.contract.layout import RUN_ID

from hpc.cli.context import GivenPath, json_option, print_json, table
from hpc.cli.evaluate_run import list_evaluations, run_evaluation
from hpc.spec.text import escaped

if TYPE_CHECKING:
    from tuneplane.contract.gates import Verdict

    from hpc.errors import Refusal
    from hpc.evaluate.compare import Comparison, Example
    from hpc.evaluate.reports import Metric, Report

SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 110}
_PATH = GivenPath()


class _ReportPath(GivenPath):
    """A report's folder or file, or the id of the evaluation run that made it: the newest attempt's. RUN/SUITE names one of several suites,
    RUN/N the element of an array, as that of a checkpoint."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        path = super().convert(value, param, ctx)
        if path.exists() or not RUN_ID.match(path.parts[0] if path.parts else "") or len(path.parts) > 2:
            return path
        return _report_of(path.parts[0], path.parts[1] if len(path.parts) > 1 else "", param)


def _report_of(word: str, inside: str, param: click.Parameter | None) -> Path:
    """The folder of a run's report, or with `inside` of one of its suites or elements. Raises Refusal E-EVAL-040 where it has none."""
    from hpc.cli.context import current_user, storage_root
    from hpc.errors import Refusal
    from hpc.runs.find import resolve
    from hpc.runs.records import numbers

    whole = run = resolve(storage_root(), word, current_user())
    field, named = (param.human_readable_name if param else "REPORT"), ""

    def no(message: str, allowed: str, hint: str) -> Refusal:
        return Refusal("E-EVAL-040", message, field=field, found=f"{whole.run_id}{named}", allowed=allowed, hint=hint)

    if run.array.is_dir():
        elements = numbers(run.array)
        if not inside.isascii() or not inside.isdecimal() or int(inside) not in elements:
            named = f"/{inside}" if inside else ""
            allowed = ", ".join(f"{whole.run_id}/{n}" for n in elements[:8]) or "none has begun"
            raise no("is an array: each element has its report", allowed, f"tp eval ls {whole.run_id}")
        run, named, inside = run.element(int(inside)), f"/{int(inside)}", ""
    attempts = numbers(run.attempts)
    folders = [f for f in report_folders(run.attempt(attempts[-1]).out) if (f / REPORT).is_file()] if attempts else []
    if not folders:
        raise no("has made no report", "the run of an evaluation that is done", f"tp job status {whole.run_id}")
    if not inside:
        return run.attempt(attempts[-1]).out
    suites = {_suite_of(folder): folder for folder in folders}
    if inside not in suites:
        named = f"/{inside}"
        raise no(
            "is none of its suites", ", ".join(f"{whole.run_id}/{s}" for s in suites), f"tp eval show {whole.run_id}"
        )
    return suites[inside]


def _suite_of(folder: Path) -> str:
    """The suite of a report: the folder's name where the evaluation had several, else what the report says."""
    from hpc.evaluate.reports import read_report

    return folder.name if folder.parent.name == SUITES_FOLDER else read_report(folder).suite


_REPORT = _ReportPath()


@click.group("eval", context_settings=SETTINGS)
def evaluation() -> None:
    """Evaluations: run, ls, show, compare, gate. A report is its folder or file, or the run that made it (RUN/SUITE, RUN/N)."""


evaluation.add_command(run_evaluation)
evaluation.add_command(list_evaluations)


@evaluation.command()
@click.argument("report", type=_REPORT)
@json_option
def show(report: Path, as_json: bool) -> int:
    """Show a report's numbers and what they rest on, of several suites each. Exit code 1 if it contradicts its own files."""
    from hpc.evaluate.reports import faults_of, read_report

    found = [(one, faults_of(one)) for one in map(read_report, _folders(report))]
    if as_json:
        told = [{**o.value, "folder": str(o.folder), "faults": [f.as_json() for f in faults]} for o, faults in found]
        print_json(told[0] if len(told) == 1 else {"reports": told})
    else:
        for one, faults in found:
            _print_report(one, faults)
    return exits.REFUSED if any(faults for _, faults in found) else exits.DONE


def _folders(given: Path) -> list[Path]:
    """The reports that an argument means: that one, or those of all suites of an evaluation."""
    return report_folders(given) if given.is_dir() else [given]


def _one(given: Path) -> Path:
    """The only report that an argument means. Raises Refusal E-EVAL-046 where there are several suites."""
    from hpc.errors import Refusal

    folders = _folders(given)
    if len(folders) > 1:
        names = [f.name for f in folders]
        hint = f"name one: RUN/{names[0]}, or the folder {folders[0]}"
        raise Refusal(
            "E-EVAL-046", "holds reports of several suites", field="REPORT", found=", ".join(names), hint=hint
        )
    return folders[0]


def _print_report(found: Report, faults: list[Refusal]) -> None:
    from hpc.cli.main import report as complain

    click.echo(_headline(found))
    click.echo(table([[key, *_numbers(found.metrics[key])] for key in found.keys], ["METRIC", "VALUE", "95 %", "N"]))
    complain(faults, as_json=False)


def _headline(report: Report) -> str:
    value, basis = report.value, report.basis
    adapter = value.get("adapter")
    lines = [
        f"{report.suite}  decides by {report.decides}  {value.get('created_at', '')}",
        f"  model    {value.get('model')}  {_short(basis.get('model'))}",
        *([f"  adapter  {adapter}  {_short(basis.get('adapter'))}"] if adapter else []),
        f"  rows     {_rows(value.get('data'))}  {_short(basis.get('data'))}",
        f"  settings {_short(basis.get('settings'))}",
        *(["  cached: the answers are those of an earlier evaluation on the same basis"] if "cached" in value else []),
    ]
    return escaped("\n".join(lines), keep="\n")


def _rows(data: Any) -> str:
    if not isinstance(data, dict):
        return "unknown"
    return f"{data.get('used')} of {data.get('rows')} in {data.get('path')}"


def _short(digest: Any) -> str:
    return str(digest)[:19]


def _numbers(metric: Metric) -> list[str]:
    around = "" if metric.low is None or metric.high is None else f"{metric.low:.4g} – {metric.high:.4g}"
    return [f"{metric.value:.4g}", around, str(metric.n)]


@evaluation.command()
@click.argument("before", type=_REPORT)
@click.argument("after", type=_REPORT)
@click.option("--by", default="", metavar="METRIC", help="Pass an example where this metric is 1.")
@click.option("--examples", type=click.IntRange(0, 1000), default=10, show_default=True, help="Of each kind of change.")
@json_option
def compare(before: Path, after: Path, by: str, examples: int, as_json: bool) -> None:
    """Compare two reports, paired by question: what was fixed or broken, and by how much each metric moved."""
    from hpc.evaluate.compare import compare as judge
    from hpc.evaluate.reports import read_report

    found = judge(read_report(_one(before)), read_report(_one(after)), by=by, examples=examples)
    if as_json:
        print_json(found.as_json())
    else:
        print_comparison(found)


def print_comparison(found: Comparison) -> None:
    rows = [
        [
            key,
            f"{d.before:.4g}",
            f"{d.after:.4g}",
            f"{d.difference:+.4g}",
            "" if d.low is None or d.high is None else f"{d.low:+.4g} – {d.high:+.4g}",
            d.verdict,
        ]
        for key, d in found.metrics.items()
    ]
    click.echo(table(rows, ["METRIC", "BEFORE", "AFTER", "CHANGE", "95 %", ""]))
    apart = [
        f"{n} only in the {w} report" for n, w in ((found.only_before, "first"), (found.only_after, "second")) if n
    ]
    click.echo(f"\n{found.shared} examples in both{''.join(f', {text}' for text in apart)}; by {escaped(found.by)}:")
    click.echo(
        f"  fixed {found.fixed}, broken {found.broken}, same {found.passed_both + found.failed_both} "
        f"({found.passed_both} passed, {found.failed_both} failed)"
    )
    for example in found.examples:
        click.echo(escaped(_example(example), keep="\n"))
    for note in found.notes:
        click.echo(f"note: {escaped(note)}")


def _example(example: Example) -> str:
    where = f"line {example.line}" if example.line is not None else example.id
    texts = [("question", example.question), ("before", example.before), ("after", example.after)]
    lines = [f"    {name:<9}{' '.join(text.split())[:90]}" for name, text in texts if text is not None]
    return "\n".join([f"  {example.change}: {where}", *lines])


@evaluation.command()
@click.argument("reports", type=_REPORT, nargs=-1, metavar="REPORT...")
@click.option(
    "--config",
    type=_PATH,
    default=None,
    metavar="FILE|FOLDER",
    help="A config.yaml, its folder (experiments/EXP), or a JobSpec.",
)
@click.option(
    "--baseline", type=_REPORT, multiple=True, metavar="REPORT", help="What max_regression compares with; one a suite."
)
@click.option("--general", multiple=True, metavar="SUITE[=S,P]", help="Score and pass rate may drop by 0.03 and 0.05.")
@json_option
def gate(
    reports: tuple[Path, ...], config: Path | None, baseline: tuple[Path, ...], general: tuple[str, ...], as_json: bool
) -> int:
    """Judge reports by a config's gates, one report a suite. Exit code 0 only if every gate passed.

    A report that contradicts its own files is refused.
    """
    from hpc.errors import Refusals
    from hpc.evaluate.decide import decide, parse_budget
    from hpc.evaluate.reports import faults_of, read_report
    from hpc.evaluate.wanted import parse_evaluation

    wanted = parse_evaluation(_section(config) if config else None)
    budgets = [g for text in general for g in parse_budget(text)]
    given = [[folder for path in paths for folder in _folders(path)] for paths in (reports, baseline)]
    candidates, baselines = ([read_report(p) for p in paths] for paths in given)
    if faults := [fault for report in (*candidates, *baselines) for fault in faults_of(report)]:
        raise Refusals(faults)
    found = decide(wanted, candidates, baselines, budgets)
    if as_json:
        print_json(found.as_json())
    else:
        _print_verdict(found)
    return exits.DONE if found.state == "passed" else exits.REFUSED


def _section(path: Path) -> Any:
    """The `eval:` section of a config with its `defaults:`, or `spec.evaluation` of a JobSpec."""
    from hpc.errors import Refusal
    from hpc.project.config import CONFIG_NAME, load_config
    from hpc.project.project import read_yaml

    folder = path if path.is_dir() else path.parent
    if path.is_dir() and not (path / CONFIG_NAME).is_file():
        raise Refusal("E-EVAL-048", f"there is no {CONFIG_NAME} in it", field="--config", found=str(path))
    if path.is_dir() or (path.name == CONFIG_NAME and path.is_file()):
        value: Any = load_config(folder)
    else:
        value = read_yaml(path, "--config", "E-EVAL-048")
    if isinstance(value, dict) and isinstance(value.get("spec"), dict):
        return value["spec"].get("evaluation")
    return value.get("eval") if isinstance(value, dict) else None


def _print_verdict(found: Verdict) -> None:
    rows = [["passed" if g.passed else "FAILED", escaped(g.metric), escaped(g.reason)] for g in found.gates]
    if rows:
        click.echo(table(rows, ["GATE", "METRIC", "WHY"]))
    click.echo(f"{found.state}: {escaped(found.reason)}")
