"""`python -m tuneplane.evaluation`: in a job with what the package says, else with what the command line says.

Exit codes: 0 done, 1 refused or failed, 64 wrong usage, 85 warned in between (all answers so far are kept, a later start goes on).
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from tuneplane.contract import exits
from tuneplane.contract.followups import read_late
from tuneplane.evaluation.settings import ALL, FIELDS, NONE, parse
from tuneplane.record.canonical import canonical_text
from tuneplane.record.files import read_json, replace_json
from tuneplane.training import warning
from tuneplane.training.place import Launch, Place
from tuneplane.training.program import leave
from tuneplane.training.refusals import Refused, refuse

if TYPE_CHECKING:
    from tuneplane.evaluation.behaviour import Request

RESULT_SCHEMA = "tuneplane-hpc/evaluation-result/v1"


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(exits.USAGE, f"{self.prog}: {message}\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="python -m tuneplane.evaluation", description="Ask a model and score its answers.")
    parser.add_argument("--model", type=Path, required=True, help="Hugging Face folder with safetensors")
    parser.add_argument("--data", type=Path, required=True, help="JSONL rows: messages, or prompt and completion")
    parser.add_argument("--out", type=Path, required=True, help="folder for report, scores and predictions")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--json", action="store_true", help="print the report as one line of JSON")
    for field in FIELDS:
        kind = {"int": int, "float": float}.get(field.kind, str)
        word = "" if field.default in (NONE, ALL) else f" (default {field.default})"
        parser.add_argument(
            f"--{field.name.replace('_', '-')}", type=kind, default=None, help=f"{field.doc}{word}".replace("%", "%%")
        )
    return parser


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def by_hand(argv: Sequence[str]) -> None:
    """An evaluation with what the command line says."""
    args = _parser().parse_args(argv)
    given = {f.name: value for f in FIELDS if (value := getattr(args, f.name)) is not None}
    settings = parse(given)
    _quiet(args.device)
    from tuneplane.evaluation.behaviour import Request, evaluate

    request = Request(args.model, args.data, args.out, settings, _path(settings.adapter), args.device)
    report = evaluate(request, _say)
    if args.json:
        print(canonical_text(report))
        return
    for key, metric in report["metrics"].items():
        around = "" if metric["low"] is None else f"[{metric['low']:.4f}, {metric['high']:.4f}]"
        print(f"{key:<18} {metric['value']:<10.4f} {around:<18}  n {metric['n']}")


def in_job(env: Mapping[str, str]) -> None:
    """An evaluation with what launch.json says. One rank; what is kept between attempts lies beside the run's checkpoints."""
    place = Place.from_env(env)
    if place.world_size != 1:
        found = f"{place.world_size} ranks"
        raise refuse("E-EVAL-032", "more than one rank", field="launch.json: shape", found=found, allowed="1 rank")
    launch = Launch.read(place, needs=("model", "validation"))
    settings = parse(launch.hyperparams)
    device = "cuda" if launch.gpus_per_node else "cpu"
    _quiet(device)
    from tuneplane.evaluation.behaviour import Request, evaluate

    model, data = launch.input_path("model", place), launch.input_path("validation", place)
    assert model is not None
    assert data is not None
    request = Request(
        model,
        data,
        place.out_dir,
        settings,
        _path(settings.adapter),
        device,
        keep=place.checkpoint_dir / "evaluation",
        model_files=launch.inputs["model"].get("files", ()),
    )
    late = read_late(place.out_dir.parent / "late.json")
    if late:
        report, more = _follow(place, launch, request, late)
    else:
        report, more = evaluate(request, _say), {}
    numbers = {key: metric["value"] for key, metric in report["metrics"].items()}
    result = {"schema": RESULT_SCHEMA, "suite": report["suite"], "metrics": numbers, **more}
    replace_json(place.out_dir / "result.json", result)
    _say(f"{report['suite']}: {report['decides']} {numbers['score']:.4f}, pass rate {numbers['pass_rate']:.4f}")


def _follow(place: Place, launch: Launch, request: Request, late: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Candidate and baseline, and what the gates say: (the candidate's report, what result.json says besides)."""
    from tuneplane.evaluation.followup import evaluate_both, finished_baselines, subject

    wanted = read_json(place.work_dir / ".tuneplane" / "jobspec.json")["spec"].get("evaluation", {})
    candidate, baseline = subject(late["candidate"], launch.inputs["model"], "candidate"), None
    if wanted.get("baseline"):
        given = launch.inputs.get("baseline") or launch.inputs["model"]
        baseline = subject(late.get("baseline"), given, "baseline")
    done = evaluate_both(request, candidate, baseline, wanted, _say, earlier=finished_baselines(place.run_dir))
    verdict = done["verdict"]
    before = done["baseline"] and {key: metric["value"] for key, metric in done["baseline"]["metrics"].items()}
    _say(f"{verdict['verdict']}: {verdict['reason']}")
    return done["report"], {"verdict": verdict["verdict"], "reason": verdict["reason"], "baseline": before}


def _path(text: str) -> Path | None:
    return None if text == NONE else Path(os.path.expanduser(text))


def _quiet(device: str) -> None:
    from tuneplane.training.model import quiet_libraries

    quiet_libraries("cuda" if device == "cuda" else "cpu")


def main(argv: Sequence[str] | None = None) -> NoReturn:
    words = sys.argv[1:] if argv is None else list(argv)
    warning.install()
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)
    try:
        if not words and os.environ.get("TUNEPLANE_WORK_DIR"):
            in_job(os.environ)
        else:
            by_hand(words)
    except Refused as exc:
        _say(f"refused\n{exc}")
        leave(exits.REFUSED)
    except warning.Warned as exc:
        _say(f"warned by {exc}; every answer so far is kept, a later start goes on")
        leave(exits.PREEMPTED)
    _say("done")
    leave(exits.DONE)


if __name__ == "__main__":
    main()
