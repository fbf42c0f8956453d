"""Putting a SIF into the site's catalogue: checked, digested once over all of its bytes, recorded, or refused whole.

runtimes.yaml is replaced whole under a lock; the generation before stays beside it as `runtimes.yaml.previous`.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tuneplane.contract.layout import SEGMENT, StorageRoot
from tuneplane.contract.schemas import RUNTIMES
from tuneplane.record import files
from tuneplane.record.times import utc_now

from hpc.catalog.images import parse_image
from hpc.catalog.runtimes import Entry, Runtime, Runtimes, format_entries, parse_entries, read_entries
from hpc.catalog.shelf import require_admin
from hpc.errors import Refusal
from hpc.sif import image
from hpc.sif.apptainer import BUILD_BYTES, Apptainer
from hpc.sif.glibc import image_glibc

IMAGE_MODE, FOLDER_MODE = 0o644, 0o2755
LOCK_TIMEOUT_S = 30.0
COPY_BYTES = 8 << 20


@dataclass(frozen=True)
class Registered:
    """What `add` did: `new`, `replaced` or `unchanged`, and the runtime as it stands now."""

    action: str
    runtime: Runtime


def add(
    root: StorageRoot,
    runtime_id: str,
    sif: Path,
    *,
    copy: bool = False,
    source: str = "",
    definition: str = "",
    replace: bool = False,
    now: Callable[[], str] = utc_now,
) -> Registered:
    """Register `sif` under `runtime_id`; admins only. With `copy`, an admin-owned copy goes to site/images/ first.

    The same SIF under the same id with the same provenance changes nothing. Raises Refusal(s) E-CATALOG-041…046, 050,
    E-SIF-004…006; then runtimes.yaml is as it was, and no copy stays.
    """
    from hpc.store.faults import refusal

    require_admin(root, "E-CATALOG-042", "register runtimes")
    if not SEGMENT.match(runtime_id) or len(runtime_id) > 64:
        allowed = "letters, digits, . _ -, at most 64"
        raise Refusal("E-CATALOG-041", "is no runtime_id", field="ID", found=runtime_id, allowed=allowed)
    image.check_sif(sif)
    _check_source(root, runtime_id, source)
    _free_to_take(root, runtime_id, None if copy else sif, replace)
    placed = _copy_in(root, runtime_id, sif) if copy else Path(os.path.realpath(sif))
    try:
        entry = _describe(root, runtime_id, placed, source=source, definition=definition)
        action = _record(root, runtime_id, entry, replace=replace, now=now)
    except BaseException as exc:
        if copy and not _referenced(root, placed):
            placed.unlink(missing_ok=True)
        if isinstance(exc, OSError):
            raise refusal(exc, root.runtimes_file, "register the runtime in") from exc
        raise
    return Registered(action, Runtimes.load(root).get(runtime_id))


def _record(root: StorageRoot, runtime_id: str, entry: Entry, *, replace: bool, now: Callable[[], str]) -> str:
    """Put the entry into runtimes.yaml, under the lock; `new`, `replaced` or `unchanged`."""
    from hpc.site.users import real_user
    from hpc.store.locks import held

    with held(root.site / ".runtimes.lock", timeout_s=LOCK_TIMEOUT_S, purpose="register a runtime"):
        entries = read_entries(root)
        before = entries.get(runtime_id)
        if before is not None and _same(before, entry):
            return "unchanged"
        if before is not None and not replace:
            raise _taken(runtime_id, before, entry.sha256)
        stamped = entry.model_copy(update={"registered_at": now(), "registered_by": real_user().name})
        _write(root, {**entries, runtime_id: stamped})
        return "new" if before is None else "replaced"


def _check_source(root: StorageRoot, runtime_id: str, source: str) -> None:
    """A source is an image reference that no other runtime claims. Raises Refusal E-CATALOG-046, 050."""
    if not source:
        return
    parse_image(source, "--source")
    for other in Runtimes.load(root).of_source(source):
        if other.id != runtime_id:
            raise Refusal("E-CATALOG-050", f"{other.id} was made from it", field="--source", found=source)


def _same(before: Entry, now: Entry) -> bool:
    keep = {"registered_at", "registered_by"}
    return before.model_dump(exclude=keep) == now.model_dump(exclude=keep)


def _taken(runtime_id: str, before: Entry, found: str) -> Refusal:
    message = f"{runtime_id} is registered with another SIF or other provenance"
    return Refusal("E-CATALOG-043", message, field="ID", found=found, allowed=before.sha256)


def _free_to_take(root: StorageRoot, runtime_id: str, sif: Path | None, replace: bool) -> None:
    """Refuse early, before gigabytes are copied or read, what will be refused anyhow: another file's id."""
    before = read_entries(root).get(runtime_id)
    if before is None or replace or sif is None:
        return
    if os.path.realpath(root.site / before.sif) != os.path.realpath(sif):
        raise _taken(runtime_id, before, str(sif))


