"""A small admitted run on disk, made by the code that makes real ones."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tuneplane.contract import schemas
from tuneplane.contract.layout import RunPaths, StorageRoot
from tuneplane.record.digest import digest_json
from tuneplane.record.files import read_json, write_json_new

from hpc.submit.package import write_package

POLICIES = {
    "requeue_on": ["preempted", "node_fail", "timeout"], "max_attempts": 3, "lead_s": 5,
    "rendezvous_timeout_s": 5, "peer_grace_s": 1, "node_grace_s": 0,
}  # fmt: skip


@dataclass(frozen=True)
class File:
    source: Path
    path: str


@dataclass(frozen=True)
class Made:
    """A run with its package and an advisory admission for this uid."""

    root: StorageRoot
    run: RunPaths

    def env(self, attempt: int = 0, **more: str) -> dict[str, str]:
        """What the batch script hands to the kernel on node 0 of one."""
        folder = self.run.attempt(attempt)
        for path in (folder.out, folder.logs, folder.nodes):
            path.mkdir(parents=True, exist_ok=True)
        scratch = self.root.path / "scratch"
        scratch.mkdir(exist_ok=True)
        return {
            "TP_ROOT": str(self.root.path), "TP_RUN_DIR": str(self.run.root), "TP_RUN_ID": self.run.run_id, "TP_ATTEMPT": str(attempt),
            "TP_HOSTS": os.uname().nodename, "TP_JOB_ID": "41", "TP_NODE": "0", "TP_RESTART": str(attempt), "TP_SCRATCH": str(scratch),
            "PATH": os.environ["PATH"], **more,
        }  # fmt: skip

    def unlock(self) -> None:
        """Make the package writable, as its owner can."""
        for folder, _, names in os.walk(self.run.work):
            os.chmod(folder, 0o755)
            for name in names:
                os.chmod(os.path.join(folder, name), 0o644)


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., Made]:
    """Make a run whose entry is a bash script."""

    def make(
        script: str = "true\n",
        *,
        ranks: int = 1,
        policies: dict[str, Any] | None = None,
        artifacts: dict[str, Any] | None = None,
        data: dict[str, Any] | None = None,
        launch_data: dict[str, Any] | None = None,
        records: dict[str, Any] | None = None,
    ) -> Made:
        root = StorageRoot(tmp_path / "root")
        run = root.run("alice", "exp", "run-00aa")
        run.root.parent.mkdir(parents=True)
        root.site.mkdir()
        source = tmp_path / "train.sh"
        source.write_text(script)
        spec = {
            "apiVersion": "tuneplane/v1", "kind": "TrainingJob", "metadata": {"name": "exp"},
            "spec": {
                "recipe": {"name": "custom/custom", "version": "1", "digest": "sha256:0"}, "source": {"exp": "experiments/exp"},
                "framework": {"kind": "custom", "version": "user-managed"},
                "resources": {"pools": [{"name": "all", "nodes": 1, "gpus_per_node": 0, "cpus": 1, "memory_gb": 1}]},
                **({"data": data} if data else {}),
            },
            "provenance": {"core_version": "0.4.0"},
        }  # fmt: skip
        pool = {"name": "all", "nodes": 1, "gpus_per_node": 0, "ranks_per_node": ranks}
        launch = {
            "schema": "tuneplane-hpc/launch/v1", "entry": {"kind": "node", "argv": ["/bin/bash", "train.sh"]}, "hyperparams": {}, "inputs": {},
            "shape": {"pools": [pool], "nodes": 1, "ranks_per_node": ranks, "gpus_per_node": 0, "world_size": ranks},
            "policies": {**POLICIES, **(policies or {})}, "network": {}, "env": {"SITE_WORD": "hello"},
            **(launch_data or {}),
        }  # fmt: skip
        recipe = {"name": "custom", "artifacts": artifacts or {"exports": ["final"]}}
        packed = write_package(
            run, [File(source, "experiments/exp/train.sh")],
            {"jobspec.json": spec, "launch.json": launch, "recipe.json": recipe, **(records or {})},
            max_bytes=1 << 20, created_at="2026-01-01T00:00:00.000000Z",
        )  # fmt: skip
        write_json_new(run.admission, {
            "schema": schemas.ADMISSION, "run_id": run.run_id, "owner": "alice", "uid": os.getuid(), "spec_digest": digest_json(spec),
            "package_digest": packed.digest, "kernel": {}, "verdict": "admitted", "mode": "advisory", "admitted_at": "2026-01-01T00:00:00.000000Z",
        })  # fmt: skip
        return Made(root, run)

    return make


@pytest.fixture
def read() -> Callable[[Path], Any]:
    return read_json
