"""The batch step's last act: read what the nodes left, decide, write end.json, the artifacts, the report, and join the event chains."""

from __future__ import annotations

import glob
import os
import sys
import time
from collections.abc import Mapping
from typing import Any

from tuneplane.contract import schemas
from tuneplane.contract.followups import late_path
from tuneplane.contract.succession import successor
from tuneplane.launch.output import publish_output
from tuneplane.launch.place import Place
from tuneplane.launch.provenance import provenance
from tuneplane.launch.verdict import Ending, Seen, decide, runs_again
from tuneplane.record.canonical import pretty_bytes
from tuneplane.record.digest import digest_bytes, digest_file, digest_json
from tuneplane.record.events import EventWriter, read_all
from tuneplane.record.files import read_json, read_object, write_json_new, write_new
from tuneplane.record.times import parse_utc, utc_now

MAX_ARTIFACT_FILES = 4096


def checkpoint_step(place: Place) -> int | None:
    """Step of the newest complete checkpoint, from the pointer that is written last."""
    pointer = read_object(place.run.checkpoints / "latest.json")
    step = (pointer or {}).get("step")
    return step if isinstance(step, int) else None


def look(place: Place, env: Mapping[str, str], lead_s: float) -> Seen:
    """Gather the facts of `Seen` from the disk and the batch script's variables."""
    nodes = {k: read_object(place.attempt.nodes / f"{k}.end.json") for k in range(len(place.hosts))}
    began = frozenset(k for k in nodes if (place.attempt.nodes / f"{k}.start.json").exists())
    before = (place.run.attempt(n).nodes for n in range(place.attempt.number))
    return Seen(
        nodes,
        began,
        (place.run.root / "stop_requested").exists(),
        env.get("TP_WARNED", ""),
        env.get("TP_JOB_STATE", ""),
        int(env.get("TP_STEP_CODE", "0")),
        _left_s(place, env),
        lead_s,
        any(next(folder.glob("*.start.json"), None) for folder in before),
        env.get("TP_ENDED_BY", ""),
    )


def collect_artifacts(place: Place, recipe: Mapping[str, Any]) -> tuple[list[dict[str, Any]], int]:
    """Files below out/ that the recipe declares, with size and SHA-256, and how many past the cap are not listed. Links are never followed."""
    declared = recipe.get("artifacts", {})
    out = place.attempt.out
    rows: dict[str, dict[str, Any]] = {}
    beyond: set[str] = set()
    for kind in ("checkpoints", "logs", "exports", "evaluations"):
        for pattern in declared.get(kind, ()):
            for found in sorted(glob.glob(os.path.join(glob.escape(str(out)), pattern))):
                for path in _files_below(found):
                    name = os.path.relpath(path, out)
                    if os.path.realpath(path) != os.path.join(os.path.realpath(out), name):
                        continue
                    if len(rows) < MAX_ARTIFACT_FILES or name in rows:
                        size, sha256 = os.path.getsize(path), digest_file(path)
                        rows[name] = {"kind": kind, "path": name, "size": size, "sha256": sha256}
                    else:
                        beyond.add(name)
    return [rows[name] for name in sorted(rows)], len(beyond)


def stopped_rung(place: Place) -> dict[str, Any] | None:
    """The decision with which an element of a sweep ended early, from its rungs' records."""
    for name in os.listdir(place.run.rungs) if place.run.rungs.is_dir() else ():
        if (rung := read_object(place.run.rungs / name)) and rung.get("decision") == "stop":
            return rung
    return None


def _files_below(path: str) -> list[str]:
    if os.path.isfile(path):
        return [] if os.path.islink(path) else [path]
    return [
        os.path.join(folder, name)
        for folder, _, names in os.walk(path)
        for name in sorted(names)
        if not os.path.islink(os.path.join(folder, name))
    ]


def _end_record(
    place: Place, run_id: str, ending: Ending, again: bool, reason: str, step: int | None
) -> dict[str, Any]:
    klass = "no_progress" if reason == "no_progress" else ending.klass
    rung = stopped_rung(place) if klass == "done" else None
    return {
        "schema": schemas.ATTEMPT_END,
        "run_id": run_id,
        "attempt": place.attempt.number,
        "job_id": place.job_id,
        "ended_at": utc_now(),
        "class": klass,
        "exit_code": ending.exit_code,
        "signal": ending.signal,
        "message": f"stopped at rung {rung['step']}" if rung else ending.message,
        "step": step,
        "requeue": again,
        "reason": reason,
        **({"stopped_at_rung": rung["step"]} if rung else {}),
    }


