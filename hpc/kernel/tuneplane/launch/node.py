"""One launcher a node: verify, prepare, meet, run the ranks, write how they ended."""

from __future__ import annotations

import os
import pwd
import resource
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tuneplane.contract import exits, schemas
from tuneplane.contract.followups import LATE_SCHEMA, late_path, read_late
from tuneplane.contract.sweeps import INDEX, variant_of
from tuneplane.launch import rendezvous
from tuneplane.launch.data import await_data, data_variables, verify_data, volume_note
from tuneplane.launch.environ import OFFLINE, Binding, job_environment, tracker_variables
from tuneplane.launch.framework import RayWatch, checked_ends, command
from tuneplane.launch.history import close_previous
from tuneplane.launch.late import resolve_late
from tuneplane.launch.limits import limit_variables
from tuneplane.launch.place import Place
from tuneplane.launch.ranks import WARNINGS, RankEnd, RankGroup, heeds_warnings
from tuneplane.launch.verify import LaunchRefused, Verified, verify_inputs, verify_package, verify_training_zip
from tuneplane.plugins.locked import LockedPlugin, python_path
from tuneplane.record.canonical import canonical_text
from tuneplane.record.events import EventWriter
from tuneplane.record.files import replace_json, write_json_new
from tuneplane.record.times import utc_now

CACHE_VARIABLES = (
    "TRITON_CACHE_DIR",
    "TORCH_EXTENSIONS_DIR",
    "TORCHINDUCTOR_CACHE_DIR",
    "CUDA_CACHE_PATH",
    "XDG_CACHE_HOME",
    "MPLCONFIGDIR",
)
"""Where libraries write what they compile; a site's profile may name other places. vLLM, FlashInfer and the like follow XDG_CACHE_HOME or HOME."""
FILLED_BY_JOBS = ("HF_DATASETS_CACHE", "MODELSCOPE_CACHE")
"""Caches that the documented environment puts below the storage root, although a job cannot write there: `datasets` converts even local rows."""
KEPT = (
    "PATH",
    "LANG",
    "LC_ALL",
    "LD_LIBRARY_PATH",
    "CUDA_VISIBLE_DEVICES",
    "NVIDIA_VISIBLE_DEVICES",
    "TZ",
    "OMP_NUM_THREADS",
    "OPENBLAS_CORETYPE",
    "TUNEPLANE_ARRAY_INDEX",
)


def say(text: str) -> None:
    print(f"{utc_now()} tp: {text}", flush=True)


@dataclass(frozen=True)
class Slot:
    """This node's part of the world: its pool, how many ranks it starts and the number of the first one."""

    pool: Mapping[str, Any]
    ranks: int
    first_rank: int
    world_size: int


def slot_of(shape: Mapping[str, Any], node: int) -> Slot:
    """Node numbers run through the pools in order. Pure. Raises LaunchRefused E-JOB-011."""
    first_node, first_rank, found = 0, 0, None
    for pool in shape["pools"]:
        ranks, nodes = pool["ranks_per_node"], pool["nodes"]
        if first_node <= node < first_node + nodes:
            found = (pool, ranks, first_rank + (node - first_node) * ranks)
        first_node, first_rank = first_node + nodes, first_rank + nodes * ranks
    if found is None:
        raise LaunchRefused("E-JOB-011", f"node {node} is outside the shape of {first_node} nodes")
    return Slot(found[0], found[1], found[2], first_rank)


def visible_gpus(env: Mapping[str, str], dev: Path = Path("/dev")) -> int:
    """GPUs this node's step can see: CUDA_VISIBLE_DEVICES, else the device files."""
    listed = env.get("CUDA_VISIBLE_DEVICES")
    if listed is not None:
        return len([d for d in listed.split(",") if d.strip() and d.strip() != "NoDevFiles"])
    return len([p for p in dev.glob("nvidia[0-9]*") if p.name[6:].isdigit()])


def check_reality(launch: Mapping[str, Any], place: Place, env: Mapping[str, str]) -> Slot:
    """The allocation against the one shape of the spec. Raises LaunchRefused E-JOB-011."""
    shape = launch["shape"]
    nodes = sum(p["nodes"] for p in shape["pools"])
    if len(place.hosts) != nodes:
        raise LaunchRefused(
            "E-JOB-011",
            f"the spec asks for {nodes} nodes, the allocation has {len(place.hosts)}: {','.join(place.hosts)}",
        )
    slot = slot_of(shape, place.node)
    gpus = slot.pool["gpus_per_node"]
    if gpus and visible_gpus(env) != gpus:
        raise LaunchRefused(
            "E-JOB-011", f"the spec asks for {gpus} GPUs a node, {visible_gpus(env)} are visible on {place.host}"
        )
    return slot


