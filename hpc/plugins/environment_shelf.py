"""Environments as a kind of the registry: `registry/environments/<owner>/<name>/<version>`, manifest.json and tasks.jsonl, immutable.

Their check reads the manifest and every task once and runs nothing. What a verifier or harness is made of are plugins, which are locked and
travel by themselves; an environment is data.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tuneplane.contract.datarows import DataFaults
from tuneplane.contract.environments import PORT, TASKS, count_tasks, read_tasks
from tuneplane.contract.layout import StorageRoot
from tuneplane.record.digest import digest_file

from hpc.errors.core import Refusal, Refusals
from hpc.plugins.environments import NAME, check_environment
from hpc.plugins.opening import open_form, stored
from hpc.registry.kinds import Checked, Kind
from hpc.registry.resolve import Version, resolve
from hpc.registry.shapes import Named
from hpc.registry.shelf import CONTENT, RECORD
from hpc.spec.text import segment
from hpc.store.faults import refusal

if TYPE_CHECKING:
    from hpc.site.sitefile import Site

FIELD: Final = "spec.data.environment"
MAX_BYTES: Final = 1 << 40
MAX_FILES: Final = 4096
_PLACE: Final = dict.fromkeys(("domain?", "description?", "image?", "endpoint?", "fleet?"), str)
FACTS: Final = {
    "manifest": {
        "protocol": str,
        "deployment": str,
        "verifier": {"kind": str, "ref?": str},
        "image_port?": int,
        **_PLACE,
    },
    "tasks": Named(int),
}
"""What readers of a record rely on, whoever wrote it."""
Digest = Callable[[str, os.stat_result], str]


def check_folder(folder: Path) -> tuple[dict[str, Any], dict[str, int]]:
    """(manifest, tasks of each split). Raises Refusal(s) E-PLUGIN-06x (manifest.json), E-DATA-003, E-DATA-060 (tasks.jsonl), E-STORE-02x."""
    faults: list[Refusal] = []
    form = open_form(NAME, stored(folder, NAME), faults)
    if form is not None:
        check_environment(form)
    tasks: dict[str, int] = {}
    try:
        tasks = count_tasks(folder)
        if not tasks:
            faults.append(Refusal("E-DATA-060", "has no tasks", field=TASKS, allowed="one task a line"))
    except DataFaults as several:
        faults += _refusals(several)
    except FileNotFoundError:
        faults.append(Refusal("E-DATA-060", "is not there", field=TASKS, allowed="one task a line"))
    except OSError as exc:
        raise refusal(exc, folder / TASKS, "read") from exc
    if faults or form is None:
        raise faults[0] if len(faults) == 1 else Refusals(faults)
    return dict(form.value), tasks


def _refusals(several: DataFaults) -> list[Refusal]:
    return [Refusal(f.code, f.message, field=f.field, found=f.found, allowed=f.allowed) for f in several.items]


def sample(version: Version, count: int) -> list[dict[str, Any]]:
    """The first tasks of a version, in order of the file. Raises Refusals E-DATA-003, E-DATA-060, Refusal E-STORE-02x."""
    try:
        return [vars(task) for task in islice(read_tasks(version.content), count)]
    except DataFaults as several:
        raise Refusals(_refusals(several)) from several
    except OSError as exc:
        raise refusal(exc, version.content / TASKS, "read") from exc


def environment_kind(name: str, version: str) -> Kind:
    """The kind of one push. Raises Refusal E-SPEC-015, E-SPEC-017 for what cannot be a name or version."""
    segment(name, "NAME")
    segment(version, "VERSION")

    def check(folder: Path) -> Checked:
        manifest, tasks = check_folder(folder)
        for key, wanted in (("name", name), ("version", version)):
            if manifest.get(key, wanted) != wanted:
                raise Refusal(
                    "E-DATA-006", f"is another {key}", field=f"{NAME}: {key}", found=manifest[key], allowed=wanted
                )
        return Checked(name, version, {"manifest": manifest, "tasks": tasks})

    return Kind("environment", "environments", check, MAX_BYTES, MAX_FILES, FACTS)


def _standing(content: Path) -> Checked:
    """A version that stands on the shelf: its place says who it is, its bytes what it is."""
    manifest, tasks = check_folder(content)
    return Checked(content.parent.parent.name, content.parent.name, {"manifest": manifest, "tasks": tasks})


ENVIRONMENT: Final = Kind("environment", "environments", _standing, MAX_BYTES, MAX_FILES, FACTS)
"""For everything but a push: resolving, listing, auditing."""


def environment_input(root: StorageRoot, site: Site | None, ref: str, split: str, digest: Digest) -> dict[str, Any]:
    """`{path, files, closed, environment}` as launch.json keeps the input `environment`; `path` is the version's folder.

    `split` is what the operation reads: `train` for training, `eval` for an evaluation. Raises Refusal E-DATA-061 (it has no such tasks),
    E-REG-* (no such version, a byte is not the recorded one), E-SITE-*, E-STORE-02x.
    """
    version = resolve(root, ENVIRONMENT, ref, site=site, for_new=True, field=FIELD)
    tasks, manifest = version.facts["tasks"], version.facts["manifest"]
    if not tasks.get(split):
        have = ", ".join(f"{name}: {count}" for name, count in tasks.items())
        raise Refusal(
            "E-DATA-061", f"{version} has no tasks of the split {split}", field=FIELD, found=have, allowed=split
        )
    record = version.folder / RECORD
    rows = []
    try:
        for entry in version.files:
            path = version.content / entry.path
            if (found := digest(str(path), os.stat(path, follow_symlinks=False))) != entry.sha256:
                text = f"has other bytes: recorded {entry.sha256}, found {found}"
                raise Refusal("E-REG-013", text, field=str(path), found=found, allowed=entry.sha256)
            rows.append({"path": entry.path, "size": entry.size, "sha256": entry.sha256})
        facts = {
            "ref": str(version), "digest": version.digest, "digest_v2": version.digest_v2, "sealed": version.seal is not None,
            "record": {"path": str(record), "sha256": digest_file(record)}, "dir": str(version.folder / CONTENT), "split": split,
            "tasks": dict(tasks), "protocol": manifest["protocol"], "deployment": manifest["deployment"],
            "verifier": dict(manifest["verifier"]), "port": manifest.get("image_port", PORT), "endpoint": manifest.get("endpoint", ""),
        }  # fmt: skip
    except OSError as exc:
        raise refusal(exc, exc.filename or version.content, "read") from exc
    return {"path": str(version.content), "files": rows, "closed": True, "environment": facts}
