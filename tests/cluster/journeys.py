"""Runs that take their time, and what happens to them on the way: a preemption, the loss of a node, the end of a time limit."""

from __future__ import annotations

import threading
from collections.abc import Callable

from lab import Lab, Person, Run
from labcluster import until

STEPS = 160
EARLY, SAVED = 5, 55
"""Steps of an attempt after which something happens to it: so early that Slurm is never too late, or so late that a checkpoint is there."""
TRAINING = {
    "max_steps": STEPS, "save_steps": 40, "seed": 5, "lora_rank": 4, "max_length": 64, "zero_stage": 2, "micro_batch_size": 4,
    "learning_rate": 0.003, "log_steps": 20,
}  # fmt: skip

# Attempt 0 works until it is warned, saves, and asks to run again; the next attempt finds what was saved.
UNTIL_WARNED = """\
saved=$TUNEPLANE_CHECKPOINT_DIR/saved
if [ -e "$saved" ]; then echo "goes on from $(cat "$saved")"; exit 0; fi
trap 'echo "warned"; echo 41 >"$saved"; exit 85' USR2
trap 'echo "got TERM"; exit 15' TERM
echo ready
while :; do sleep 0.2; done
"""

# The same without a warning ahead: TERM is what Slurm ends a job with, and the batch script passes it on as USR2.
UNTIL_ENDED = """\
saved=$TUNEPLANE_CHECKPOINT_DIR/saved
if [ -e "$saved" ]; then echo "goes on from $(cat "$saved")"; exit 0; fi
trap 'echo 41 >"$saved"; exit 85' TERM USR2
echo ready
while :; do sleep 0.2; done
"""
ONCE_AGAIN = """\
if [ "$TUNEPLANE_ATTEMPT" = 1 ]; then echo again; exit 0; fi
echo ready
sleep 600
"""


def training_flags(lab: Lab, **settings: object) -> list[str]:
    """Flags of `tp submit` for the tiny model on the sums."""
    chosen = TRAINING | settings
    flags = ["--model", str(lab.root.cache / "models" / "tiny"), "--train-data", str(lab.root.cache / "sums.jsonl")]
    return flags + [word for name, value in chosen.items() for word in ("--set", f"{name}={value}")]


class LongRuns:
    """Training: `whole` is left in peace, `preempted` loses its nodes to another job, `bereft` loses a node.

    Scripts: `limited` is warned before its time limit, `overrun` is not, `ousted` is preempted without grace, `beheaded` loses its only node.
    """

    def __init__(self, lab: Lab, who: Person) -> None:
        self.lab, self.who = lab, who
        self._faults: dict[str, BaseException] = {}
        self._threads: dict[str, threading.Thread] = {}
        self._stopping = threading.Event()
        lab.experiments(who, {"limited": UNTIL_WARNED, "ended": UNTIL_ENDED, "beheaded": ONCE_AGAIN})
        self.limited = lab.submit(who, "limited", "--time", "2", "--signal", "B:USR2@60")
        self.overrun = lab.submit(who, "ended", "--time", "1")
        self.ousted = lab.submit(who, "ended", "--partition", "harsh", "--mem", "9G")
        self.beheaded = lab.submit(who, "beheaded", "--partition", "last,calm")
        self.bereft = self._train("--partition", "doomed,calm")
        self.preempted = self._train("--partition", "spot", "--mem", "8G")
        self.whole = self._train()
        self._begin("preempted", self._preempt)
        self._begin("bereft", self._lose_a_node)
        self._begin("ousted", self._oust)

    def _train(self, *flags: str) -> Run:
        return self.lab.submit(self.who, "sums", "--profile", "cpu", *training_flags(self.lab), *flags)

    def _begin(self, name: str, act: Callable[[], None]) -> None:
        def guarded() -> None:
            try:
                act()
            except BaseException as exc:
                self._faults[name] = exc

        self._threads[name] = threading.Thread(target=guarded, daemon=True)
        self._threads[name].start()

    def _mid_run(self, run: Run, step: int) -> None:
        until(
            f"step {step} of {run.id}", lambda: self._stopping.is_set() or run.steps() >= step, seconds=240, pause=0.1
        )
        assert not self._stopping.is_set(), "the session ends"

    def _take(self, *numbers: int) -> None:
        """A job of higher priority takes the memory of some nodes for a moment."""
        nodes = ",".join(map(self.lab.cluster.node, numbers))
        shape = (f"--nodes={len(numbers)}", f"--nodelist={nodes}", "--mem=8G")
        self.lab.slurm(self.who, "sbatch", "--partition=short", *shape, "--output=/dev/null", "--wrap=sleep 1")

    def _preempt(self) -> None:
        self._mid_run(self.preempted, EARLY)
        self._take(1, 2)

    def _oust(self) -> None:
        self.ousted.wait_line("ready")
        self._take(3)

    def _lose_a_node(self) -> None:
        """Node 4 loses its power in mid-run; it comes back when its jobs go on elsewhere."""
        self._mid_run(self.bereft, SAVED)
        self.beheaded.wait_line("ready")
        killed = self.lab.cluster.kill_node(self.lab.cluster.node(4))
        assert killed >= 8, "slurmd, and two jobs with a step, a container and a rank each"
        jobs = (self.bereft, self.beheaded)
        until(
            "the jobs of the dead node begin again", lambda: [r.attempts() for r in jobs] == [[0, 1]] * 2, seconds=240
        )
        self.lab.cluster.up()

    def finished(self, name: str) -> Run:
        """Wait for a run to end for good. Raises whatever went wrong on its way."""
        run: Run = getattr(self, name)
        if name in self._threads:
            self._threads[name].join(timeout=280)
            if name in self._faults:
                raise AssertionError(f"{self._faults[name]}\n{run.story()}") from self._faults[name]
        run.wait_end()
        return run

    def stop(self) -> None:
        self._stopping.set()
        for thread in self._threads.values():
            thread.join(timeout=60)