def check_cap(launch: Mapping[str, Any], place: Place) -> None:
    """Slurm restarts a job after a dead node or a preemption by itself, as often as it likes. Raises LaunchRefused E-JOB-016."""
    cap = launch["policies"]["max_attempts"]
    if place.restart_count >= cap:
        raise LaunchRefused("E-JOB-016", f"Slurm restarted the job {place.restart_count} times; max_attempts is {cap}")


def base_environment(place: Place, verified: Verified, env: Mapping[str, str]) -> dict[str, str]:
    """The documented environment and the private, node-local places; no rank numbers yet."""
    launch, out = verified.launch, {name: env[name] for name in KEPT if name in env}
    home = place.scratch / "home"
    home.mkdir(mode=0o700, exist_ok=True)
    out |= place.own_folders(CACHE_VARIABLES)
    user = pwd.getpwuid(os.getuid()).pw_name if _has_passwd_entry() else verified.admission["owner"]
    binding = Binding(
        user=verified.admission["owner"],
        run_id=verified.run_id,
        attempt=place.attempt.number,
        run_dir=str(place.run.root),
        out_dir=str(place.attempt.out),
        storage_root=str(place.root.path),
        private_home=str(home / "hf"),
        profile=launch.get("profile", ""),
        pin_resource=launch.get("pin_resource", ""),
        overrides=tuple(launch.get("overrides", ())),
        profile_env=launch.get("env", {}),
    )
    out |= OFFLINE | tracker_variables(verified.run_id, str(place.run.root), env.get("TUNEPLANE_ARRAY_INDEX", ""))
    out |= {"HOME": str(home), "USER": user, "TMPDIR": str(place.scratch)}
    out |= job_environment(verified.spec, binding) | place.own_folders(FILLED_BY_JOBS)
    exp = place.work / verified.spec["spec"]["source"]["exp"]
    out |= {
        "TUNEPLANE_WORK_DIR": str(place.work),
        "TUNEPLANE_EXP_DIR": str(exp),
        "TUNEPLANE_RUN_ID": verified.run_id,
        "TUNEPLANE_ATTEMPT": str(place.attempt.number),
        "TUNEPLANE_CHECKPOINT_DIR": str(place.run.checkpoints),
        # Accelerate would prefer a file in $HOME to the command line; this one is empty and ours.
        "ACCELERATE_CONFIG_FILE": str(home / "accelerate.yaml"),
    }
    for name, source in launch.get("inputs", {}).items():
        if name != "environment":
            out[{"model": "TUNEPLANE_MODEL_PATH"}.get(name, f"TUNEPLANE_{name.upper()}_DATA")] = source["path"]
    for name, found in read_late(late_path(place.attempt)).items():
        out[f"TUNEPLANE_{name.upper()}_PATH"] = found["path"]
    out |= data_variables(launch, place.scratch) | variant_variables(place.work, env)
    paths = [place.training_zip, *python_path(verified.plugins), str(place.work), env.get("PYTHONPATH", "")]
    out["PYTHONPATH"] = ":".join(p for p in paths if p)
    out["PYTHONDONTWRITEBYTECODE"] = "1"
    return out


def variant_variables(work: Path, env: Mapping[str, str]) -> dict[str, str]:
    """An element's own hyperparameters: `TUNEPLANE_VARIANT` as JSON, `TUNEPLANE_VARIANT_<NAME>` each. Raises LaunchRefused E-JOB-017."""
    try:
        own = variant_of(work, env)
    except (OSError, ValueError) as exc:
        raise LaunchRefused("E-JOB-017", str(exc)) from exc
    each = {f"TUNEPLANE_VARIANT_{name.upper()}": str(value) for name, value in own.items()}
    return {"TUNEPLANE_VARIANT": canonical_text(own), **each} if own else {}


def _has_passwd_entry() -> bool:
    try:
        pwd.getpwuid(os.getuid())
    except KeyError:
        return False
    return True


