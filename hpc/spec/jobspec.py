"""JobSpec, `apiVersion: tuneplane/v1`, `kind: TrainingJob`: JSON in, a frozen typed value or every refusal at once out.

`parse` reads what the documents show (`hpc.spec.lenient` lists the leniencies); `JobSpec.normalised` is the one canonical spelling, and
parsing that again gives the same value. Nothing here looks at a recipe, a registry, a site or the disk: what depends on those is
admission's.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Literal

from pydantic import Field, ValidationError
from tuneplane.contract import schemas
from tuneplane.record.digest import digest_json

from hpc.errors import Refusal, Refusals
from hpc.spec.lenient import canonical
from hpc.spec.model import Strict, path_of, refusals, shown
from hpc.spec.parts import Body, Metadata, Provenance
from hpc.spec.rules import broken_rules
from hpc.spec.text import CONTROL, control_character, visible

MAX_DEPTH = 32
_PROSE = ("spec", "hyperparams")


class JobSpec(Strict):
    """One job, as admission and launcher read it. `parse` is the way to make one: models alone do not know the rules between fields."""

    api_version: Literal["tuneplane/v1"] = Field(alias="apiVersion")
    kind: Literal["TrainingJob"]
    metadata: Metadata
    spec: Body
    provenance: Provenance

    def normalised(self) -> dict[str, Any]:
        """The canonical JSON: values that equal their default are left out. `parse` of it gives this value again."""
        return self.sparse()

    def digest(self) -> str:
        """`sha256:…` of the canonical JSON; two spellings of one job share it."""
        return digest_json(self.normalised())

    @property
    def gpus(self) -> int:
        """Cards over all pools: what the quota counts."""
        return sum(pool.gpus for pool in self.spec.resources.pools)


def parse(value: object) -> JobSpec:
    """The JobSpec that parsed JSON or YAML describes. Raises Refusals with every fault, fields first, then rules between fields."""
    if not isinstance(value, dict):
        raise Refusals([Refusal("E-SPEC-013", "a JobSpec is an object", found=shown(value), allowed="an object")])
    unclean = list(_unclean(value, ()))
    if any(refusal.code == "E-SPEC-018" for refusal in unclean):
        raise Refusals(unclean)
    plain, found = canonical(value, JobSpec)
    spec = None
    try:
        spec = JobSpec.model_validate(plain)
    except ValidationError as exc:
        found = [_documented(refusal) for refusal in refusals(exc, JobSpec)] + found
    body = plain.get("spec")
    found = unclean + found + (broken_rules(body) if isinstance(body, dict) else [])
    if found or spec is None:
        raise Refusals(_once(found))
    return spec


def json_schema() -> dict[str, Any]:
    """The JSON Schema of the canonical spelling. It states shapes and ranges; grammars and rules between fields are in `parse` alone."""
    return JobSpec.model_json_schema(by_alias=True)


def _unclean(value: Any, loc: tuple[int | str, ...]) -> Iterator[Refusal]:
    """Control characters in any text or key, and what has no JSON form. Prose in hyperparameters may have line ends and tabs."""
    if isinstance(value, str):
        if refusal := control_character(value, path_of(loc), prose=loc[:2] == _PROSE):
            yield refusal
    elif isinstance(value, (dict, list)):
        if len(loc) >= MAX_DEPTH:
            field = path_of(loc)
            yield Refusal("E-SPEC-018", "nested too deep", field=field, allowed=f"at most {MAX_DEPTH} levels")
            return
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            if isinstance(value, dict) and (not isinstance(key, str) or CONTROL.search(key)):
                yield _bad_key(key, path_of(loc))
                continue
            yield from _unclean(item, (*loc, key))
    elif isinstance(value, float):
        if not math.isfinite(value):
            yield Refusal(
                "E-SPEC-018", "has no JSON form", field=path_of(loc), found=str(value), allowed="a finite number"
            )
    elif value is not None and not isinstance(value, (bool, int)):
        found = type(value).__name__
        yield Refusal("E-SPEC-018", "is not plain data", field=path_of(loc), found=found, allowed="JSON values")


def _bad_key(key: object, field: str) -> Refusal:
    if not isinstance(key, str):
        return Refusal("E-SPEC-018", "a key is not text", field=field, found=repr(key)[:80], allowed="text")
    return Refusal(
        "E-SPEC-016", "a key holds a control character", field=field, found=visible(key), allowed="plain text"
    )


def _documented(refusal: Refusal) -> Refusal:
    """Fields that the documents name as a whole, and codes of the two fixed words."""
    if refusal.field.startswith("spec.resources.network."):
        key = refusal.field.removeprefix("spec.resources.network.")
        refusal.field, refusal.message = "spec.resources.network", f"{key}: {refusal.message}"
    if refusal.field == "apiVersion":
        refusal.code, refusal.allowed = "E-SPEC-010", schemas.JOBSPEC
    elif refusal.field == "kind":
        refusal.code, refusal.allowed = "E-SPEC-010", schemas.JOBSPEC_KIND
    return refusal


def _once(found: list[Refusal]) -> list[Refusal]:
    """No fault twice: what a control character spoils is not refused again, nor a CPU pool's number that has the wrong type already."""
    out: dict[tuple[str, str], Refusal] = {}
    named: dict[str, set[str]] = {}
    for refusal in found:
        codes = named.setdefault(refusal.field, set())
        if "E-SPEC-016" not in codes and not (codes and refusal.code == "E-SPEC-024"):
            out.setdefault((refusal.field, refusal.message), refusal)
        codes.add(refusal.code)
    return list(out.values())
