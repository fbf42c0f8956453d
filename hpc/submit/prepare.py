"""From flags to everything a submission consists of, without writing anything: spec, records, files, script settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tuneplane
from tuneplane.contract.followups import EVAL
from tuneplane.contract.layout import RunPaths, StorageRoot

from hpc.data.lock import LOCK_NAME, Lock
from hpc.errors import Refusal, Refusals
from hpc.submit import checkpointed, followups, launchplan, suites, sweeps
from hpc.submit.ahead import Ahead
from hpc.submit.data import data_records
from hpc.submit.engine import add_columns, settings_faults
from hpc.submit.flags import Flags, Locked, document
from hpc.submit.hub import Pins, read_pins
from hpc.submit.inputs import DigestCache, resolve_inputs
from hpc.submit.kernelzip import KernelRef, find_kernels
from hpc.submit.leads import measured_lead

if TYPE_CHECKING:
    from tuneplane.contract.checkpointed import Evaluations

    from hpc.catalog.recipes import Recipe
    from hpc.catalog.runtimes import Runtime
    from hpc.project.files import Travelling
    from hpc.project.git import GitFacts
    from hpc.project.project import Experiment, Project
    from hpc.site.sitefile import Site
    from hpc.spec.jobspec import JobSpec
    from hpc.spec.profiles import Placement


@dataclass(frozen=True)
class Around:
    """Where and for whom: handed down, never looked up on the way."""

    root: StorageRoot
    site: Site
    user: str
    uid: int


@dataclass(frozen=True)
class InProject(Around):
    """The same, from within a user's project."""

    project: Project
    cwd: Path
    keeps: bool = True
    """Whether the digests of large inputs may be remembered in the user's state; a command that only looks may not even that."""


@dataclass(frozen=True)
class Prepared:
    """One submission, ready to be written."""

    run: RunPaths
    spec: JobSpec
    recipe: Recipe
    runtime: Runtime | None
    kernel: KernelRef
    fleet: str
    options: dict[str, Any]
    pool_profiles: tuple[Any, ...]
    files: list[Travelling]
    records: dict[str, Any]
    work: Path
    warnings: tuple[str, ...] = ()
    inputs_lock: Lock = field(default_factory=Lock)
    """tp.lock.json as it is to be once the job is queued."""
    after: Mapping[str, Any] = field(default_factory=dict)
    """The job that this one waits for: `{run_id, job_id, pid?, pid_start?}`, or `{run_id, held}` of one that lets it go; {} for none."""
    evaluations: Evaluations | None = None
    """What evaluates the checkpoints of this run; its script lets that go."""


def _locked(
    around: InProject,
    experiment: Experiment,
    lock: Mapping[str, Any],
    recipe: Recipe,
    config_sha: str,
    facts: GitFacts,
    allow_dirty: bool,
    named: list[str],
) -> tuple[Locked, list[str]]:
    from hpc.project.plugins import read_plugins_lock
    from hpc.submit.frameworks import bound

    warnings = [] if facts.commit else ["no git commit: the record cannot name one"]
    # The lock of inputs is compared with what it locks at every submission, and the first one writes it: it is no change of code.
    changed = [p for p in facts.dirty_paths if p.rpartition("/")[2] != LOCK_NAME]
    if changed and not allow_dirty:
        raise Refusal(
            "E-SUBMIT-036",
            f"{len(changed)} uncommitted changes",
            field="provenance.git_dirty",
            found=", ".join(changed[:5]),
            allowed="a clean tree, or --allow-dirty",
        )
    provenance = {
        "core_version": tuneplane.__version__,
        "git_commit": facts.commit or "",
        "git_dirty": bool(changed),
        "config_sha": config_sha,
    }
    plugins = bound(around.root, around.site, recipe, read_plugins_lock(experiment.path))
    locked = Locked(
        name=experiment.name.rsplit("/", 1)[-1],
        exp=experiment.rel,
        project=around.project.name,
        recipe={k: lock["recipe"][k] for k in ("name", "version", "digest")},
        framework={k: lock["framework"][k] for k in ("kind", "version", "runtime_id") if lock["framework"].get(k)},
        recipe_plugins=tuple(recipe.manifest.get("plugins", ())),
        plugins=tuple(suites.bound(around.root, around.site, experiment.path, named, plugins)),
        provenance=provenance,
    )
    return locked, warnings


