"""P57: a program in a container sees the whole host; its limits come as variables."""

from __future__ import annotations

from pathlib import Path

import pytest
from tuneplane.launch.limits import cpu_limit, limit_variables, memory_limit_mb


def group(tmp_path: Path, files: dict[str, str], proc: str) -> dict[str, Path]:
    for name, text in files.items():
        path = tmp_path / "cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    (tmp_path / "proc").write_text(proc)
    return {"cgroup": tmp_path / "cgroup", "proc": tmp_path / "proc"}


def test_p57_slurms_word_comes_first(tmp_path: Path) -> None:
    assert cpu_limit({"SLURM_CPUS_PER_TASK": "12", "TP_CPUS": "4"}) == 12
    assert cpu_limit({"TP_CPUS": "4"}) == 4
    assert cpu_limit({"TP_CPUS": ""}) is None
    assert memory_limit_mb({"SLURM_MEM_PER_NODE": "16000"}) == 16000


@pytest.mark.parametrize(
    ("files", "proc", "limit"),
    [
        ({"job/memory.max": str(3 << 30), "job/step/memory.max": "max"}, "0::/job/step\n", 3072),
        ({"job/memory.max": str(3 << 30), "job/step/memory.max": str(1 << 30)}, "0::/job/step\n", 1024),
        ({"memory/job/memory.limit_in_bytes": str(2 << 30)}, "7:cpu:/x\n5:memory:/job\n", 2048),
        ({"memory/memory.limit_in_bytes": str((1 << 63) - 4096)}, "5:memory:/\n", None),
        ({}, "0::/\n", None),
    ],
)
def test_p57_else_the_tightest_cgroup_above_decides(
    tmp_path: Path, files: dict[str, str], proc: str, limit: int | None
) -> None:
    assert memory_limit_mb({}, **group(tmp_path, files, proc)) == limit


def test_ranks_share_the_nodes_cpus_and_a_users_word_stays() -> None:
    env = {"SLURM_CPUS_PER_TASK": "16", "SLURM_MEM_PER_NODE": "1000"}
    assert limit_variables(env, 8, per_rank=True) == {
        "TUNEPLANE_CPUS": "16",
        "OMP_NUM_THREADS": "2",
        "TUNEPLANE_MEMORY_MB": "1000",
    }
    assert "OMP_NUM_THREADS" not in limit_variables(env, 1, per_rank=False)
    assert "OMP_NUM_THREADS" not in limit_variables({**env, "OMP_NUM_THREADS": "5"}, 8, per_rank=True)
    assert limit_variables({**env, "SLURM_CPUS_PER_TASK": "2"}, 8, per_rank=True)["OMP_NUM_THREADS"] == "1"
