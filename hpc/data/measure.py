"""The measures of rows, kept by the content of the files: what was judged once is not read again, and a result of a CPU job serves a submission."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from tuneplane.record.digest import digest_file, digest_json
from tuneplane.record.files import read_json, replace_json

from hpc.data.duplicates import Tick, exact_duplicates, near_duplicates, quiet
from hpc.data.groups import group_leaks
from hpc.data.overlap import overlap
from hpc.data.rows import Source
from hpc.errors.core import Refusal
from hpc.store.faults import refusal

SCHEMA: Final = "tuneplane-hpc/row-measure/v1"
LOGIN_BYTES: Final = 512 << 20
"""What a submission reads by itself for its gates; above it the measure belongs into a CPU job."""
Digest = Callable[[str, os.stat_result], str]


def plain_digest(path: str, info: os.stat_result) -> str:
    """The digest of a file, without a cache."""
    return digest_file(path, follow=True)


class Measures:
    """Measures with a memory. `cache` None: nothing is kept. `limit`: bytes that may be read for one measure, None for any number."""

    def __init__(
        self,
        cache: Path | None,
        *,
        digest: Digest = plain_digest,
        limit: int | None = None,
        command: str = "",
        tick: Tick = quiet,
    ) -> None:
        self.cache, self.digest, self.limit, self.command, self.tick = cache, digest, limit, command, tick

    def duplicates(self, train: Sequence[Source]) -> dict[str, Any]:
        """Rows that repeat an earlier one, byte for byte. Raises Refusal E-DATA-053 (too large for here), as `exact_duplicates`."""
        return self._kept("duplicates", [train], "", lambda: exact_duplicates(train, tick=self.tick))

    def near(self, train: Sequence[Source]) -> dict[str, Any]:
        """Rows that share most of their 13-grams with earlier ones. Raises as `duplicates`."""
        return self._kept("near", [train], "", lambda: near_duplicates(train, tick=self.tick))

    def overlap(self, train: Sequence[Source], evaluation: Sequence[Source]) -> dict[str, Any]:
        """Evaluation rows that stand in the training rows. Raises as `duplicates`."""
        return self._kept("overlap", [train, evaluation], "", lambda: overlap(train, evaluation, tick=self.tick))

    def groups(self, train: Sequence[Source], validation: Sequence[Source], key: str) -> dict[str, Any]:
        """Validation rows whose group the training rows have. Raises as `duplicates`, Refusal E-DATA-005."""
        return self._kept(
            "groups", [train, validation], key, lambda: group_leaks(train, validation, key, tick=self.tick)
        )

    def _kept(
        self, kind: str, sets: list[Sequence[Source]], more: str, work: Callable[[], dict[str, Any]]
    ) -> dict[str, Any]:
        name = digest_json([SCHEMA, kind, more, [[self._sha256(s) for s in sources] for sources in sets]])
        path = self.cache / f"{name[7:39]}.json" if self.cache else None
        if path and (known := _read(path, name)) is not None:
            return known
        size = sum(s.size for sources in sets for s in sources)
        if self.limit is not None and size > self.limit:
            raise Refusal(
                "E-DATA-053", f"the measure `{kind}` would read {size} bytes", field="spec.data.quality", found=size,
                allowed=f"at most {self.limit}", hint=f"run it in a CPU job, for example `srun {self.command}`; then submit again",
            )  # fmt: skip
        value = work()
        if path:
            path.parent.mkdir(mode=0o700, exist_ok=True)
            replace_json(path, {"schema": SCHEMA, "of": name, "kind": kind, "value": value}, mode=0o600)
        return value

    def _sha256(self, source: Source) -> str:
        if source.sha256:
            return source.sha256
        try:
            return self.digest(str(source.path), os.stat(source.path))
        except OSError as exc:
            raise refusal(exc, source.path, "read") from exc


def _read(path: Path, name: str) -> dict[str, Any] | None:
    try:
        held = read_json(path)
    except (OSError, ValueError):
        return None
    good = isinstance(held, dict) and held.get("of") == name and isinstance(held.get("value"), dict)
    return held["value"] if good else None
