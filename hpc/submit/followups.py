"""What follows a run: which actions a spec asks for, and the spec and launch.json of the run that does one. Pure; admission derives the same again.

A follow-up is a run of its own, made from the package of the run that it follows (the parent) and from nothing else: the parent's code, model, data,
profile and settings on one rank. What it works on does not exist when it is packed; launch.json names it as a late input, which the job compares
with the records of the run that made it. An export follows its parent; an evaluation follows the export where there is one, else the parent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tuneplane.contract.evaluation import BEHAVIOUR
from tuneplane.contract.followups import ACTIONS, BASELINE, CANDIDATE, CHECKPOINT, CHECKPOINTS, EVAL
from tuneplane.contract.layout import RunPaths

from hpc.errors import Refusal, Refusals
from hpc.spec.refs import parse_init_from
from hpc.submit import checkpointed, suites
from hpc.submit.flags import JOB_SECTIONS

if TYPE_CHECKING:
    from hpc.catalog.recipes import Recipe
    from hpc.spec.jobspec import JobSpec

EVALUATOR: Final = suites.EVALUATOR
SUITE: Final = BEHAVIOUR
ASKABLE: Final = ("baseline", "limit")
"""What `tp eval run` may ask for instead of the run's own words. Such an evaluation informs; it decides nothing."""
_SLURM: Final = (
    "time", "partition", "account", "qos", "constraint", "reservation", "nice", "mail_type", "mail_user", "exclude", "nodelist", "mem",
    "requeue", "comment",
)  # fmt: skip
"""What a follow-up's job takes over from its parent's; arrays, dependencies, start times and whole nodes are the parent's own."""


@dataclass(frozen=True)
class Source:
    """A run whose artefact is taken: `final` of a training, `export` of an export, or `checkpoint` with the `steps` of the elements."""

    run: RunPaths
    artefact: str
    package_digest: str
    steps: tuple[int, ...] = ()

    def as_json(self) -> dict[str, Any]:
        named = {"run_id": self.run.run_id, "exp": self.run.exp}
        steps = {"steps": list(self.steps)} if self.steps else {}
        return {**named, "artefact": self.artefact, "package_digest": self.package_digest, **steps}


@dataclass(frozen=True)
class Parent:
    """The run that is followed, by the records of its package. `works`: where its job may find that package.

    `asked`: what an evaluation that somebody asked for later takes instead of the run's own words (ASKABLE).
    """

    run: RunPaths
    document: Mapping[str, Any]
    launch: Mapping[str, Any]
    package_digest: str
    works: tuple[str, ...]
    asked: Mapping[str, Any] = field(default_factory=dict)
    packs: tuple[str, ...] = ()
    """Ids of the benchmark packs among its plugins."""
    sources: Path | None = None
    """The experiment's folder, where its package is not written yet."""

    @property
    def folder(self) -> Path:
        """The experiment's folder, in which names of the spec are looked up."""
        return self.sources or self.run.work / str(self.document["spec"]["source"]["exp"])

    @property
    def final(self) -> Source:
        return Source(self.run, "final", self.package_digest)

    @property
    def checkpoints(self) -> Source:
        """The checkpoints that the run's own words have evaluated."""
        wanted = self.document["spec"]["evaluation"]["on_checkpoint"]
        steps = checkpointed.steps_of(wanted, self.launch["hyperparams"])
        return Source(self.run, CHECKPOINT, self.package_digest, tuple(steps))

    @property
    def evaluation(self) -> Mapping[str, Any]:
        """`spec.evaluation` of the evaluation: what the run says, and what was asked for later."""
        found = {"suites": [SUITE], **self.document["spec"].get("evaluation", {}), **self.asked}
        return {key: value for key, value in found.items() if key != "on_checkpoint"}

    @property
    def evaluator(self) -> str:
        """The method that asks the suites of the evaluation."""
        return suites.evaluator_of(self.evaluation["suites"])


@dataclass(frozen=True)
class Derived:
    """The spec document of a follow-up and what its launch.json says beyond the rules for every job."""

    document: dict[str, Any]
    given: dict[str, Any]


def wanted(spec: JobSpec, recipe: Recipe) -> list[str]:
    """The actions that a spec asks for, in the order in which they run: an evaluation is asked for by its suites, too.

    A run that is an evaluation itself keeps suites and gates for whoever judges it by hand.
    """
    by_suites = bool(spec.spec.evaluation.suites) and recipe.typed.category != "evaluation"
    asked = {*spec.spec.lifecycle.on_success, *([EVAL] if by_suites else [])}
    return [action for action in ACTIONS if action in asked]


