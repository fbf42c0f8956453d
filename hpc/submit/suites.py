"""The suites of an evaluation: which method asks them, where a benchmark comes from, and whether the gates name numbers that their suites give.

A suite is `behaviour` (the run's own validation rows), a benchmark of the experiment (`benchmarks/<name>/`), or a benchmark pack of that name: the
one that the experiment locks, else the only one that is published. A pack is locked like every plugin, in the spec and by digest, and travels with
the run and with the evaluation that follows it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tuneplane.contract.benchmarks import DECLARATION, FOLDER, Measured, full_key
from tuneplane.contract.evaluation import BEHAVIOUR, behaviour_numbers
from tuneplane.contract.layout import StorageRoot

from hpc.errors import Refusal, Refusals

if TYPE_CHECKING:
    from hpc.catalog.recipes import Recipe
    from hpc.project.files import Travelling
    from hpc.registry.resolve import Version
    from hpc.site.sitefile import Site
    from hpc.spec.jobspec import JobSpec
    from hpc.spec.parts import Gate

EVALUATOR: Final = "evalkit/behaviour"
BENCHMARK: Final = "evalkit/benchmark"
SECTIONS: Final = {EVALUATOR: "behaviour", BENCHMARK: "benchmark"}
"""Method → the section of a config that has its settings."""
RUNNERS: Final = ("", EVALUATOR, BEHAVIOUR, BENCHMARK, "lm-eval")
FIELD: Final = "spec.evaluation.suites"
Numbers = Mapping[str, Measured]


def evaluator_of(suites: Iterable[str]) -> str:
    """The method that asks suites: benchmarks need lm-eval, which asks rows beside them; rows alone do without."""
    return EVALUATOR if all(name == BEHAVIOUR for name in suites) else BENCHMARK


def names_of(config: Mapping[str, Any]) -> list[str]:
    """The suites that a config names; whatever else stands there, the JobSpec's grammar judges."""
    section = config.get("eval")
    found = section.get("suites") if isinstance(section, dict) else None
    return [name for name in found if isinstance(name, str)] if isinstance(found, list) else []


def settings_of(method: str, config: Mapping[str, Any], get: Callable[[str], Recipe]) -> Mapping[str, Any]:
    """The settings of an evaluation that a config asks for; where they are at fault, which is said elsewhere, the defaults."""
    recipe, section = get(method), SECTIONS[method]
    version = recipe.default_version
    try:
        return recipe.resolve(recipe.configured({section: config.get(section) or {}}, version), version)
    except Refusals:
        return recipe.resolve({}, version)


def own_folder(experiment: Path, name: str) -> Path | None:
    """A benchmark of the experiment, None where it has none of that name."""
    folder = experiment / FOLDER / name
    return folder if (folder / DECLARATION).is_file() else None


def bound(
    root: StorageRoot, site: Site, experiment: Path, names: Iterable[str], locked: Sequence[Mapping[str, str]]
) -> list[dict[str, str]]:
    """The locked plugins, and for each suite that neither the experiment nor its lock has the published pack of that name.

    Raises Refusal E-SUBMIT-096 where several owners have published one.
    """
    out = [dict(one) for one in locked]
    leaves = {one["id"].rpartition("/")[2] for one in out}
    for name in dict.fromkeys(names):
        if name == BEHAVIOUR or name in leaves or own_folder(experiment, name):
            continue
        found = _published(root, site, name)
        if len(found) > 1:
            listed = ", ".join(v.id for v in found)
            hint = f"lock the one that is meant: tp plugin install {found[0].id} --exp {experiment.name}"
            raise Refusal(
                "E-SUBMIT-096",
                f"{len(found)} packs are called {name}",
                field=FIELD,
                found=listed,
                allowed="one",
                hint=hint,
            )
        out += [{"id": v.id, "version": v.version, "digest": v.digest} for v in found]
    return out


def _published(root: StorageRoot, site: Site, name: str) -> list[Version]:
    """The benchmark packs of that name that a new reference may use, one an owner."""
    from hpc.plugins.kind import PLUGIN
    from hpc.registry.resolve import resolve
    from hpc.registry.shelf import Shelf, is_segment

    shelf, out = Shelf(root, PLUGIN), []
    for owner in shelf.owners() if is_segment(name) else ():
        if name not in shelf.packages(owner):
            continue
        try:
            version = resolve(root, PLUGIN, f"{owner}/{name}", site=site, for_new=True)
        except (Refusal, Refusals):
            continue  # disabled, gone or damaged: not offered by its name; whoever locks it is told why
        if version.facts["manifest"]["capability"] == "benchmark":
            out.append(version)
    return out


@dataclass(frozen=True)
class Asked:
    """What suites are judged by: the experiment, the files that travel, the packs that were found, the settings of a behaviour evaluation, and how
    many examples were asked for before a question of a benchmark (-1: as it says itself)."""

    experiment: Path
    rel: str
    files: Sequence[Travelling]
    versions: Sequence[Version]
    behaviour: Callable[[], Mapping[str, Any]]
    shots: Callable[[], int]


