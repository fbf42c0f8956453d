"""The recipe packs of a storage root: whose they are, what does not belong there, and their bytes against seal and name. For the audit; reads only.

What a pack must be is the catalogue's knowledge, which lies above this room: it comes in as `CheckPack`.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tuneplane.contract.layout import StorageRoot

from hpc.errors.core import Refusal, Refusals
from hpc.registry.packagecheck import Case
from hpc.registry.places import PACK_NAME, PACKS
from hpc.registry.problems import INCOMPLETE, LITTER, NOTE, TAMPERED, Problem, below, of_error, of_refusal
from hpc.registry.seal import changed
from hpc.registry.sealcheck import SealFolder
from hpc.registry.shelf import is_litter, is_segment
from hpc.registry.tally import Tally
from hpc.registry.trees import FOLDER, measure
from hpc.site.trust import judge_part, settle

if TYPE_CHECKING:
    from hpc.site.sitefile import Site

CheckPack = Callable[[Path, str], str]
"""(folder of a pack, `<method>@<version>-<tag>` or "" for one put there by hand) -> what is wrong, or "". May raise Refusal(s)."""
_FILE_MODES: Final = frozenset((0o644, 0o755, 0o444, 0o555))


class AdminTree:
    """Judges each part of a tree that only admins may write."""

    def __init__(self, root: StorageRoot, site: Site, problems: list[Problem]) -> None:
        anchor = os.lstat(root.site)
        self.root, self.site, self.problems = root, site, problems
        self.uids, self.gid = frozenset({0, anchor.st_uid}), anchor.st_gid

    def judge(self, path: str) -> bool:
        """True if `path` itself is the admins' and only theirs to write; else it is named."""
        try:
            settle(list(judge_part(path, self.uids, self.gid)), self.site)
        except Refusal as fault:
            self.problems.append(of_refusal(fault, below(self.root.path, path)))
            return False
        return True


def check_recipes(case: Case, site: Site, check_pack: CheckPack | None) -> Tally:
    """Everything below registry/recipes. Never raises for what it finds."""
    out = Tally()
    try:
        _Recipes(case, site, check_pack, out).run()
    except OSError as exc:
        out.problems.append(of_error(exc, "registry/recipes"))
    return out