def _describe(root: StorageRoot, runtime_id: str, sif: Path, *, source: str, definition: str) -> Entry:
    """The record of a SIF where it lies: admin-owned, read from end to end, unchanged while it was read."""
    from hpc.site.trust import require_admin_owned

    try:
        require_admin_owned(root, sif)
    except Refusal as exc:
        raise Refusal("E-CATALOG-045", exc.message, field=str(sif), found=exc.found, allowed=exc.allowed) from exc
    header = image.check_sif(sif)
    first = os.stat(sif)
    digest = image.sif_digest(sif)
    last = os.stat(sif)
    if (first.st_ino, first.st_size, first.st_mtime_ns) != (last.st_ino, last.st_size, last.st_mtime_ns):
        raise Refusal("E-CATALOG-044", "the file changed while it was read", field=str(sif), found=digest)
    glibc = image_glibc(sif)
    fields = {
        "sif": str(sif.relative_to(root.site) if sif.is_relative_to(root.site) else sif),
        "sha256": digest,
        "size": last.st_size,
        "mtime_ns": last.st_mtime_ns,
        "owner_uid": last.st_uid,
        "source": source,
        "definition": definition,
        "python": image.labels(sif).get("python.version", ""),
        "glibc": f"{glibc[0]}.{glibc[1]}" if glibc else "",
        "architecture": header.architecture,
    }
    # Through the file's own grammar, so that what could not be read back is refused before anything is written.
    text = json.dumps({"schema": RUNTIMES, "runtimes": {runtime_id: fields}})
    return parse_entries(text, origin="runtimes.yaml")[runtime_id]


def _copy_in(root: StorageRoot, runtime_id: str, sif: Path) -> Path:
    """A copy under site/images/, named by id and digest, whole or not at all."""
    from hpc.store.faults import refusal
    from hpc.store.folders import make_folder

    make_folder(root.images, FOLDER_MODE)
    temp = root.images / f".{runtime_id}.{secrets.token_hex(6)}.tmp"
    try:
        digest = _copy(sif, temp)
        final = root.images / f"{runtime_id}-{digest[7:19]}.sif"
        if not final.exists():
            os.rename(temp, final)
            files.fsync_dir(root.images)
        return final
    except OSError as exc:
        raise refusal(exc, temp, "copy the SIF") from exc
    finally:
        temp.unlink(missing_ok=True)


def _copy(source: Path, target: Path) -> str:
    sha = hashlib.sha256()
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(source, "rb") as stream, os.fdopen(os.open(target, flags, 0o600), "wb") as out:
        while chunk := stream.read(COPY_BYTES):
            sha.update(chunk)
            out.write(chunk)
        out.flush()
        os.fchmod(out.fileno(), IMAGE_MODE)
        os.fsync(out.fileno())
    return "sha256:" + sha.hexdigest()


def _referenced(root: StorageRoot, sif: Path) -> bool:
    return any(root.site / entry.sif == sif for entry in read_entries(root).values())


def _write(root: StorageRoot, entries: dict[str, Entry]) -> None:
    path = root.runtimes_file
    if path.exists():
        files.replace(path.with_name(path.name + ".previous"), files.read_bytes(path))
    files.replace(path, format_entries(entries).encode("utf-8"))


def provenance(definition: Path) -> str:
    """`<file name>@sha256:…` of a definition, checked. Provenance only: the same definition gives another SIF each time.

    Raises Refusal E-SIF-007.
    """
    from tuneplane.record.digest import digest_file

    from hpc.sif.definitions import read_definition

    read_definition(definition)
    return f"{definition.name}@{digest_file(definition, follow=True)}"


def shipped_definition(runtime_id: str) -> Path:
    """The definition under containers/ whose `# runtime_id:` line names this id. Raises Refusal E-CATALOG-049."""
    from hpc.catalog.shipped import shipped
    from hpc.sif.definitions import read_definition

    found = {name: p for p in sorted(shipped("containers").glob("*.def")) for name in read_definition(p).runtime_ids}
    if runtime_id not in found:
        message = f"no shipped definition builds {runtime_id}"
        raise Refusal("E-CATALOG-049", message, field="ID", found=runtime_id, allowed=", ".join(sorted(found)))
    return found[runtime_id]


def _build(apptainer: Apptainer, out: Path, recipe: Path, scratch: Path, need_bytes: int, *, shipped: bool) -> None:
    try:
        apptainer.build(out, recipe, cache_dir=scratch / "cache", tmp_dir=scratch / "tmp", need_bytes=need_bytes)
    except Refusal as exc:
        if not shipped or exc.code != "E-SIF-003":
            raise
        script = recipe.parent / "build-runtimes"
        hint = f"Without a container registry: bash {script} DIR, then tp runtime add ID DIR/….sif."
        raise Refusal(exc.code, exc.message, field=exc.field, found=exc.found, hint=hint) from exc


def build(
    root: StorageRoot,
    runtime_id: str,
    definition: Path | None,
    *,
    apptainer: Apptainer,
    room: Path,
    source: str = "",
    replace: bool = False,
    need_bytes: int = BUILD_BYTES,
    now: Callable[[], str] = utc_now,
) -> Registered:
    """Build a SIF into site/images/ and register it; admins only. Without a definition the shipped one for the id is used.

    Cache and temporary files of the build go to a new folder below `room` and are removed. Raises as `add`, and
    E-CATALOG-049, E-SIF-001…003, 007, 008; then nothing of the build stays.
    """
    import shutil
    import tempfile

    from hpc.store.faults import refusal
    from hpc.store.folders import make_folder

    require_admin(root, "E-CATALOG-042", "build runtimes")
    recipe = definition or shipped_definition(runtime_id)
    made_by = provenance(recipe)
    if runtime_id in read_entries(root) and not replace:
        before = read_entries(root)[runtime_id]
        raise Refusal("E-CATALOG-043", f"{runtime_id} is registered", field="ID", found=made_by, allowed=before.sha256)
    make_folder(root.images, FOLDER_MODE)
    try:
        scratch = Path(tempfile.mkdtemp(prefix="tp-build-", dir=room))
    except OSError as exc:
        raise refusal(exc, room, "make a folder for the build in") from exc
    try:
        out = scratch / "image.sif"
        _build(apptainer, out, recipe, scratch, need_bytes, shipped=definition is None)
        return add(root, runtime_id, out, copy=True, source=source, definition=made_by, replace=replace, now=now)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
