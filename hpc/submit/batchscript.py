"""The frozen script of one submission: typed directives, quoted settings, the template in force."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tuneplane.contract.layout import VOLUMES, RunPaths, StorageRoot
from tuneplane.record.digest import digest_bytes

from hpc.errors import Refusal
from hpc.spec.durations import parse_time
from hpc.submit import directives, template
from hpc.submit.launchplan import is_per_node, kind_of
from hpc.submit.pieces import Piece

if TYPE_CHECKING:
    from hpc.site.sitefile import Fleet
    from hpc.submit.prepare import Prepared

PLAIN_PATH = re.compile(r"^/[A-Za-z0-9_./@+=~-]*$")


@dataclass(frozen=True)
class Script:
    """A rendered script, which template made it, and its digest."""

    text: str
    template: str
    template_sha256: str
    sha256: str
    nodes: int
    time_s: int | None
    parts: dict[str, str] = field(default_factory=dict)
    """Digest of each template that the script is made of, by name."""


def plain_path(path: Path | str, field: str) -> str:
    """A path that may stand on a directive line and in a mount. Raises Refusal E-SUBMIT-012."""
    text = str(path)
    if not PLAIN_PATH.match(text):
        raise Refusal(
            "E-SUBMIT-012",
            "a path with a blank, quote, comma or colon",
            field=field,
            found=repr(text),
            allowed="letters, digits and _ . / @ + = ~ -",
        )
    return text


def mounts(root: StorageRoot, run: RunPaths, work: Path, launch: Mapping[str, Any]) -> list[str]:
    """`--mount` values: the storage root read-only, the run writable, the package read-only again, inputs, site paths and volumes read-only."""
    rows = [(root.path, False), (run.root, True), (work, False)]
    inside = f"{root.path}/"
    inputs = (source["path"] for _, source in sorted(launch["inputs"].items()))
    rows += [(Path(path), False) for path in inputs if not path.startswith(inside)]
    rows += [(Path(b), False) for b in launch["binds"]]
    lines = [_bind(path, path, writable) for path, writable in rows]
    lines += [_bind(v["path"], f"{VOLUMES}/{leaf}", False) for leaf, v in sorted(launch.get("volumes", {}).items())]
    return list(dict.fromkeys(lines))


def _bind(source: Path | str, target: Path | str, writable: bool) -> str:
    src, dst = plain_path(source, "mount"), plain_path(target, "mount")
    return f"type=bind,src={src},dst={dst}" + ("" if writable else ",ro")


def _warning_signal(prepared: Prepared) -> str | None:
    """The directive for the warning. A user's own script gets one only if it asks, since most programs die of it."""
    if prepared.options.get("signal"):
        from hpc.spec.signals import format_signal, parse_signal

        return format_signal(replace(parse_signal(str(prepared.options["signal"])), batch=True))
    if kind_of(prepared.recipe) == "node":
        return None
    return f"B:USR2@{prepared.records['launch.json']['policies']['lead_s']}"


