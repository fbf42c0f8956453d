"""Recompute, never believe: is this package, to the byte, what was admitted for this user?

`verify_package` reads every file below work/ and compares it with .tuneplane/package.json, that list's digest and the spec's digest with
admission.json, the owner with the uid of this process and, where the site enforces admission, the signature with the site's public key.
Raises LaunchRefused with a stable code; the message carries both digests.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tuneplane import __version__
from tuneplane.contract import schemas
from tuneplane.contract.layout import StorageRoot
from tuneplane.plugins.admit import admit_plugins
from tuneplane.plugins.fault import PluginFault
from tuneplane.plugins.locked import LockedPlugin, read_locked
from tuneplane.plugins.locked import verify as verify_plugin
from tuneplane.record.canonical import canonical_bytes
from tuneplane.record.digest import FileEntry, TreeError, digest_file, digest_json, scan_tree, tree_digest_v2
from tuneplane.record.ed25519 import verify as verify_signature
from tuneplane.record.files import read_json

PACKAGE_LIST = ".tuneplane/package.json"


class LaunchRefused(Exception):  # noqa: N818
    """The job does not start. `code` is one of the E-JOB codes of docs/errors.md."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code} {message}")
        self.code, self.message = code, message


@dataclass(frozen=True)
class Verified:
    """A package whose every byte was compared."""

    run_id: str
    spec: dict[str, Any]
    launch: dict[str, Any]
    recipe: dict[str, Any]
    admission: dict[str, Any]
    package_digest: str
    files: int
    plugins: tuple[LockedPlugin, ...] = ()


def _load(path: Path, code: str, what: str) -> dict[str, Any]:
    try:
        value = read_json(path)
    except (OSError, ValueError) as exc:
        raise LaunchRefused(code, f"{what} cannot be read: {exc}") from exc
    if not isinstance(value, dict):
        raise LaunchRefused(code, f"{what} is not an object")
    return value


def listed_files(package: dict[str, Any]) -> list[FileEntry]:
    """Entries of a package list. Raises LaunchRefused E-JOB-001."""
    try:
        if package.get("schema") != schemas.PACKAGE or not isinstance(package.get("files"), list):
            raise TreeError("not a package list")
        return [FileEntry.from_json(f) for f in package["files"]]
    except TreeError as exc:
        raise LaunchRefused("E-JOB-001", f"package.json: {exc}") from exc


def package_differences(work: Path, listed: list[FileEntry]) -> list[str]:
    """What differs between a package on disk and its list: one line a file, both digests where bytes differ."""
    want = {e.path: e for e in listed}
    have = {e.path: e for e in scan_tree(work) if e.path != PACKAGE_LIST}
    lines = [f"{p}: missing" for p in sorted(want.keys() - have.keys())]
    lines += [f"{p}: not in the list" for p in sorted(have.keys() - want.keys())]
    for path in sorted(want.keys() & have.keys()):
        a, b = want[path], have[path]
        if a.sha256 != b.sha256 or a.size != b.size:
            lines.append(f"{path}: changed, spec={a.sha256} actual={b.sha256}")
        elif a.exec != b.exec:
            lines.append(f"{path}: exec bit changed")
    return lines


def _check_files(work: Path) -> tuple[str, int]:
    package = _load(work / PACKAGE_LIST, "E-JOB-001", "package.json")
    listed = listed_files(package)
    try:
        differences = package_differences(work, listed)
    except (OSError, TreeError) as exc:
        raise LaunchRefused("E-JOB-002", f"the package cannot be read whole: {exc}") from exc
    if differences:
        shown = "; ".join(differences[:5]) + (f"; and {len(differences) - 5} more" if len(differences) > 5 else "")
        raise LaunchRefused("E-JOB-002", f"the package is not what was packed: {shown}")
    return tree_digest_v2(listed), len(listed)


def _check_admission(
    admission: dict[str, Any], spec: dict[str, Any], package_digest: str, run_id: str, uid: int
) -> None:
    if admission.get("schema") != schemas.ADMISSION or admission.get("verdict") != "admitted":
        raise LaunchRefused("E-JOB-003", f"not admitted: verdict {admission.get('verdict')!r}")
    for key, found in (("package_digest", package_digest), ("spec_digest", digest_json(spec)), ("run_id", run_id)):
        if admission.get(key) != found:
            raise LaunchRefused(
                "E-JOB-004", f"admission.json is for another package: {key} spec={admission.get(key)} actual={found}"
            )
    if admission.get("uid") != uid:
        raise LaunchRefused("E-JOB-005", f"admitted for uid {admission.get('uid')}, running as uid {uid}")


def site_policy(root: StorageRoot) -> dict[str, Any]:
    """site/policy.json, which `tp site sync` derives from site.yaml for readers without YAML; {} where there is none."""
    path = root.site / "policy.json"
    try:
        value = read_json(path)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as exc:
        raise LaunchRefused("E-JOB-006", f"site/policy.json cannot be read: {exc}") from exc
    info = os.stat(path)
    # World-writable policy is nobody's policy; who owns it is checked at submission, where the admins' names are known.
    if info.st_mode & stat.S_IWOTH or not isinstance(value, dict):
        raise LaunchRefused("E-JOB-006", "site/policy.json is writable by everybody or is not an object")
    return value


