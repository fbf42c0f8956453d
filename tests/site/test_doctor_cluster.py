"""`tp doctor --probe` on a real Slurm with two nodes of their own host names."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tuneplane.contract.layout import StorageRoot

from hpc.site.layout import init_root

pytestmark = pytest.mark.cluster
CLUSTER = Path(__file__).parents[1] / "cluster" / "slurm-cluster"


@pytest.fixture(scope="module")
def conf(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A cluster of this module's own: two nodes with GPUs in name only, no accounting."""
    folder = tmp_path_factory.mktemp("slurm")
    env = os.environ | {
        "SLURM_CLUSTER_DIR": str(folder / "c"),
        "SLURM_CLUSTER_PORT": "28817",
        "SLURM_CLUSTER_PREFIX": "dr",
        "SLURM_CLUSTER_NODES": "2",
        "SLURM_CLUSTER_CPUS": "2",
        "SLURM_CLUSTER_USER": "",
        "SLURM_CLUSTER_HOSTS": "0",
    }
    for path in (folder, *folder.parents):
        if path.stat().st_uid == os.getuid():
            path.chmod(path.stat().st_mode | 0o011)
    subprocess.run([CLUSTER, "up"], env=env, check=True, stdout=subprocess.DEVNULL, timeout=120)
    yield str(folder / "c" / "etc" / "slurm.conf")
    subprocess.run([CLUSTER, "down", "--wipe"], env=env, check=True, stdout=subprocess.DEVNULL, timeout=120)


def test_two_nodes_answer_and_agree(conf: str, scratch: Path) -> None:
    root: StorageRoot = init_root(scratch / "root", name="lab", fleet="slurm", conf=conf).root
    profile = "  gpu: {series: h200, gpus_per_node: 8, partition: batch, gres_type: h200}\n"
    root.site_file.write_text(root.site_file.read_text().replace("profiles:\n", f"profiles:\n{profile}"))
    done = subprocess.run(
        [sys.executable, "-m", "hpc.cli.main", "doctor", "--probe", "--nodes", "2", "--profile", "gpu", "--json"],
        env=os.environ | {"TUNEPLANE_STORAGE_ROOT": str(root.path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=180,
    )
    checks = {c["name"]: c for c in json.loads(done.stdout)["checks"]}
    assert checks["nodes.probe"]["status"] == "ok"
    assert checks["nodes.links"]["message"] == "2 nodes, 40 names, each linked exactly once"
    assert [checks[f"dr{n}.root"]["status"] for n in (1, 2)] == ["ok", "ok"]
    assert [checks[f"dr{n}.clock"]["status"] for n in (1, 2)] == ["ok", "ok"]
    assert "given 1, visible 0" in checks["dr1.gpus"]["found"]
    assert checks["slurm.kill_wait"]["message"].startswith("KillWait 5 s")
    assert checks["slurm.grace.preempt"]["message"].endswith("GraceTime 3 s, then KillWait 5 s")
    assert checks["slurm.accounting"]["status"] == "warn"
    assert checks["profile.gpu"]["message"] == "partition batch, up to 8 GPUs a node, asked for by gres"
    assert list((root.state / "root").iterdir()) == []
