"""Rounds of faults on a real cluster: a training run is struck at a random step, and must end with the weights of one that was left in peace.

    python tests/cluster/soak.py [--rounds 20] [--seed 1] [--state FOLDER] [--table]

A round's fault and step follow from seed and number. Finished rounds are kept in the state folder as JSON lines, and a later call goes on
behind them; `--table` shows them and runs nothing. A round asserts: no run lost (it ends `done`; where nobody was left to ask for a requeue,
`tp job resume` is typed as its owner would), none doubled (every step has one loss, one attempt ends well), final weights equal, every
continuation verified, the audit without tampering. Root, as the tests of this folder; not part of `make test`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).resolve().parents[2])]

import faults  # noqa: E402
from journeys import training_flags  # noqa: E402
from lab import ROOT, Lab, Person, Run, install_login, moody_slurm  # noqa: E402
from labcluster import Cluster, free_place, until  # noqa: E402
from labsites import Sites  # noqa: E402

from tests.accounts import accounts  # noqa: E402

NAMES = ("tpalice", "tpbob", "tpservice")
IMAGES = Path("/var/cache/tuneplane-hpc")
STEPS = 60
SETTINGS: dict[str, object] = {"max_steps": STEPS, "save_steps": 10}
SLOWLY = """\
    import time
    inner = method.step
    def step(engine, number, rate):
        time.sleep({pause})  # so that a fault meets the run in the middle, and other work of the machine is not held up
        return inner(engine, number, rate)
    method.step = step
