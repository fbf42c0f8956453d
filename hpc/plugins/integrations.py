"""integration.json of a framework integration (contract version 1): profiles, and the compilers that make a launch plan. Pure; runs no compiler."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Final

from tuneplane.contract import plans
from tuneplane.record.digest import is_digest, is_relative

from hpc.plugins.fitting import check_fitting
from hpc.plugins.forms import Form
from hpc.plugins.plans import check_env
from hpc.spec.text import SEGMENT

NAME: Final = "integration.json"
CONTRACT_VERSION: Final = 1
ANY_RUNTIME: Final = "job-selected"
ANY_DIGEST: Final = "job-pinned"
CAPABILITIES: Final = ("launch", "scalar", "samples", "trajectories", "checkpoint", "resume", "export", "eval")
INPUTS: Final = ("model", "train_data", "validation_data")
SOURCES: Final = (*INPUTS, "output", "run_id", "nodes", "gpus_per_node", "together")
"""What a yaml compiler can bind to a path of the generated file, besides `<role>.nodes` and `<role>.gpus_per_node`."""
ROLE_SOURCE: Final = re.compile(r"([A-Za-z0-9][A-Za-z0-9_-]*)\.(nodes|gpus_per_node)")
LAUNCH_MODES: Final = ("direct", "ray-driver")
_METHOD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)*")
_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]*")
_PATH = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*(\.[A-Za-z0-9_][A-Za-z0-9_-]*)*")


@dataclass(frozen=True)
class _Match:
    """What a profile matches."""

    id: str
    framework: str
    method: str
    engine: str
    runtime_id: str
    runtime_digest: str

    def overlaps(self, other: _Match) -> bool:
        """True where one job could match both."""
        same = (self.framework, self.method, self.engine) == (other.framework, other.method, other.engine)
        runtime = self.runtime_id == other.runtime_id or ANY_RUNTIME in (self.runtime_id, other.runtime_id)
        digest = self.runtime_digest == other.runtime_digest or ANY_DIGEST in (
            self.runtime_digest,
            other.runtime_digest,
        )
        return same and runtime and digest


def check_integration(form: Form, files: Mapping[str, int]) -> None:
    """Keep every fault of the declaration in the form. `files` are the package's."""
    if form.get("contract_version") != CONTRACT_VERSION or isinstance(form.value["contract_version"], (bool, float)):
        form.no(
            "contract_version",
            "is another contract than this tp speaks",
            found=form.value.get("contract_version"),
            allowed="1",
        )
    form.text("distribution", limit=256)
    form.text("source_root", limit=128, grammar=_VARIABLE, allowed="the name of an environment variable")
    form.text("display_name", limit=128)
    form.number("catalog_order", 0, 1000, 0)
    for key in form.texts("required_inputs", most=16):
        if key not in INPUTS:
            form.no("required_inputs", "is none of the inputs", found=key, allowed=", ".join(INPUTS))
    form.texts("capability_switches", most=64, limit=128)
    form.items("observations", most=256)
    for key in ("native_validation", "metric_descriptors"):
        form.get(key)
    form.flag("algorithm_hook", True)
    form.flag("cpu_only", False)
    form.flag("data_prep_jobs", False)
    profiles = form.parts("profiles", most=256)
    if not form.value.get("profiles"):
        form.no("profiles", "names none", allowed="1 to 256 profiles")
    matches = [_profile(profile, files) for profile in profiles]
    for one, other in combinations(matches, 2):
        if one.id and one.id == other.id:
            form.no("profiles", f"the id {one.id!r} stands twice", found=one.id, allowed="each id once")
        elif one.overlaps(other):
            form.no(
                "profiles",
                f"{one.id!r} and {other.id!r} match the same jobs",
                found=other.id,
                allowed="one profile a job",
            )
    form.only()


