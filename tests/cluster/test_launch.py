"""What a job finds when it starts: ranks, ports, GPUs, pools, one container a node, a clean environment."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from lab import Lab, Person, Run

pytestmark = pytest.mark.cluster

SHOWS = """\
echo "rank $RANK of $WORLD_SIZE in $TUNEPLANE_POOL on $(hostname), gpus ${CUDA_VISIBLE_DEVICES-none}"
echo "hosts $TUNEPLANE_HOSTS"
echo "scontrol $(command -v scontrol || echo missing)"
echo "topology ${TUNEPLANE_POOL_TOPOLOGY-none}"
"""


@pytest.fixture(scope="module")
def shows(lab: Lab, alice: Person) -> dict[str, Run]:
    """One script, shown by jobs of every shape at once."""
    lab.experiments(alice, {"shows": SHOWS})
    held = ("--begin", "now+1hour")
    return {
        "gres": lab.submit(alice, "shows", "--profile", "h200"),
        "per-node": lab.submit(alice, "shows", "--profile", "h200b:3"),
        "fewer": lab.submit(alice, "shows", "--profile", "h200:2", *held),
        "pools": lab.submit(alice, "shows", "--profile", "actor=one", "--profile", "critic,judge=two"),
    }


def first_line(run: Run, rank: int) -> str:
    return run.log(rank)[0]


def test_p49_p52_gpus_reach_the_container_as_the_shape_says(lab: Lab, shows: dict[str, Run]) -> None:
    run = shows["gres"]
    assert run.wait_end()["class"] == "done"
    hosts = run.read("attempts", "0", "start.json")["hosts"]
    assert len(set(hosts)) == 2
    for rank in (0, 1):
        said, _, gpus = first_line(run, rank).rpartition(", gpus ")
        assert said == f"rank {rank} of 2 in all on {hosts[rank]}"
        assert len(set(gpus.split(","))) == 2
        assert all(gpu.isdigit() for gpu in gpus.split(","))
    other = shows["per-node"]
    assert other.wait_end()["class"] == "done"
    assert len(set(first_line(other, 0).rpartition(", gpus ")[2].split(","))) == 3
    assert "#SBATCH --gpus-per-node=h200:3" in (other.paths.batch / "0.sh").read_text("utf-8")


def test_p48_fewer_gpus_than_the_shape_are_refused_in_the_job(lab: Lab, alice: Person, shows: dict[str, Run]) -> None:
    run = shows["fewer"]
    lab.cluster.tool("scontrol", "update", f"JobId={run.job_id}", "Gres=gpu:h200:1", "StartTime=now")
    end = run.wait_end()
    assert (end["class"], end["requeue"]) == ("refused", False)
    assert end["message"].startswith("E-JOB-011 the spec asks for 2 GPUs a node, 1 are visible on ")
    assert run.log(0) == []
    assert "E-JOB-011" in lab.tp(alice, "job", "why", run.id).out


def test_a_quota_names_both_numbers(lab: Lab, alice: Person) -> None:
    refused = lab.tp(alice, "submit", "own", "--profile", "h200:14", "--json", code=1).json["errors"]
    assert [(e["code"], e["found"], e["allowed"]) for e in refused] == [("E-SUBMIT-072", 14, "at most 12")]


def test_two_pools_are_one_heterogeneous_job(lab: Lab, shows: dict[str, Run]) -> None:
    run = shows["pools"]
    assert run.wait_end()["class"] == "done"
    components = lab.cluster.tool("squeue", "-h", "--states=all", "-j", run.job_id, "-o", "%i %D").splitlines()
    assert sorted(components) == [f"{run.job_id}+0 1", f"{run.job_id}+1 2"]
    hosts = run.read("attempts", "0", "start.json")["hosts"]
    assert sorted(hosts) == [lab.cluster.node(n) for n in (1, 2, 3)]
    said = [first_line(run, rank).partition(" on ") for rank in range(3)]
    assert [s[0] for s in said] == ["rank 0 of 3 in actor", "rank 1 of 3 in critic", "rank 2 of 3 in critic"]
    assert [s[2].partition(",")[0] for s in said] == hosts
    topology = json.loads(run.log(2)[3].removeprefix("topology "))
    assert [(row["name"], row["nodes"], row["roles"]) for row in topology] == [
        ("actor", 1, ["actor"]),
        ("critic", 2, ["critic", "judge"]),
    ]


def test_p58_hosts_are_expanded_outside_the_image(lab: Lab, shows: dict[str, Run]) -> None:
    run = shows["gres"]
    run.wait_end()
    hosts = run.read("attempts", "0", "start.json")["hosts"]
    assert run.log(1)[1:3] == [f"hosts {','.join(hosts)}", "scontrol missing"]


def containers(run: Run) -> dict[str, int]:
    """How many containers of a run each node has. Apptainer overwrites its own environment, so the shell that started it tells the run."""
    found: dict[str, int] = {}
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            if Path(f"/proc/{entry}/comm").read_text().strip() not in ("starter", "starter-suid"):
                continue
            parent = Path(f"/proc/{entry}/stat").read_text().rpartition(") ")[2].split()[1]
            if f"TP_RUN_ID={run.id}".encode() in Path(f"/proc/{parent}/environ").read_bytes().split(b"\0"):
                node = os.readlink(f"/proc/{entry}/ns/uts")
                found[node] = found.get(node, 0) + 1
        except OSError:
            continue
    return found


def test_p39_p41_p60_ranks_meet_in_one_container_a_node_and_all_are_warned(lab: Lab, alice: Person) -> None:
    run = lab.submit(alice, "toy", "--profile", "ranks")
    for rank in range(4):
        run.wait_line("ready", rank=rank)
    met: list[dict[str, Any]] = json.loads(
        next(line for line in run.log(0) if line.startswith("met ")).removeprefix("met ")
    )
    hosts = run.read("attempts", "0", "start.json")["hosts"]
    assert [(m["RANK"], m["LOCAL_RANK"], m["NODE_RANK"], m["host"]) for m in met] == [
        ("0", "0", "0", hosts[0]), ("1", "1", "0", hosts[0]), ("2", "0", "1", hosts[1]), ("3", "1", "1", hosts[1]),
    ]  # fmt: skip
    assert {(m["WORLD_SIZE"], m["LOCAL_WORLD_SIZE"]) for m in met} == {("4", "2")}
    port = run.read("attempts", "0", "rendezvous.json")["port"]
    ephemeral = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert 20000 <= port < ephemeral
    assert list(containers(run).values()) == [1, 1]
    lab.slurm(alice, "scancel", "--signal=USR2", "--batch", run.job_id)
    assert run.wait_end()["class"] == "done"
    assert ["warned" in run.log(rank) for rank in range(4)] == [True] * 4


def test_p62_tp_doctor_asks_compute_nodes_what_they_are(lab: Lab, alice: Person) -> None:
    done = lab.tp(
        alice, "doctor", "--probe", "--nodes", "2", "--profile", "two", "--runtime", "general-1", "--json", code=None
    )
    checks = {c["name"]: c["status"] for c in done.json["checks"]}
    nodes = [name.removesuffix(".container") for name in checks if name.endswith(".container")]
    assert (done.code, len(nodes), done.json["verdict"]) == (0, 2, "ok")
    assert [checks[f"{node}.{what}"] for node in nodes for what in ("root", "clock", "apptainer", "container")] == [
        "ok"
    ] * 8
    assert checks["nodes.links"] == "ok"
