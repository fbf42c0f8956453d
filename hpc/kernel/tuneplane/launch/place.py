"""Where this launcher runs, as the batch script hands it in: `TP_*` variables, read once and checked."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tuneplane.contract.layout import AttemptPaths, RunPaths, StorageRoot
from tuneplane.launch.verify import LaunchRefused


@dataclass(frozen=True)
class Place:
    """One node of one attempt of one run."""

    root: StorageRoot
    run: RunPaths
    """The run's folder, or `array/<index>/` in it for one element of an array."""
    run_id: str
    work: Path
    admission: Path
    attempt: AttemptPaths
    job_id: str
    restart_count: int
    nonce: str
    cluster: str
    hosts: tuple[str, ...]
    node: int
    training_zip: str
    training_sha256: str
    scratch: Path

    @property
    def host(self) -> str:
        return self.hosts[self.node]

    def own_folders(self, variables: Sequence[str]) -> dict[str, str]:
        """A folder in this node's scratch for each variable. Raises OSError."""
        folders = {name: self.scratch / "cache" / name.lower() for name in variables}
        for folder in folders.values():
            folder.mkdir(parents=True, exist_ok=True)
        return {name: str(folder) for name, folder in folders.items()}


def _need(env: Mapping[str, str], name: str) -> str:
    if value := env.get(name, ""):
        return value
    raise LaunchRefused("E-JOB-012", f"the batch script did not hand in {name}")


def read_place(env: Mapping[str, str] = os.environ) -> Place:
    """Raises LaunchRefused E-JOB-012 naming the variable."""
    run = RunPaths(Path(_need(env, "TP_RUN_DIR")))
    hosts = tuple(h for h in _need(env, "TP_HOSTS").replace("\n", ",").split(",") if h)
    try:
        attempt, node, restart = (
            int(_need(env, "TP_ATTEMPT")),
            int(env.get("TP_NODE", "0")),
            int(env.get("TP_RESTART", "0")),
        )
    except ValueError as exc:
        raise LaunchRefused("E-JOB-012", f"TP_ATTEMPT, TP_NODE and TP_RESTART are numbers: {exc}") from exc
    if not 0 <= node < len(hosts):
        raise LaunchRefused("E-JOB-012", f"TP_NODE is {node} but TP_HOSTS names {len(hosts)} nodes")
    return Place(
        root=StorageRoot(Path(_need(env, "TP_ROOT"))),
        run=run,
        run_id=env.get("TP_RUN_ID") or run.run_id,
        work=Path(env.get("TP_WORK") or run.work),
        admission=Path(env.get("TP_ADMISSION") or run.admission),
        attempt=run.attempt(attempt),
        job_id=_need(env, "TP_JOB_ID"),
        restart_count=restart,
        nonce=env.get("TP_NONCE", ""),
        cluster=env.get("TP_CLUSTER", ""),
        hosts=hosts,
        node=node,
        training_zip=env.get("TP_TRAINING_ZIP", ""),
        training_sha256=env.get("TP_TRAINING_SHA256", ""),
        scratch=Path(env.get("TP_SCRATCH") or "/tmp"),  # noqa: S108 - the container's own /tmp, bound to a private folder
    )
