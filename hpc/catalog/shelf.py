"""The catalogue: the recipe packs of a storage root, or those that come with the toolkit.

On a storage root the packs lie under `registry/recipes/<framework>/<method>/`. Publishing writes a whole pack into
`registry/recipes/<framework>/.packs/<method>@<version>-<content>/` first and then swaps the link `<method>` to it, so
that a reader sees the old pack or the new one. A pack folder is never changed after that; old ones stay. An admin may
as well put a plain folder there.
"""

from __future__ import annotations

import difflib
import os
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tuneplane.contract.layout import SEGMENT, StorageRoot
from tuneplane.record import files
from tuneplane.record.digest import digest_json, v1_files

from hpc.catalog.recipes import MANIFEST_NAME, Recipe, load_recipe
from hpc.catalog.shipped import shipped
from hpc.errors import Refusal, Refusals

FOLDER_MODE = 0o2755
PACKS = ".packs"


class Catalogue:
    """Recipes by id. Packs are read when they are asked for; a broken one does not spoil the others."""

    def __init__(self, folder: Path, root: StorageRoot | None = None) -> None:
        self.folder, self._root = folder, root

    @classmethod
    def load(cls, root: StorageRoot) -> Catalogue:
        """The catalogue of a storage root, which is what admission compares with. An empty shelf is no error."""
        return cls(root.recipes, root)

    @classmethod
    def shipped(cls) -> Catalogue:
        """The packs that come with the toolkit, for use without a storage root."""
        return cls(shipped("recipes"))

    def ids(self) -> list[str]:
        """`<framework>/<method>` of every pack on the admins' shelf, then `<owner>/<method>` of those that users published, each sorted."""
        own = sorted(f"{p.parent.name}/{p.name}" for p in self._packs())
        if self._root is None:
            return own
        from hpc.catalog.owned import owned_ids

        return own + sorted(set(owned_ids(self._root)) - set(own))

    def _packs(self) -> Iterator[Path]:
        for framework in _children(self.folder):
            for method in _children(framework):
                if (method / MANIFEST_NAME).exists():
                    yield method

    def get(self, recipe_id: str, version: str = "") -> Recipe:
        """The recipe of that id; of a user's pack the version that is named, as by a lock, else the one that is offered.

        Raises Refusal E-CATALOG-001, or the refusals of a broken or untrusted pack.
        """
        framework, _, method = recipe_id.partition("/")
        if not (SEGMENT.match(framework) and SEGMENT.match(method)):
            raise self._unknown(recipe_id)
        if not (self.folder / framework / method / MANIFEST_NAME).exists():
            return self._owned(framework, method, version)
        folder = _behind_link(self.folder / framework / method)
        if self._root is not None:
            _trust(self._root, folder)
        recipe = load_recipe(folder, name=method)
        if recipe.framework != framework:
            raise Refusal(
                "E-CATALOG-005",
                f"a pack of framework {recipe.framework!r} lies under {framework!r}",
                field=f"{folder / MANIFEST_NAME}: framework",
                found=recipe.framework,
                allowed=framework,
            )
        return recipe

    def _owned(self, owner: str, name: str, version: str) -> Recipe:
        from hpc.catalog.owned import owned_recipe

        found = owned_recipe(self._root, owner, name, version) if self._root is not None else None
        if found is None:
            raise self._unknown(f"{owner}/{name}")
        return found

    def _unknown(self, recipe_id: str) -> Refusal:
        ids = self.ids()
        near = [i for i in ids if i.partition("/")[2] == recipe_id] or difflib.get_close_matches(recipe_id, ids, n=1)
        return Refusal(
            "E-CATALOG-001",
            f"no recipe {recipe_id!r}" + (f"; did you mean {near[0]}?" if near else ""),
            field="spec.recipe.name",
            found=recipe_id,
            allowed=", ".join(ids) or "nothing: the catalogue is empty (an admin runs `tp recipe publish`)",
        )

    def readable(self) -> tuple[list[Recipe], list[Refusal]]:
        """All recipes that can be read, by id, and the refusals of those that cannot."""
        good: list[Recipe] = []
        bad: list[Refusal] = []
        for recipe_id in self.ids():
            found = self._try(recipe_id)
            if isinstance(found, Recipe):
                good.append(found)
            else:
                bad += found
        return good, bad

    def _try(self, recipe_id: str) -> Recipe | list[Refusal]:
        try:
            return self.get(recipe_id)
        except Refusal as exc:
            return [exc]
        except Refusals as exc:
            return exc.items