def rank_environment(
    base: Mapping[str, str], place: Place, slot: Slot, local: int, meeting: rendezvous.Meeting, interface: str
) -> dict[str, str]:
    """One rank's variables. Rank numbers come from the shape and this node's number, never from an outer environment."""
    rank = slot.first_rank + local
    out = dict(base) | {
        "RANK": str(rank),
        "LOCAL_RANK": str(local),
        "WORLD_SIZE": str(slot.world_size),
        "LOCAL_WORLD_SIZE": str(slot.ranks),
        "NODE_RANK": str(place.node),
        "MASTER_ADDR": meeting.address,
        "MASTER_PORT": str(meeting.port),
        "TUNEPLANE_MACHINE_RANK": str(place.node),
        "TUNEPLANE_MACHINE_COUNT": str(len(place.hosts)),
        "TUNEPLANE_MAIN_PROCESS_IP": meeting.address,
        "TUNEPLANE_MAIN_PROCESS_PORT": str(meeting.port),
        "TUNEPLANE_HOSTS": ",".join(place.hosts),
        "TUNEPLANE_POOL": slot.pool["name"],
    }
    if rank:
        out["WANDB_MODE"] = "disabled"  # one writer a run: they share its id
    out.setdefault("GLOO_SOCKET_IFNAME", interface)
    if not out["GLOO_SOCKET_IFNAME"]:
        del out["GLOO_SOCKET_IFNAME"]
    return out


def entry_argv(launch: Mapping[str, Any], plugins: Sequence[LockedPlugin]) -> list[str]:
    """What one rank starts. Where plugins are locked that it could import, they are checked, and algorithms applied, in that interpreter before
    its program. Pure.
    """
    words = list(launch["entry"]["argv"])
    if words[0] == "$PYTHON" and any(p.capability in ("algorithm", "environment") for p in plugins):
        options = words[1 : 1 + (words[1] == "-u")]
        words = ["$PYTHON", *options, "-m", "tuneplane.plugins.rank", *words[1 + len(options) :]]
    return [sys.executable if word == "$PYTHON" else word for word in words]


def used_by_ranks() -> dict[str, Any]:
    """CPU seconds of this node's ranks that have ended, and the memory of the largest process among them in bytes."""
    seen = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {"cpu_s": round(seen.ru_utime + seen.ru_stime, 3), "largest_process_bytes": seen.ru_maxrss * 1024}


