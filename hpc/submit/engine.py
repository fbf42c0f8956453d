"""What the training engine would refuse only after the wait in the queue, and what it is told of the columns of its rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tuneplane.contract.contradictions import Contradiction, Declared, contradictions, lora_of
from tuneplane.contract.datarows import DataFault, parse_row, pyarrow_parquet, read_lines
from tuneplane.contract.datasets import is_data
from tuneplane.contract.mapping import TALK, Columns, parse_columns, refuse_missing

from hpc.errors import Refusal, Refusals

if TYPE_CHECKING:
    from hpc.catalog.params import Param
    from hpc.catalog.recipes import Recipe
    from hpc.spec.jobspec import JobSpec
    from hpc.submit.flags import Flags

ENGINES = ("deepspeed", "trl")
"""Frameworks whose recipes read rows through `tuneplane.training`."""
TASKS_READERS = ("deepspeed/grpo", "trl/grpo")
SPLITS = ("train", "validation")
_PEEK_ROWS, _PEEK_BYTES = 1000, 16 << 20


def engine_faults(
    spec: Mapping[str, Any], inputs: Mapping[str, Any], where: Callable[[str], Path] = Path
) -> list[Refusal]:
    """Everything of that kind about data and hyperparameters. `where`: the place of an input's path now. Reads the beginning of mapped files."""
    body = spec["spec"]
    if body["framework"]["kind"] not in ENGINES:
        return [
            Refusal(
                "E-DATA-005",
                "only recipes of deepspeed/ and trl/ map columns",
                field=f"config.yaml: data.{name}.columns",
            )
            for name, source in inputs.items()
            if source.get("columns") and not source.get("dataset")
        ]
    faults = [
        Refusal(
            "E-DATA-014", f"{source['dataset']['ref']} has other files here", field=f"spec.data.{name}", found=_odd(source),
            allowed=".jsonl and .parquet files",
        )
        for name, source in inputs.items()
        if source.get("dataset") and _odd(source)
    ]  # fmt: skip
    for name in SPLITS:
        if columns := inputs.get(name, {}).get("columns"):
            faults += _column_faults(name, inputs[name], Columns(columns), where)
    return faults + _environment_faults(body, inputs)


def _environment_faults(body: Mapping[str, Any], inputs: Mapping[str, Any]) -> list[Refusal]:
    """What a method cannot do with an environment, or without one."""
    name, given = body.get("recipe", {}).get("name", ""), inputs.get("environment")
    if name not in TASKS_READERS:
        text = f"{name} reads no tasks"
        return (
            [Refusal("E-DATA-015", text, field="spec.data.environment", allowed=" or ".join(TASKS_READERS))]
            if given
            else []
        )
    if given is None:
        field, allowed = "spec.data.train", "--train-data, --train-dataset, or --environment"
        return (
            []
            if "train" in inputs
            else [Refusal("E-DATA-015", f"{name} has nothing to ask", field=field, allowed=allowed)]
        )
    verifier = given["environment"]["verifier"]
    named = str(body.get("hyperparams", {}).get("reward_functions", "auto"))
    if verifier["kind"] == "plugin" or not {"auto", "verifier"} & {n.strip() for n in named.split(",")}:
        return []
    text = f"{name} cannot ask the verifier of {given['environment']['ref']}"
    return [Refusal("E-DATA-015", text, field="spec.data.environment", found=verifier["kind"], allowed="plugin")]


def _odd(source: Mapping[str, Any]) -> str:
    """The first file that holds no rows, "" where all do."""
    names = (row["path"] or source["path"] for row in source["files"])
    return next((str(name) for name in names if not is_data(str(name))), "")


def settings_faults(
    spec: JobSpec,
    recipe: Recipe,
    version: str,
    variants: Sequence[Mapping[str, Any]] = (),
    *,
    lead_s: int | None = None,
) -> list[Refusal]:
    """Hyperparameters that are good alone and that the job would refuse together: the package's, or of a sweep each variant's.

    `lead_s`: seconds from the warning to the end, where they are known. Of a method that a user published nothing is known; what is wrong
    alone, the recipe refuses.
    """
    params, model = recipe.typed.params, spec.spec.model
    if recipe.owner or recipe.framework not in ENGINES:
        return []
    try:
        base = recipe.resolve(dict(spec.spec.hyperparams), version)
    except Refusals:
        return []
    known = {n: Declared(p.default, p.allowed, partial(_outside, p)) for n, p in params.items()}
    peft = model.peft.model_dump() if model and model.peft else None
    told: dict[tuple[str, str], Refusal] = {}
    for number, row in enumerate(variants or ({},)):
        if not all(name in params and params[name].accepts(value) for name, value in row.items()):
            continue
        values = {**base, **row}
        lora, wrong = lora_of(peft, values, known) if peft else ({}, [])
        for c in [*_blank(values, params), *wrong, *contradictions({**values, **lora})]:
            message = f"{c.message}, in variant {number}" if variants else c.message
            fault = Refusal(c.code, message, field=f"spec.{c.field}", found=c.found, allowed=c.allowed)
            told.setdefault((c.field, c.message), fault)
    if lead_s is not None and lead_s < 1:
        text, allowed = "leaves no time to save", "at least 1 second before the end"
        told["signal", ""] = Refusal(
            "E-SPEC-044", text, field="spec.slurm.signal", found=f"{lead_s} s", allowed=allowed
        )
    return list(told.values())


