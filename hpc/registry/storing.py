"""The bytes of a version on their way to the shelf: copied, read back, closed, renamed. Everything by descriptors.

Root writes into folders of others here, who could put a link in the place of any name of theirs. So the temporary folder is opened once, must be
our own and closed to everybody, and is never reached by its name again until it is finished.
"""

from __future__ import annotations

import os
import secrets
import shutil
import stat
from pathlib import Path
from typing import Final

from tuneplane.record import files
from tuneplane.record.times import parse_utc

from hpc.errors.core import Refusal
from hpc.registry.kinds import Checked, Kind
from hpc.registry.records import FILE_MODE, RecordError, read_raw
from hpc.registry.shelf import CONTENT, RECORD, TEMP_SUFFIX, is_litter
from hpc.registry.trees import FOLDER, NEW, Tick, Tree, close_folder, copy, measure, quiet
from hpc.store.faults import refusal

LITTER_AGE_S: Final = 86_400
"""A temporary folder older than this belongs to no living publisher."""


def store(
    kind: Kind, source: Path, final: Path, data: bytes, tree: Tree, checked: Checked, uid: int, tick: Tick = quiet
) -> None:
    """Put the content of `source` and the record `data` at `final`, whole or not at all, as the property of `uid`.

    Raises Refusal E-REG-001 (something stands there), E-REG-005 (read back otherwise), E-REG-006 (cannot be given away), E-STORE-02x.
    """
    temp = final.with_name(f".{final.name}.{secrets.token_hex(6)}{TEMP_SUFFIX}")
    try:
        try:
            os.mkdir(temp, 0o700)
            fd = _open_own(temp)
            try:
                _copy(source, fd, tick)
                _read_back_at(kind, fd, temp / CONTENT, tree, checked, tick)
                _close(fd, data, uid)
            finally:
                os.close(fd)
            _rename(temp, final, data)
        except OSError as exc:
            raise refusal(exc, temp, "publish") from exc
    except BaseException:
        drop(temp)
        raise


def _open_own(temp: Path) -> int:
    fd = os.open(temp, FOLDER)
    found = os.fstat(fd)
    if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077 or os.listdir(fd):
        os.close(fd)
        raise Refusal("E-REG-005", "was exchanged while it was made", field=str(temp), found=f"uid {found.st_uid}")
    return fd


def _copy(source: Path, temp_fd: int, tick: Tick) -> None:
    os.mkdir(CONTENT, 0o700, dir_fd=temp_fd)
    source_fd = os.open(source, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        target_fd = os.open(CONTENT, FOLDER, dir_fd=temp_fd)
        try:
            copy(source_fd, target_fd, tick)
        finally:
            os.close(target_fd)
    finally:
        os.close(source_fd)


def _read_back_at(kind: Kind, temp_fd: int, content: Path, tree: Tree, checked: Checked, tick: Tick) -> None:
    fd = os.open(CONTENT, FOLDER, dir_fd=temp_fd)
    try:
        read_back(kind, fd, content, tree, checked, tick)
    finally:
        os.close(fd)


def read_back(kind: Kind, content_fd: int, content: Path, tree: Tree, checked: Checked, tick: Tick = quiet) -> None:
    """The separate step: the stored bytes alone are measured and checked, and must come out as the publisher said.

    Raises the refusals of `kind.check`, Refusal E-REG-005, OSError.
    """
    stored = measure(content_fd, lenient=False, tick=tick)
    if stored != tree:
        mine = {f.path: f.sha256 for f in tree.files}
        other = next((f.path for f in stored.files if mine.pop(f.path, "") != f.sha256), next(iter(mine), ""))
        text = f"{other or 'the content'} is stored otherwise than it was checked"
        raise Refusal("E-REG-005", text, field=other, found=stored.v1, allowed=tree.v1)
    if (again := kind.check(content)) != checked:
        text = f"the stored content is {again.name} {again.version} and was checked as {checked.name} {checked.version}"
        raise Refusal("E-REG-005", text, found=again.name, allowed=checked.name)


def _close(temp_fd: int, data: bytes, uid: int) -> None:
    """Write the record, give everything to its owner, and make it read-only and durable."""
    record = os.open(RECORD, NEW, 0o600, dir_fd=temp_fd)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(record, view) :]
        os.fchmod(record, FILE_MODE)
        os.fsync(record)
    finally:
        os.close(record)
    if uid != os.geteuid():
        try:
            _give(temp_fd, uid)
        except OSError as exc:
            raise Refusal("E-REG-006", exc.strerror or str(exc), found=f"uid {os.geteuid()}", allowed="root") from exc
    close_folder(temp_fd)


def _give(temp_fd: int, uid: int) -> None:
    """Everything below the temporary folder, deepest first, and itself last: until then its new owner cannot enter it."""
    for _, folders, names, fd in os.fwalk(".", topdown=False, follow_symlinks=False, dir_fd=temp_fd):
        for name in [*names, *folders]:
            mode = stat.S_IMODE(os.lstat(name, dir_fd=fd).st_mode)
            os.chown(name, uid, -1, dir_fd=fd, follow_symlinks=False)
            os.chmod(name, mode, dir_fd=fd)  # giving away drops bits of it
            if (kept := os.lstat(name, dir_fd=fd).st_uid) != uid:
                raise PermissionError(1, f"{name} still belongs to uid {kept}")
    os.fchown(temp_fd, uid, -1)


def _rename(temp: Path, final: Path, data: bytes) -> None:
    exists = Refusal("E-REG-001", f"{final.name} is published already", field=str(final), found=final.name)
    try:
        files.publish_dir(temp, final)
    except FileExistsError:
        raise exists from None
    # A lost reply is settled by looking at the target; what stands there could be another publisher's.
    try:
        found = read_raw(final / RECORD).data
    except RecordError:
        found = b""
    if found != data:
        raise exists


def drop(temp: Path) -> None:
    """Remove a temporary folder, read-only parts included. What cannot be removed is litter, not a fault of what was written."""
    # Root needs no modes, and must not set any by name in a folder of somebody else.
    if os.geteuid() != 0:
        for folder, _, _ in os.walk(temp):
            try:
                os.chmod(folder, 0o700)
            except OSError:
                pass
    shutil.rmtree(temp, ignore_errors=True)


def sweep(package: Path, now: str) -> list[str]:
    """Remove what publishers that died more than a day before `now` left in a package's folder; the names that went."""
    moment, gone = parse_utc(now).timestamp(), []
    try:
        names = [n for n in os.listdir(package) if is_litter(n)]
    except OSError:
        return []  # what is wrong with the folder is told where it is used
    for name in names:
        path = package / name
        try:
            found = os.lstat(path)
        except OSError:
            continue  # its own publisher was faster
        if moment - found.st_mtime <= LITTER_AGE_S:
            continue
        if stat.S_ISDIR(found.st_mode):
            drop(path)
        else:
            path.unlink(missing_ok=True)
        if not os.path.lexists(path):
            gone.append(name)
    return gone