def _left_s(place: Place, env: Mapping[str, str]) -> float | None:
    """Seconds until the time limit, None where there is none: by Slurm's word, else counted from the first launcher's start."""
    if env.get("TP_END_S", "").isdecimal():
        return float(env["TP_END_S"]) - time.time()
    begun, limit = read_object(place.attempt.start), env.get("TP_TIME_S", "")
    return parse_utc(begun["started_at"]).timestamp() + float(limit) - time.time() if limit and begun else None


def _output(place: Place, end: Mapping[str, Any], env: Mapping[str, str]) -> dict[str, Any] | None:
    """Publish the data set that the run was asked for, if it succeeded; what became of it is written down once."""
    launch = read_object(place.work / ".tuneplane/launch.json") or {}
    if end["class"] != "done" or not launch.get("output_dataset"):
        return None
    if known := read_object(place.attempt.output):
        return known
    admission = read_object(place.admission) or {}
    made_by = {
        "run_id": place.run_id, "attempt": place.attempt.number, "exp": place.run.exp, "owner": admission.get("owner", ""),
        "spec_digest": admission.get("spec_digest", ""), "package_digest": admission.get("package_digest", ""),
        "inputs": [i["dataset"]["ref"] for _, i in sorted(launch.get("inputs", {}).items()) if i.get("dataset")],
    }  # fmt: skip
    done = publish_output(
        place.root,
        launch["output_dataset"],
        place.attempt.out / "dataset",
        made_by,
        now=utc_now(),
        left_s=_left_s(place, env),
    )
    print(f"{utc_now()} tp: data set {done['ref']}: {done['state']} {done['message']}", file=sys.stderr, flush=True)
    try:
        write_json_new(place.attempt.output, done)
    except FileExistsError:
        pass  # another call of this attempt was faster
    return done


def _report(place: Place, end: Mapping[str, Any], env: Mapping[str, str], output: Mapping[str, Any] | None) -> bytes:
    spec, launch = read_json(place.work / ".tuneplane/jobspec.json"), read_json(place.work / ".tuneplane/launch.json")
    recipe, start = read_json(place.work / ".tuneplane/recipe.json"), read_object(place.attempt.start) or {}
    admission = read_object(place.admission) or {}
    artifacts, beyond = collect_artifacts(place, recipe)
    attempts = [
        read_object(place.run.attempt(n).end) or {"attempt": n, "class": "lost"} for n in range(place.attempt.number)
    ]
    return pretty_bytes(
        {
            "schema": schemas.REPORT,
            "run_id": place.run_id,
            "owner": admission.get("owner", ""),
            "exp": spec["metadata"]["name"],
            "status": end["class"],
            "started_at": start.get("started_at"),
            "ended_at": end["ended_at"],
            "attempts": [*attempts, dict(end)],
            "spec_digest": digest_json(spec),
            "package_digest": admission.get("package_digest"),
            "admission": admission.get("mode"),
            "recipe": spec["spec"]["recipe"],
            "provenance": spec.get("provenance", {}),
            "inputs": launch.get("inputs", {}),
            **_followed(place, launch),
            "runtime": launch.get("runtime", {}),
            "kernel": launch.get("kernel", {}),
            "policies": launch.get("policies", {}),
            "slurm": {
                "job_id": place.job_id,
                "cluster": place.cluster,
                "partition": env.get("SLURM_JOB_PARTITION", ""),
                "hosts": list(place.hosts),
                "restart_count": place.restart_count,
                "account": env.get("SLURM_JOB_ACCOUNT", ""),
            },
            "script_sha256": env.get("TP_SCRIPT_SHA256", ""),
            "origin": provenance(place, spec, launch, recipe, env),
            **({"output_dataset": dict(output)} if output else {}),
            "continuity": [
                c for n in range(place.attempt.number + 1) if (c := read_object(place.run.attempt(n).continuity))
            ],
            "result": read_object(place.attempt.out / "result.json"),
            "artifacts": artifacts,
            **({"artifacts_not_listed": beyond} if beyond else {}),
        }
    )


def _followed(place: Place, launch: Mapping[str, Any]) -> dict[str, Any]:
    """Of a run that follows another one: whom, and what of it was read."""
    late = (read_object(late_path(place.attempt)) or {}).get("inputs")
    return {
        **({"follows": launch["follows"]} if "follows" in launch else {}),
        **({"late_inputs": late} if late else {}),
    }


