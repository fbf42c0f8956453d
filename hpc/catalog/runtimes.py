"""Runtimes: runtime_id → one SIF file, its SHA-256 and its provenance. `site/runtimes.yaml` is the whole truth.

The file is strict and belongs to the admins; `hpc.catalog.registering` writes it. A runtime's identity is the digest of its
SIF; source and definition are provenance only. Nothing here pulls, and nothing falls back: an id or an image that is not
registered is refused.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, ValidationError
from tuneplane.contract.layout import SEGMENT, StorageRoot
from tuneplane.contract.schemas import RUNTIMES
from tuneplane.record import files

from hpc.catalog.images import check_host, parse_image
from hpc.errors import Refusal, Refusals
from hpc.sif.image import sif_digest
from hpc.spec.yamltext import parse_yaml

if TYPE_CHECKING:
    from hpc.site.sitefile import Site

MAX_BYTES = 1 << 20
BY_DIGEST, BY_STAT = "sha256", "size+mtime+owner"
HEAD = """\
# Runtimes of this site: runtime_id -> SIF file and SHA-256. Written by `tp runtime add`; comments are not kept.
# A path that is not absolute is below site/. A job refuses a file that differs from its sha256.
"""
_SIF_PATH = re.compile(r"/?[A-Za-z0-9_+@=.-]+(/[A-Za-z0-9_+@=.-]+)*\.sif")
_PLAIN_KEY = re.compile(r"^[A-Za-z][A-Za-z0-9._-]*$")
_WORDS = frozenset({"null", "true", "false", "~"})


def _sif_path(text: str) -> str:
    """Absolute, or below site/; nothing in it that a mount option, a shell or a template would read differently."""
    if not _SIF_PATH.fullmatch(text) or {".", ".."} & set(text.split("/")):
        raise ValueError("a path of letters, digits and _ + @ = . - that ends in .sif, without . or .. parts")
    return text


def _plain(text: str) -> str:
    if not text.isprintable() or len(text) > 1024:
        raise ValueError("one line of at most 1024 printable characters")
    return text


Plain = Annotated[str, AfterValidator(_plain)]


class Entry(BaseModel):
    """One runtime as it stands in runtimes.yaml."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, defer_build=True)

    sif: Annotated[str, AfterValidator(_sif_path)]
    sha256: Annotated[str, StringConstraints(pattern=r"^sha256:[0-9a-f]{64}$")]
    size: Annotated[int, Field(ge=0)]
    mtime_ns: Annotated[int, Field(ge=0)]
    owner_uid: Annotated[int, Field(ge=0)]
    source: Plain = ""
    definition: Plain = ""
    python: Plain = ""
    glibc: Plain = ""
    architecture: Plain = ""
    registered_at: Plain = ""
    registered_by: Plain = ""


class RuntimesFile(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, defer_build=True)

    schema_: Annotated[str, Field(alias="schema", pattern=f"^{RUNTIMES}$")]
    runtimes: dict[str, Entry] = {}


@dataclass(frozen=True)
class Runtime:
    """One registered SIF. `sif` is absolute; `size` (bytes), `mtime_ns`, `owner_uid` are those of registration.

    `python` and `glibc` are versions inside the image, "" where unknown.
    """

    id: str
    sif: Path
    sha256: str
    size: int
    mtime_ns: int
    owner_uid: int
    source: str
    definition: str
    python: str
    glibc: str
    architecture: str
    registered_at: str
    registered_by: str

    def as_json(self) -> dict[str, Any]:
        return {k: str(v) if isinstance(v, Path) else v for k, v in vars(self).items()}


@dataclass(frozen=True)
class Verified:
    """A check that passed, and how: `sha256` (all bytes read) or `size+mtime+owner`."""

    how: str
    sha256: str


class Runtimes:
    """The registered runtimes of a site, by id."""

    def __init__(self, items: Mapping[str, Runtime]) -> None:
        self._items = dict(items)

    @classmethod
    def load(cls, root: StorageRoot) -> Runtimes:
        """Read site/runtimes.yaml; no file is an empty catalogue.

        Raises Refusals E-CATALOG-041 (its content), Refusal E-SITE-01x (somebody but the admins can write it).
        """
        if not os.path.lexists(root.runtimes_file):
            return cls({})
        from hpc.site.trust import require_admin_owned

        require_admin_owned(root, root.runtimes_file)
        return cls({i: _runtime(root, i, entry) for i, entry in read_entries(root).items()})

    def __iter__(self) -> Iterator[Runtime]:
        return iter(self._items[i] for i in sorted(self._items))

    def __contains__(self, runtime_id: str) -> bool:
        return runtime_id in self._items

    def get(self, runtime_id: str, field: str = "spec.framework.runtime_id") -> Runtime:
        """The runtime of that id. Raises Refusal E-CATALOG-040; another runtime is never given instead."""
        if runtime_id not in self._items:
            allowed = ", ".join(sorted(self._items)) or "none is registered"
            message = f"no runtime {runtime_id!r} is registered"
            raise Refusal("E-CATALOG-040", message, field=field, found=runtime_id, allowed=allowed)
        return self._items[runtime_id]

    def by_image(self, reference: str, site: Site) -> Runtime:
        """The SIF that the site made from an image.

        Raises Refusal E-CATALOG-046 (form), 047 (host not allowed), 048 (not registered), 050 (registered twice).
        """
        image = parse_image(reference)
        check_host(image, site.images.allowed_hosts)
        found = self.of_source(reference)
        if len(found) > 1:
            message = f"{image} is the source of {' and '.join(r.id for r in found)}"
            raise Refusal("E-CATALOG-050", message, field="spec.framework.image", found=reference)
        if found:
            return found[0]
        known = ", ".join(r.source for r in self if r.source) or "no image is registered"
        message = f"no SIF of {image} is registered"
        raise Refusal("E-CATALOG-048", message, field="spec.framework.image", found=reference, allowed=known)

    def of_source(self, reference: str) -> list[Runtime]:
        """The runtimes whose source is that image, however it is spelt. Raises Refusal E-CATALOG-046."""
        wanted = str(parse_image(reference))
        return [r for r in self if r.source and _same_image(r.source, wanted)]


