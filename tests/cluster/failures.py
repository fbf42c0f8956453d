"""Failures made for real: what each experiment does, how it is submitted, and which cause `tp job why` must find.

`record_failures.py` makes all of them on the test cluster and keeps what the runs left under tests/data/failures; `test_why.py` makes some anew.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from journeys import training_flags
from lab import Lab, Person, Run

ONCE = ("--requeue-on", "none")
OWN = "    progress = loop.run(resumed)\n"
"""The line of deepspeed/sft's entry before which an experiment's own lines go."""


@dataclass(frozen=True)
class Failure:
    """One way to fail. `script`: train.sh of a custom experiment; `lines`: of a training experiment, before its loop.

    `cause`, `confidence` and `mend` (words in the advice) are what must be found; `evidence`: words in a line that shows it.
    """

    label: str
    cause: str
    confidence: str
    mend: str
    evidence: str = ""
    script: str = ""
    lines: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    settings: dict[str, object] = field(default_factory=dict)
    training: bool = False


def python(*lines: str) -> str:
    """A train.sh that runs a short program."""
    return "python3 - <<'END'\n" + "\n".join(lines) + "\nEND\nexit $?"


SILENT = (
    "import dataclasses, time",
    "job.peers.policies = dataclasses.replace(job.peers.policies, start_timeout_s=8.0, peer_timeout_s=8.0)",
    "job.peers.set_timeouts(8.0)",
    "if job.place.rank == 1: time.sleep(300)",
)
FAILURES: tuple[Failure, ...] = (
    Failure("out-of-memory", "out-of-memory", "certain", "--mem", script=python("x = b'x' * (3 << 30)", "print(len(x))"), flags=("--mem", "300M")),
    Failure("missing-file", "missing-file", "likely", "--train-data", "nowhere/rows.jsonl", script=python("open('nowhere/rows.jsonl')")),
    Failure("import-error", "import-error", "likely", "tp runtime ls", "nowhere_to_be_found", script=python("import nowhere_to_be_found")),
    Failure("disk-full", "disk-full", "likely", "tp gc", "No space left",
            script=python("with open('/dev/shared.bin', 'wb') as f:", "    f.write(b'x' * (200 << 20))")),  # the container's own small tmpfs
    Failure("port-clash", "port-clash", "likely", "MASTER_PORT", "already in use",
            script=python("import socket", "a, b = socket.socket(), socket.socket()", "a.bind(('127.0.0.1', 0))", "b.bind(a.getsockname())")),
    Failure("crashed", "crashed", "possible", "another runtime", "segmentation fault", script=python("import ctypes", "ctypes.string_at(0)")),
    Failure("command-not-found", "command-not-found", "likely", "Name it by its path", "no_such_program", script="no_such_program --fast"),
    Failure("program-error", "program-error", "likely", "Look at the line below", "ValueError: row 7",
            script=python("raise ValueError('row 7 is odd')")),
    Failure("time-limit", "time-limit", "certain", "--time", script="echo ready; sleep 600", flags=("--time", "1")),
    Failure("preempted", "preempted", "certain", "--requeue-on", script="echo ready; sleep 600", flags=("--partition", "harsh", "--mem", "9G")),
    Failure("node-failure", "node-failure", "certain", "tell your admins", script="echo ready; sleep 600", flags=("--partition", "last")),
    Failure("bad-bind", "bad-bind", "likely", "binds", "doesn't exist", script="echo never", flags=("--begin", "now+20")),
    Failure("plugin-mismatch", "plugin-mismatch", "certain", "tp plugin info", "E-JOB-036", training=True),
    Failure("package-changed", "package-changed", "certain", "Submit again", "E-JOB-002", script="echo never", flags=("--begin", "now+20")),
    Failure("nan-loss", "nan-loss", "certain", "learning_rate", "E-TRAIN-046",
            lines=("for p in network.parameters(): p.data.fill_(float('nan'))",), training=True),
    Failure("empty-adapter", "empty-adapter", "certain", "learning rate", "E-TRAIN-062",
            settings={"learning_rate": 1e-46, "max_steps": 2}, training=True),
    Failure("wrong-shape", "wrong-shape", "likely", "vocabulary", "cannot be multiplied",
            lines=("import torch", "torch.zeros(2, 576) @ torch.zeros(64, 49152)"), training=True),
    Failure("hung-collective", "hung-collective", "likely", "kill -USR1", "Timed out waiting", lines=SILENT, training=True),
)  # fmt: skip


class Maker:
    """Makes failures on the lab's cluster as one user."""

    def __init__(self, lab: Lab, who: Person, scratch: Path) -> None:
        self.lab, self.who, self.scratch = lab, who, scratch

    def experiments(self, failures: tuple[Failure, ...]) -> None:
        """All experiments, in one commit."""
        for failure in failures:
            if failure.training:
                self._training(failure)
        self.lab.experiments(self.who, {f"fail-{f.label}": f.script for f in failures if not f.training})

    def _training(self, failure: Failure) -> None:
        name = f"fail-{failure.label}"
        entry = self.lab.project(self.who) / "experiments" / name / "train.py"
        self.lab.tp(self.who, "new", name, "--from", "sums")
        text = entry.read_text("utf-8")
        assert text.count(OWN) == 1
        entry.write_text(text.replace(OWN, "".join(f"    {line}\n" for line in failure.lines) + OWN), "utf-8")
        if failure.label == "plugin-mismatch":
            self._plugin(name)

    def _plugin(self, exp: str) -> None:
        """A plugin whose module imports what the image lacks."""
        folder = self.scratch / "lacking-1.0"
        folder.mkdir(mode=0o755)
        (folder / "plugin.yaml").write_text(
            "schema: tuneplane/plugin/v1\nname: lacking\nversion: '1.0'\ncapability: algorithm\nentrypoint: lacking_code:install\n"
        )
        (folder / "lacking_code.py").write_text("import not_in_this_image\n\n\ndef install(hyperparams):\n    pass\n")
        self.lab.tp(self.who, "plugin", "publish", folder)
        self.lab.tp(self.who, "plugin", "install", f"{self.who.name}/lacking", "--exp", exp)
        self.lab.sh(self.who, "git add -A && git commit -q -m 'A plugin'")

    def submit(self, failure: Failure) -> Run:
        flags = [*failure.flags, *ONCE]
        if failure.training:
            flags += ["--profile", "cpu", *training_flags(self.lab, **{"max_steps": 4, **failure.settings})]
        if failure.label == "bad-bind":
            return self._bound(failure, flags)
        run = self.lab.submit(self.who, f"fail-{failure.label}", *flags)
        if failure.label == "package-changed":
            script = run.paths.work / f"experiments/fail-{failure.label}/train.sh"
            script.write_bytes(script.read_bytes() + b"# edited\n")  # as root, behind everybody's back
        return run

    def _bound(self, failure: Failure, flags: list[str]) -> Run:
        """A site path that is there at submission and gone when the job starts."""
        gone, site = self.scratch / "datasets-of-the-lab", self.lab.root.site_file
        gone.mkdir(mode=0o755)
        before = site.read_text("utf-8")
        site.write_text(f"{before}binds: [{gone}]\n", "utf-8")
        try:
            return self.lab.submit(self.who, f"fail-{failure.label}", *flags)
        finally:
            site.write_text(before, "utf-8")
            gone.rmdir()

    def take_node(self, number: int) -> None:
        """A job of higher priority takes the memory of a node for a moment."""
        shape = ("--nodes=1", f"--nodelist={self.lab.cluster.node(number)}", "--mem=8G")
        self.lab.slurm(self.who, "sbatch", "--partition=short", *shape, "--output=/dev/null", "--wrap=sleep 1")