class _Recipes:
    def __init__(self, case: Case, site: Site, check_pack: CheckPack | None, out: Tally) -> None:
        self.case, self.check_pack, self.out = case, check_pack, out
        self.root = case.root
        self.tree = AdminTree(case.root, site, out.problems)

    def run(self) -> None:
        for name in sorted(os.listdir(self.root.recipes)):
            folder = self.root.recipes / name
            if is_litter(name):
                self._say(NOTE, LITTER, folder, "a writer died here")
            elif not is_segment(name) or not stat.S_ISDIR(os.lstat(folder).st_mode):
                self._say(TAMPERED, "E-REG-013", folder, "does not belong here")
            elif self.tree.judge(str(folder)):
                self._framework(folder)

    def _say(self, level: str, code: str, path: Path, text: str) -> None:
        self.out.problems.append(Problem(level, code, below(self.root.path, path), text))

    def _framework(self, folder: Path) -> None:
        for name in sorted(os.listdir(folder)):
            path = folder / name
            found = os.lstat(path)
            if name == PACKS:
                continue
            if is_litter(name):
                self._say(NOTE, LITTER, path, "a writer died here")
            elif not is_segment(name):
                self._say(TAMPERED, "E-REG-013", path, "does not belong here")
            elif stat.S_ISLNK(found.st_mode):
                self._link(path, found)
            elif stat.S_ISDIR(found.st_mode):
                self._walk(path, exact=False)
                self._content(path, "")
            else:
                self._say(TAMPERED, "E-REG-013", path, "does not belong here")
        self._packs(folder)

    def _link(self, path: Path, found: os.stat_result) -> None:
        target = os.readlink(path)
        inside, _, name = target.partition("/")
        if found.st_uid not in self.tree.uids:
            self._say(TAMPERED, "E-REG-015", path, f"belongs to uid {found.st_uid}")
        elif inside != PACKS or "/" in name or name.partition("@")[0] != path.name:
            self._say(TAMPERED, "E-REG-013", path, f"is a link to {target}, which is no pack of {path.name}")
        elif not os.path.isdir(path):
            self._say(TAMPERED, "E-REG-013", path, f"is a link to {target}, which is missing")

    def _packs(self, framework: Path) -> None:
        folder = framework / PACKS
        subject = folder.relative_to(self.root.registry).as_posix()
        names = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
        packs = [n for n in names if PACK_NAME.fullmatch(n)]
        if names and not self.tree.judge(str(folder)):
            return
        with SealFolder(self.root, subject, self.case.sealers, self.out.problems) as seals:
            for name in names:
                if is_litter(name):
                    self._say(NOTE, LITTER, folder / name, "a writer died here")
                elif name not in packs:
                    self._say(TAMPERED, "E-REG-013", folder / name, "does not belong here")
            for name in packs:
                self._pack(folder / name, seals)
            seals.close_with(packs)
            self.out.seals += seals.count

    def _pack(self, folder: Path, seals: SealFolder) -> None:
        self.out.packs += 1
        self._walk(folder, exact=True)
        self._content(folder, folder.name)
        seal = seals.get(folder.name)
        if seal is None:
            self.out.unsealed += 1
            return
        where = below(self.root.path, folder)
        try:
            fd = os.open(folder, FOLDER)
            try:
                tree = measure(fd, lenient=False)
            finally:
                os.close(fd)
        except Refusal as fault:
            self.out.problems.append(Problem(TAMPERED, "E-REG-013", f"{where}/{fault.field}", fault.message))
            return
        except OSError as exc:
            self.out.problems.append(of_error(exc, where))
            return
        if tree.v2 != seal.digest_v2:
            self.out.problems.append(changed(seal.digest_v2, tree.v2, where, seal))

    def _walk(self, pack: Path, *, exact: bool) -> None:
        """Owner and mode of every part. `exact`: it was written by the toolkit, so its modes are known to the bit."""
        for path in [str(pack), *self._parts(pack)]:
            if not self.tree.judge(path) or not exact:
                continue
            mode = stat.S_IMODE(os.lstat(path).st_mode)
            if os.path.isdir(path):
                if mode & 0o555 != 0o555:
                    self._say(TAMPERED, "E-REG-015", Path(path), f"has mode {mode:04o}, so not everybody can enter it")
            elif mode not in _FILE_MODES:
                self._say(TAMPERED, "E-REG-015", Path(path), f"has mode {mode:04o}, and packs have 0644 or 0755")

    def _parts(self, pack: Path) -> Iterator[str]:
        def on_error(exc: OSError) -> None:
            self.out.problems.append(of_error(exc, below(self.root.path, exc.filename or pack)))

        for folder, folders, names in os.walk(pack, onerror=on_error):
            for name in [*folders, *names]:
                yield os.path.join(folder, name)

    def _content(self, pack: Path, name: str) -> None:
        if self.check_pack is None:
            return
        where = below(self.root.path, pack)
        try:
            text = self.check_pack(pack, name)
        except Refusal as fault:
            self.out.problems.append(of_refusal(fault, where))
            return
        except Refusals as faults:
            self.out.problems += [of_refusal(fault, where) for fault in faults.items]
            return
        except OSError as exc:
            self.out.problems.append(of_error(exc, where))
            return
        except Exception as exc:  # what trips over one pack must not hide all others
            self.out.problems.append(Problem(INCOMPLETE, "bug", where, f"our bug, please report: {exc!r:.300}"))
            return
        if text:
            self.out.problems.append(Problem(TAMPERED, "E-REG-013", where, text))
