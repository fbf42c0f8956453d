"""A sweep as its user meets it: fifty variants as one array, weak ones end at a rung, and a node dies in between."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from journeys import training_flags
from lab import Lab, Person
from labcluster import until
from tuneplane.contract.layout import RunPaths
from tuneplane.contract.sweeps import Stopping

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

VARIANTS = 50
RUNGS = (10, 30)
STOPPING = Stopping("loss", "min", RUNGS, 3)


def sweep(lab: Lab, who: Person, *words: str) -> RunPaths:
    said = lab.tp(who, "sweep", *words, "--json").json
    assert len(said["job_ids"]) == 1
    return RunPaths(Path(said["run_dir"]))


def status(lab: Lab, who: Person, run: RunPaths) -> dict[str, Any]:
    value: dict[str, Any] = lab.tp(who, "sweep", "status", run.run_id, "-n", "0", "--json").json
    return value


def read(path: Path) -> Any:
    try:
        return json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return None


def attempts(run: RunPaths, index: int) -> list[dict[str, Any]]:
    folder = run.element(index).attempts
    numbers = sorted(int(p.name) for p in folder.iterdir()) if folder.is_dir() else []
    return [{"start": read(folder / str(n) / "start.json"), "end": read(folder / str(n) / "end.json")} for n in numbers]


def node_state(lab: Lab, node: str) -> str:
    return lab.cluster.tool("sinfo", "-h", "-N", "-n", node, "-o", "%T").split()[0].upper()


def on_node(run: RunPaths, host: str) -> list[int]:
    """Elements that run on a node and have written a line."""
    out = []
    for index in range(VARIANTS):
        found = attempts(run, index)
        if found and found[-1]["start"] and not found[-1]["end"] and found[-1]["start"]["hosts"] == [host]:
            out += [index] if (run.element(index).checkpoints / "saved").exists() else []
    return out


@pytest.fixture(scope="module")
def small(lab: Lab, alice: Person) -> RunPaths:
    """Two variants of real training, submitted first: they train while the others run."""
    flags = training_flags(lab, max_steps=6, save_steps=0)
    words = ("-g", "learning_rate=0.003,0.0000001", "--stop-metric", "loss", "--rungs", "3", "--keep", "2", *flags)
    return sweep(lab, alice, "sums", *words, "--profile", "one", "--mem", "3G", "--label", "sweep=small")


@pytest.fixture(scope="module")
def bereft(lab: Lab, alice: Person, after_long_runs: None, small: RunPaths) -> tuple[RunPaths, list[int]]:
    """The fifty, of which some lost their node in mid-run; and which."""
    lab.tp(alice, "new", "curve", "--method", "toy/curve")
    lab.sh(alice, "git add -A && git commit -q -m 'A curve'")
    heights = ",".join(map(str, range(VARIANTS)))
    words = ("-g", f"height={heights}", "-s", "steps=40", "--rungs", "10,30", "--keep", "3", "--max-running", "10")
    node = lab.cluster.node(4)
    lab.cluster.up()
    until("node 4 takes jobs", lambda: node_state(lab, node) in ("IDLE", "MIXED", "ALLOCATED"))
    run = sweep(lab, alice, "curve", *words, "--partition", "last", "--max-attempts", "5")
    until("elements run on node 4", lambda: on_node(run, node), seconds=300, pause=0.1)
    lab.cluster.kill_node(node)
    lost = [i for i in range(VARIANTS) if (a := attempts(run, i)) and a[0]["start"] and not a[0]["end"]]
    lost = [i for i in lost if attempts(run, i)[0]["start"]["hosts"] == [node]]
    until("Slurm sees it", lambda: "DOWN" in node_state(lab, node))
    lab.cluster.up()
    return run, lost


def test_fifty_variants_end_well_although_a_node_died(
    lab: Lab, alice: Person, bereft: tuple[RunPaths, list[int]]
) -> None:
    run, lost = bereft
    assert lost
    until(
        "all fifty end", lambda: status(lab, alice, run)["counts"].keys() <= {"done", "stopped"}, seconds=480, pause=2
    )
    found = status(lab, alice, run)
    assert sum(found["counts"].values()) == VARIANTS
    assert [row["variant"] for row in found["variants"]] == [{"height": n} for n in range(VARIANTS)]
    again = [i for i in lost if [a["end"]["class"] for a in attempts(run, i)] == ["node_fail", "done"]]
    assert again == lost, {i: attempts(run, i) for i in lost}
    assert [attempts(run, i)[1]["start"]["restart_count"] for i in lost] == [1] * len(lost)


def test_weak_variants_stop_at_a_rung_by_the_files_they_saw(
    lab: Lab, alice: Person, bereft: tuple[RunPaths, list[int]]
) -> None:
    run, _ = bereft
    rows = status(lab, alice, run)["variants"]
    stopped = {row["index"]: row["stopped_at_rung"] for row in rows if row["stopped_at_rung"] is not None}
    assert len(stopped) >= VARIANTS // 4
    assert 0 not in stopped
    assert set(stopped.values()) <= set(RUNGS)
    for index, rung in stopped.items():
        record = read(run.element(index).rungs / f"{rung}.json")
        seen = [read(run.element(i).rungs / f"{rung}.json")["value"] for i in _indices(record["others"])]
        assert not STOPPING.judge(record["value"], seen).goes_on
        assert record["value"] == pytest.approx(index + 1 / rung)
        assert rows[index]["step"] == rung
    for row in rows:
        if row["index"] not in stopped:
            assert row["step"] == row["total"] == 40
    end = attempts(run, max(stopped))[-1]["end"]
    assert (end["class"], end["message"]) == ("done", f"stopped at rung {stopped[max(stopped)]}")
    assert lab.tp(alice, "runs", "audit", run.run_id, "--json").json["verdict"] == "verified"


def _indices(text: str) -> list[int]:
    parts = [p.split("-") for p in text.split(",") if p]
    return [i for p in parts for i in range(int(p[0]), int(p[-1]) + 1)]


def test_p14_an_element_of_real_training_has_its_own_settings_and_ends_at_its_rung(
    lab: Lab, alice: Person, small: RunPaths
) -> None:
    until("both end", lambda: status(lab, alice, small)["counts"].keys() <= {"done", "stopped"}, seconds=480, pause=2)
    first, second = status(lab, alice, small)["variants"]
    lines = [
        [json.loads(line) for line in (small.element(i).attempt(0).out / "metrics.jsonl").read_text().splitlines()]
        for i in (0, 1)
    ]
    assert [rows[1]["lr"] / rows2[1]["lr"] for rows, rows2 in [lines]] == [pytest.approx(0.003 / 1e-7)]
    assert (first["stopped_at_rung"], first["step"]) == (None, 6)
    assert (small.element(0).attempt(0).out / "final").is_dir()
    # Who comes to the rung first goes on; the weak one stops only if the better one was there.
    assert second["stopped_at_rung"] in (None, 3)
    origin = read(small.element(0).report)["origin"]
    assert origin["training"]["variant"] == {"learning_rate": 0.003}
    assert origin["training"]["deepspeed_config_sha256"].startswith("sha256:")
    assert (origin["slurm"]["nodes"], origin["slurm"]["memory_mb_per_node"]) == (
        attempts(small, 0)[0]["start"]["hosts"],
        3072,
    )
    assert set(origin["execution"]["environment"]) == {"batch", "rank-0", "step-0"}
    words = ("runs", "report", small.run_id, "--element", "0", "--json")
    until("accounting has it", lambda: lab.tp(alice, *words).json["accounting"].get("state") == "COMPLETED", pause=1)
    told = lab.tp(alice, *words).json
    assert 0 < told["efficiency"]["memory"]["share"] < 1
    assert told["efficiency"]["cpu"]["share"] > 0
    jobs = [attempts(small, i)[0]["start"]["job_id"] for i in (0, 1)]
    assert [job.partition("_")[2] for job in jobs] == ["0", "1"]
    assert lab.tp(alice, "runs", "audit", small.run_id, "--json").json["verdict"] == "verified"
