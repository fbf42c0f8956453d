"""The data set that a run is to publish: planned at submission, and published from here where the job itself could not.

The job publishes it (`tuneplane.launch.output`), since it has the owner's uid and nobody need log in again. What remains for this side is to
refuse a name that can never be had before anything is queued, and to do it later where the time limit, a full disk or a fault was in the way.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from tuneplane.contract.layout import RunPaths, StorageRoot
from tuneplane.record.canonical import CanonicalError
from tuneplane.record.files import read_json

from hpc.data.kinds import DATASET
from hpc.data.push import Pusher, prepare_name, push_dataset
from hpc.data.visibility import PUBLIC, Visibility
from hpc.errors.core import Refusal
from hpc.registry.resolve import resolve
from hpc.registry.seals import read_seal
from hpc.registry.shelf import Ref, Shelf
from hpc.registry.trees import FOLDER, measure
from hpc.spec.refs import parse_owned
from hpc.store.faults import refusal

if TYPE_CHECKING:
    from hpc.site.sitefile import Site

FIELD = "spec.data.output_dataset"


def plan_output(root: StorageRoot, site: Site, user: str, ref: str, *, array: bool) -> dict[str, str]:
    """What launch.json tells the job of its output. Reads only. Raises Refusal E-DATA-040."""
    wanted = parse_owned(ref, FIELD, version="required")
    if wanted.owner != user:
        raise Refusal(
            "E-DATA-040", f"{wanted.owner} is not the namespace of {user}", field=FIELD, found=ref, allowed=user
        )
    if array:
        raise Refusal(
            "E-DATA-040", "every element of an array would publish it", field=FIELD, found=ref, allowed="no array"
        )
    shelf = Shelf(root, DATASET, site=site)
    folder = shelf.package(wanted.owner, wanted.name)
    subject = f"datasets/{wanted.owner}/{wanted.name}/{wanted.version}"
    if os.path.lexists(folder / wanted.version) or read_seal(root, subject) is not None:
        raise Refusal(
            "E-DATA-040", f"{wanted} exists already, or did", field=FIELD, found=ref, allowed="a free version"
        )
    return {"ref": ref, "owner": wanted.owner, "name": wanted.name, "version": wanted.version, "folder": str(folder)}


def make_place(by: Pusher, output: dict[str, str]) -> None:
    """The name's folder, which the job's container mounts for writing; the visibility of one that is there stays. Raises Refusal E-SITE-*."""
    shelf = Shelf(by.root, DATASET, site=by.site)
    if not os.path.lexists(shelf.package(output["owner"], output["name"])):
        prepare_name(by, shelf, output["name"], Visibility(PUBLIC))
    shelf.require(output["owner"], output["name"])


def publish_output(by: Pusher, run: RunPaths) -> dict[str, Any]:
    """Publish the output of a run that succeeded; `{ref, state, …}`. Done before, nothing changes.

    Raises Refusal E-DATA-040 (no such output, no success, another's version), E-DATA-041 (not the bytes that the job saw), and as a push.
    """
    output, report = _records(run)
    ref = Ref(output["owner"], output["name"], output["version"])
    number = report["attempts"][-1]["attempt"]
    if os.path.lexists(Shelf(by.root, DATASET).version(ref.owner, ref.name, ref.version)):
        standing = resolve(by.root, DATASET, ref, site=by.site, for_new=False)
        if standing.facts.get("produced_by", {}).get("run_id") != run.run_id:
            raise Refusal("E-DATA-040", f"{ref} exists and is not of this run", field=FIELD, found=str(ref))
        return {"ref": str(ref), "state": "published", "digest": standing.digest, "path": str(standing.content)}
    source = run.attempt(number).out / "dataset"
    _require_same(run, number, report)
    made_by = {
        "run_id": run.run_id, "attempt": number, "exp": run.exp, "owner": run.owner, "spec_digest": report.get("spec_digest", ""),
        "package_digest": report.get("package_digest", ""),
        "inputs": [i["dataset"]["ref"] for _, i in sorted(report.get("inputs", {}).items()) if i.get("dataset")],
    }  # fmt: skip
    owner = Pusher(by.root, by.site, by.user, by.now, run.owner)
    done = push_dataset(owner, ref.name, ref.version, source, produced_by=made_by)
    return {"ref": str(ref), "state": "published", "digest": done.digest, "path": str(done.folder / "content")}


def _records(run: RunPaths) -> tuple[dict[str, str], dict[str, Any]]:
    try:
        launch = read_json(run.launch)
        report = read_json(run.report)
    except FileNotFoundError as exc:
        raise Refusal(
            "E-DATA-040", f"{run.run_id} did not succeed: it has no report", field=str(exc.filename), found=run.run_id
        ) from exc
    except (OSError, ValueError, CanonicalError) as exc:
        raise Refusal("E-DATA-040", f"the records of {run.run_id} cannot be read: {exc}", found=run.run_id) from exc
    output = launch.get("output_dataset")
    if not output or report.get("status") != "done":
        text = f"{run.run_id} was not asked for a data set" if not output else f"{run.run_id} did not succeed"
        raise Refusal("E-DATA-040", text, field=FIELD, found=report.get("status"))
    return output, report


def _require_same(run: RunPaths, number: int, report: dict[str, Any]) -> None:
    """Where the job recorded a digest, the bytes must still have it. Raises Refusal E-DATA-041, E-REG-004, E-STORE-02x."""
    recorded = (report.get("output_dataset") or {}).get("digest_v2", "")
    source = run.attempt(number).out / "dataset"
    try:
        fd = os.open(source, FOLDER)
        try:
            found = measure(fd, lenient=True).v2 if recorded else ""
        finally:
            os.close(fd)
    except OSError as exc:
        raise refusal(exc, source, "read") from exc
    if found != recorded:
        raise Refusal(
            "E-DATA-041", "the bytes changed since the job ended", field=str(source), found=found, allowed=recorded
        )