def _check_signature(admission: dict[str, Any], policy: dict[str, Any]) -> None:
    wanted = policy.get("admission", {})
    if wanted.get("mode") != "enforced":
        return
    if admission.get("mode") != "enforced":
        raise LaunchRefused("E-JOB-007", "this site runs enforced admissions only; this one is advisory")
    body = canonical_bytes({k: admission.get(k) for k in schemas.SIGNED_KEYS})
    try:
        key, signature = bytes.fromhex(wanted.get("public_key", "")), bytes.fromhex(str(admission.get("signature", "")))
    except ValueError as exc:
        raise LaunchRefused("E-JOB-008", f"the signature is not hexadecimal: {exc}") from exc
    if not verify_signature(key, body, signature):
        raise LaunchRefused("E-JOB-008", "the signature of admission.json is not the site's")


def _check_plugins(work: Path) -> tuple[LockedPlugin, ...]:
    """Everything that is asked of locked plugins before any of their code runs."""
    try:
        return tuple(admit_plugins(work, __version__))
    except PluginFault as fault:
        raise LaunchRefused(fault.code, fault.message) from fault


def _plugin_damage(work: Path) -> LaunchRefused | None:
    """The words for a plugin whose bytes changed, which tell more than the list of files does."""
    try:
        for plugin in read_locked(work):
            verify_plugin(plugin)
    except PluginFault as fault:
        return LaunchRefused(fault.code, fault.message) if fault.code == "E-JOB-030" else None
    return None


def verify_package(root: StorageRoot, run_id: str, work: Path, admission_file: Path, *, uid: int) -> Verified:
    """Everything above, in order. Reads only; raises LaunchRefused."""
    try:
        package_digest, files = _check_files(work)
    except LaunchRefused as refused:
        raise _plugin_damage(work) or refused from None
    spec = _load(work / ".tuneplane/jobspec.json", "E-JOB-001", "jobspec.json")
    launch = _load(work / ".tuneplane/launch.json", "E-JOB-001", "launch.json")
    recipe = _load(work / ".tuneplane/recipe.json", "E-JOB-001", "recipe.json")
    admission = _load(admission_file, "E-JOB-003", "admission.json")
    _check_admission(admission, spec, package_digest, run_id, uid)
    _check_signature(admission, site_policy(root))
    return Verified(run_id, spec, launch, recipe, admission, package_digest, files, _check_plugins(work))


def verify_inputs(launch: dict[str, Any]) -> list[dict[str, Any]]:
    """Check model and data files against what was recorded at submission; returns one row a file with how it was checked.

    Files are hashed; where that would be too dear the record says size, time and owner, and these are compared. Beside them it then has the
    digest of a file of the registry, whose own record vouches for it.
    """
    rows: list[dict[str, Any]] = []
    for name, source in sorted(launch.get("inputs", {}).items()):
        if source.get("closed"):
            _check_closed(name, source)
        for entry in source.get("files", []):
            path = os.path.join(source["path"], entry["path"]) if entry["path"] else source["path"]
            try:
                info = os.stat(path)
                if "mtime_ns" not in entry:
                    found, wanted, how = digest_file(path, follow=True), entry["sha256"], "sha256"
                else:
                    found = f"{info.st_size}+{info.st_mtime_ns}+{info.st_uid}"
                    wanted, how = f"{entry['size']}+{entry['mtime_ns']}+{entry['uid']}", "size+mtime+owner"
            except OSError as exc:
                raise LaunchRefused("E-JOB-009", f"input {name}: {path}: {exc.strerror or exc}") from exc
            if found != wanted:
                raise LaunchRefused(
                    "E-JOB-009", f"input {name}: {path} changed since submission: spec={wanted} actual={found}"
                )
            rows.append({"input": name, "path": path, "checked": how})
    return rows


def _check_closed(name: str, source: dict[str, Any]) -> None:
    """A folder that is read as a whole may hold nothing that was not recorded: a file beside the weights can change what is loaded."""
    recorded = {entry["path"] for entry in source["files"]}
    for folder, _, names in os.walk(source["path"]):
        for each in names:
            path = os.path.relpath(os.path.join(folder, each), source["path"])
            if path not in recorded and not (each.startswith(".") and each.endswith(".tmp")):
                raise LaunchRefused("E-JOB-009", f"input {name}: {source['path']} holds {path}, which was not recorded")


def verify_training_zip(path: str, digest: str) -> None:
    """The training half of the kernel is checked by the verifying half. Raises LaunchRefused E-JOB-010."""
    try:
        found = digest_file(path)
    except OSError as exc:
        raise LaunchRefused("E-JOB-010", f"kernel {path}: {exc.strerror or exc}") from exc
    if found != digest:
        raise LaunchRefused("E-JOB-010", f"kernel {path} changed: spec={digest} actual={found}")
