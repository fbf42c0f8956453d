"""`python -m tuneplane.evaluation.suites`: benchmarks by lm-eval, and rows by the behaviour evaluator beside them.

In a job the suites are those of `spec.evaluation.suites`. A benchmark is looked for in the experiment (`benchmarks/<name>/`), then among the packs
that travel (`tuneplane_plugins/<name>/`); `behaviour` asks the validation rows with the settings of the config's section of that name. By hand it is
one folder. Exit codes as in `tuneplane.evaluation.job`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from tuneplane.contract.benchmarks import DECLARATION, FOLDER, PACKS
from tuneplane.contract.evaluation import BEHAVIOUR
from tuneplane.evaluation.benchmark_settings import FIELDS, Settings, parse
from tuneplane.evaluation.job import (
    Job,
    given_settings,
    parser,
    path_of,
    print_report,
    program,
    quiet,
    read_job,
    run_job,
    say,
)
from tuneplane.evaluation.settings import parse as parse_behaviour
from tuneplane.training.refusals import refuse

if TYPE_CHECKING:
    from tuneplane.evaluation.followup import Suite


def by_hand(argv: Sequence[str]) -> None:
    """A benchmark with what the command line says."""
    options = parser("python -m tuneplane.evaluation.suites", "Ask a model a benchmark's questions by lm-eval.", FIELDS)
    options.add_argument("--benchmark", type=Path, required=True, help=f"folder with {DECLARATION} and tasks/")
    args = options.parse_args(argv)
    settings = parse(given_settings(args, FIELDS))
    quiet(args.device)
    from tuneplane.evaluation.benchmark import evaluate
    from tuneplane.evaluation.request import Request

    request = Request(args.model, args.benchmark, args.out, settings, path_of(settings.adapter), args.device)
    print_report(evaluate(request, say), args.json)


def in_job(env: Mapping[str, str]) -> None:
    """Every suite of the package."""
    job = read_job(env, needs=("model",))
    settings = parse(job.launch.hyperparams)
    names = [str(name) for name in job.wanted.get("suites", ())]
    if not names:
        raise refuse("E-EVAL-063", "names none", field="spec.evaluation.suites", allowed="the name of a benchmark")
    quiet(job.device)
    run_job(job, [_suite(job, name, settings) for name in names], settings.adapter)


def _suite(job: Job, name: str, settings: Settings) -> Suite:
    if name == BEHAVIOUR:
        from tuneplane.evaluation.behaviour import suite as behaviour

        data = job.launch.input_path("validation", job.place)
        if data is None:
            raise refuse("E-EVAL-063", "there are no validation rows to ask", field="launch.json: inputs.validation")
        given = {**(job.launch.config.get(BEHAVIOUR) or {}), "suite": name}
        given |= {"max_rows": settings.limit} if settings.limit else {}
        return behaviour(parse_behaviour(given), data, job.device, say)
    from tuneplane.evaluation.benchmark import suite

    return suite(name, folder_of(job, name), settings, job.device, say)


def folder_of(job: Job, name: str) -> Path:
    """Where a benchmark lies in the package. Raises Refused E-EVAL-063 where it does not."""
    places = (job.place.exp_dir / FOLDER / name, job.place.work_dir / PACKS / name)
    found = next((p for p in places if (p / DECLARATION).is_file()), None)
    if found is None:
        looked = " and ".join(os.fspath(p) for p in places)
        raise refuse(
            "E-EVAL-063",
            f"is no benchmark of this package; looked for in {looked}",
            field="spec.evaluation.suites",
            found=name,
        )
    return found


def main(argv: Sequence[str] | None = None) -> NoReturn:
    program(argv, in_job, by_hand)


if __name__ == "__main__":
    main()
