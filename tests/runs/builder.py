"""Makes runs on disk as submission and job leave them, so that tests of the readers need neither."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from tuneplane.contract import schemas
from tuneplane.contract.layout import RunPaths, StorageRoot
from tuneplane.record.canonical import pretty_bytes
from tuneplane.record.digest import digest_bytes, digest_json, directory_digest_v1, scan_tree, tree_digest_v2
from tuneplane.record.events import EventWriter, read_all
from tuneplane.record.files import write_json_new, write_new
from tuneplane.record.times import utc_text

START = datetime(2026, 3, 1, 12, tzinfo=timezone.utc)
FILES = {"experiments/sft/train.sh": b"#!/bin/sh\ntrue\n", "common/data.py": b"X = 1\n", "configs/base.yaml": b"a: 1\n"}


def at(seconds: float) -> str:
    return utc_text(START + timedelta(seconds=seconds))


def epoch(seconds: float) -> float:
    return (START + timedelta(seconds=seconds)).timestamp()


@dataclass
class RunMaker:
    """One run. Methods add what a step adds; `clock` is seconds after START of the next record."""

    root: StorageRoot
    owner: str = "alice"
    exp: str = "sft"
    run_id: str = "run-0a1b2c3d"
    clock: float = 0.0
    job_id: str = "100"
    nonce: str = "cafe0123cafe0123"
    kind: str = "slurm"
    ran: str = ""
    """What the batch script said of its own digest; the report states it."""
    admitted_as: str = "advisory"
    weights: bytes = b"weights"
    launch: dict[str, Any] = field(default_factory=dict)
    """More of launch.json."""
    left: dict[str, bytes] = field(default_factory=dict)
    """Further artifacts."""
    spec: dict[str, Any] = field(default_factory=lambda: {"apiVersion": "tuneplane/v1", "metadata": {"name": "sft"}})

    @property
    def run(self) -> RunPaths:
        return self.root.run(self.owner, self.exp, self.run_id)

    def now(self) -> str:
        self.clock += 1
        return at(self.clock)

    def events(self, writer: str) -> EventWriter:
        return EventWriter(self.run.events, writer, run_id=self.run_id, now=self.now)

    def package(self) -> RunMaker:
        run = self.run
        records = {
            "jobspec.json": self.spec,
            "launch.json": {"kernel": {"verifier": "k"}, "shape": {}, **self.launch},
            "recipe.json": {"name": "custom/custom"},
        }
        for path, data in FILES.items():
            self._put(run.work / path, data)
        for name, value in records.items():
            self._put(run.work / ".tuneplane" / name, pretty_bytes(value))
        entries = list(scan_tree(run.work))
        listing = {
            "schema": schemas.PACKAGE, "run_id": self.run_id, "created_at": self.now(), "digest_v2": tree_digest_v2(entries),
            "digest_v1": directory_digest_v1(run.work), "files": [e.as_json() for e in entries],
        }  # fmt: skip
        self.package_digest = listing["digest_v2"]
        self._put(run.package, pretty_bytes(listing))
        for folder in (run.batch, run.submissions, run.attempts, run.checkpoints, run.events):
            folder.mkdir()
        return self

    @staticmethod
    def _put(path: Path, data: bytes) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        path.chmod(0o755 if path.suffix == ".sh" else 0o644)

    def admit(self, **changes: Any) -> RunMaker:
        self.admission = {
            "schema": schemas.ADMISSION, "run_id": self.run_id, "owner": self.owner, "uid": os.getuid(),
            "spec_digest": digest_json(self.spec), "package_digest": self.package_digest, "kernel": {"verifier": "k"},
            "verdict": "admitted", "mode": "advisory", "admitted_at": self.now(), **changes,
        }  # fmt: skip
        self.admitted_as = str(changes.get("mode", self.admitted_as))
        write_json_new(self.run.admission, self.admission)
        return self

    def submit(self, first: int = 0, **changes: Any) -> RunMaker:
        script = f"#!/bin/bash\n# {self.run_id} {first}\n".encode()
        write_new(self.run.batch / f"{first}.sh", script, mode=0o555)
        record = {
            "schema": schemas.SUBMISSION, "run_id": self.run_id, "first_attempt": first, "fleet": "slurm", "kind": self.kind,
            "cluster": "", "job_id": self.job_id, "job_name": f"{self.exp}.{self.run_id}.{first}", "nonce": self.nonce,
            "script_sha256": digest_bytes(script), "spec_digest": digest_json(self.spec), "submitted_at": self.now(), **changes,
        }  # fmt: skip
        write_json_new(self.run.submissions / f"{first}.json", record)
        self.events(f"submit-{first}").append(
            "queued", "queued", f"submitted as {record['job_id']}", job_id=record["job_id"], fleet=record["fleet"],
            script_sha256=record["script_sha256"], attempt=first,
        )  # fmt: skip
        self.first = first
        return self

    def claim(self, number: int = 0) -> RunMaker:
        paths = self.run.attempt(number)
        for folder in (paths.out, paths.logs, paths.nodes):
            folder.mkdir(parents=True, exist_ok=True)
        write_new(paths.claim, f"{self.job_id} {number - self.first} {self.nonce}\n".encode())
        return self

    def start(self, number: int = 0, hosts: tuple[str, ...] = ("n1", "n2"), **changes: Any) -> RunMaker:
        paths = self.run.attempt(number)
        self.claim(number)
        for node, host in enumerate(hosts):
            write_json_new(paths.nodes / f"{node}.start.json", {"node": node, "host": host, "started_at": self.now()})
        write_json_new(
            paths.start,
            {
                "schema": schemas.ATTEMPT_START, "run_id": self.run_id, "attempt": number, "job_id": self.job_id,
                "restart_count": number - self.first, "nonce": self.nonce, "cluster": "", "started_at": self.now(),
                "hosts": list(hosts), "previous_end": None, "package_digest": self.package_digest, **changes,
            },
        )  # fmt: skip
        events = self.events(f"launch-{number}")
        events.append(
            "preparing", "running", "package verified", job_id=self.job_id, attempt=number, hosts=list(hosts),
            previous_end=changes.get("previous_end"),
        )  # fmt: skip
        events.append("training", "running", f"{len(hosts)} ranks", world_size=len(hosts))
        return self

    def log(self, number: int, rank: int, *lines: str, kind: str = "rank") -> RunMaker:
        name = f"rank-{rank:05d}.log" if kind == "rank" else f"node-{rank}.log"
        with open(self.run.attempt(number).logs / name, "a", encoding="utf-8") as stream:
            stream.writelines(f"{self.now()} {line}\n" for line in lines)
        return self

    def nodes(self, number: int, *codes: int, signals: tuple[int, ...] = (), silent: tuple[int, ...] = ()) -> RunMaker:
        """End records of the nodes, one rank a node."""
        for node, code in enumerate(codes):
            if node in silent:
                continue
            number_of_signal = signals[node] if signals else 0
            rank = {"rank": node, "exit_code": code, "signal": number_of_signal, "by_us": False}
            write_json_new(
                self.run.attempt(number).nodes / f"{node}.end.json",
                {
                    "node": node, "host": f"n{node + 1}", "ended_at": self.now(), "exit_code": code, "signal": number_of_signal,
                    "warned": [], "ranks": [rank],
                },
            )  # fmt: skip
        return self

    def end(
        self, number: int = 0, cls: str = "done", *, requeue: bool = False, step: int | None = None, **changes: Any
    ) -> RunMaker:
        paths = self.run.attempt(number)
        end = {
            "schema": schemas.ATTEMPT_END, "run_id": self.run_id, "attempt": number, "job_id": self.job_id, "ended_at": self.now(),
            "class": cls, "exit_code": 0 if cls == "done" else 1, "signal": 0, "message": f"ended as {cls}", "step": step,
            "requeue": requeue, "reason": "", **changes,
        }  # fmt: skip
        report_sha256 = None
        if cls == "done":
            report_sha256 = self._report(number, end)
        if requeue:
            write_json_new(
                paths.requeue,
                {
                    "schema": schemas.REQUEUE, "run_id": self.run_id, "attempt": number, "job_id": self.job_id,
                    "restart_count": number - self.first, "reason": "", "step": step, "at": end["ended_at"],
                },
            )  # fmt: skip
        write_json_new(paths.end, end)
        heads = {c.writer: {"hash": c.head, "count": len(c.events)} for c in read_all(self.run.events)}
        details: dict[str, Any] = {
            "heads": heads, "attempt": number, "class": cls, "requeue": requeue, "end_sha256": digest_json(end),
            "nodes": {p.name: digest_bytes(p.read_bytes()) for p in sorted(paths.nodes.glob("*.json"))},
        }  # fmt: skip
        if (pointer := self.run.checkpoints / "latest.json").exists():
            saved = json.loads(pointer.read_text())
            details["checkpoint"] = {key: saved[key] for key in ("step", "path", "manifest_sha256")}
        if (certificate := paths.continuity).exists():
            details["continuity_sha256"] = digest_bytes(certificate.read_bytes())
        if report_sha256:
            details["report_sha256"] = report_sha256
        stage = "completed" if cls == "done" else cls if cls in ("preempted", "cancelled") else "failed"
        self.events(f"batch-{number}").append(
            stage, "completed" if cls == "done" else "failed", end["message"], **details
        )
        return self

    def closed_by_next(self, number: int, cls: str = "node_fail", **changes: Any) -> RunMaker:
        """The end record of an attempt that died with its node, as the next attempt adds it; then that attempt's start."""
        end = {
            "schema": schemas.ATTEMPT_END, "run_id": self.run_id, "attempt": number, "job_id": None, "ended_at": self.now(), "class": cls,
            "exit_code": None, "signal": 0, "message": "left no end record", "step": 40, "requeue": True, "reason": "restarted by Slurm",
            **changes,
        }  # fmt: skip
        write_json_new(self.run.attempt(number).end, end)
        return self

    def element(self, index: int) -> RunMaker:
        """A maker of one element of this run's array; its attempts, events and report lie under array/<index>/."""
        part = ElementMaker(
            **{f: getattr(self, f) for f in ("root", "owner", "exp", "run_id", "nonce", "kind", "spec")}
        )
        part.admitted_as = self.admitted_as
        part.index, part.package_digest, part.first, part.clock = index, self.package_digest, 0, self.clock
        part.job_id = f"{self.job_id}_{index}"
        for folder in (part.run.attempts, part.run.events, part.run.checkpoints):
            folder.mkdir(parents=True)
        return part

    def _report(self, number: int, end: dict[str, Any]) -> str:
        out = self.run.attempt(number).out
        (out / "adapter.safetensors").write_bytes(self.weights)
        (out / "result.json").write_bytes(b'{"loss": 0.5}')
        for name, data in self.left.items():
            (out / name).parent.mkdir(parents=True, exist_ok=True)
            (out / name).write_bytes(data)
        earlier = []
        for n in range(number):
            path = self.run.attempt(n).end
            earlier.append(json.loads(path.read_text()) if path.exists() else {"attempt": n, "class": "lost"})
        report = {
            "schema": schemas.REPORT, "run_id": self.run_id, "owner": self.owner, "exp": self.spec["metadata"]["name"], "status": "done",
            "ended_at": end["ended_at"], "attempts": [*earlier, end], "spec_digest": digest_json(self.spec),
            "package_digest": self.package_digest, "admission": self.admitted_as, "provenance": {"core_version": "0.4.0"},
            "result": {"loss": 0.5}, "script_sha256": self.ran,
            "artifacts": [
                {
                    "kind": "exports", "path": name, "size": len(data), "sha256": digest_bytes(data),
                }
                for name, data in {"adapter.safetensors": self.weights, **self.left}.items()
            ],
        }  # fmt: skip
        data = pretty_bytes(report)
        write_new(self.run.report, data)
        os.utime(self.run.report, (epoch(self.clock), epoch(self.clock)))  # the run is long over
        return digest_bytes(data)

    def done(self) -> RunMaker:
        """A run from package to report, one attempt."""
        return self.package().admit().submit().start().log(0, 0, "hello").nodes(0, 0, 0).end()


class ElementMaker(RunMaker):
    """One element of an array: its own records, the run's identity."""

    index = 0

    @property
    def run(self) -> RunPaths:
        return super().run.element(self.index)