def _lock_and_recipe(around: InProject, experiment: Experiment, flags: Flags) -> tuple[dict[str, Any], Recipe]:
    from hpc.catalog.locks import lock_state, read_lock
    from hpc.catalog.shelf import Catalogue

    lock = read_lock(experiment.path)
    state = lock_state(lock, Catalogue.load(around.root))
    if not state.admits or state.recipe is None or not isinstance(lock, dict):
        raise Refusal(
            "E-SUBMIT-037",
            f"the recipe lock is {state.state}: {'; '.join(state.reasons)}",
            field="recipe.lock.json",
            found=state.state,
            allowed="a lock that `tp recipe status` calls current",
        )
    name = lock["recipe"]["name"]
    if flags.method and flags.method != name:
        raise Refusal(
            "E-SUBMIT-038",
            "the experiment is locked to another method",
            field="--method",
            found=flags.method,
            allowed=name,
        )
    if flags.framework_version and flags.framework_version != lock["framework"]["version"]:
        raise Refusal(
            "E-SUBMIT-038",
            "not the locked version",
            field="--framework-version",
            found=flags.framework_version,
            allowed=lock["framework"]["version"],
        )
    return lock, state.recipe


def _placement(around: InProject, experiment: Experiment, flags: Flags) -> Placement:
    from hpc.spec.profiles import place

    fallback = experiment.legacy_profile or around.site.default_profile
    entries = list(flags.profile) or ([fallback] if fallback else [])
    return place(entries, around.site.profile_shapes())


def fleet_of(site: Site, placement: Placement) -> str:
    """The fleet of the first profile, else the site's default."""
    named = {site.fleet_of(p.profile) for p in placement.pools}
    if len(named) != 1:
        raise Refusal(
            "E-SUBMIT-039",
            "the profiles lie on different fleets",
            field="--profile",
            found=", ".join(sorted(named)),
            allowed="one fleet",
        )
    return named.pop()


def _runtime(around: InProject, spec: JobSpec, recipe: Recipe, fleet_kind: str) -> Runtime | None:
    from hpc.catalog.runtimes import Runtimes

    runtimes = Runtimes.load(around.root)
    framework = spec.spec.framework
    if framework.image:
        return runtimes.by_image(framework.image, around.site)
    runtime_id = framework.runtime_id or recipe.runtime_id(framework.version)
    if fleet_kind == "local" and runtime_id not in runtimes:
        return None  # the embedded fleet runs without a container; the record says so
    return runtimes.get(runtime_id)


def runtime_record(runtime: Runtime | None, verify: str) -> dict[str, Any]:
    """How launch.json names the image, and how the job will check it."""
    if runtime is None:
        return {"runtime_id": "", "container": False}
    return {
        "runtime_id": runtime.id, "container": True, "sif": str(runtime.sif), "sha256": runtime.sha256, "size": runtime.size,
        "mtime_ns": runtime.mtime_ns, "owner_uid": runtime.owner_uid, "source": runtime.source,
        "verify": "sha256" if verify == "full" else "size+mtime+owner",
    }  # fmt: skip


def _diff(around: InProject, locked: Locked) -> dict[str, str]:
    """`git_diff_sha256` of a project that differs from its commit."""
    from hpc.project import git

    dirty = locked.provenance["git_dirty"] and locked.provenance["git_commit"]
    return {"git_diff_sha256": found} if dirty and (found := git.diff_sha256(around.project.root)) else {}


def _template_files(recipe: Recipe) -> list[Travelling]:
    from hpc.project.files import Travelling

    base = f"tuneplane_recipes/{recipe.id}/template"
    return [Travelling(recipe.template / rel, f"{base}/{rel}") for rel in recipe.template_files()]


def _check_entry(recipe: Recipe, version: str, exp: str, files: list[Travelling]) -> None:
    point = recipe.entrypoint(version)
    if point.kind == "experiment" and f"{exp}/{point.value}" not in {f.path for f in files}:
        raise Refusal(
            "E-SUBMIT-035",
            f"{exp}/{point.value} is not there",
            field="spec.source.exp",
            found=exp,
            allowed=f"a file {point.value}",
        )