def sections(recipe: Recipe) -> tuple[str, ...]:
    """Sections of a config that are read beside the recipe's parameters: those of the job, and those of what may follow it."""
    if recipe.id == suites.BENCHMARK:
        return (*JOB_SECTIONS, suites.SECTIONS[EVALUATOR])  # rows that are asked beside the benchmarks
    return (*JOB_SECTIONS, *suites.SECTIONS.values()) if EVAL in recipe.actions else JOB_SECTIONS


def settings_refusals(config: Mapping[str, Any], recipe: Recipe, get: Callable[[str], Recipe]) -> list[Refusal]:
    """What is wrong with the settings of an evaluation that may follow; `get` is asked for a method where a config has some of it."""
    from hpc.project.check import unread_keys

    out: list[Refusal] = []
    for method, name in suites.SECTIONS.items() if EVAL in recipe.actions else ():
        if name not in config:
            continue
        section, judge = {name: config[name]}, get(method)
        version = judge.default_version
        out += unread_keys(section, judge, version, ())
        try:
            judge.resolve(judge.configured(section, version), version)
        except Refusals as faults:
            out += faults.items
    return out


def refusals(spec: JobSpec, recipe: Recipe, options: Mapping[str, Any]) -> list[Refusal]:
    """Why what a spec asks for cannot follow its run; [] if it can. `options` are the merged Slurm options."""
    known = set(recipe.actions) & set(ACTIONS)
    out = [
        Refusal("E-SUBMIT-095", f"{recipe.id} has no {action}", field="spec.lifecycle.on_success", found=action,
                allowed=", ".join(sorted(known)) or "nothing")
        for action in dict.fromkeys((*spec.spec.lifecycle.on_success, *wanted(spec, recipe)))
        if action not in known
    ]  # fmt: skip
    if wanted(spec, recipe) and options.get("array"):
        out.append(
            Refusal("E-SUBMIT-095", "an array has no follow-ups", field="spec.slurm.array", allowed="a single job")
        )
    return out + (_evaluation_refusals(spec) if EVAL in wanted(spec, recipe) else [])


def hand_refusals(spec: JobSpec, recipe: Recipe, action: str) -> list[Refusal]:
    """Why an action cannot follow a run that did not ask for it; [] if it can."""
    out = []
    if action not in recipe.actions:
        out.append(
            Refusal(
                "E-SUBMIT-095",
                f"{recipe.id} has no {action}",
                field="RUN",
                found=action,
                allowed=", ".join(recipe.actions),
            )
        )
    if spec.spec.slurm is not None and spec.spec.slurm.array:
        out.append(Refusal("E-SUBMIT-095", "an array has no follow-ups", field="RUN", found=spec.spec.slurm.array))
    return out + (_data_refusals(spec) if action == EVAL else [])


def _data_refusals(spec: JobSpec) -> list[Refusal]:
    if spec.spec.data.validation is not None or SUITE not in (spec.spec.evaluation.suites or (SUITE,)):
        return []
    message, allowed = "an evaluation asks the validation rows", "--validation-data, --validation-dataset"
    hint = f"other rows are an experiment of their own: tp new NAME --method {EVALUATOR}"
    return [
        Refusal("E-SUBMIT-061", message, field="spec.data.validation", found="not given", allowed=allowed, hint=hint)
    ]


def _evaluation_refusals(spec: JobSpec) -> list[Refusal]:
    evaluation, where = spec.spec.evaluation, "spec.evaluation"
    out = []
    bare = next((gate for gate in evaluation.gates if gate.max_regression is not None), None)
    if bare is not None and not evaluation.baseline:
        message = f"the gate on {bare.metric} compares with a baseline, and none is named"
        allowed = "base, run/RUN_ID or a model"
        out.append(Refusal("E-SUBMIT-096", message, field=f"{where}.baseline", found="", allowed=allowed))
    return out + _data_refusals(spec)


def baseline_run(text: str) -> str:
    """The run id of a baseline `run/<run_id>[/final]`; "" for `base`, a model or none. Raises Refusal E-SPEC-029."""
    if not text.startswith("run/"):
        return ""
    return parse_init_from(text if text.count("/") > 1 else f"{text}/final", "spec.evaluation.baseline").run_id


