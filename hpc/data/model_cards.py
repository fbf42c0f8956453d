"""What a person sees of the models on the shelf: one card a model, versions with their state, channels. A damaged model spoils no list."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tuneplane.contract.layout import StorageRoot

from hpc.data.channels import Channel, channels, find
from hpc.data.models import MODEL
from hpc.errors.core import Refusal, Refusals
from hpc.registry.order import newest_first
from hpc.registry.resolve import Version, load
from hpc.registry.shelf import Ref, Shelf, parse_ref
from hpc.registry.switches import read_switch


@dataclass(frozen=True)
class Card:
    """One model. `offered`: what a reference without a version means, "" where all is archived; `shown`: the version that is described."""

    id: str
    offered: str
    shown: str = ""
    path: str = ""
    record: Mapping[str, Any] = field(default_factory=dict)
    versions: tuple[Mapping[str, str], ...] = ()
    channel_rows: tuple[Channel, ...] = ()
    faults: tuple[Refusal, ...] = ()

    @property
    def channels(self) -> dict[str, str]:
        return {c.name: c.version for c in self.channel_rows}

    @property
    def form(self) -> str:
        return str(self.record.get("facts", {}).get("form", ""))

    @property
    def what(self) -> str:
        facts = self.record.get("facts", {})
        return ", ".join(facts.get("architectures") or []) or str(
            facts.get("peft_type") or facts.get("model_type") or ""
        )

    @property
    def size(self) -> int:
        return int(self.record.get("size", 0))

    def as_json(self, *, full: bool = False) -> dict[str, Any]:
        short = {
            "id": self.id, "offered": self.offered, "version": self.shown, "form": self.form, "architecture": self.what, "size": self.size,
            "digest": self.record.get("digest", ""), "channels": self.channels,
        }  # fmt: skip
        if not full:
            return short
        return {
            **short, "path": self.path, "facts": dict(self.record.get("facts", {})), "published": dict(self.record.get("published", {})),
            "versions": [dict(v) for v in self.versions], "channel_rows": [c.as_json() for c in self.channel_rows],
            "errors": [f.as_json() for f in self.faults],
        }  # fmt: skip


def listing(root: StorageRoot, *, owner: str = "") -> tuple[list[Card], list[Refusal]]:
    """Every model, or one owner's, and the refusals of what cannot be believed or read. Raises Refusal E-STORE-02x for the shelf itself."""
    shelf = Shelf(root, MODEL)
    cards: list[Card] = []
    faults: list[Refusal] = []
    for who in [owner] if owner else shelf.owners():
        for name in shelf.packages(who):
            try:
                found = _card(shelf, Ref(who, name), "")
                cards.append(found)
                faults += found.faults
            except Refusal as fault:
                faults.append(fault)
            except Refusals as several:
                faults += several.items
    return cards, faults


def card(root: StorageRoot, text: str) -> Card:
    """One model; the version may be named by a channel. Raises Refusal E-REG-*, E-MODEL-041, E-SITE-*, E-STORE-*."""
    ref = parse_ref(text, "REF")
    shelf = Shelf(root, MODEL)
    shown = find(root, None, text, field="REF", for_new=False).version if ref.version else ""
    return _card(shelf, ref, shown)


def _card(shelf: Shelf, ref: Ref, shown: str) -> Card:
    uid = shelf.require(ref.owner, ref.name)
    switch = read_switch(shelf, ref.owner, ref.name, uid)
    good: dict[str, Version] = {}
    rows: list[Mapping[str, str]] = []
    faults: list[Refusal] = []
    for name in newest_first(shelf.versions(ref.owner, ref.name)):
        try:
            version = good[name] = load(shelf, Ref(ref.owner, ref.name, name), uid)
        except (Refusal, Refusals) as exc:
            faults += [exc] if isinstance(exc, Refusal) else exc.items
            rows.append({"version": name, "state": "damaged", "digest": "", "at": ""})
            continue
        state = "enabled" if switch.enabled(name, str(version.record["starts"])) else "archived"
        at = str(version.record["published"].get("at", ""))
        rows.append({"version": name, "state": state, "digest": version.digest, "at": at})
    usable = [r["version"] for r in rows if r["state"] == "enabled"]
    offered = switch.recommended if switch.recommended in usable else next(iter(usable), "")
    shown = shown or offered or next(iter(good), "")
    record = good[shown].record if shown in good else {}
    path = str(good[shown].content) if shown in good else ""
    rows_of_channels = tuple(channels(shelf, ref))
    return Card(ref.id, offered, shown, path, record, tuple(rows), rows_of_channels, tuple(faults))