def _behind_link(pack: Path) -> Path:
    """The pack's own folder. A link is followed once, so that manifest and template come from one version whatever is
    published meanwhile, and only to a neighbour under `.packs`. Raises Refusal E-CATALOG-002 for any other link.
    """
    try:
        target = os.readlink(pack)
    except OSError:
        return pack
    inside, _, name = target.partition("/")
    if inside != PACKS or "/" in name or not SEGMENT.match(name.replace("@", "-")):
        allowed = f"{PACKS}/<method>@<version>-<content>"
        raise Refusal(
            "E-CATALOG-002", "is a link that leaves the shelf", field=str(pack), found=target, allowed=allowed
        )
    return pack.parent / PACKS / name


def _trust(root: StorageRoot, folder: Path) -> None:
    from hpc.site.trust import require_admin_owned

    for part in (MANIFEST_NAME, *(c.name for c in folder.iterdir() if c.is_dir())):
        require_admin_owned(root, folder / part)


def _children(folder: Path) -> list[Path]:
    try:
        names = sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [folder / n for n in names if SEGMENT.match(n) and (folder / n).is_dir()]


@dataclass(frozen=True)
class Published:
    """What publishing did to one pack: `new`, `updated` or `unchanged`."""

    id: str
    version: str
    action: str


def publish_shipped(root: StorageRoot, source: Catalogue | None = None) -> list[Published]:
    """Put the packs that come with the toolkit on the root's shelf; admins only. Doing it twice changes nothing.

    Every pack is read and checked before the first is written. Raises Refusal E-CATALOG-007, E-CATALOG-008.
    """
    from hpc.store.faults import refusal

    require_admin(root, "E-CATALOG-007", "publish recipes")
    origin = source or Catalogue.shipped()
    recipes = [origin.get(i) for i in origin.ids()]
    try:
        return [_publish(root, recipe) for recipe in recipes]
    except OSError as exc:
        raise refusal(exc, root.recipes, "publish recipes in") from exc


def require_admin(root: StorageRoot, code: str, action: str) -> None:
    """Raises a Refusal with `code` unless the process's real uid is an admin of the site."""
    from hpc.site.sitefile import load_site
    from hpc.site.users import is_admin, real_user

    site, user = load_site(root), real_user()
    if not is_admin(user, site):
        group = f", and members of {site.admin_group}" if site.admin_group else ""
        allowed = f"root, the owner of {root.site}{group}"
        raise Refusal(code, f"{user.name} may not {action}", found=user.name, allowed=allowed)


def content_tag(recipe: Recipe) -> str:
    """Sixteen hexadecimal digits over manifest and template: two packs with one tag are the same pack."""
    return digest_json([recipe.manifest_digest, recipe.template_digest])[7:23]


def _publish(root: StorageRoot, recipe: Recipe) -> Published:
    from hpc.store.folders import make_folder

    shelf = root.recipes / recipe.framework
    for folder in (shelf, shelf / PACKS):
        if not folder.is_dir():
            make_folder(folder, FOLDER_MODE)
    link = shelf / recipe.typed.name
    name = f"{recipe.typed.name}@{recipe.version}-{content_tag(recipe)}"
    action = "new"
    if link.is_symlink():
        if os.readlink(link) == f"{PACKS}/{name}" and (link / MANIFEST_NAME).is_file():
            return Published(recipe.id, recipe.version, "unchanged")
        action = "updated"
    elif link.exists():
        if content_tag(load_recipe(link)) == content_tag(recipe):
            return Published(recipe.id, recipe.version, "unchanged")
        raise Refusal("E-CATALOG-008", "was put there by hand and has other content", field=str(link), found=recipe.id)
    _copy_pack(recipe, shelf / PACKS / name)
    temp = shelf / f".{recipe.typed.name}.{secrets.token_hex(6)}.tmp"
    os.symlink(f"{PACKS}/{name}", temp)
    os.rename(temp, link)
    files.fsync_dir(shelf)
    return Published(recipe.id, recipe.version, action)


def _copy_pack(recipe: Recipe, final: Path) -> None:
    """The pack's files without byte code, whole or not at all; a folder of that name holds the same content already."""
    import shutil

    from hpc.store.folders import make_folder

    if final.is_dir():
        return
    temp = final.with_name(f".{final.name}.{secrets.token_hex(6)}.tmp")
    make_folder(temp, FOLDER_MODE)
    try:
        for path in v1_files(recipe.folder):
            source, target = recipe.folder / path, temp / path
            for parent in reversed(target.relative_to(temp).parents):
                if not (temp / parent).is_dir():
                    make_folder(temp / parent, FOLDER_MODE)
            mode = 0o755 if os.stat(source).st_mode & 0o100 else 0o644
            files.write_new(target, source.read_bytes(), mode=mode)
        try:
            files.publish_dir(temp, final)
        except FileExistsError:
            return  # another admin published the same bytes first
    finally:
        shutil.rmtree(temp, ignore_errors=True)
