"""What a person sees of the shelf: one card a package, with every version's state. A damaged package spoils no list; it is a fault beside it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tuneplane.contract.layout import StorageRoot

from hpc.errors import Refusal, Refusals
from hpc.plugins.kind import PLUGIN
from hpc.registry.order import newest_first
from hpc.registry.resolve import Version, load, read_file
from hpc.registry.shelf import Ref, Shelf, parse_ref
from hpc.registry.switches import Switch, read_switch

README = "README.md"
README_LIMIT = 64 << 10


@dataclass(frozen=True)
class Row:
    """One version in a list. `state`: enabled, disabled, or damaged."""

    version: str
    state: str
    digest: str = ""
    published_at: str = ""
    note: str = ""


@dataclass(frozen=True)
class Card:
    """One package. `offered`: what a reference without a version means, "" where nothing is enabled; `shown`: the version that is described."""

    id: str
    state: str
    offered: str
    recommended: str
    shown: str = ""
    record: Mapping[str, Any] = field(default_factory=dict)
    readme: str = ""
    sealed_at: str = ""
    versions: tuple[Row, ...] = ()
    faults: list[Refusal] = field(default_factory=list)

    @property
    def manifest(self) -> dict[str, Any]:
        return dict(self.record.get("facts", {}).get("manifest", {}))

    @property
    def enabled(self) -> bool:
        return self.state == "enabled"

    @property
    def capability(self) -> str:
        return str(self.manifest.get("capability", ""))

    @property
    def summary(self) -> str:
        return str(self.manifest.get("summary", ""))

    @property
    def icon(self) -> str:
        """An emoji, or nothing: presets and pictures are for pages."""
        icon = str(self.manifest.get("icon", ""))
        return "" if icon.isascii() else icon

    @property
    def digest(self) -> str:
        return str(self.record.get("digest", ""))

    @property
    def digest_v2(self) -> str:
        return str(self.record.get("digest_v2", ""))

    @property
    def size(self) -> int:
        return int(self.record.get("size", 0))

    @property
    def files(self) -> int:
        return len(self.record.get("files", ()))

    @property
    def published(self) -> dict[str, Any]:
        return dict(self.record.get("published", {}))

    @property
    def archive_sha256(self) -> str:
        return str(self.published.get("archive_sha256") or "")

    @property
    def came_by(self) -> str:
        """Admission method, actor and time, as recorded."""
        told = self.published
        how = told.get("method") or "not recorded"
        return f"{how} by {told.get('actor') or 'not recorded'}, {told.get('at') or 'time not recorded'}"

    def as_json(self, *, full: bool = False) -> dict[str, Any]:
        """The card for programs; `full` adds manifest, README and versions."""
        short = {
            "id": self.id, "state": self.state, "offered": self.offered, "recommended": self.recommended, "capability": self.capability,
            "summary": self.summary,
        }  # fmt: skip
        if not full:
            return short
        return {
            **short, "version": self.shown, "digest": self.digest, "digest_v2": self.digest_v2, "size": self.size, "files": self.files,
            "manifest": self.manifest, "published": self.published, "sealed_at": self.sealed_at, "readme": self.readme,
            "versions": [vars(v) for v in self.versions], "errors": [f.as_json() for f in self.faults],
        }  # fmt: skip


@dataclass(frozen=True)
class Listing:
    """Cards by id, and the refusals of what cannot be believed or read."""

    cards: list[Card]
    faults: list[Refusal]


def listing(root: StorageRoot, *, owner: str = "") -> Listing:
    """Every package of the shelf, or of one owner. Raises Refusal E-STORE-02x where the shelf itself cannot be listed."""
    shelf = Shelf(root, PLUGIN)
    cards: list[Card] = []
    faults: list[Refusal] = []
    for name in [owner] if owner else shelf.owners():
        for package in shelf.packages(name):
            try:
                found = _card(shelf, Ref(name, package))
            except Refusal as fault:
                faults.append(fault)
            except Refusals as several:
                faults += several.items
            else:
                cards.append(found)
                faults += found.faults
    return Listing(cards, faults)


def card(root: StorageRoot, ref: str) -> Card:
    """One package with its README. Raises Refusal E-REG-*, E-SITE-*, E-STORE-*."""
    shelf, wanted = Shelf(root, PLUGIN), parse_ref(ref, "REF")
    found = _card(shelf, wanted)
    if not found.record:
        return found
    version = load(shelf, replace(wanted, version=found.shown), shelf.uid(wanted.owner))
    return replace(found, readme=_readme(version), sealed_at=version.seal.sealed_at if version.seal else "")


def _card(shelf: Shelf, wanted: Ref) -> Card:
    uid = shelf.require(wanted.owner, wanted.name)
    switch = read_switch(shelf, wanted.owner, wanted.name, uid)
    names = newest_first(shelf.versions(wanted.owner, wanted.name))
    rows: list[Row] = []
    faults: list[Refusal] = []
    records: dict[str, Version] = {}
    for name in names:
        try:
            records[name] = load(shelf, Ref(wanted.owner, wanted.name, name), uid)
            rows.append(_row(records[name], switch))
        except Refusal as fault:
            faults.append(fault)
            rows.append(Row(name, "damaged", note=fault.message))
        except Refusals as several:
            faults += several.items
            rows.append(Row(name, "damaged", note=several.items[0].message))
    enabled = [r.version for r in rows if r.state == "enabled"]
    offered = switch.recommended if switch.recommended in enabled else next(iter(enabled), "")
    shown = wanted.version or offered or next(iter(records), "")
    if wanted.version and wanted.version not in names:
        load(shelf, wanted, uid)  # refuses with what there is
    record = records[shown].record if shown in records else {}
    state = "enabled" if enabled else "disabled"
    return Card(wanted.id, state, offered, switch.recommended, shown, record, versions=tuple(rows), faults=faults)


def _row(version: Version, switch: Switch) -> Row:
    starts = str(version.record["starts"])
    on = switch.enabled(version.version, starts)
    notes = ["recommended"] if switch.recommended == version.version else []
    by = switch.decided_by(version.version, starts)
    notes += [] if on else ["imported, not enabled yet" if by.startswith("how") else f"by {by}"]
    notes += ["sealed"] if version.seal else []
    at = str(version.record["published"].get("at", ""))
    return Row(version.version, "enabled" if on else "disabled", version.digest, at, ", ".join(notes))


def _readme(version: Version) -> str:
    """The long description: the first 64 KB of README.md, "" where there is none. Raises Refusal E-REG-013."""
    if not any(f.path == README for f in version.files):
        return ""
    return read_file(version, README)[:README_LIMIT].decode("utf-8", "replace")