def refusals(spec: JobSpec, asked: Asked) -> list[Refusal]:
    """Why the suites of a spec cannot be asked, or its gates not be judged on them; [] if they can."""
    evaluation = spec.spec.evaluation
    suites = evaluation.suites or (() if spec.spec.recipe.name == BENCHMARK else (BEHAVIOUR,))
    out: list[Refusal] = []
    if not suites:
        allowed = f"eval: {{suites: [NAME]}}, a folder of {asked.rel}/{FOLDER}/ or a benchmark pack"
        out.append(Refusal("E-SUBMIT-096", "names none", field=FIELD, found="", allowed=allowed))
    if evaluation.runner not in RUNNERS:
        allowed = f"{EVALUATOR}, {BENCHMARK}, or nothing: the suites say it"
        out.append(
            Refusal(
                "E-SUBMIT-096",
                "is no runner of evaluations here",
                field="spec.evaluation.runner",
                found=evaluation.runner,
                allowed=allowed,
                hint="Leave eval.runner out.",
            )
        )
    if twice := sorted({name for name in suites if suites.count(name) > 1}):
        hint = "Name it once."
        out.append(
            Refusal("E-SUBMIT-096", "stands twice", field=FIELD, found=", ".join(twice), allowed="each once", hint=hint)
        )
    known: dict[str, Numbers] = {}
    for name in dict.fromkeys(suites):
        try:
            known[name] = _numbers(name, asked)
        except Refusals as faults:
            out += faults.items
        except Refusal as fault:
            out.append(fault)
    for index, gate in enumerate(evaluation.gates):
        suite, _, key = gate.metric.partition("/")
        if suite in known:
            out += _gate_refusals(f"spec.evaluation.gates[{index}]", gate, suite, key, known[suite])
    return out


def shape_refusals(spec: JobSpec, recipe: Recipe) -> list[Refusal]:
    """Why an evaluation cannot run in the shape that was asked for: one process asks."""
    ranks = sum(pool.nodes * pool.ranks for pool in spec.spec.resources.pools)
    if recipe.id not in SECTIONS or ranks == 1:
        return []
    return [Refusal("E-EVAL-032", "more than one rank", field="--profile", found=f"{ranks} ranks", allowed="1 rank")]


def _numbers(name: str, asked: Asked) -> Numbers:
    """Every number that a suite gives. Raises Refusal(s)."""
    from hpc.plugins.benchmarks import read_benchmark
    from hpc.registry.resolve import read_file

    if name == BEHAVIOUR:
        metrics = [m.strip() for m in str(asked.behaviour()["metrics"]).split(",") if m.strip()]
        ways = behaviour_numbers(metrics)
        return {key: Measured(way, key not in ("latency_ms", "tokens")) for key, way in ways.items()}
    folder = own_folder(asked.experiment, name)
    version = next(
        (v for v in asked.versions if v.name == name and v.facts["manifest"]["capability"] == "benchmark"), None
    )
    if folder is not None and version is not None:
        found = f"{asked.rel}/{FOLDER}/{name} and {version}"
        raise Refusal("E-SUBMIT-096", "stands twice", field=FIELD, found=found, allowed="one of them")
    if folder is not None:
        base, there = f"{asked.rel}/{FOLDER}/{name}", {f.path: f.source for f in asked.files}

        def own(path: str) -> bytes:
            if f"{base}/{path}" not in there:
                if (folder / path).is_file():
                    raise Refusal("E-EVAL-062", "does not travel: git ignores it", field=f"{base}/{path}")
                raise FileNotFoundError(path)
            return there[f"{base}/{path}"].read_bytes()

        return read_benchmark(name, own, base, asked.shots())
    if version is None:
        allowed = f"{BEHAVIOUR}, a folder of {asked.rel}/{FOLDER}/, or a benchmark pack"
        hint = "`tp plugin ls --capability benchmark` lists packs"
        raise Refusal(
            "E-SUBMIT-096", "no suite of that name is here", field=FIELD, found=name, allowed=allowed, hint=hint
        )
    packed, listed = version, {f.path for f in version.files}

    def stored(path: str) -> bytes:
        if path not in listed:
            raise FileNotFoundError(path)
        return read_file(packed, path)

    return read_benchmark(name, stored, str(version), asked.shots())


def _gate_refusals(field: str, gate: Gate, suite: str, key: str, numbers: Numbers) -> list[Refusal]:
    """Why a gate can never be judged on the numbers of its suite."""
    full = full_key(key, numbers)
    if not full and key.startswith("json_field.") and "json_field." in numbers:
        full = "json_field."
    if not full:
        kin = [k for k in numbers if k.partition(",")[0] == key.partition(",")[0]] or list(numbers)
        allowed = ", ".join(f"{suite}/{k}" for k in kin[:12])
        return [
            Refusal(
                "E-EVAL-064", f"{suite} never gives it", field=f"{field}.metric", found=gate.metric, allowed=allowed
            )
        ]
    number, out = numbers[full], []
    if gate.max_regression is not None and number.direction == "neutral":
        allowed = "min and max; or a direction of the metric in benchmark.yaml"
        out.append(
            Refusal(
                "E-EVAL-065",
                "nobody says which way is better",
                field=f"{field}.max_regression",
                found=gate.metric,
                allowed=allowed,
            )
        )
    for name in ("min", "max_regression"):
        value = getattr(gate, name)
        if number.ratio and value is not None and value > 1:
            message = f"{suite}/{full} is a share"
            out.append(
                Refusal(
                    "E-EVAL-065", message, field=f"{field}.{name}", found=value, allowed="at most 1, so 0.6 for 60 %"
                )
            )
    return out
