"""`python -m tuneplane.evaluation`: questions of a file, answered and scored, as a job's package or the command line says.

Exit codes as in `tuneplane.evaluation.job`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from tuneplane.evaluation.job import (
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
from tuneplane.evaluation.settings import FIELDS, parse


def by_hand(argv: Sequence[str]) -> None:
    """An evaluation with what the command line says."""
    options = parser("python -m tuneplane.evaluation", "Ask a model and score its answers.", FIELDS)
    options.add_argument("--data", type=Path, required=True, help="JSONL rows: messages, or prompt and completion")
    args = options.parse_args(argv)
    settings = parse(given_settings(args, FIELDS))
    quiet(args.device)
    from tuneplane.evaluation.behaviour import evaluate
    from tuneplane.evaluation.request import Request

    request = Request(args.model, args.data, args.out, settings, path_of(settings.adapter), args.device)
    print_report(evaluate(request, say), args.json)


def in_job(env: Mapping[str, str]) -> None:
    """An evaluation with what launch.json says."""
    job = read_job(env, needs=("model", "validation"))
    settings = parse(job.launch.hyperparams)
    quiet(job.device)
    from tuneplane.evaluation.behaviour import suite

    data = job.launch.input_path("validation", job.place)
    assert data is not None
    run_job(job, [suite(settings, data, job.device, say)], settings.adapter)


def main(argv: Sequence[str] | None = None) -> NoReturn:
    program(argv, in_job, by_hand)


if __name__ == "__main__":
    main()