class NodeLauncher:
    """Runs one node from verification to its end record."""

    def __init__(self, place: Place, env: Mapping[str, str]) -> None:
        self.place, self.env = place, env
        self.group = RankGroup(utc_now, say)
        self.events: EventWriter | None = None

    def run(self) -> int:
        """Exit code for srun: 0 when every rank is done or has saved, else what went wrong. Raises LaunchRefused."""
        for signum in WARNINGS:
            signal.signal(signum, self._warned)
        place = self.place
        write_json_new(
            place.attempt.nodes / f"{place.node}.start.json",
            {"node": place.node, "host": place.host, "started_at": utc_now()},
        )
        verified = verify_package(place.root, place.run_id, place.work, place.admission, uid=os.getuid())
        slot = check_reality(verified.launch, place, self.env)
        await_data(verified.launch)
        if note := volume_note(verified.launch):
            say(note)
        if place.training_zip:
            verify_training_zip(place.training_zip, place.training_sha256)
        if place.node == 0:
            self._begin(verified)
        check_cap(verified.launch, place)
        say(
            f"package {verified.package_digest} verified, {verified.files} files; node {place.node} of {len(place.hosts)} ({place.host})"
        )
        meeting, interface = self._meet(verified.launch)
        ends = self._run_ranks(verified, slot, meeting, interface)
        return self._end(ends)

    def _warned(self, signum: int, frame: object) -> None:
        self.group.warn(signum)

    def _begin(self, verified: Verified) -> None:
        place = self.place
        number = place.attempt.number
        previous = close_previous(place.run, verified.run_id, number, restart_count=place.restart_count, now=utc_now())
        write_json_new(
            place.attempt.start,
            {
                "schema": schemas.ATTEMPT_START,
                "run_id": verified.run_id,
                "attempt": place.attempt.number,
                "job_id": place.job_id,
                "restart_count": place.restart_count,
                "nonce": place.nonce,
                "cluster": place.cluster,
                "started_at": utc_now(),
                "hosts": list(place.hosts),
                "previous_end": previous,
                "package_digest": verified.package_digest,
            },
        )
        self.events = EventWriter(
            place.run.events, f"launch-{place.attempt.number}", run_id=verified.run_id, now=utc_now
        )
        self.events.append(
            "preparing",
            "running",
            "package verified",
            job_id=place.job_id,
            attempt=place.attempt.number,
            hosts=list(place.hosts),
            previous_end=previous,
        )
        checked = verify_inputs(verified.launch) + verify_data(verified.launch)
        replace_json(place.attempt.root / "inputs.json", {"inputs": checked})
        self._late(verified)
        if verified.launch.get("output_dataset"):
            (place.attempt.out / "dataset").mkdir(exist_ok=True)

    def _late(self, verified: Verified) -> None:
        """Find what other runs were to make; the chain names it, so that an audit can compare."""
        owner, element = verified.admission["owner"], self.env.get(INDEX, "")
        found = resolve_late(verified.launch, self.place.root, owner, element=element)
        if not found or self.events is None:
            return
        write_json_new(late_path(self.place.attempt), {"schema": LATE_SCHEMA, "inputs": found})
        named = {
            n: {k: f[k] for k in ("run_id", "attempt", "artefact", "digest", "report_sha256")} for n, f in found.items()
        }
        self.events.append("preparing", "running", "inputs of other runs verified", late=named)

    def _meet(self, launch: Mapping[str, Any]) -> tuple[rendezvous.Meeting, str]:
        place, deadline = self.place, float(launch["policies"]["rendezvous_timeout_s"])
        others = [h for h in place.hosts if h != place.host]
        if place.node == 0:
            meeting = rendezvous.publish(
                place.attempt.rendezvous, place.host, others, place.job_id, place.attempt.number
            )
        else:
            meeting = rendezvous.await_meeting(
                place.attempt.rendezvous, place.job_id, place.attempt.number, deadline_s=deadline
            )
        interface = rendezvous.gloo_interface(launch.get("network", {}).get("gloo_interfaces", ()), meeting.address)
        say(f"rank 0 is at {meeting.address}:{meeting.port}; this node's interface is {interface or 'unknown'}")
        return meeting, interface

    def _run_ranks(self, verified: Verified, slot: Slot, meeting: rendezvous.Meeting, interface: str) -> list[RankEnd]:
        place, launch = self.place, verified.launch
        limits = limit_variables(self.env, slot.ranks, per_rank=launch["entry"]["kind"] == "rank")
        base = limits | base_environment(place, verified, self.env)  # the site's profile wins
        if place.node == 0:
            replace_json(place.attempt.env, rank_environment(base, place, slot, 0, meeting, interface), mode=0o600)
            if self.events:
                self.events.append(
                    "training",
                    "running",
                    f"{slot.world_size} ranks on {len(place.hosts)} nodes",
                    world_size=slot.world_size,
                )
        cwd = place.work / verified.spec["spec"]["source"]["exp"]
        for local in range(slot.ranks):
            env = rank_environment(base, place, slot, local, meeting, interface)
            argv = entry_argv(launch, verified.plugins)
            argv, env = command(place, launch, argv, env, meeting, slot.pool["gpus_per_node"])
            rank = slot.first_rank + local
            self.group.start(rank, argv, env, cwd, place.attempt.rank_log(rank), alone=heeds_warnings(launch["entry"]))
        policies, ray = launch["policies"], launch["entry"]["kind"] == "ray"
        lost = RayWatch(place, env) if ray else None
        ends = self.group.wait(grace_s=float(policies["peer_grace_s"]), save_s=float(policies["lead_s"]), lost=lost)
        return checked_ends(place, ends, env, say) if ray else ends

    def _end(self, ends: list[RankEnd]) -> int:
        place = self.place
        worst = next((e for e in ends if e.exit_code not in (exits.DONE, exits.PREEMPTED) and not e.by_us), None)
        worst = worst or next((e for e in ends if e.exit_code not in (exits.DONE, exits.PREEMPTED)), None)
        code = worst.exit_code if worst else exits.DONE
        write_json_new(
            place.attempt.nodes / f"{place.node}.end.json",
            {
                "node": place.node,
                "host": place.host,
                "ended_at": utc_now(),
                "exit_code": code,
                "signal": worst.signal if worst else 0,
                "warned": self.group.warned,
                "used": used_by_ranks(),
                "ranks": [e.as_json() for e in ends],
            },
        )
        say("ranks ended: " + ", ".join(f"{e.rank}:{e.exit_code}" for e in ends))
        return code


def run_node(place: Place, env: Mapping[str, str]) -> int:
    """Launch this node; a refusal is recorded for `finish` and gives exit code 2."""
    try:
        return NodeLauncher(place, env).run()
    except (LaunchRefused, rendezvous.RendezvousError, OSError) as exc:
        code = exc.code if isinstance(exc, LaunchRefused) else "E-JOB-013"
        message = exc.message if isinstance(exc, LaunchRefused) else str(exc)
        say(f"{code} the job does not start: {message}")
        try:
            write_json_new(
                place.attempt.nodes / f"{place.node}.end.json",
                {
                    "node": place.node,
                    "host": place.host,
                    "ended_at": utc_now(),
                    "exit_code": exits.LAUNCH_FAILED,
                    "signal": 0,
                    "refused": {"code": code, "message": message},
                    "warned": [],
                    "ranks": [],
                },
            )
        except OSError as failed:
            say(f"the end of node {place.node} could not be recorded: {failed}")
        return exits.LAUNCH_FAILED
