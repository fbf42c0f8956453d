"""What the programs of evaluation share: the package as a job's rank reads it, suites asked of what it names, result.json, and the ends.

Exit codes: 0 done, 1 refused or failed, 64 wrong usage, 85 warned in between (all answers so far are kept, a later start goes on).
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from tuneplane.contract import exits
from tuneplane.contract.followups import CANDIDATE, CHECKPOINT, read_late
from tuneplane.evaluation.settings import ALL, NONE
from tuneplane.record.canonical import canonical_text
from tuneplane.record.files import read_json, replace_json
from tuneplane.training import warning
from tuneplane.training.place import Launch, Place
from tuneplane.training.program import leave
from tuneplane.training.refusals import Refused, refuse
from tuneplane.training.settings import Field

if TYPE_CHECKING:
    from tuneplane.evaluation.followup import Suite

RESULT_SCHEMA = "tuneplane-hpc/evaluation-result/v1"


@dataclass(frozen=True)
class Job:
    """A rank's place, its package, `spec.evaluation`, and what the launcher found in other runs."""

    place: Place
    launch: Launch
    wanted: Mapping[str, Any]
    late: Mapping[str, Mapping[str, Any]]

    @property
    def kept(self) -> Path:
        return self.place.checkpoint_dir / "evaluation"

    @property
    def device(self) -> str:
        return "cuda" if self.launch.gpus_per_node else "cpu"


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def read_job(env: Mapping[str, str], needs: Sequence[str]) -> Job:
    """The package of this job, with the inputs `needs`. Raises Refused E-EVAL-032 for more than one rank, E-TRAIN-… for a package that is none."""
    place = Place.from_env(env)
    if place.world_size != 1:
        found = f"{place.world_size} ranks"
        raise refuse("E-EVAL-032", "more than one rank", field="launch.json: shape", found=found, allowed="1 rank")
    launch = Launch.read(place, needs=needs)
    spec = place.work_dir / ".tuneplane" / "jobspec.json"
    try:
        body = read_json(spec)["spec"]
    except FileNotFoundError:
        body = {}  # a work folder made by hand
    except (OSError, ValueError, KeyError, TypeError) as exc:
        raise refuse("E-TRAIN-003", f"cannot be read: {exc}", field=os.fspath(spec)) from exc
    return Job(place, launch, body.get("evaluation") or {}, read_late(place.out_dir.parent / "late.json"))


def run_job(job: Job, suites: Sequence[Suite], adapter: str) -> None:
    """Ask every suite of what the job is about: an artefact of another run, with its baseline and gates, or the model that was given.

    What is kept between attempts lies beside the run's checkpoints.
    """
    from tuneplane.evaluation.followup import (
        PROGRESS,
        Subject,
        Where,
        evaluate_all,
        finished_baselines,
        place_of,
        subjects,
    )

    place, out = job.place, job.place.out_dir
    if job.late and job.late[CANDIDATE]["artefact"] == CHECKPOINT:
        from tuneplane.evaluation.checkpointed import run_checkpoint

        run_checkpoint(job, suites)
        return
    if job.late:
        candidate, baseline = subjects(job.wanted, job.late, job.launch.inputs)
        earlier = partial(finished_baselines, place.run_dir)
        done = evaluate_all(suites, candidate, baseline, job.wanted, say, out=out, kept=job.kept, earlier=earlier)
        say(f"{done['verdict']['verdict']}: {done['verdict']['reason']}")
    else:
        model = job.launch.input_path("model", place)
        assert model is not None
        given = Subject(model, path_of(adapter), tuple(job.launch.inputs["model"].get("files", ())))
        named = [(place_of(s.name, suites, out), place_of(s.name, suites, job.kept)) for s in suites]
        wheres = [Where(folder, keep, log=out / PROGRESS) for folder, keep in named]
        done = {"reports": [s.ask(given, where) for s, where in zip(suites, wheres, strict=True)]}
    write_result(job, done)


def write_result(job: Job, done: Mapping[str, Any], **more: Any) -> None:
    """result.json of reports, and what else there is to say of them."""
    from tuneplane.evaluation.followup import result_of

    replace_json(job.place.out_dir / "result.json", {"schema": RESULT_SCHEMA, **result_of(done), **more})
    for report in done["reports"]:
        score, rate = (report["metrics"][key]["value"] for key in ("score", "pass_rate"))
        say(f"{report['suite']}: {report['decides']} {score:.4f}, pass rate {rate:.4f}")


def path_of(text: str) -> Path | None:
    """A setting that names a folder; None for the word `none`."""
    return None if text == NONE else Path(os.path.expanduser(text))


def quiet(device: str) -> None:
    """No network and no chatter, before the heavy imports."""
    from tuneplane.training.model import quiet_libraries

    os.environ.setdefault("TQDM_DISABLE", "1")  # bars are for terminals
    quiet_libraries("cuda" if device == "cuda" else "cpu")


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(exits.USAGE, f"{self.prog}: {message}\n")


def parser(prog: str, description: str, fields: Sequence[Field]) -> argparse.ArgumentParser:
    """The options that both programs have, with one for each setting."""
    out = _Parser(prog=prog, description=description)
    out.add_argument("--model", type=Path, required=True, help="Hugging Face folder with safetensors")
    out.add_argument("--out", type=Path, required=True, help="folder for report, scores and predictions")
    out.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    out.add_argument("--json", action="store_true", help="print the report as one line of JSON")
    for field in fields:
        flag = f"--{field.name.replace('_', '-')}"
        word = "" if field.default in (NONE, ALL) else f" (default {field.default})"
        text = f"{field.doc}{word}".replace("%", "%%")
        if field.kind == "bool":
            out.add_argument(flag, action="store_true", default=None, help=text)
        else:
            out.add_argument(flag, type={"int": int, "float": float}.get(field.kind, str), default=None, help=text)
    return out


def given_settings(args: argparse.Namespace, fields: Sequence[Field]) -> dict[str, Any]:
    """The settings that the command line states."""
    return {f.name: value for f in fields if (value := getattr(args, f.name)) is not None}


def print_report(report: Mapping[str, Any], as_json: bool) -> None:
    if as_json:
        print(canonical_text(report))
        return
    width = max(map(len, report["metrics"]))
    for key, metric in report["metrics"].items():
        around = "" if metric["low"] is None else f"[{metric['low']:.4f}, {metric['high']:.4f}]"
        print(f"{key:<{width}} {metric['value']:<10.4f} {around:<18}  n {metric['n']}")


def program(
    argv: Sequence[str] | None, in_job: Callable[[Mapping[str, str]], None], by_hand: Callable[[Sequence[str]], None]
) -> NoReturn:
    """In a job with what the package says, else with what the command line says."""
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
        say(f"refused\n{exc}")
        leave(exits.REFUSED)
    except warning.Warned as exc:
        say(f"warned by {exc}; every answer so far is kept, a later start goes on")
        leave(exits.PREEMPTED)
    say("done")
    leave(exits.DONE)