def _same_image(source: str, wanted: str) -> bool:
    try:
        return str(parse_image(source)) == wanted
    except Refusal:
        return False  # a source in the admin's own words names no image


def _runtime(root: StorageRoot, runtime_id: str, entry: Entry) -> Runtime:
    fields = entry.model_dump()
    return Runtime(id=runtime_id, **(fields | {"sif": root.site / entry.sif}))


def read_entries(root: StorageRoot) -> dict[str, Entry]:
    """The entries of site/runtimes.yaml, strictly parsed; {} where there is no file. Raises Refusal(s) E-CATALOG-041."""
    path = root.runtimes_file
    try:
        text = files.read_bytes(path, limit=MAX_BYTES).decode("utf-8")
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as exc:
        raise Refusal("E-CATALOG-041", f"cannot be read: {exc}", field=str(path)) from exc
    return parse_entries(text, origin=str(path))


def parse_entries(text: str, *, origin: str) -> dict[str, Entry]:
    """The entries of a runtimes.yaml text. Pure. Raises Refusals E-CATALOG-041 (every fault), E-SPEC-00x (not YAML)."""
    value = parse_yaml(text, origin=origin)
    try:
        parsed = RuntimesFile.model_validate({} if value is None else value)
    except ValidationError as exc:
        raise Refusals([_fault(e, origin) for e in exc.errors(include_url=False)]) from None
    bad = [i for i in parsed.runtimes if not SEGMENT.match(i)]
    if bad:
        allowed = "letters, digits, . _ -"
        raise Refusals(
            [
                Refusal("E-CATALOG-041", "is no id", field=f"{origin}: runtimes.{i}", found=i, allowed=allowed)
                for i in bad
            ]
        )
    return parsed.runtimes


def _fault(error: Any, origin: str) -> Refusal:
    field = f"{origin}: " + ".".join(str(p) for p in error["loc"])
    allowed = str((error.get("ctx") or {}).get("pattern", ""))
    return Refusal("E-CATALOG-041", error["msg"], field=field, found=error["input"], allowed=allowed)


def format_entries(entries: Mapping[str, Entry]) -> str:
    """The text of runtimes.yaml; every value is written so that it reads back as it is."""
    lines = [HEAD + f"schema: {RUNTIMES}", "runtimes:" if entries else "runtimes: {}"]
    for runtime_id, entry in sorted(entries.items()):
        plain = _PLAIN_KEY.match(runtime_id) and runtime_id.lower() not in _WORDS
        lines.append(f"  {runtime_id if plain else json.dumps(runtime_id)}:")
        lines += [f"    {k}: {json.dumps(v, ensure_ascii=False)}" for k, v in entry.model_dump().items() if v != ""]
    return "\n".join(lines) + "\n"


def verify(runtime: Runtime, full: bool = True, *, root: StorageRoot | None = None) -> Verified:
    """Check the SIF against its record, by all of its bytes or by size, time of change and owner; the answer says which.

    A file whose size or time differ is read whole after all: either it is the same bytes (then the answer says sha256),
    or the refusal names both digests. With `root`, the file must be the admins' property as well. Raises Refusal
    E-CATALOG-044 (differs), E-SIF-004 (gone or unreadable), E-SITE-01x (not the admins').
    """
    if root is not None:
        from hpc.site.trust import require_admin_owned

        require_admin_owned(root, runtime.sif)
    try:
        found = os.stat(runtime.sif)
    except OSError as exc:
        message = f"the SIF of {runtime.id}: {exc.strerror}"
        raise Refusal("E-SIF-004", message, field=str(runtime.sif), allowed=runtime.sha256) from exc
    if found.st_uid != runtime.owner_uid:
        message = f"the SIF of {runtime.id} has another owner than at its registration"
        allowed = f"uid {runtime.owner_uid}"
        raise Refusal("E-CATALOG-044", message, field=str(runtime.sif), found=f"uid {found.st_uid}", allowed=allowed)
    if not full and (found.st_size, found.st_mtime_ns) == (runtime.size, runtime.mtime_ns):
        return Verified(BY_STAT, runtime.sha256)
    actual = sif_digest(runtime.sif)
    if actual != runtime.sha256:
        message = f"the SIF of {runtime.id} changed after it was registered"
        raise Refusal("E-CATALOG-044", message, field=str(runtime.sif), found=actual, allowed=runtime.sha256)
    return Verified(BY_DIGEST, actual)