def _suite_refusals(
    around: InProject,
    experiment: Experiment,
    spec: JobSpec,
    recipe: Recipe,
    config: dict[str, Any],
    files: list[Travelling],
) -> list[Refusal]:
    """Why the suites of an evaluation that this is, or that follows, cannot be asked, or its gates not be judged."""
    from hpc.catalog.shelf import Catalogue
    from hpc.submit.plugins import locate, triples

    if recipe.id != suites.BENCHMARK and EVAL not in followups.wanted(spec, recipe):
        return []
    unusable, versions = locate(around.root, around.site, triples(spec))
    if unusable:
        return unusable  # a pack that is damaged, or locked to other bytes, is not one that is not here
    settings = partial(suites.settings_of, config=config, get=Catalogue.load(around.root).get)

    def shots() -> int:
        given = spec.spec.hyperparams if recipe.id == suites.BENCHMARK else settings(suites.BENCHMARK)
        return int(given.get("num_fewshot", -1))

    behaviour = partial(settings, suites.EVALUATOR)
    return suites.refusals(spec, suites.Asked(experiment.path, experiment.rel, files, versions, behaviour, shots))


def _inputs(
    around: InProject,
    experiment: Experiment,
    recipe: Recipe,
    normalised: dict[str, Any],
    work_exp: str,
    options: Mapping[str, Any],
    pins: Pins,
    mapped: Callable[[Mapping[str, Any]], None],
) -> dict[str, Any]:
    """`inputs`, model and data by digest, and what else data adds. Raises Refusal E-SUBMIT-061 for one that the recipe needs and nobody gave."""
    cache = DigestCache(around.root.user_state(around.user) / "digests.json")
    found = resolve_inputs(
        normalised, root=around.root, site=around.site, experiment=experiment.path, work_exp=work_exp, cwd=around.cwd, digest=cache.digest,
        pins=pins, split="eval" if recipe.typed.category == "evaluation" else "train",
    )  # fmt: skip
    mapped(found)
    missing = [
        name
        for name in recipe.required_inputs
        if {"train_data": "train", "validation_data": "validation"}.get(name, name) not in found
    ]
    if missing:
        raise Refusal(
            "E-SUBMIT-061",
            f"{recipe.id} needs {', '.join(missing)}",
            field="spec",
            found="not given",
            allowed=", ".join("--model" if n == "model" else f"--{n.removesuffix('_data')}-data" for n in missing),
        )

    def where(path: str) -> Path:
        inside = path.startswith(f"{work_exp}/")
        return experiment.path / path[len(work_exp) + 1 :] if inside else Path(path)

    more = data_records(around, normalised, found, options, cache.digest, where)
    if around.keeps:
        cache.save()
    return {"inputs": found, **more}