def _settings(
    root: StorageRoot, prepared: Prepared, fleet: Fleet, cluster: str, piece: Piece, nonce: str, time_s: int | None
) -> dict[str, str]:
    launch, runtime, kernel = prepared.records["launch.json"], prepared.runtime, prepared.kernel
    pools = zip(prepared.spec.spec.resources.pools, prepared.pool_profiles, strict=True)
    cpus = [directives.cpus_of(pool.model_dump(), profile.model_dump(), prepared.options) for pool, profile in pools]
    out = {
        "TP_ROOT": plain_path(root.path, "storage root"),
        "TP_RUN_DIR": plain_path(prepared.run.root, "run"),
        "TP_RUN_ID": prepared.run.run_id,
        "TP_WORK": plain_path(prepared.work, "work"),
        "TP_ADMISSION": str(prepared.work.parent / "admission.json"),
        "TP_FIRST_ATTEMPT": str(piece.first),
        "TP_NONCE": nonce,
        "TP_CLUSTER": cluster,
        "TP_NODES": str(launch["shape"]["nodes"]),
        "TP_POOLS": str(len(launch["shape"]["pools"])),
        "TP_CPUS": str(cpus[0]),
        "TP_POOL_CPUS": " ".join(map(str, cpus)),
        "TP_TIME_S": str(time_s or ""),
        "TP_SLURM_BIN": fleet.bin_dir,
        "TP_VERIFIER": plain_path(kernel.verifier, "kernel"),
        "TP_VERIFIER_SHA256": kernel.verifier_digest.removeprefix("sha256:"),
        "TP_TRAINING_ZIP": plain_path(kernel.training, "kernel"),
        "TP_TRAINING_SHA256": kernel.training_digest,
        "TP_PYTHON": sys.executable,
        "TP_APPTAINER": "",
        "TP_SIF": "",
        "TP_MOUNTS": "",
        "TP_OUTPUT": "",
        "TP_NV": "",
    }
    if piece.offset:
        out["TP_ARRAY_OFFSET"] = str(piece.offset)
    if prepared.evaluations is not None:
        out["TP_EVALUATIONS_DIR"] = plain_path(prepared.evaluations.run.root, "run")
        out["TP_EVALUATED_STEPS"] = " ".join(map(str, prepared.evaluations.steps))
    if runtime is not None:
        from hpc.sif.apptainer import Apptainer

        stat_text = f"{runtime.size}:{runtime.mtime_ns // 1_000_000_000}:{runtime.owner_uid}"
        out |= {
            "TP_APPTAINER": Apptainer().path(),
            "TP_SIF": plain_path(runtime.sif, "runtime"),
            "TP_SIF_SHA256": runtime.sha256.removeprefix("sha256:"),
            "TP_SIF_VERIFY": "full" if launch["runtime"]["verify"] == "sha256" else "stat",
            "TP_SIF_STAT": stat_text,
            "TP_MOUNTS": "\n".join(mounts(root, prepared.run, prepared.work, launch)),
            "TP_OUTPUT": plain_path(output["folder"], "mount") if (output := launch.get("output_dataset")) else "",
            "TP_NV": "1" if any(p["gpus_per_node"] for p in launch["shape"]["pools"]) else "",
        }
    return out


def template_name(prepared: Prepared, kind: str) -> str:
    """Which template a job is rendered from."""
    if kind == "local":
        return "local.sh.j2"
    pools = prepared.records["launch.json"]["shape"]["pools"]
    general = is_per_node(prepared.recipe) or len(pools) > 1 or prepared.options.get("array")
    return "custom.sbatch.j2" if general else "train.sbatch.j2"


def make_script(
    root: StorageRoot, prepared: Prepared, fleet: Fleet, piece: Piece, *, nonce: str, kind: str, cluster: str
) -> Script:
    """Render the script of one submission. Raises Refusal(s) E-SUBMIT-01x, -02x."""
    run, first = prepared.run, piece.first
    # Said either way: the cluster's JobRequeue could forbid what the spec allows, or restart what it does not.
    options = {**prepared.options, "requeue": bool(prepared.records["launch.json"]["policies"]["requeue_on"])}
    if piece.tasks:
        options["array"] = piece.tasks
    time_s = parse_time(str(options["time"])) if options.get("time") else None
    pools = [p.model_dump() for p in prepared.spec.spec.resources.pools]
    identity = directives.Identity(
        job_name=f"{run.exp}.{run.run_id}.{first}",
        comment=f"tp:{run.run_id}:{nonce}",
        # Elements at once would write over each other in one file, and take each other's ends for their own.
        log=f"{plain_path(run.batch, 'run')}/{first}{'_%a' if options.get('array') else ''}.log",
        chdir=plain_path(run.root, "run"),
    )
    profiles = [p.model_dump() for p in prepared.pool_profiles]
    lines = ""
    if kind == "slurm":
        blocks = directives.job_directives(
            identity, list(zip(pools, profiles, strict=True)), options, signal=_warning_signal(prepared)
        )
        lines = directives.render(blocks)
    name = template_name(prepared, kind)
    about = f"{run.exp}, {run.run_id}, {prepared.recipe.id} {prepared.recipe.version}; made by tp, frozen, not meant to be edited"
    settings = _settings(root, prepared, fleet, cluster, piece, nonce, time_s)
    evaluated = prepared.evaluations is not None
    text = template.render(root, name, directives=lines, about=about, settings=settings, evaluated=evaluated)
    source = template.find(root, name)
    if piece.offset and "TP_ARRAY_OFFSET" not in source.text():
        raise Refusal(
            "E-SUBMIT-024",
            "the template does not add TP_ARRAY_OFFSET to the array's index",
            field=str(source.path),
            allowed="the lines of the shipped template: `tp template diff`",
        )
    return Script(
        text,
        str(source.path),
        digest_bytes(source.text().encode()),
        digest_bytes(text.encode()),
        sum(p["nodes"] for p in pools),
        time_s,
        {
            part: digest_bytes(template.find(root, part).text().encode())
            for part in (name, "functions.sh.j2", *([template.CHECKPOINTS] if evaluated else []))
        },
    )
