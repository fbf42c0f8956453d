"""`spec.evaluation.on_checkpoint`: which checkpoints of a run are evaluated while it goes on, and what their evaluation is told. Pure.

Slurm has no dependency on a step of a job, and a compute node may not submit. So all evaluations are packed and queued at submission, as one array of
one run with an element a checkpoint, held; the training's own batch script releases an element once its checkpoint is published
(`sbatch_templates/checkpoints.sh.j2`). Elements run one at a time, on what one evaluation needs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from tuneplane.contract.checkpointed import MAX_CHECKPOINTS
from tuneplane.contract.followups import EVAL

from hpc.errors import Refusal, Refusals
from hpc.submit.engine import ENGINES

if TYPE_CHECKING:
    from hpc.catalog.recipes import Recipe
    from hpc.spec.jobspec import JobSpec
    from hpc.spec.parts import OnCheckpoint

FIELD: Final = "spec.evaluation.on_checkpoint"
SUITES: Final = ("behaviour",)
"""What can be asked of a checkpoint while the run goes on."""


def asked(spec: JobSpec, recipe: Recipe) -> OnCheckpoint | None:
    """What a spec asks for; None for a run that is an evaluation itself, which trains nothing."""
    return spec.spec.evaluation.on_checkpoint if recipe.typed.category != "evaluation" else None


def steps_of(wanted: Mapping[str, Any], hyperparams: Mapping[str, Any]) -> list[int]:
    """The steps whose checkpoints are evaluated: every `every_steps` up to `max_steps`, none before `warmup_steps`."""
    every, first = int(wanted["every_steps"]), int(wanted.get("warmup_steps") or 0)
    return [step for step in range(every, int(hyperparams["max_steps"]) + 1, every) if step >= first]


def words(evaluation: Mapping[str, Any]) -> dict[str, Any]:
    """`spec.evaluation` of the evaluations: suites and limit. Gates and baseline stay with the evaluation of what the run left."""
    at = evaluation["on_checkpoint"]
    return {
        "suites": list(at.get("suites") or evaluation["suites"]),
        **({"limit": at["limit"]} if at.get("limit") else {}),
    }


def array_of(steps: list[int]) -> str:
    """The array's indices: an element a step, one at a time, so that a run's evaluations hold no more than one."""
    return f"0-{len(steps) - 1}%1" if len(steps) > 1 else "0"


def refusals(spec: JobSpec, recipe: Recipe, options: Mapping[str, Any], *, fleet: str, kind: str) -> list[Refusal]:
    """Why checkpoints of the run cannot be evaluated as the spec asks; [] if they can. `fleet` is the run's, `kind` its kind."""
    wanted = asked(spec, recipe)
    if wanted is None:
        return []

    def no(message: str, name: str, found: Any, allowed: str, hint: str = "") -> Refusal:
        field = f"{FIELD}.{name}" if name else FIELD
        return Refusal("E-SUBMIT-098", message, field=field, found=found, allowed=allowed, hint=hint)

    out = []
    if recipe.framework not in ENGINES or EVAL not in recipe.actions:
        allowed = " or ".join(f"{name}/*" for name in ENGINES)
        out.append(
            no(
                f"nothing here evaluates checkpoints of {recipe.id}",
                "",
                recipe.id,
                f"a method of {allowed} whose answers can be evaluated",
            )
        )
    if kind != "slurm":
        hint = "`tp eval run RUN` evaluates what the run left"
        out.append(no(f"the fleet {fleet} runs one job and holds none", "", kind, "a Slurm fleet", hint))
    if options.get("array"):
        out.append(no("an array has no follow-ups", "", str(options["array"]), "a single job"))
    if wanted.fleet not in ("", fleet):
        out.append(no("a checkpoint is evaluated where its run trains", "fleet", wanted.fleet, fleet))
    if wanted.repetitions > 1:
        out.append(no("a checkpoint is evaluated once", "repetitions", wanted.repetitions, "1"))
    suites = wanted.suites or spec.spec.evaluation.suites
    if odd := [suite for suite in suites if suite not in SUITES]:
        hint = f"on_checkpoint: {{suites: [{SUITES[0]}]}}; benchmarks are asked of what the run left"
        out.append(no("is not asked of a checkpoint", "suites", ", ".join(odd), ", ".join(SUITES), hint))
    if out or spec.spec.data.validation is None:
        return out + ([] if out else _rows())
    try:
        hyperparams = recipe.resolve(dict(spec.spec.hyperparams), spec.spec.framework.version)
    except (Refusal, Refusals):
        return []  # values that are wrong are refused as such
    return _step_refusals(wanted.model_dump(), hyperparams)


def _rows() -> list[Refusal]:
    message, allowed = "an evaluation asks the validation rows", "--validation-data, --validation-dataset"
    return [Refusal("E-SUBMIT-061", message, field="spec.data.validation", found="not given", allowed=allowed)]


def _step_refusals(wanted: Mapping[str, Any], hyperparams: Mapping[str, Any]) -> list[Refusal]:
    """Steps that no checkpoint will have, none at all, or too many."""
    every, saves, last = int(wanted["every_steps"]), int(hyperparams["save_steps"]), int(hyperparams["max_steps"])

    def no(message: str, field: str, found: Any, allowed: str, hint: str = "") -> list[Refusal]:
        return [Refusal("E-SUBMIT-098", message, field=field, found=found, allowed=allowed, hint=hint)]

    if not last:
        hint = "`tp plan EXP` says how many steps the epochs make; set max_steps to that"
        return no(
            "how many checkpoints there will be is not known", "hyperparams.max_steps", 0, "the number of steps", hint
        )
    if not saves or every % saves:
        found, allowed = f"save_steps {saves}", f"save_steps {every}, or another that {every} is a multiple of"
        return no(f"no checkpoint is saved at every {every} steps", f"{FIELD}.every_steps", found, allowed)
    steps = steps_of(wanted, hyperparams)
    if not steps:
        name, unit = ("every_steps", saves) if every > last else ("warmup_steps", every)
        message, allowed = f"there is no such step up to max_steps {last}", f"at most {last // unit * unit}"
        return no(message, f"{FIELD}.{name}", wanted[name], allowed)
    if len(steps) > MAX_CHECKPOINTS:
        least = -(-last // MAX_CHECKPOINTS)
        allowed = f"at most {MAX_CHECKPOINTS}: every_steps {-(-least // saves) * saves} or more"
        return no("too many checkpoints to evaluate", f"{FIELD}.every_steps", f"{len(steps)} checkpoints", allowed)
    return []