def prepare(around: InProject, experiment: Experiment, flags: Flags, run: RunPaths) -> Prepared:
    """Everything of a submission. Reads only (but for the user's digest cache); raises Refusal(s), all that can be told at once."""
    from hpc.project import git
    from hpc.project.files import travelling

    # git looks at the tree while the catalogue and the models are loaded.
    state = Ahead(lambda: git.facts(around.project.root))
    listed = Ahead(lambda: travelling(around.project, experiment))
    from hpc.catalog.locks import admission_refusals
    from hpc.catalog.shelf import Catalogue
    from hpc.project.check import unread_keys
    from hpc.project.config import config_sha, load_config
    from hpc.spec.jobspec import parse
    from hpc.spec.settings import parse_settings
    from hpc.submit.continuing import start_record
    from hpc.submit.frameworks import prepared_plan
    from hpc.submit.plugins import carry, job_facts

    lock, recipe = _lock_and_recipe(around, experiment, flags)
    config = load_config(experiment.path)
    version = lock["framework"]["version"]
    config_digest = config_sha(experiment.path)
    named, dirty = suites.names_of(config), flags.allow_dirty
    locked, warnings = _locked(around, experiment, lock, recipe, config_digest, state.answer(), dirty, named)
    placement = _placement(around, experiment, flags)
    hyperparams = {**recipe.configured(config, version), **parse_settings(list(flags.settings))}
    hyperparams, unfit = sweeps.begin(flags.sweep, recipe, version, hyperparams)
    trained, left_out = sweeps.alone(flags.sweep, config)
    unwritten, doubtful = sweeps.metric_refusals(flags.sweep, recipe, version, experiment.path)
    warnings += [*left_out, *doubtful]
    spec = parse(document(flags, trained, locked, placement, hyperparams))
    fleet = fleet_of(around.site, placement)
    profiles = tuple(around.site.profiles[p.profile] for p in placement.pools)
    options = launchplan.merged_options(spec, around.site, profiles[0], recipe)
    if launchplan.kind_of(recipe) == "rank" and around.site.fleets[fleet].kind == "slurm":
        before = around.root, around.user, run.exp
        options, earlier = measured_lead(*before, spec, options, int(around.site.slurm.signal_lead_s))
        warnings += earlier
    warnings += launchplan.whole_node_notes(spec, recipe, around.site.fleets[fleet].kind)
    work = around.root.admitted / run.run_id / "work" if around.site.admission.mode == "enforced" else run.work
    files = [*listed.answer(), *_template_files(recipe)]
    _check_entry(recipe, version, experiment.rel, files)
    faults = [] if flags.no_validate else unread_keys(config, recipe, version, followups.sections(recipe))
    faults += followups.refusals(spec, recipe, options)
    faults += checkpointed.refusals(spec, recipe, options, fleet=fleet, kind=around.site.fleets[fleet].kind)
    faults += followups.settings_refusals(trained, recipe, Catalogue.load(around.root).get)
    faults += _suite_refusals(around, experiment, spec, recipe, config, files)
    faults += suites.shape_refusals(spec, recipe)
    faults += admission_refusals(spec.normalised(), recipe, tuneplane.__version__)
    faults += launchplan.limit_refusals(options, around.site, spec, recipe, fleet=fleet, swept=bool(flags.sweep))
    faults += [*unfit, *unwritten]
    variants = flags.sweep.get("variants") or ()
    faults += settings_faults(spec, recipe, version, variants, lead_s=launchplan.lead_of(options, around.site))
    if faults:
        raise Refusals(faults)
    carried = carry(around.root, around.site, spec, job_facts(spec, recipe, around.site, fleet))
    files += carried.files
    runtime = _runtime(around, spec, recipe, around.site.fleets[fleet].kind)
    kernel = find_kernels(around.root)
    normalised = spec.normalised()
    pins = read_pins(experiment.name, experiment.path, runtime)
    data = _inputs(
        around,
        experiment,
        recipe,
        normalised,
        f"{work}/{experiment.rel}",
        options,
        pins,
        partial(add_columns, flags=flags, config=config),
    )
    given = {
        "profile": placement.profile, "profiles": [p.profile for p in placement.pools], "pin_resource": profiles[0].pin_resource,
        "overrides": list(profiles[0].overrides), "env": dict(profiles[0].env), "fleet": fleet, "config": config,
        "options": options, "runtime": runtime_record(runtime, around.site.runtimes.verify), "kernel": kernel.as_json(),
        "binds": list(around.site.binds), **_diff(around, locked), **data,
        **start_record(around.root, spec, recipe, recipe.resolve(dict(spec.spec.hyperparams), version)),
    }  # fmt: skip
    plan = prepared_plan(spec, recipe, normalised, carried.versions, given, given["runtime"])
    launch = launchplan.launch_document(
        spec, recipe, around.site, options=options, work=str(work), given=given, plan=plan
    )
    records = {"jobspec.json": normalised, "recipe.json": recipe.manifest, "launch.json": launch, **carried.records}
    records |= {"plan.json": plan} if plan else {}
    records |= sweeps.records(flags.sweep, options, launch["inputs"], around.site.fleets[fleet].kind)
    told = (*warnings,), pins.completed(runtime)
    return Prepared(run, spec, recipe, runtime, kernel, fleet, options, profiles, files, records, work, *told)
