"""Puts a folder on the shelf as a data set, or into a volume as its next generation."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import tuneplane
from tuneplane.contract.datasets import CARD
from tuneplane.contract.layout import StorageRoot

from hpc.data.kinds import DATASET, VOLUME, dataset_kind, volume_kind
from hpc.data.visibility import Visibility, make_package
from hpc.errors.core import Refusal
from hpc.registry.kinds import Kind
from hpc.registry.publish import Published, publish
from hpc.registry.shelf import Shelf
from hpc.registry.trees import Tick, quiet, skipped
from hpc.site.users import User
from hpc.store.faults import refusal

if TYPE_CHECKING:
    from hpc.site.sitefile import Site


STORED: Final = 3
"""How often a push takes each byte up: hashed where it lies, copied, hashed where it was stored."""
COUNTED: Final = STORED + 2
"""The same of a data set's rows, which are counted before and compared after."""


@dataclass(frozen=True)
class Pusher:
    """Where, who and when. `owner`: whose namespace, by default one's own."""

    root: StorageRoot
    site: Site
    user: User
    now: str
    owner: str = ""
    tick: Tick = quiet
    """Is told of bytes that a push read or copied: COUNTED times those of a data set's rows, STORED times those of everything else."""

    @property
    def namespace(self) -> str:
        return self.owner or self.user.name


def push_dataset(
    by: Pusher, name: str, version: str, folder: Path, *, ask: Visibility | None = None, readme: Path | None = None,
    produced_by: Mapping[str, Any] | None = None,
) -> Published:  # fmt: skip
    """Publish `folder` as `<owner>/<name>@<version>`, for good. `ask` None: public if the name is new, else as it is.

    `readme` becomes the card; the folder itself is left as it is. Raises Refusal(s) E-DATA-00x, E-DATA-021, E-SPEC-017 and those of
    `hpc.registry.publish.publish`; then nothing new stands on the shelf.
    """
    kind = dataset_kind(name, version, produced_by, by.tick)
    with _with_card(folder, readme) as source:
        return _put(by, kind, Shelf(by.root, DATASET, site=by.site), name, source, ask)


def push_record(by: Pusher, kind: Kind, name: str, folder: Path, ask: Visibility | None) -> Published:
    """Publish `folder` as a version of any other kind that has a shelf, such as an environment. Raises as `push_dataset`."""
    return _put(by, kind, Shelf(by.root, kind, site=by.site), name, folder, ask)


def push_volume(by: Pusher, name: str, folder: Path) -> Published:
    """Publish `folder` as the next generation of a volume that exists. Raises Refusal E-DATA-030, and as `push_dataset`.

    Two pushes at one moment: one is the next generation, the other is refused with E-REG-001 and changes nothing.
    """
    _require_namespace(by)
    shelf = Shelf(by.root, VOLUME, site=by.site)
    if not os.path.lexists(shelf.package(by.namespace, name)):
        raise Refusal("E-DATA-030", f"there is no volume {by.namespace}/{name}", field="NAME", found=name)
    return _put(by, volume_kind(name, next_generation(shelf, by.namespace, name)), shelf, name, folder, None)


def next_generation(shelf: Shelf, owner: str, name: str) -> str:
    """One more than the highest generation that is there or was sealed: a number is never used twice."""
    seals = shelf.root.seals / shelf.kind.shelf / owner / name
    try:
        sealed = [n.removesuffix(".json") for n in os.listdir(seals)]
    except OSError:
        sealed = []
    numbers = [int(n) for n in [*shelf.versions(owner, name), *sealed] if n.isdigit()]
    return str(max(numbers, default=0) + 1)


def _put(by: Pusher, kind: Kind, shelf: Shelf, name: str, source: Path, ask: Visibility | None) -> Published:
    new = prepare_name(by, shelf, name, ask) if ask is not None else False
    try:
        return publish(
            by.root, kind, source, user=by.user, owner=by.namespace, site=by.site, method="publish", core_version=tuneplane.__version__,
            now=by.now, tick=by.tick,
        )  # fmt: skip
    except BaseException:
        if new:
            _forget(shelf.package(by.namespace, name))
        raise


def prepare_name(by: Pusher, shelf: Shelf, name: str, ask: Visibility) -> bool:
    """The name's folder with its visibility, before anything lies in it; True if it is new. Raises Refusal E-REG-003, E-DATA-021, E-SITE-*."""
    from hpc.site.members import ensure_owner

    _require_namespace(by)
    owner = by.namespace
    if owner == by.user.name:
        ensure_owner(by.root, by.user, site=by.site)
    return make_package(shelf.package(owner, name), ask, user=by.user, uid=shelf.uid(owner), root=by.root, site=by.site)


def _require_namespace(by: Pusher) -> None:
    """Raises Refusal E-REG-003 where the caller is neither the owner nor root."""
    if by.namespace != by.user.name and by.user.uid != 0:
        text = f"{by.namespace} is not the namespace of {by.user.name}"
        raise Refusal("E-REG-003", text, field="owner", found=by.namespace, allowed=by.user.name)


def _forget(package: Path) -> None:
    try:
        os.rmdir(package)
    except OSError:
        pass  # another push uses it already


@contextmanager
def _with_card(folder: Path, readme: Path | None) -> Iterator[Path]:
    """`folder`, or a folder of second names of its files with `readme` as the card."""
    if readme is None:
        yield folder
        return
    try:
        stage = Path(tempfile.mkdtemp(prefix=".tp-push-", dir=folder.resolve().parent))
    except OSError:
        stage = Path(tempfile.mkdtemp(prefix="tp-push-"))
    try:
        # A second name of a file costs nothing; on another file system, or where a link is refused, it is copied.
        shutil.copytree(folder, stage / "content", copy_function=_second_name, symlinks=True, ignore=_skip)
        (stage / "content" / CARD).unlink(missing_ok=True)
        shutil.copyfile(readme, stage / "content" / CARD)
        yield stage / "content"
    except OSError as exc:
        raise refusal(exc, exc.filename or folder, "read") from exc
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def _skip(folder: str, names: list[str]) -> list[str]:
    return [name for name in names if skipped(name)]


def _second_name(source: str, target: str) -> str:
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:
        shutil.copyfile(source, target)
    return target
