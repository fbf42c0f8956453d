"""Channels of a model: names such as `production` that mean one version now and another later, with every change kept.

    registry/channels/<owner>/<name>/<channel>/<n>.json

A channel is a pointer of the registry: compare-and-set without locks, the newest generation that can be believed is in force. Its owner moves it;
root may, too. A job never depends on one: it records the version and its digest.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tuneplane.contract.layout import StorageRoot

from hpc.data.models import MODEL, channels_of
from hpc.errors.core import Refusal
from hpc.registry.generations import Judge, Pointer, require_whole
from hpc.registry.problems import TAMPERED, Problem
from hpc.registry.resolve import Version, resolve
from hpc.registry.shelf import Ref, Shelf, is_segment
from hpc.site.roll import require_active
from hpc.site.trust import GROUP_OR_OTHER_WRITE, require_owner_folder
from hpc.site.users import User
from hpc.spec.text import segment
from hpc.store.folders import make_folder

if TYPE_CHECKING:
    from hpc.site.sitefile import Site

MAX_VERDICTS = 100


@dataclass(frozen=True)
class Channel:
    """What a channel means. `version` is "" where it was closed; `verdicts` are the gates' answers that came with the promotion."""

    name: str
    version: str
    digest: str
    generation: int
    by: str
    at: str
    verdicts: tuple[Mapping[str, Any], ...] = ()

    def as_json(self) -> dict[str, Any]:
        return {**vars(self), "verdicts": [dict(v) for v in self.verdicts]}


def _judge(uid: int) -> Judge:
    def judge(path: Path, found: os.stat_result) -> Problem | None:
        if found.st_uid not in (0, uid) or found.st_mode & GROUP_OR_OTHER_WRITE:
            text = f"belongs to uid {found.st_uid}, mode {stat.S_IMODE(found.st_mode):04o}"
            return Problem(TAMPERED, "E-REG-015", str(path), text, f"uid {found.st_uid}", f"uid {uid}")
        return None

    return judge


def _pointer(root: StorageRoot, ref: Ref, channel: str, uid: int) -> Pointer:
    return Pointer(root, channels_of(root, ref.owner, ref.name) / channel, judge=_judge(uid))


def channels(shelf: Shelf, ref: Ref) -> list[Channel]:
    """Every channel of a model, by name. Raises Refusal E-REG-002, E-REG-022, E-SITE-02x, E-STORE-02x."""
    uid = shelf.require(ref.owner, ref.name)
    folder = channels_of(shelf.root, ref.owner, ref.name)
    try:
        names = sorted(n for n in os.listdir(folder) if is_segment(n))
    except (FileNotFoundError, NotADirectoryError):
        return []
    require_owner_folder(folder.parent, uid)
    require_owner_folder(folder, uid)
    return [c for name in names if (c := _read(_pointer(shelf.root, ref, name, uid), name)) is not None]


def _read(pointer: Pointer, name: str) -> Channel | None:
    state = pointer.believed()
    if state.good is None:
        return None
    body = state.good.body
    verdicts = body.get("verdicts")
    kept = tuple(v for v in verdicts if isinstance(v, dict)) if isinstance(verdicts, list) else ()
    version, digest = str(body.get("version", "")), str(body.get("digest", ""))
    return Channel(name, version, digest, state.number, state.good.actor, state.good.at, kept)


def promote(
    shelf: Shelf, ref: Ref, channel: str, *, user: User, site: Site, now: str, expected: int | None = None,
    verdicts: tuple[Mapping[str, Any], ...] = (),
) -> Channel:  # fmt: skip
    """Let `channel` mean the version, whose bytes are not read here.

    `expected`: the generation that was read, by default the present one. `verdicts`: answers of gates, kept with the promotion. Raises Refusal
    E-REG-002, E-REG-003 (another's model), E-REG-010 (archived), E-REG-020 … E-REG-022, E-MODEL-042, E-SITE-02x, E-STORE-02x.
    """
    segment(channel, "--to")
    if os.path.lexists(shelf.version(ref.owner, ref.name, channel)):
        raise Refusal("E-MODEL-042", f"{channel} is a version of {ref.id}", field="--to", found=channel)
    require_active(shelf.root, user, site=site)
    uid = shelf.require(ref.owner, ref.name)
    if user.uid not in (0, uid):
        raise Refusal("E-REG-003", f"{ref.id} is not {user.name}'s", found=user.name, allowed=f"{ref.owner}, root")
    version = resolve(shelf.root, MODEL, ref, site=site, for_new=True)
    pointer = _pointer(shelf.root, ref, channel, uid)
    for part in (pointer.folder.parent.parent, pointer.folder.parent, pointer.folder):
        if not part.is_dir():
            make_folder(part, 0o755, uid=uid, anchor=shelf.root.path)
        require_owner_folder(part, uid)
    state = pointer.state()
    if expected is None:
        require_whole(pointer, state)
    body = {
        "version": version.version,
        "digest": version.digest,
        "verdicts": [dict(v) for v in verdicts[:MAX_VERDICTS]],
    }
    number = pointer.advance(state.number if expected is None else expected, body, by=user, now=now)
    return Channel(channel, version.version, version.digest, number, user.name, now, verdicts)


def find(root: StorageRoot, site: Site | None, text: str, *, field: str = "", for_new: bool = True) -> Version:
    """The version that `<owner>/<name>[@version or channel]` means; without one as the shelf says (recommended, else newest).

    Raises Refusal E-REG-002 …, E-MODEL-041 (neither a version nor a channel), E-REG-013 where a channel's version has other bytes than were promoted.
    """
    from hpc.registry.shelf import parse_ref

    ref = parse_ref(text, field)
    shelf = Shelf(root, MODEL, site=site)
    if not ref.version or os.path.lexists(shelf.version(ref.owner, ref.name, ref.version)):
        return resolve(root, MODEL, ref, site=site, for_new=for_new, field=field)
    have = {c.name: c for c in channels(shelf, ref)}
    chosen = have.get(ref.version)
    if chosen is None or not chosen.version:
        allowed = ", ".join([*shelf.versions(ref.owner, ref.name), *have]) or "nothing"
        text = f"{ref.id} has no version and no channel {ref.version}"
        raise Refusal("E-MODEL-041", text, field=field, found=ref.version, allowed=allowed)
    version = resolve(root, MODEL, Ref(ref.owner, ref.name, chosen.version), site=site, for_new=for_new, field=field)
    if version.digest != chosen.digest:
        text = f"{ref.id}@{chosen.version} is not what was promoted to {chosen.name}"
        raise Refusal("E-REG-013", text, field=field, found=version.digest, allowed=chosen.digest)
    return version