def _profile(profile: Form, files: Mapping[str, int]) -> _Match:
    found = _Match(
        profile.text("id", required=True, limit=128, grammar=SEGMENT, allowed="a name"),
        profile.text("framework", required=True, limit=128, grammar=SEGMENT, allowed="a framework's name"),
        profile.text("method", required=True, limit=256, grammar=_METHOD, allowed="a method's id"),
        profile.text("engine", limit=128),
        profile.text(
            "runtime_id", required=True, limit=128, grammar=SEGMENT, allowed=f"a runtime's id, or {ANY_RUNTIME}"
        ),
        profile.text("runtime_digest", required=True, grammar=_digest, allowed=f"sha256:<64 hex>, or {ANY_DIGEST}"),
    )
    capabilities = profile.texts("capabilities", most=32)
    for name in capabilities:
        if name not in CAPABILITIES:
            profile.no("capabilities", "is no capability of a profile", found=name, allowed=", ".join(CAPABILITIES))
    if "launch" not in capabilities:
        profile.no("capabilities", "lacks launch, which every profile needs", allowed=", ".join(CAPABILITIES))
    check_fitting(profile)
    compiler = profile.part("compiler")
    if compiler is None:
        if profile.value.get("compiler") is None:
            profile.missing("compiler", "kind provider or yaml")
    elif (kind := compiler.choice("kind", ("provider", "yaml"), required=True)) == "provider":
        _provider(compiler, files)
    elif kind == "yaml":
        _yaml(compiler)
    profile.only()
    return found


def _digest(text: str) -> bool:
    return text == ANY_DIGEST or is_digest(text)


def _provider(compiler: Form, files: Mapping[str, int]) -> None:
    """A program of the package that the job asks for a launch plan."""
    path = compiler.text("path", required=True, limit=1024, grammar=is_relative, allowed="a path inside the package")
    if path and path not in files:
        compiler.no("path", "is not in the package", found=path, allowed="a file of the package")
    compiler.part("config")
    compiler.only()


def _yaml(compiler: Form) -> None:
    """A generated file and the command line that reads it: defaults < hyperparameters < bindings of the platform."""
    argv = compiler.texts("argv", most=256, limit=4096)
    if not argv:
        compiler.no(
            "argv", "is missing", allowed='a command, such as ["$PYTHON", "-m", "toy"]', code=compiler.codes.missing
        )
    if "$PYTHON" in compiler.items("argv")[1:]:
        compiler.no(
            "argv", "$PYTHON is the program, not an argument", found=" ".join(argv), allowed="$PYTHON first, if at all"
        )
    compiler.text("config", required=True, limit=256, grammar=is_relative, allowed="a relative file name")
    compiler.text("config_flag", limit=128)
    compiler.choice("launch_mode", LAUNCH_MODES, default="direct")
    check_env(compiler, plans.words_of(plans.INPUTS))
    bindings, defaults = compiler.part("bindings"), compiler.part("defaults")
    taken: dict[str, str] = {}
    if bindings is not None:
        for path, source in bindings.value.items():
            if source not in SOURCES and not (isinstance(source, str) and ROLE_SOURCE.fullmatch(source)):
                allowed = ", ".join((*SOURCES, "<role>.nodes", "<role>.gpus_per_node"))
                bindings.no(path, "is bound to nothing that the platform gives", found=source, allowed=allowed)
            _claim(bindings, path, taken)
    if defaults is not None:
        for path in _leaves(defaults.value):
            _claim(defaults, path, taken)
    compiler.only()


def _leaves(value: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Dotted paths of a nested mapping's values; an empty mapping is a value."""
    for key, item in value.items():
        if isinstance(item, Mapping) and item:
            yield from _leaves(item, f"{prefix}{key}.")
        else:
            yield prefix + key


def _claim(form: Form, path: str, taken: dict[str, str]) -> None:
    """Each path of the generated file has one source; a path and one below it are two for one."""
    if not _PATH.fullmatch(path):
        form.no(path, "is no dotted path", found=path, allowed="names joined by '.'")
        return
    parts = path.split(".")
    above = [".".join(parts[:n]) for n in range(1, len(parts) + 1)]
    if clash := next((p for p in above if p in taken), "") or next((p for p in taken if p.startswith(path + ".")), ""):
        form.no(path, f"overlaps {taken[clash]} {clash}", found=path, allowed="each path of the file from one source")
    taken.setdefault(path, form.path.rpartition(".")[2])
