"""What a sweep adds to a submission: its table of variants, from flags and `sweep:` of config.yaml, and the judgement on it."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tuneplane.contract.sweeps import RECORD, Stopping, Sweep

from hpc.errors import Refusal, Refusals
from hpc.spec.arrays import parse_array
from hpc.spec.grid import Axis, drawn, every, parse_axes

if TYPE_CHECKING:
    from hpc.catalog.recipes import Recipe

KEEP: Final = 3
_SECTION: Final = {"grid": dict, "random": int, "seed": int, "early_stopping": dict, "max_running": int}


@dataclass(frozen=True)
class Asked:
    """The flags of `tp sweep`. Empty, 0 and None mean: not given."""

    grid: tuple[str, ...] = ()
    random: int = 0
    seed: int | None = None
    metric: str = ""
    maximise: bool = False
    rungs: str = ""
    keep: int = 0
    max_running: int = 0


@dataclass(frozen=True)
class Planned:
    """The table, and how many elements may run at once (0: as many as Slurm lets)."""

    sweep: Sweep
    max_running: int

    @property
    def array(self) -> str:
        """The spec's array: an index a variant."""
        last = len(self.sweep.variants) - 1
        return (f"0-{last}" if last else "0") + (f"%{self.max_running}" if self.max_running else "")


def plan(asked: Asked, config: Mapping[str, Any]) -> Planned:
    """The sweep that flags and config ask for; a flag wins. Raises Refusal(s) E-SWEEP-001 to -006."""
    section = _section(config.get("sweep"))
    axes = parse_axes(asked.grid) if asked.grid else _listed(section.get("grid") or {})
    count, seed = (
        asked.random or section.get("random", 0),
        asked.seed if asked.seed is not None else section.get("seed", 0),
    )
    variants = drawn(axes, count, seed) if count else every(axes)
    stopping = _stopping(asked, section.get("early_stopping"))
    return Planned(Sweep(tuple(variants), stopping), asked.max_running or section.get("max_running", 0))


def _section(value: Any) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise Refusal(
            "E-SWEEP-006", "not a mapping", field="sweep", found=type(value).__name__, allowed=", ".join(_SECTION)
        )
    faults = [
        Refusal("E-SWEEP-006", "unknown", field=f"sweep.{k}", allowed=", ".join(_SECTION))
        for k in value
        if k not in _SECTION
    ]
    faults += [
        Refusal(
            "E-SWEEP-006", f"not {kind.__name__}", field=f"sweep.{key}", found=repr(value[key]), allowed=kind.__name__
        )
        for key, kind in _SECTION.items()
        if key in value and type(value[key]) is not kind
    ]
    faults += [
        Refusal("E-SWEEP-006", "below 1", field=f"sweep.{key}", found=value[key], allowed="a whole number from 1 on")
        for key in ("random", "max_running")
        if type(value.get(key)) is int and value[key] < 1
    ]
    if faults:
        raise Refusals(faults)
    return value


def _listed(grid: Mapping[str, Any]) -> tuple[Axis, ...]:
    """Axes of the config: a list of values as they are, or the text that --grid takes."""
    return parse_axes(
        (str(name), value) if isinstance(value, (list, dict)) or value is None else f"{name}={_word(value)}"
        for name, value in grid.items()
    )


