"""Hand a frozen script to its fleet exactly once, record it, and settle what an interrupted command left open."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tuneplane.contract import schemas
from tuneplane.contract.hosts import expand
from tuneplane.contract.layout import RunPaths, StorageRoot
from tuneplane.record.digest import digest_json
from tuneplane.record.events import EventWriter
from tuneplane.record.files import read_bytes, read_json, write_json_new, write_new
from tuneplane.record.times import parse_utc

from hpc.errors import Refusal
from hpc.slurm.commands import Slurm
from hpc.submit.badnodes import known_suspects
from hpc.submit.batchscript import Script, make_script
from hpc.submit.intents import Intent, IntentBook, Submitter, find_job, settle_open
from hpc.submit.pieces import Piece
from hpc.submit.prepare import Around, Prepared

if TYPE_CHECKING:
    from hpc.site.sitefile import Fleet, Site
    from hpc.submit.following import Followed


@dataclass(frozen=True)
class Clock:
    """Time and chance, handed in: UTC text now, and fresh run ids and nonces."""

    now: Callable[[], str]
    token: Callable[[int], str] = secrets.token_hex


@dataclass(frozen=True)
class Submitted:
    """What `tp submit` says at the end."""

    run: RunPaths
    kind: str
    job_id: str
    job_name: str
    warnings: tuple[str, ...]
    script: Script
    job_ids: tuple[str, ...] = ()
    """Of an array every part's job; of anything else nothing more than `job_id`."""
    followed: tuple[Followed, ...] = ()


def slurm_of(fleet: Fleet, site: Site) -> Slurm:
    return Slurm(
        bin_dir=fleet.bin_dir, conf=fleet.conf, deadline_s=float(site.slurm.command_timeout_s), cluster=fleet.cluster
    )


def launch_callable(run_id: str) -> None:
    """What submitit is told to run. The job never unpickles it: the kernel rebuilds the work from jobspec.json."""


def _record(run: RunPaths, first: int, facts: dict[str, Any]) -> bool:
    """Write the submission's record; False if another command has just adopted the same job. Raises Refusal E-SUBMIT-053."""
    path = run.submissions / f"{first}.json"
    head = {"schema": schemas.SUBMISSION, "run_id": run.run_id, "first_attempt": first}
    try:
        write_json_new(path, {**head, **facts})
    except FileExistsError as exc:
        if read_json(path).get("nonce") != facts["nonce"]:
            raise Refusal("E-SUBMIT-053", f"{path} is another submission's", field=run.run_id) from exc
        return False
    return True


def _to_local(prepared: Prepared, intent: Intent, script: Script, book: IntentBook) -> dict[str, Any]:
    from hpc.submit.local_fleet import start_local

    run, lead = prepared.run, int(prepared.records["launch.json"]["policies"]["lead_s"])
    book.open(intent)
    log = run.batch / f"{intent.first_attempt}.log"
    try:
        pid, ticks = start_local(
            run.batch, script=intent.script, log=log, timeout_s=script.time_s, lead_s=lead, after=prepared.after
        )
    except Refusal:
        with suppress(OSError):  # a disk that is full takes no word about it; the next command settles the intent
            book.settle(intent, "refused")
        raise
    return {"job_id": f"local-{pid}", "pid": pid, "pid_start": ticks}


def _to_slurm(prepared: Prepared, intent: Intent, script: Script, slurm: Slurm, submitter: Submitter) -> dict[str, Any]:
    from hpc.submit.slurm_fleet import submit_to_slurm

    run = prepared.run
    job_id = submit_to_slurm(
        slurm, submitter, intent, script=script.text, nodes=script.nodes, folder=run.root, launch=launch_callable
    )
    return {"job_id": job_id, "removed_environment": list(slurm.scrubbed().removed)}


def _intent(prepared: Prepared, piece: Piece, nonce: str, fleet: Fleet, script: Script, now: str) -> Intent:
    run, first = prepared.run, piece.first
    name, comment = f"{run.exp}.{run.run_id}.{first}", f"tp:{run.run_id}:{nonce}"
    facts = {
        "kind": fleet.kind, "fleet": prepared.fleet, "cluster": fleet.cluster, "job_name": name, "nonce": nonce,
        "script_sha256": script.sha256, "template": script.template, "template_sha256": script.template_sha256,
        "template_parts": script.parts, "spec_digest": digest_json(prepared.records["jobspec.json"]), **piece.as_json(),
        **({"after": dict(prepared.after)} if prepared.after else {}),
    }  # fmt: skip
    return Intent(run.run_id, first, run.exp, name, nonce, comment, run.batch / f"{first}.sh", now, fleet.kind, facts)