def _join_events(place: Place, end: Mapping[str, Any]) -> None:
    """The attempt's closing event, once: it carries the heads of all other chains, and the digests of the end and the report."""
    writer = EventWriter(place.run.events, f"batch-{place.attempt.number}", run_id=place.run_id, now=utc_now)
    if writer.written:
        return
    heads = {
        c.writer: {"hash": c.head, "count": len(c.events)}
        for c in read_all(place.run.events)
        if c.writer != f"batch-{place.attempt.number}"
    }
    details: dict[str, Any] = {
        "heads": heads,
        "attempt": end["attempt"],
        "class": end["class"],
        "requeue": end["requeue"],
        "end_sha256": digest_json(end),
        "nodes": {path.name: digest_file(path) for path in sorted(place.attempt.nodes.glob("*.json"))},
        **_saved(place),
    }
    if read_object(place.attempt.continuity):
        details["continuity_sha256"] = digest_file(place.attempt.continuity)
    if end["class"] == "done":
        details["report_sha256"] = digest_bytes(place.run.report.read_bytes())
        if output := read_object(place.attempt.output):
            details["output_dataset"] = {key: output.get(key, "") for key in ("ref", "state", "message", "digest")}
    stage = {"done": "completed", "preempted": "preempted", "cancelled": "cancelled"}.get(end["class"], "failed")
    status = "completed" if end["class"] == "done" else ("queued" if end["requeue"] else "failed")
    writer.append(stage, status, end["message"], **details)


def _saved(place: Place) -> dict[str, Any]:
    """The newest checkpoint at the end of the attempt, by the digest of its manifest, which lists its files."""
    pointer = read_object(place.run.checkpoints / "latest.json") or {}
    told = {key: pointer.get(key) for key in ("step", "path", "manifest_sha256")}
    return {"checkpoint": told} if all(told.values()) else {}


def finish(place: Place, env: Mapping[str, str]) -> str:
    """Write the attempt's end once and return what the batch script shall do: `done`, `requeue`, `failed`, `superseded`, or `wait`.

    `wait`: a node seems to have died; Slurm is given the site's grace to find out and to requeue the job itself, and nothing is written yet.
    `superseded`: Slurm took this node for dead, and a later attempt has the run; it says how this one ended, and nothing is written here.
    Called again for the same attempt it repeats the decision and adds only what a killed call before it left out.
    """
    if (later := successor(place.run, place.attempt.number)) is not None:
        print(f"{utc_now()} tp: attempt {later} has the run now", file=sys.stderr, flush=True)
        return "superseded"
    end = read_object(place.attempt.end)
    if end is None:
        end = _decide(place, env)
        if end is None:
            return "wait"
        _write_report(place, end, env, _output(place, end, env))
        _write_requeue(place, end)
        write_json_new(place.attempt.end, end)
    _join_events(place, end)
    return _word(end)


def _decide(place: Place, env: Mapping[str, str]) -> dict[str, Any] | None:
    launch = read_object(place.work / ".tuneplane/launch.json") or {}
    policies = launch.get("policies") or {"requeue_on": [], "max_attempts": 1, "lead_s": 0}
    seen, foreign = look(place, env, float(policies["lead_s"])), "plan" in launch.get("entry", {})
    ending, step = decide(seen), checkpoint_step(place)
    waits = "node_grace_s" if ending.klass == "node_fail" else ""
    if foreign and ending.klass == "error" and seen.silent:
        waits = "node_verdict_s"  # a framework's program crashes where its peer is gone: only Slurm can tell that from a fault of its own
    # At the time limit there is nothing left to wait for: nobody would write this end any more.
    if waits and seen.ended_by != "TIME LIMIT" and float(env.get("TP_WAITED_S", "0")) < float(policies.get(waits, 0)):
        return None
    previous = [e for n in range(place.attempt.number - 1, -1, -1) if (e := read_object(place.run.attempt(n).end))]
    first = place.attempt.number - place.restart_count
    again, reason = runs_again(
        ending, policies, attempt=place.attempt.number, first_attempt=first, step=step, previous=previous,
        counts_steps=not foreign,
    )  # fmt: skip
    return _end_record(place, place.run_id, ending, again, reason, step)


def _write_report(
    place: Place, end: Mapping[str, Any], env: Mapping[str, str], output: Mapping[str, Any] | None
) -> None:
    if end["class"] == "done":
        try:
            write_new(place.run.report, _report(place, end, env, output))
        except FileExistsError:
            pass  # a killed call wrote it; what stands is what the chain will name


def _write_requeue(place: Place, end: Mapping[str, Any]) -> None:
    if not end["requeue"]:
        return
    record = {
        "schema": schemas.REQUEUE,
        "run_id": place.run_id,
        "attempt": place.attempt.number,
        "job_id": place.job_id,
        "restart_count": place.restart_count,
        "reason": end["reason"],
        "step": end["step"],
        "at": end["ended_at"],
    }
    try:
        write_json_new(place.attempt.requeue, record)
    except FileExistsError:
        pass  # likewise


def _word(end: Mapping[str, Any]) -> str:
    return "done" if end["class"] == "done" else ("requeue" if end["requeue"] else "failed")
