"""Which runs a list shows: by what their packages say. Cheap questions first; a package is read only where one asks for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tuneplane.contract.layout import RunPaths

from hpc.errors import Refusal
from hpc.runs.records import mapping_at, object_of
from hpc.runs.state import RunState


@dataclass(frozen=True)
class Wanted:
    """Empty words ask nothing. `commit` and `data` are beginnings of hexadecimal digits; a label with None asks that it is there."""

    exp: str = ""
    state: str = ""
    since: float = 0.0
    method: str = ""
    commit: str = ""
    data: str = ""
    labels: Mapping[str, str | None] = field(default_factory=dict)

    def fits(self, run: RunPaths, state: RunState) -> bool:
        """Whether a run is wanted. A package that cannot be read fits no question about it."""
        if (
            self.exp not in ("", run.exp)
            or self.state not in ("", state.cls)
            or (state.submitted_at or 0.0) < self.since
        ):
            return False
        if not (self.method or self.commit or self.data or self.labels):
            return True
        return self._packed(object_of(run.jobspec), object_of(run.launch) if self.data else {})

    def _packed(self, spec: Mapping[str, Any], launch: Mapping[str, Any]) -> bool:
        labels = mapping_at(spec, "metadata", "labels")
        method = mapping_at(spec, "spec", "recipe").get("name", "")
        commit = str(mapping_at(spec, "provenance").get("git_commit") or "")
        return (
            self.method in ("", method, str(method).rpartition("/")[2])
            and commit.startswith(self.commit)
            and all(name in labels and value in (None, str(labels[name])) for name, value in self.labels.items())
            and (not self.data or any(digest.startswith(self.data) for digest in _digests(launch)))
        )


def parse_labels(items: tuple[str, ...]) -> dict[str, str | None]:
    """`NAME=VALUE`, or `NAME` for any value. Raises Refusal E-SUBMIT-031 for an empty name."""
    out: dict[str, str | None] = {}
    for item in items:
        name, equals, value = item.partition("=")
        if not name.strip():
            raise Refusal(
                "E-SUBMIT-031", "--label takes NAME or NAME=VALUE", field="--label", found=item, allowed="NAME=VALUE"
            )
        out[name.strip()] = value.strip() if equals else None
    return out


def _digests(launch: Mapping[str, Any]) -> list[str]:
    """SHA-256 of every input file, bare hexadecimal digits, and digests of data sets."""
    out = []
    inputs = mapping_at(launch, "inputs")
    for source in inputs.values():
        if not isinstance(source, dict):
            continue
        dataset = source.get("dataset")
        named = [f.get("sha256") for f in source.get("files") or () if isinstance(f, dict)]
        named.append(dataset.get("digest") if isinstance(dataset, dict) else None)
        out += [str(d).removeprefix("sha256:") for d in named if d]
    return out
