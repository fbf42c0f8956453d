"""What can be said about an experiment before it is submitted: lock, config, hyperparameters, entry, the files that travel.

Everything is looked at, whatever is wrong with the rest, so that one call names every fault. Site, quota and inputs on disk are submit's.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hpc.errors import Refusal, Refusals
from hpc.project import git
from hpc.project.config import CONFIG_NAME, load_config
from hpc.project.project import Experiment, Project
from hpc.spec.text import visible

if TYPE_CHECKING:
    from hpc.catalog.recipes import Recipe
    from hpc.catalog.shelf import Catalogue

Sections = Callable[["Recipe"], Collection[str]]
SpecFaults = Callable[[dict[str, Any], "Recipe", str], list[Refusal]]


@dataclass
class Checked:
    """The result: faults refuse a submission, notes do not. `files` is how many would travel."""

    experiment: Experiment
    method: str = ""
    framework_version: str = ""
    lock_state: str = ""
    files: int = 0
    faults: list[Refusal] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def attempt(self, step: Callable[[], Any]) -> Any:
        """The step's value, or None after its refusals were kept."""
        try:
            return step()
        except Refusal as refusal:
            self.faults.append(refusal)
        except Refusals as refusals:
            self.faults += refusals.items
        return None


def check(
    project: Project,
    experiment: Experiment,
    catalogue: Catalogue,
    *,
    core_version: str,
    sections: Sections,
    spec_faults: SpecFaults,
) -> Checked:
    """Look at everything. `sections`: which of a config are read beside a recipe's parameters. `spec_faults` judges the JobSpec that it makes."""
    from hpc.project.files import travelling
    from hpc.project.plugins import read_plugins_lock

    out = Checked(experiment)
    recipe = _lock(out, catalogue, core_version)
    config = out.attempt(lambda: load_config(experiment.path))
    files = out.attempt(lambda: travelling(project, experiment))
    out.attempt(lambda: read_plugins_lock(experiment.path))
    facts = out.attempt(lambda: git.facts(project.root)) if files is not None else None  # the same git, named once
    if facts and facts.dirty:
        count = len(facts.dirty_paths)
        changes = "1 uncommitted change" if count == 1 else f"{count} uncommitted changes"
        out.notes.append(f"{changes} in the project: commit first, or submit with --allow-dirty")
    out.files = len(files or ())
    if recipe is not None:
        if config is not None:
            _config(out, config, recipe, sections, spec_faults)
        if files is not None:
            _entry(out, recipe, {f.path for f in files})
    _legacy(out)
    return out


def _lock(out: Checked, catalogue: Catalogue, core_version: str) -> Recipe | None:
    from hpc.catalog.locks import read_lock, text_at
    from hpc.catalog.standing import standing

    found = standing(out.experiment.path, catalogue, core_version)
    out.method, out.lock_state = (
        found.recipe or out.attempt(lambda: out.experiment.legacy_method) or "",
        found.lock.state,
    )
    out.faults += found.refusals
    if not found.lock.admits and not found.refusals:
        message = f"the lock is {found.lock.state}: {'; '.join(found.lock.reasons)}"
        out.faults.append(Refusal("E-CATALOG-028", message, field="recipe.lock.json", found=found.lock.state))
    if not found.recipe:
        return None
    out.framework_version = text_at(read_lock(out.experiment.path), "framework.version")
    try:
        recipe = found.lock.recipe or catalogue.get(found.recipe)
    except (Refusal, Refusals):
        return None  # `standing` named it
    return recipe if out.framework_version in recipe.versions else None


def _config(out: Checked, config: dict[str, Any], recipe: Recipe, sections: Sections, spec_faults: SpecFaults) -> None:
    version = out.framework_version
    out.faults += unread_keys(config, recipe, version, sections(recipe))
    resolved = out.attempt(lambda: recipe.resolve(recipe.configured(config, version), version))
    faults = spec_faults(config, recipe, version)
    known = {(r.code, r.field) for r in out.faults}
    out.faults += [r for r in faults if (r.code, r.field) not in known]
    if resolved is not None and not faults:
        missing = [name for name in recipe.required_inputs if not _given(config, name)]
        flags = {"model": "--model", "train": "--train-data or --train-dataset", "validation": "--validation-data"}
        out.notes += [
            f"{name} is not set: give {flags[name]} at submit, or set it in {CONFIG_NAME}" for name in missing
        ]


def _given(config: Mapping[str, Any], name: str) -> bool:
    value = config.get("model") if name == "model" else (config.get("data") or {}).get(name)
    if isinstance(value, Mapping):
        value = any(value.get(key) for key in ("base", "init_from", "dataset", "path"))
    return bool(value)


def _entry(out: Checked, recipe: Recipe, paths: set[str]) -> None:
    entry = recipe.entrypoint(out.framework_version)
    wanted = f"{out.experiment.rel}/{entry.value}"
    if entry.kind == "experiment" and wanted not in paths:
        message = f"{recipe.id} starts {entry.value}, which is not among the files that travel"
        out.faults.append(Refusal("E-PROJECT-016", message, field=wanted, allowed=f"a file {entry.value}"))


def _legacy(out: Checked) -> None:
    for name in ("method", "cluster"):
        if (out.experiment.path / name).is_file():
            instead = "recipe.lock.json" if name == "method" else "--profile"
            out.notes.append(f"the one-line file `{name}` is from an older project; {instead} says the same today")


def unread_keys(
    config: Mapping[str, Any], recipe: Recipe, version: str, job_sections: Collection[str]
) -> list[Refusal]:
    """A refusal for each key of a config that is neither a section of the job nor a parameter's place.

    Where the recipe declares no parameters, or hands the whole config to its framework (`config_mode`), every key may be read.
    """
    params = recipe.typed.params
    if not params or (recipe.typed.adapter_options.model_extra or {}).get("config_mode"):
        return []
    section = recipe.typed.config_section
    places = [f"{section}.{p.path_for(n, version)}" if section else p.path_for(n, version) for n, p in params.items()]
    return [_unread(path, places, job_sections) for path in _leaves(config, places, set(job_sections))]


def _leaves(value: Mapping[str, Any], places: Collection[str], free: set[str], prefix: str = "") -> Iterator[str]:
    for key, item in value.items():
        path = f"{prefix}{key}"
        if path in free or path in places:
            continue
        if isinstance(item, Mapping) and any(place.startswith(f"{path}.") for place in places):
            yield from _leaves(item, places, set(), f"{path}.")
        else:
            yield path


def _unread(path: str, places: Collection[str], job_sections: Collection[str]) -> Refusal:
    choices = [*places, *job_sections]
    near = difflib.get_close_matches(path, choices, 1) or [
        p for p in places if p.rpartition(".")[2] == path.rpartition(".")[2]
    ]
    sections = f"sections {', '.join(sorted(job_sections))}; " if job_sections else ""
    return Refusal(
        "E-PROJECT-015",
        "nobody reads this key",
        field=f"{CONFIG_NAME}: {visible(path)}",
        allowed=f"{sections}parameters at their place",
        hint=f"did you mean {near[0]}?" if near else "",
    )