def _tell(run: RunPaths, first: int, facts: dict[str, Any], what: str, now: Callable[[], str]) -> None:
    """The event of a submission. Whoever wrote the record tells it, so the chain has one writer."""
    details = {key: facts[key] for key in ("job_id", "fleet", "script_sha256") if key in facts}
    events = EventWriter(run.events, f"submit-{first}", run_id=run.run_id, now=now)
    events.append("queued", "queued", f"{what} {facts['job_id']}", **details, attempt=first)


def dispatch(
    around: Around,
    prepared: Prepared,
    piece: Piece,
    *,
    clock: Clock,
    sleep: Callable[[float], None],
    slurm: Slurm | None,
) -> Submitted:
    """Freeze the script of one submission, and hand it to the fleet. Raises Refusal."""
    fleet, run, first = around.site.fleets[prepared.fleet], prepared.run, piece.first
    nonce = clock.token(8)
    script = make_script(around.root, prepared, fleet, piece, nonce=nonce, kind=fleet.kind, cluster=fleet.cluster)
    intent = _intent(prepared, piece, nonce, fleet, script, clock.now())
    write_new(intent.script, script.text.encode(), mode=0o555)
    book = IntentBook(around.root.user_state(around.user) / "intents")
    if slurm is None:
        facts = _to_local(prepared, intent, script, book)
    else:
        submitter = Submitter(slurm, book, around.user, sleep=sleep, jitter=lambda: secrets.randbelow(1000) / 1000)
        facts = _to_slurm(prepared, intent, script, slurm, submitter)
    facts |= {**intent.facts, "submitted_at": clock.now()}
    recorded = _record(run, first, facts)
    book.settle(intent, "submitted", facts["job_id"])
    if recorded:
        _tell(run, first, facts, "submitted as", clock.now)
    warned = (*prepared.warnings, *(_bad_nodes(prepared, clock) if slurm else ()))
    return Submitted(run, fleet.kind, facts["job_id"], intent.job_name, warned, script)


def _bad_nodes(prepared: Prepared, clock: Clock) -> list[str]:
    """Nodes that ended earlier attempts of the experiment and that this job may meet again (P76)."""
    left_out = expand(str(prepared.options.get("exclude") or ""))
    found = known_suspects(prepared.run.root.parent, parse_utc(clock.now()).timestamp())
    return [suspect.text for suspect in found if suspect.node not in left_out]


def _adopt(root: StorageRoot, user: str, intent: Intent, facts: dict[str, Any], now: Callable[[], str]) -> None:
    """Record a job that is there although the command that started it never said so."""
    run, first = root.run(user, intent.exp, intent.run_id), intent.first_attempt
    if not run.submissions.is_dir() or (run.submissions / f"{first}.json").exists():
        return
    known = {"kind": intent.kind, "fleet": "", "cluster": "", "job_name": intent.job_name, "nonce": intent.nonce}
    whole = {**known, **intent.facts, **facts, "adopted": True, "submitted_at": intent.created_at}
    if _record(run, first, whole):
        _tell(run, first, whole, "adopted", now)


def _local_facts(root: StorageRoot, user: str, intent: Intent) -> dict[str, Any] | None:
    """A local job is known by its claim, which names its process."""
    from hpc.store.owners import start_ticks

    claim = root.run(user, intent.exp, intent.run_id).attempt(intent.first_attempt).claim
    try:
        job_id, _, nonce = read_bytes(claim).decode().split()
        pid = int(job_id.removeprefix("local-"))
    except (OSError, ValueError):
        return None
    return {"job_id": job_id, "pid": pid, "pid_start": start_ticks(pid) or 0} if nonce == intent.nonce else None


def _facts(root: StorageRoot, user: str, intent: Intent, slurm: Slurm | None) -> dict[str, Any] | None:
    if intent.kind == "local":
        return _local_facts(root, user, intent)
    if slurm is None:
        raise Refusal("E-SUBMIT-050", "the site has no Slurm fleet any more", field=intent.run_id)
    job_id = find_job(slurm, intent, user)
    return {"job_id": job_id} if job_id is not None else None


def settle(root: StorageRoot, site: Site, user: str, now: Callable[[], str]) -> list[Intent]:
    """Adopt or close what an interrupted submission left open; returns what is still open. A controller that is away is no error."""
    book = IntentBook(root.user_state(user) / "intents")
    fleet = next((f for f in site.fleets.values() if f.kind == "slurm"), None)
    slurm = slurm_of(fleet, site) if fleet is not None else None
    return settle_open(
        book,
        lambda intent: _facts(root, user, intent, slurm),
        adopt=lambda intent, facts: _adopt(root, user, intent, facts, now),
        age_s=lambda intent: (parse_utc(now()) - parse_utc(intent.created_at)).total_seconds(),
    )
