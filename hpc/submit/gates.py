"""The quality gates of a spec, computed before anything is queued: the figures go into launch.json, a gate that fails refuses the submission.

max_duplicate_ratio     training rows that repeat an earlier one, byte for byte     / training rows
max_overlap_ratio       rows of overlap_with that stand in the training rows        / rows of overlap_with
max_group_leak_ratio    validation rows whose group_key the training rows have, too / validation rows with a group
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tuneplane.contract.datasets import is_data

from hpc.data.measure import LOGIN_BYTES, Measures
from hpc.data.rows import Source
from hpc.errors import Refusal, Refusals

if TYPE_CHECKING:
    from hpc.submit.inputs import Digest
    from hpc.submit.prepare import Around

FIELD: Final = "spec.data.quality"
GATES: Final = (
    ("max_duplicate_ratio", "duplicates", "E-DATA-050", "training rows repeat an earlier row"),
    ("max_overlap_ratio", "overlap", "E-DATA-051", "evaluation rows stand in the training rows"),
    ("max_group_leak_ratio", "groups", "E-DATA-052", "validation rows have a group that the training rows have, too"),
)
_COUNTS: Final = {
    "duplicates": ("duplicates", "rows"),
    "overlap": ("overlapping", "eval_rows"),
    "groups": ("leaking", "validation_rows"),
}


def gate_record(
    around: Around, quality: Mapping[str, Any], inputs: Mapping[str, Any], digest: Digest, where: Callable[[str], Path]
) -> dict[str, Any]:
    """The figures of every gate that the spec states. `where`: the place of an input's path now, as the package is not written yet.

    Raises Refusals E-DATA-050 … -052 (all gates that fail), Refusal E-DATA-053 (too large for here), E-DATA-054 (nothing to compare), and as
    the measures.
    """
    train = _sources("train", inputs, where)
    measures = Measures(
        around.root.user_state(around.user) / "quality",
        digest=digest,
        limit=LOGIN_BYTES,
        command=_command(quality, inputs, where),
    )
    out: dict[str, Any] = {}
    faults: list[Refusal] = []
    for gate, kind, code, words in GATES:
        if (most := quality.get(gate)) is None:
            continue
        value = _measure(kind, around, quality, inputs, train, measures, where)
        passed = value["ratio"] <= most
        out[kind] = {**value, "gate": gate, "max": most, "passed": passed}
        if not passed:
            part, whole = (value[key] for key in _COUNTS[kind])
            listed = "; ".join(o["row"] for o in value["offenders"][:3])
            text = f"{part} of {whole} {words} ({value['ratio']:.6g})"
            faults.append(Refusal(code, text, field=f"{FIELD}.{gate}", found=listed, allowed=f"at most {most}"))
    if faults:
        raise Refusals(faults)
    return out


def _measure(
    kind: str, around: Around, quality: Mapping[str, Any], inputs: Mapping[str, Any], train: list[Source], measures: Measures,
    where: Callable[[str], Path],
) -> dict[str, Any]:  # fmt: skip
    if kind == "duplicates":
        return measures.duplicates(train)
    if kind == "overlap":
        return measures.overlap(train, evaluation_sources(around, quality["overlap_with"]))
    return measures.groups(train, _sources("validation", inputs, where), quality["group_key"])


def evaluation_sources(around: Around, ref: str) -> list[Source]:
    """The rows of an evaluation set: its splits but for train, else all of it. Raises Refusal E-SUBMIT-034, E-DATA-054, E-REG-*."""
    from hpc.data.rows import evaluation_files
    from hpc.spec.refs import parse_hub_ref

    if parse_hub_ref(ref, f"{FIELD}.overlap_with", kind="dataset").hub != "tp":
        allowed = "a data set of this platform"
        raise Refusal(
            "E-SUBMIT-034",
            "rows of another hub cannot be read here",
            field=f"{FIELD}.overlap_with",
            found=ref,
            allowed=allowed,
        )
    found = evaluation_files(ref, root=around.root, site=around.site, field=f"{FIELD}.overlap_with")
    if not found:
        raise Refusal("E-DATA-054", f"{ref} has no rows", field=f"{FIELD}.overlap_with", found=ref)
    return found


def _sources(name: str, inputs: Mapping[str, Any], where: Callable[[str], Path]) -> list[Source]:
    """The data files of an input. Raises Refusal E-DATA-054 where there is none, or none whose rows can be read."""
    source = inputs.get(name)
    base = where(source["path"]) if source else None
    if source is None or base is None:
        raise Refusal("E-DATA-054", f"the gates need {name} data", field=f"spec.data.{name}")
    label = source["dataset"]["ref"] if source.get("dataset") else name
    rows = source["files"] or [{"path": "", "size": base.stat().st_size if base.is_file() else 0}]
    out = []
    for row in rows:
        path = base / row["path"] if row["path"] else base
        if is_data(path.name) and path.is_file():
            out.append(Source(f"{label}:{row['path'] or path.name}", path, row["size"], row.get("sha256", "")))
    if not out:
        raise Refusal(
            "E-DATA-054", f"{name} holds no JSONL or Parquet file", field=f"spec.data.{name}", found=str(base)
        )
    return out


def _command(quality: Mapping[str, Any], inputs: Mapping[str, Any], where: Callable[[str], Path]) -> str:
    """What measures the same in a job; it keeps its results where the next submission looks."""
    words = ["tp", "dataset", "quality", *_target(inputs.get("train"), "--split", where)]
    if quality.get("max_overlap_ratio") is not None:
        words += ["--against", quality["overlap_with"]]
    if quality.get("max_group_leak_ratio") is not None and inputs.get("validation"):
        target = _target(inputs["validation"], "--validation-split", where)
        words += ["--group-key", quality["group_key"], "--validation", *target]
    return shlex.join([*words, "--no-near"])


def _target(source: Mapping[str, Any] | None, flag: str, where: Callable[[str], Path]) -> list[str]:
    if not source:
        return ["TRAIN"]
    if dataset := source.get("dataset"):
        return [dataset["ref"], *([flag, dataset["split"]] if dataset["split"] else [])]
    return [os.fspath(where(source["path"]))]