"""
FAULTS = {
    "kill -9 of a rank": (faults.kill_rank, ("--requeue-on", "preempted,node_fail,timeout,error")),
    "kill -9 of the batch shell": (faults.kill_batch, ()),
    "kill -9 of a slurmd": (faults.kill_slurmd, ("--partition", "doomed,calm")),
    "scancel": (faults.cancel, ()),
    "preemption": (faults.preempt, ("--partition", "spot", "--mem", "9G")),
    "a limit of two minutes": (faults.wait_for_the_limit, ("--time", "2", "--signal", "B:USR2@30")),
    "full disk in a save": (None, ("--begin", "now+4")),
}  # fmt: skip
PAUSES = {"slow": 0.5, "slower": 2.0}
"""Seconds that a step of an experiment waits. Slurm may warn a minute early, so that a limit has to leave an attempt time for its first step; and
a run that is to come to its limit has to be longer than that."""


@contextmanager
def site(scratch: Path) -> Iterator[tuple[Lab, Person]]:
    """A cluster with one user, whose experiments are deepspeed/sft with a pause in each step."""
    with accounts(NAMES, home=True), free_place() as (port, prefix):
        people = {name: Person.of(name) for name in NAMES}
        cluster = Cluster(scratch / "slurm", port, prefix)
        try:
            cluster.up()
            for name in people:
                cluster.add_account(name)
            for folder in ("login", "projects"):
                (scratch / folder).mkdir(mode=0o755)
            moody_slurm(scratch / "moody")
            images = {
                "general-1": (IMAGES / "general.sif").resolve(),
                "deepspeed-0.19.8": (IMAGES / "training.sif").resolve(),
            }
            lab = Sites(scratch, cluster, install_login(scratch / "login"), images, people).new(
                "root", runtimes=("deepspeed-0.19.8",)
            )
            furnish(lab, people["tpalice"], scratch)
            yield lab, people["tpalice"]
        finally:
            cluster.down()


def furnish(lab: Lab, who: Person, scratch: Path) -> None:
    model, rows = lab.root.cache / "models" / "tiny", lab.root.cache / "sums.jsonl"
    lab.as_user(ROOT, "python", "-m", "tuneplane.training.tiny", model, cwd=scratch)
    lab.as_user(ROOT, "python", "-m", "tuneplane.training.sums", rows, "--rows", "256", "--seed", "7", cwd=scratch)
    lab.new_project(who)
    for name, pause in PAUSES.items():
        lab.tp(who, "new", name, "--method", "deepspeed/sft")
        entry = lab.project(who) / "experiments" / name / "train.py"
        mark = "    progress = loop.run(resumed)\n"
        entry.write_text(entry.read_text("utf-8").replace(mark, SLOWLY.format(pause=pause) + mark), "utf-8")
    lab.sh(who, "git add -A && git commit -q -m 'Slow ones'")


def train(lab: Lab, who: Person, *flags: str, experiment: str = "slow") -> Run:
    more = ("--max-attempts", "8", *flags)
    return lab.submit(who, experiment, "--profile", "cpu", *training_flags(lab, **SETTINGS), *more)


def weights(run: Run) -> str:
    """Digest of the artefact of the attempt that ended well."""
    final = run.paths.attempt(run.attempts()[-1]).out / "final" / "adapter_model.safetensors"
    return hashlib.sha256(final.read_bytes()).hexdigest()


def strike(lab: Lab, who: Person, run: Run, fault: str, step: int) -> str:
    """Let the fault meet the run once it has done `step`; what was hit."""
    act = FAULTS[fault][0]
    if act is None:
        # Room for the checkpoints up to about that step: two are kept, and a third is there while it is written.
        disk = faults.SmallDisk(who, run, kib=500 if step < STEPS // 2 else 800)
        run.wait_end(seconds=200)
        assert "E-TRAIN-045" in "\n".join(run.log(0) + run.log(1)), run.story()
        disk.grow()
        again(lab, who, run)
        return f"{disk.path.name} of {run.id}"
    if act is faults.wait_for_the_limit:
        step = 1  # the limit comes when it comes: a later step may be one that the first attempt never does
    until(f"step {step} of {run.id}", lambda: run.steps() >= step, seconds=200, pause=0.1)
    return str(act(lab, who, run))


def again(lab: Lab, who: Person, run: Run) -> None:
    """What the owner types when a run has ended without an end of its own choosing."""
    said = lab.tp(who, "job", "resume", run.id, "--json").json
    run.job_id = said["job_id"]


def see_through(lab: Lab, who: Person, run: Run) -> int:
    """Wait until the run is done, resuming it where it ended otherwise; how often its owner had to."""

    def at_rest() -> Any:
        status = lab.tp(who, "job", "status", run.id, "--json").json["runs"][0]
        return not status["active"] and status["state"]

    for typed in range(4):
        if until(f"{run.id} comes to rest", at_rest, seconds=900, pause=2) == "done":
            return typed
        again(lab, who, run)
    raise AssertionError(f"{run.id} does not end well\n{run.story()}")


def check(lab: Lab, who: Person, run: Run, reference: str) -> dict[str, Any]:
    """The assertions of a round; what the table shows of it."""
    metrics = [json.loads(line) for n in run.attempts() for line in lines(run.paths.attempt(n).out / "metrics.jsonl")]
    seen = [m["step"] for m in metrics if "loss" in m]
    losses: dict[int, set[float]] = {}
    for m in metrics:
        if "loss" in m:
            losses.setdefault(m["step"], set()).add(m["loss"])
    status = lab.tp(who, "job", "status", run.id, "--json").json["runs"][0]
    audit = lab.tp(who, "runs", "audit", run.id, "--json", code=None).json
    jobs = {c.split()[0] for n in run.attempts() if (c := claim(run, n))}
    ends = [end["class"] if (end := run.end(n)) else "none" for n in run.attempts()]
    assert sorted(set(seen)) == list(range(1, STEPS + 1)), (
        f"steps are missing: {sorted(set(range(1, STEPS + 1)) - set(seen))}"
    )
    assert all(len(found) == 1 for found in losses.values()), "a step was computed twice with another loss"
    assert [n for n, end in enumerate(ends) if end == "done"] == [len(ends) - 1], f"ends {ends}"
    assert weights(run) == reference, "final weights differ"
    assert all(c["verified"] for c in status["continuity"]), status["continuity"]
    assert audit["verdict"] != "tampered", audit["findings"]
    return {
        "attempts": len(run.attempts()),
        "ends": ends,
        "jobs": len(jobs),
        "continuations": len(status["continuity"]),
        "computed_again": len(seen) - STEPS,
        "audit": audit["verdict"],
    }


def claim(run: Run, attempt: int) -> str:
    try:
        return run.paths.attempt(attempt).claim.read_text("utf-8")
    except OSError:
        return ""


def lines(path: Path) -> list[str]:
    try:
        return [line for line in path.read_text("utf-8").splitlines(keepends=True) if line.endswith("\n")]
    except OSError:
        return []


def plan(seed: int, number: int) -> tuple[str, int]:
    """Fault and step of a round. Each fault comes once before one comes again."""
    order = list(FAULTS)
    random.Random(f"{seed} {number // len(order)}").shuffle(order)
    return order[number % len(order)], random.Random(f"{seed} {number} step").randrange(3, STEPS - 6)


def play(lab: Lab, who: Person, number: int, seed: int, reference: str) -> dict[str, Any]:
    fault, step = plan(seed, number)
    began = time.monotonic()
    limited = FAULTS[fault][0] is faults.wait_for_the_limit
    run = train(lab, who, *FAULTS[fault][1], experiment="slower" if limited else "slow")
    row: dict[str, Any] = {"round": number, "seed": seed, "fault": fault, "step": step, "run": run.id}
    try:
        row["hit"] = strike(lab, who, run, fault, step)
        row["typed"] = see_through(lab, who, run) + (fault == "full disk in a save")
        row |= check(lab, who, run, reference) | {"passed": True}
    except AssertionError as exc:
        row |= {"passed": False, "why": str(exc)[-6000:]}
    finally:
        faults.unmount(run.paths.checkpoints)
        lab.cluster.up()  # a node that lost its slurmd comes back
    return row | {"seconds": round(time.monotonic() - began)}


def table(rows: list[dict[str, Any]]) -> str:
    head = (
        "round",
        "fault",
        "step",
        "attempts",
        "typed",
        "computed_again",
        "continuations",
        "audit",
        "seconds",
        "passed",
    )
    text = [[str(row.get(name, "-")) for name in head] for row in rows]
    wide = [max(len(line[i]) for line in [list(head), *text]) for i in range(len(head))]
    return "\n".join(
        "  ".join(cell.ljust(w) for cell, w in zip(line, wide, strict=True)).rstrip() for line in [list(head), *text]
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--state", type=Path, default=Path(tempfile.gettempdir()) / "tp-soak")
    parser.add_argument("--table", action="store_true")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a TERM, too, leaves through `finally`
    given.state.mkdir(parents=True, exist_ok=True)
    kept = given.state / f"rounds-{given.seed}.jsonl"
    rows = [json.loads(line) for line in lines(kept)]
    left = [n for n in range(given.rounds) if n not in {row["round"] for row in rows}]
    if left and not given.table:
        scratch = Path(tempfile.mkdtemp(prefix="tp-soak-"))
        scratch.chmod(0o755)
        try:
            with site(scratch) as (lab, who):
                quiet = train(lab, who)
                see_through(lab, who, quiet)
                for number in left:
                    rows.append(play(lab, who, number, given.seed, weights(quiet)))
                    with kept.open("a", encoding="utf-8") as stream:
                        stream.write(json.dumps(rows[-1]) + "\n")
                    print(table(rows[-1:]), flush=True)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    print(table(rows))
    failed = [row for row in rows if not row["passed"]]
    for row in failed:
        print(f"\nround {row['round']} ({row['fault']}): {row['why']}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
