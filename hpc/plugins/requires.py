"""What a plugin asks of the job that would carry it, as far as it can be told before submission. Pure.

Python and installed distributions are the job interpreter's question, and are asked there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from hpc.errors import Refusal

JOB_CAPABILITIES = ("algorithm", "environment", "framework-integration", "benchmark")


@dataclass(frozen=True)
class JobFacts:
    """The job as plugins see it. `runs_ranks`: its entry is started in a Python interpreter a rank; backend "": not chosen yet.

    `integration`: the framework integration that its recipe names, "" where `tp` starts it by itself.
    """

    core_version: str
    framework: str
    framework_version: str
    method: str
    backend: str
    runs_ranks: bool
    integration: str = ""


def travels(manifest: Mapping[str, Any]) -> bool:
    """True for a package that is locked to an experiment and carried by its jobs."""
    capability = manifest.get("capability")
    return capability in JOB_CAPABILITIES or (capability == "data-prep" and manifest.get("execution") == "job")


def core_range(plugin: str, wanted: str, core_version: str) -> Refusal | None:
    """The page's words where `requires.core` does not admit this version: E-INSTALL-010; else None."""
    if not wanted or _admits(wanted, core_version):
        return None
    message = f"plugin {plugin} requires SDK {wanted}, this one is {core_version}"
    return Refusal("E-INSTALL-010", message, field="requires.core", found=core_version, allowed=wanted)


def _admits(spec: str, version: str) -> bool:
    """Whether the range holds the version. What is no range holds none: the words come from a record, which its owner wrote."""
    from packaging.specifiers import InvalidSpecifier, SpecifierSet
    from packaging.version import InvalidVersion, Version

    try:
        return SpecifierSet(spec).contains(Version(version), prereleases=True)
    except (InvalidSpecifier, InvalidVersion):
        return False


def unmet(plugin: str, manifest: Mapping[str, Any], job: JobFacts) -> Iterator[Refusal]:
    """Every condition of `plugin` (`id@version`) that the job does not meet: E-INSTALL-010 … E-INSTALL-014."""
    requires: Mapping[str, Any] = manifest.get("requires") or {}
    if refusal := core_range(plugin, requires.get("core") or "", job.core_version):
        yield refusal
    yield from _framework(plugin, requires.get("frameworks") or {}, job)
    for code, key, found in (("E-INSTALL-012", "methods", job.method), ("E-INSTALL-013", "backends", job.backend)):
        wanted = requires.get(key) or []
        if wanted and found and found not in wanted:
            message = f"plugin {plugin} is for {key} {', '.join(wanted)}"
            yield Refusal(code, message, field=f"requires.{key}", found=found, allowed=", ".join(wanted))
    yield from _consumer(plugin, manifest, job)


def _framework(plugin: str, wanted: Mapping[str, str], job: JobFacts) -> Iterator[Refusal]:
    if not wanted:
        return
    listed = ", ".join(f"{name}{spec}" for name, spec in wanted.items())
    found = f"{job.framework} {job.framework_version}"
    if job.framework not in wanted:
        message = f"plugin {plugin} is for {listed}"
        yield Refusal("E-INSTALL-011", message, field="requires.frameworks", found=found, allowed=listed)
        return
    spec = wanted[job.framework]
    if spec and not _admits(spec, job.framework_version):
        message = f"plugin {plugin} is for {job.framework}{spec}"
        yield Refusal("E-INSTALL-011", message, field="requires.frameworks", found=found, allowed=listed)


def _consumer(plugin: str, manifest: Mapping[str, Any], job: JobFacts) -> Iterator[Refusal]:
    capability = manifest.get("capability")
    if capability == "algorithm" and not job.runs_ranks:
        message = f"{job.method} starts a program of its own, which no algorithm plugin can reach: {plugin}"
        yield Refusal("E-INSTALL-014", message, field="spec.plugins", found=job.method, allowed="a method with ranks")
    if capability == "framework-integration" and plugin.rpartition("@")[0] != job.integration:
        message = f"{job.method} is not compiled by {plugin}"
        allowed = job.integration or "a recipe that names it"
        yield Refusal("E-FRAME-002", message, field="spec.plugins", found=plugin, allowed=allowed)
    if capability == "data-prep" and job.method != "custom/custom":
        message = f"{plugin} is a transform, which {job.method} does not call"
        yield Refusal("E-INSTALL-014", message, field="spec.plugins", found=job.method, allowed="custom/custom")


def collisions(plugins: Mapping[str, Mapping[str, Any]]) -> Iterator[Refusal]:
    """`id → facts` of everything that would travel together: leaf names and import roots that stand twice (E-INSTALL-003, -004)."""
    leaves: dict[str, str] = {}
    roots: dict[str, str] = {}
    for plugin, facts in sorted(plugins.items()):
        leaf = plugin.rpartition("/")[2]
        if (other := leaves.setdefault(leaf, plugin)) != plugin:
            message = f"{other} and {plugin} would both be tuneplane_plugins/{leaf}"
            yield Refusal("E-INSTALL-003", message, field="plugins", found=leaf, allowed="different last parts")
        for name in facts.get("import_roots") or ():
            if (first := roots.setdefault(name, plugin)) != plugin:
                message = f"{first} and {plugin} both bring the module {name}"
                yield Refusal("E-INSTALL-004", message, field="plugins", found=name, allowed="one plugin a module")
