"""Enforced admission: a service uid copies the package where its owner cannot write, verifies the copy, and signs.

Runs as the service user (`sudo -n -u SERVICE tp admit --enforce PACKAGE`). The requester is whoever owns the package folder, never an argument or
a variable. What is signed is the digest of the *copy*; the job reads the copy, recomputes, and checks the signature with the site's public key.
"""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tuneplane.contract.layout import RunPaths, StorageRoot
from tuneplane.contract.schemas import SIGNED_KEYS
from tuneplane.record.canonical import canonical_bytes
from tuneplane.record.digest import TreeError, scan_tree
from tuneplane.record.files import publish_dir, replace_json, write_json_new

from hpc.errors import Refusal
from hpc.submit.admission import Usage, judge, package_limit
from hpc.submit.package import discard

if TYPE_CHECKING:
    from hpc.site.sitefile import Site

KEY_NAME = "admission.key"


def make_key(root: StorageRoot) -> str:
    """Create the service user's signing key (0600) if it is missing and return the public key as 64 hex digits."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    path = root.keys / KEY_NAME
    if not path.exists():
        raw = Ed25519PrivateKey.generate().private_bytes(Encoding.Raw, PrivateFormat.Raw, NoEncryption())
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with os.fdopen(fd, "w", encoding="ascii") as stream:
            stream.write(raw.hex() + "\n")
    return str(_private_key(root).public_key().public_bytes_raw().hex())


def _private_key(root: StorageRoot) -> Any:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    path = root.keys / KEY_NAME
    try:
        info = os.lstat(path)
        text = path.read_text("ascii").strip()
    except OSError as exc:
        raise Refusal("E-SUBMIT-080", f"the signing key cannot be read: {exc.strerror}", field=str(path)) from exc
    if info.st_uid != os.getuid() or info.st_mode & 0o077 or not stat.S_ISREG(info.st_mode):
        raise Refusal(
            "E-SUBMIT-080",
            "the signing key is not this user's alone",
            field=str(path),
            found=oct(info.st_mode & 0o7777),
            allowed="0600",
        )
    return Ed25519PrivateKey.from_private_bytes(bytes.fromhex(text))


_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def _copy(source: Path, target: Path, *, max_bytes: int) -> None:
    """Copy a tree of regular files; `target` is made. Raises TreeError for anything else, and past `max_bytes`.

    The owner may swap files and folders meanwhile: each is opened once, relative to its folder, without following links and without waiting
    for a pipe. So the copy can come out different from the package, never hold what only the service user can read.
    """
    os.mkdir(target, 0o700)
    folders, left = [(os.open(source, _FOLDER), target)], max_bytes
    try:
        while folders:
            folder_fd, into = folders.pop()
            try:
                for name in sorted(os.listdir(folder_fd)):
                    if stat.S_ISDIR(os.lstat(name, dir_fd=folder_fd).st_mode):
                        os.mkdir(into / name, 0o700)
                        folders.append((os.open(name, _FOLDER, dir_fd=folder_fd), into / name))
                    else:
                        left = _copy_file(folder_fd, name, into / name, left)
            finally:
                os.close(folder_fd)
    finally:
        for folder_fd, _ in folders:
            os.close(folder_fd)


def _copy_file(folder_fd: int, name: str, target: Path, left: int) -> int:
    """Copy one file; how many bytes may still follow."""
    with os.fdopen(os.open(name, _FILE, dir_fd=folder_fd), "rb") as stream, open(target, "xb") as out:
        mode = os.fstat(stream.fileno()).st_mode
        if not stat.S_ISREG(mode):
            raise TreeError(f"{name}: not a regular file")
        while chunk := stream.read(1 << 20):
            left -= len(chunk)
            if left < 0:
                raise TreeError(f"{name}: the package grew while it was being copied")
            out.write(chunk)
    os.chmod(target, 0o555 if mode & stat.S_IXUSR else 0o444)
    return left


def sign(root: StorageRoot, body: dict[str, Any]) -> dict[str, Any]:
    """The admission with its Ed25519 signature over the canonical JSON of SIGNED_KEYS."""
    message = canonical_bytes({k: body.get(k) for k in SIGNED_KEYS})
    return {**body, "signature": _private_key(root).sign(message).hex()}


def enforce(root: StorageRoot, site: Site, run: RunPaths, *, usage: Callable[[str], Usage], now: str) -> dict[str, Any]:
    """Copy, verify, sign; returns the admission. Raises Refusal(s); then nothing of the run is under admitted/."""
    final = root.admitted / run.run_id
    temp = root.admitted / f".{run.run_id}.tmp"
    requester = os.lstat(run.root).st_uid
    if requester == os.getuid():
        raise Refusal("E-SUBMIT-081", "the service user does not admit its own packages", field=str(run.root))
    body = judge(root, site, run, usage=usage)
    try:
        # Closed until it is known to be what was judged.
        temp.mkdir(mode=0o700)
        _copy(run.work, temp / "work", max_bytes=package_limit(site))
        copied = judge_copy(temp / "work", body)
        signed = sign(root, {**copied, "mode": "enforced", "admitted_at": now})
        write_json_new(temp / "admission.json", signed)
        for folder, _, _ in os.walk(temp / "work", topdown=False):
            os.chmod(folder, 0o555)
        os.chmod(temp, 0o755)
        publish_dir(temp, final)
    except FileExistsError as exc:
        raise Refusal("E-SUBMIT-082", f"{run.run_id} was admitted before", field=str(final)) from exc
    except (TreeError, OSError) as exc:
        discard(temp)
        what = exc.strerror or str(exc) if isinstance(exc, OSError) else str(exc)
        raise Refusal("E-SUBMIT-083", f"the package cannot be copied: {what}", field=str(run.work)) from exc
    except BaseException:
        discard(temp)
        raise
    return signed


def judge_copy(work: Path, body: dict[str, Any]) -> dict[str, Any]:
    """The verdict again for the copy's bytes: the package may have changed between the judgement and the copy."""
    from tuneplane.record.digest import tree_digest_v2

    digest = tree_digest_v2([e for e in scan_tree(work) if e.path != ".tuneplane/package.json"])
    if digest != body["package_digest"]:
        raise Refusal(
            "E-SUBMIT-083",
            "the package changed while it was being admitted",
            found=digest,
            allowed=body["package_digest"],
        )
    return body


def publish_policy(root: StorageRoot, site: Site) -> None:
    """site/policy.json: what the job's own verifier must know of the site file, without YAML."""
    replace_json(
        root.site / "policy.json",
        {
            "schema": "tuneplane-hpc/policy/v1",
            "admission": {"mode": site.admission.mode, "public_key": site.admission.public_key},
            "runtimes": {"verify": site.runtimes.verify},
        },
    )


def ask_service(site: Site, run: RunPaths, root: StorageRoot, program: str) -> None:
    """Ask the service user for an enforced admission. Raises Refusal E-SUBMIT-084 with what it said."""
    command = [
        "sudo",
        "-n",
        "-u",
        site.service_user,
        "env",
        f"TUNEPLANE_STORAGE_ROOT={root.path}",
        program,
        "admit",
        "--enforce",
        str(run.work),
    ]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=600, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as exc:
        raise Refusal("E-SUBMIT-084", f"the service user {site.service_user} cannot be asked: {exc}") from exc
    if done.returncode != 0:
        raise Refusal(
            "E-SUBMIT-084",
            f"the service user {site.service_user} did not admit the package",
            found=done.stderr.strip()[:1000],
        )