def _outside(param: Param, value: Any) -> str:
    return "" if param.accepts(value) else "out of range"


def _blank(values: Mapping[str, Any], params: Mapping[str, Param]) -> list[Contradiction]:
    """Texts that say nothing."""
    texts = {n: v for n, v in values.items() if params[n].type == "str" and not (v.strip() and v.isprintable())}
    why = "empty, or holds control characters"
    return [Contradiction(why, f"hyperparams.{n}", repr(v), params[n].allowed, "E-TRAIN-011") for n, v in texts.items()]


def add_columns(inputs: Mapping[str, Any], flags: Flags, config: Mapping[str, Any]) -> None:
    """Write into each input what its columns mean: `data.<split>.columns` of config.yaml, else what the data set itself declares.

    A validation source that says nothing is read as the training rows are. A data set named on the command line is not the one that config.yaml
    speaks of. Raises Refusal E-DATA-005.
    """
    data = config.get("data") or {}
    stated: dict[str, Any] = {}
    for name, dataset in zip(SPLITS, (flags.train_dataset, flags.validation_dataset), strict=True):
        source = data.get(name)
        if isinstance(source, Mapping) and "columns" in source and not dataset:
            stated[name] = source["columns"] or {}
    for name in SPLITS:
        if name not in inputs:
            continue
        declared = _declared(inputs[name])
        value = stated.get(name, declared or (stated.get("train", {}) if name == "validation" else {}))
        if value:
            inputs[name]["columns"] = dict(_parsed(value, f"config.yaml: data.{name}.columns").roles)


def _parsed(value: Any, field: str) -> Columns:
    try:
        return parse_columns(value, field)
    except DataFault as fault:
        raise _refusal(fault, field) from fault


def _refusal(fault: DataFault, field: str) -> Refusal:
    return Refusal(fault.code, fault.message, field=field, found=fault.found, allowed=fault.allowed)


def _declared(source: Mapping[str, Any]) -> dict[str, str]:
    """The mapping of the data set's own dataset.yaml, {} where its columns have the names that methods read already."""
    declared = (source.get("dataset") or {}).get("columns") or {}
    renamed = any(role != column for role, column in declared.items())
    if not renamed:
        return {}
    if TALK in declared:
        return {TALK: declared[TALK]} if declared[TALK] != TALK else {}
    pair = {role: declared[role] for role in ("input", "output") if role in declared}
    return pair or dict(declared)


def _column_faults(
    name: str, source: Mapping[str, Any], columns: Columns, where: Callable[[str], Path]
) -> list[Refusal]:
    """A mapped column that the rows cannot have. Where the beginning does not tell, the job looks at every row."""
    base = where(source["path"])
    rels = [row["path"] for row in source["files"]] or [""]
    path = base / rels[0] if rels[0] else base
    if not path.is_file():
        return []
    try:
        have = _names(path, columns)
        if have is not None:
            refuse_missing(columns, have, name)
    except DataFault as fault:
        return [] if fault.code == "E-DATA-004" else [_refusal(fault, f"data.{name}.columns")]
    except OSError:
        return []  # resolving the input says so
    return []


def _names(path: Path, columns: Columns) -> set[str] | None:
    """The columns of a file as far as they matter; None where only the whole file could tell. Raises DataFault, OSError."""
    if path.suffix == ".parquet":
        parquet = pyarrow_parquet(path.name)
        try:
            return set(parquet.read_schema(path).names)
        except ValueError as exc:
            raise DataFault("E-DATA-003", f"is not Parquet: {exc}"[:200], field=path.name) from exc
    found: set[str] = set()
    wanted = set(columns.names)
    for row in islice(_rows(path), _PEEK_ROWS):
        found |= row.keys()
        if wanted <= found:
            return found
    small = path.stat().st_size <= _PEEK_BYTES
    return found if small and sum(1 for _ in islice(_rows(path), _PEEK_ROWS + 1)) <= _PEEK_ROWS else None


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    with open(path, "rb") as stream:
        for number, line in read_lines(stream, path.name):
            yield parse_row(line, f"{path.name}:{number}")
