"""CPUs and memory that this node's task may use. A program in a container sees the whole host; these are handed to it as variables."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

_NO_LIMIT = 1 << 60


def cpu_limit(env: Mapping[str, str]) -> int | None:
    """CPUs of the node's one task: Slurm's word, else the script's, None where neither says."""
    for name in ("SLURM_CPUS_PER_TASK", "TP_CPUS"):
        if env.get(name, "").isdigit() and int(env[name]) > 0:
            return int(env[name])
    return None


def memory_limit_mb(
    env: Mapping[str, str], cgroup: Path = Path("/sys/fs/cgroup"), proc: Path = Path("/proc/self/cgroup")
) -> int | None:
    """Memory in MiB: Slurm's word, else the tightest cgroup limit above this process (v1 or v2), None without a limit."""
    if env.get("SLURM_MEM_PER_NODE", "").isdigit() and int(env["SLURM_MEM_PER_NODE"]) > 0:
        return int(env["SLURM_MEM_PER_NODE"])
    try:
        lines = proc.read_text("utf-8").splitlines()
    except OSError:
        return None
    limits = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        base, name = (cgroup / "memory", "memory.limit_in_bytes") if controllers else (cgroup, "memory.max")
        parts = [p for p in path.split("/") if p]
        for depth in range(len(parts), -1, -1):
            value = _number(base.joinpath(*parts[:depth]) / name)
            if value is not None and value < _NO_LIMIT:
                limits.append(value >> 20)
    return min(limits, default=None)


def _number(path: Path) -> int | None:
    try:
        text = path.read_text("ascii").strip()
    except (OSError, UnicodeDecodeError):
        return None
    return int(text) if text.isdigit() else None


def limit_variables(env: Mapping[str, str], ranks: int, *, per_rank: bool) -> dict[str, str]:
    """TUNEPLANE_CPUS and TUNEPLANE_MEMORY_MB of the node, and threads a rank where ranks share its CPUs."""
    out, cpus, memory = {}, cpu_limit(env), memory_limit_mb(env)
    if cpus is not None:
        out["TUNEPLANE_CPUS"] = str(cpus)
        if per_rank and "OMP_NUM_THREADS" not in env:
            out["OMP_NUM_THREADS"] = str(max(1, cpus // ranks))
    if memory is not None:
        out["TUNEPLANE_MEMORY_MB"] = str(memory)
    return out