def _word(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _rungs(text: str) -> list[int]:
    words = [word.strip() for word in text.split(",")]
    if not all(word.isascii() and word.isdecimal() for word in words):
        raise ValueError("rungs are steps, whole numbers with commas")
    return [int(word) for word in words]


def _stopping(asked: Asked, section: Mapping[str, Any] | None) -> Stopping | None:
    if section is None and not (asked.metric or asked.rungs or asked.keep or asked.maximise):
        return None
    section = section or {}
    try:
        rungs = _rungs(asked.rungs) if asked.rungs else section.get("rungs", ())
        value = {
            **section, "metric": asked.metric or section.get("metric", "loss"), "rungs": rungs,
            "mode": "max" if asked.maximise else section.get("mode", "min"), "keep": asked.keep or section.get("keep", KEEP),
        }  # fmt: skip
        return Stopping.parse(value)
    except ValueError as exc:
        flags, allowed = {"metric": asked.metric, "rungs": asked.rungs}, "metric, mode, rungs and keep"
        found = flags.get(str(exc).partition(" ")[0]) or str(dict(section))
        raise Refusal("E-SWEEP-005", str(exc), field="early_stopping", found=found, allowed=allowed) from None


def begin(
    table: Mapping[str, Any], recipe: Recipe, version: str, given: Mapping[str, Any]
) -> tuple[dict[str, Any], list[Refusal]]:
    """The package's own hyperparameters, and what is wrong with the variants'. Without a table the given ones.

    Where nothing else is given the first variant's stand there, so that a required one is not missing.
    """
    if not table:
        return dict(given), []
    try:
        sweep = Sweep.parse(table)
    except ValueError as exc:
        return dict(given), [Refusal("E-SWEEP-008", str(exc), field=RECORD)]
    base = dict(given) if recipe.is_custom else {**sweep.variants[0], **given}
    if recipe.integration:
        message = f"{recipe.id} gives its framework its settings when the package is made, one set a job"
        return dict(given), [Refusal("E-SWEEP-012", message, field="sweep", found=recipe.id)]
    return base, [*variant_refusals(sweep, recipe, version, base), *rung_refusals(sweep, recipe, version, base)]


def rung_refusals(sweep: Sweep, recipe: Recipe, version: str, base: Mapping[str, Any]) -> list[Refusal]:
    """Rungs that no variant comes to, where the recipe counts its steps beforehand: at its last step a run ends anyhow."""
    if sweep.stopping is None or recipe.is_custom:
        return []
    try:
        lasts = [int(recipe.resolve({**base, **row}, version).get("max_steps") or 0) for row in _lengths(sweep)]
    except Refusals:
        return []  # wrong values are refused as such
    beyond = [rung for rung in sweep.stopping.rungs if rung >= max(lasts)]
    if not all(lasts) or not beyond:
        return []
    return [
        Refusal(
            "E-SWEEP-005", "no variant comes to this rung", field="early_stopping.rungs", found=", ".join(map(str, beyond)),
            allowed=f"steps below max_steps, {max(lasts)}",
        )
    ]  # fmt: skip


def _lengths(sweep: Sweep) -> list[dict[str, Any]]:
    """What the variants say of their length, each saying once."""
    return [
        dict(said) for said in {tuple((k, v) for k, v in row.items() if k == "max_steps") for row in sweep.variants}
    ]


def metric_refusals(
    table: Mapping[str, Any], recipe: Recipe, version: str, experiment: Path
) -> tuple[list[Refusal], list[str]]:
    """Why no run has the number that decides who goes on, and what is only said: a program that was edited may write what its recipe does not.

    A table of another form is refused elsewhere, and a recipe that declares no numbers cannot be asked.
    """
    name = str((table.get("stopping") or {}).get("metric") or "")
    declared = recipe.numbers
    if not name or not declared or any(fnmatchcase(name, pattern) for pattern in declared):
        return [], []
    if _edited(recipe, version, experiment):
        return [], [
            f"{recipe.id} writes no {name!r}; the experiment's own program has to, or the first rung ends the run"
        ]
    meant = recipe.typed.metrics.aliases.get(name) or difflib.get_close_matches(name, declared, 1)
    hint = f"Did you mean {meant[0]}?" if meant else ""
    message = f"{recipe.id} writes no such number"
    return [
        Refusal(
            "E-SWEEP-005", message, field="early_stopping.metric", found=name, allowed=", ".join(declared), hint=hint
        )
    ], []


def _edited(recipe: Recipe, version: str, experiment: Path) -> bool:
    """Whether the experiment's program is another than the recipe's."""
    point = recipe.entrypoint(version)
    if point.kind != "experiment":
        return False
    own, theirs = experiment / point.value, recipe.template / point.value
    return not (own.is_file() and theirs.is_file()) or own.read_bytes() != theirs.read_bytes()


def alone(table: Mapping[str, Any], config: Mapping[str, Any]) -> tuple[Mapping[str, Any], list[str]]:
    """(the config without what would follow a run, what was left out): the best of a sweep is known only when all of it is there."""
    lifecycle = config.get("lifecycle")
    asked = ["eval"] if config.get("eval") else []
    asked += ["lifecycle.on_success"] if isinstance(lifecycle, Mapping) and lifecycle.get("on_success") else []
    if not table or not asked:
        return config, []
    kept = {key: value for key, value in config.items() if key != "eval"}
    if isinstance(lifecycle, Mapping):
        kept["lifecycle"] = {key: value for key, value in lifecycle.items() if key != "on_success"}
    return kept, [f"nothing follows an element of a sweep: {' and '.join(asked)} of config.yaml left out"]


def records(
    table: Mapping[str, Any], options: Mapping[str, Any], inputs: Mapping[str, Any], fleet: str
) -> dict[str, Any]:
    """What a sweep adds to the package's records. Raises Refusals E-SWEEP-005, -008, -009."""
    if not table:
        return {}
    _, faults = table_refusals(table, options, inputs)
    if fleet != "slurm":
        faults.append(
            Refusal("E-SWEEP-009", "the fleet runs one job at a time", field="--profile", found=fleet, allowed="slurm")
        )
    if faults:
        raise Refusals(faults)
    return {RECORD: dict(table)}


def variant_refusals(sweep: Sweep, recipe: Recipe, version: str, base: Mapping[str, Any]) -> list[Refusal]:
    """What the recipe says of each value, every value once; duplicates. A program of the user's own takes any name."""
    rows = [tuple(sorted((k, type(v).__name__, v) for k, v in row.items())) for row in sweep.variants]
    first: dict[Any, int] = {}
    for n, row in enumerate(rows):
        first.setdefault(row, n)
    out = [
        Refusal(
            "E-SWEEP-002",
            f"variant {n} is variant {first[row]} again",
            field=f"variants.{n}",
            found=str(sweep.variants[n]),
        )
        for n, row in enumerate(rows)
        if first[row] != n
    ]
    if recipe.is_custom:
        return out
    values = dict.fromkeys((name, type(value), value) for row in sweep.variants for name, value in row.items())
    told: dict[tuple[str, str], Refusal] = {}
    for name, _, value in values:
        try:
            recipe.resolve({**base, name: value}, version)
        except Refusals as faults:
            told |= {(f.code, f.message): f for f in faults.items if (f.code, f.message) not in told}
    return [*out, *told.values()]


def table_refusals(
    record: Any, options: Mapping[str, Any], inputs: Mapping[str, Any]
) -> tuple[Sweep | None, list[Refusal]]:
    """The package's table, judged against the array and the inputs that the job has. None without a table."""
    if record is None:
        return None, []
    try:
        sweep = Sweep.parse(record)
    except ValueError as exc:
        return None, [Refusal("E-SWEEP-008", str(exc), field=RECORD)]
    out, count = [], len(sweep.variants)
    text = str(options.get("array") or "")
    if not text or parse_array(text).ranges != (range(count),):
        out.append(
            Refusal("E-SWEEP-008", f"{count} variants", field="spec.slurm.array", found=text, allowed=f"0-{count - 1}")
        )
    stopping = sweep.stopping
    if stopping and stopping.metric.startswith("validation_") and "validation" not in inputs:
        out.append(
            Refusal("E-SWEEP-005", "no validation data is given", field="early_stopping.metric", found=stopping.metric)
        )
    return sweep, out