def baseline_model(text: str) -> str:
    """The model that a baseline names; "" for `base`, a run or none."""
    return "" if text in ("", "base") or text.startswith("run/") else text


def derive(
    parent: Parent, action: str, source: Source, evaluator: Recipe | None, work: str, baseline: Source | None = None
) -> Derived:
    """The run that does `action` on what `source` leaves. `work`: where the job finds its own package. `evaluator` is the method of an evaluation."""
    spec, moved = parent.document["spec"], _moved(parent, work)
    body: dict[str, Any] = {
        "source": spec["source"], "resources": _resources(spec["resources"]),
        "model": {k: v for k, v in spec.get("model", {}).items() if k != "init_from"},
        "lifecycle": {k: v for k, v in spec.get("lifecycle", {}).items() if k != "on_success"},
        "slurm": {k: v for k, v in (spec.get("slurm") or {}).items() if k in _SLURM},
    }  # fmt: skip
    late = {CANDIDATE: source.as_json()}
    inputs = {"model": moved["model"]} if "model" in moved else {}
    if evaluator is None:
        body |= {key: spec[key] for key in ("recipe", "framework", "hyperparams", "plugins") if key in spec}
    else:
        body |= _evaluation(parent, evaluator, action)
        inputs |= {"validation": moved["validation"]} if "data" in body else {}
        if source.steps:
            body["slurm"] = {**body["slurm"], "array": checkpointed.array_of(list(source.steps))}
        late |= {BASELINE: baseline.as_json()} if baseline else {}
    follows = {
        "run_id": parent.run.run_id,
        "exp": parent.run.exp,
        "action": action,
        "package_digest": parent.package_digest,
        **({"asked": dict(parent.asked)} if parent.asked else {}),
    }
    metadata = {**parent.document["metadata"], "name": name_of(parent.run.exp, action)}
    document = {**parent.document, "metadata": metadata, "spec": {k: v for k, v in body.items() if v}}
    return Derived(document, {"follows": follows, "late": late, "inputs": inputs})


def name_of(exp: str, action: str) -> str:
    """The experiment under which follow-ups of `exp` stand: `sums.eval`."""
    return f"{exp}.{action}"


def _evaluation(parent: Parent, evaluator: Recipe, action: str) -> dict[str, Any]:
    version = evaluator.default_version
    own = {"suites": [SUITE], **parent.document["spec"].get("evaluation", {})}
    evaluation = checkpointed.words(own) if action == CHECKPOINTS else parent.evaluation
    named, rows = evaluation["suites"] or [SUITE], evaluator.id == EVALUATOR
    settings = {"suite": SUITE} if rows else {}
    settings |= evaluator.configured(parent.launch.get("config") or {}, version)
    if evaluation.get("limit"):
        settings["max_rows" if rows else "limit"] = evaluation["limit"]
    locked = parent.document["spec"].get("plugins", [])
    return {
        "recipe": {"name": evaluator.id, "version": evaluator.version, "digest": evaluator.digest},
        "framework": {"kind": evaluator.framework, "version": version, "runtime_id": evaluator.runtime_id(version)},
        "hyperparams": settings,
        **({"data": {"validation": parent.document["spec"]["data"]["validation"]}} if SUITE in named else {}),
        "plugins": [p for p in locked if p["id"] in parent.packs and p["id"].rpartition("/")[2] in named],
        "evaluation": evaluation,
    }


def _resources(resources: Mapping[str, Any]) -> dict[str, Any]:
    """One rank of the parent's first pool: one GPU where it has some, with its share of the node's CPUs."""
    pool = dict(resources["pools"][0])
    gpus = int(pool.get("gpus_per_node", 1))
    pool |= {"nodes": 1, "gpus_per_node": min(1, gpus)}
    pool.pop("ranks_per_node", None)
    if gpus > 1 and pool.get("cpus"):
        pool["cpus"] = max(1, int(pool["cpus"]) // gpus)
    return {"pools": [pool], **({"network": resources["network"]} if resources.get("network") else {})}


def _moved(parent: Parent, work: str) -> dict[str, Any]:
    """The parent's inputs, those in its package at their place in the follow-up's."""
    out = {}
    for name, source in parent.launch["inputs"].items():
        path = str(source["path"])
        old = next((w for w in parent.works if path.startswith(f"{w}/")), "")
        out[name] = {**source, "path": f"{work}{path[len(old) :]}"} if old else dict(source)
    return out
