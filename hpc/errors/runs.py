"""Error kinds of the runs area: finding runs, acting on them, judging their records."""

from __future__ import annotations

from tuneplane.contract import exits

from hpc.errors.core import ErrorKind, table

KINDS: dict[str, ErrorKind] = table(
    ErrorKind(
        "E-RUNS-001",
        "no such run",
        "No run id and no experiment of yours begins with what you typed.",
        "`tp job ls -n 0` lists all your runs; `--owner NAME` looks at another user's.",
    ),
    ErrorKind(
        "E-RUNS-002",
        "several runs fit",
        "What you typed is the beginning of more than one run id or experiment, or the experiment has several runs.",
        "Type more of the run id; the candidates are listed.",
    ),
    ErrorKind(
        "E-RUNS-003",
        "there is no run yet",
        "You have no run in this storage root.",
        "`tp submit EXPERIMENT` makes one.",
    ),
    ErrorKind(
        "E-RUNS-004",
        "the run is not open to you",
        "A run is its owner's (and the project group's) to read until it is shared; nothing is said about what may lie there.",
        "Ask its owner for `tp run share RUN`, and name it as EXP/RUN_ID with --owner: shared runs can be reached, not listed.",
    ),
    ErrorKind(
        "E-RUNS-010",
        "the run has ended already",
        "Its record says how; there is nothing to stop.",
        "`tp job status RUN` shows the end; `tp job retry RUN` or `tp job resume RUN` starts it again.",
    ),
    ErrorKind(
        "E-RUNS-011",
        "the run has not ended",
        "It is queued or running, and a run has one life at a time.",
        "`tp job stop RUN` first, or wait for its end.",
    ),
    ErrorKind(
        "E-RUNS-012",
        "the run is done",
        "It ended well and its report is written once; a further attempt would contradict it.",
        "`tp submit EXPERIMENT` makes a new run.",
    ),
    ErrorKind(
        "E-RUNS-013",
        "the run has no complete checkpoint",
        "checkpoints/latest.json is missing or names a checkpoint that is not there.",
        "`tp job retry RUN` starts it from the beginning.",
    ),
    ErrorKind(
        "E-RUNS-014",
        "the run is another user's",
        "Only the owner stops, retries, resumes or shares a run.",
        "Ask the owner; an admin can use scancel.",
    ),
    ErrorKind(
        "E-RUNS-015",
        "nobody knows the run's state",
        "Slurm does not answer, or what it answers does not fit the run; acting now could start it twice.",
        "Try again when Slurm answers; `tp job why RUN` shows what is known.",
        exits.TRY_LATER,
    ),
    ErrorKind(
        "E-RUNS-016",
        "the run cannot be stopped from here",
        "A local run's process lives on another machine, or it does not exist any more.",
        "Run the command on the machine that `tp job status RUN` names.",
    ),
    ErrorKind(
        "E-RUNS-020",
        "there is no log",
        "The attempt has not begun, that rank does not exist, or the job died before it could write.",
        "`tp job why RUN` says what is known; `tp job logs RUN --batch` shows the batch script's own output.",
    ),
    ErrorKind(
        "E-RUNS-030",
        "another audit is running",
        "The lock of an earlier audit is held; cron must not pile up.",
        "Wait for it. With --if-idle the command says nothing and exits 0.",
        exits.TRY_LATER,
    ),
    ErrorKind(
        "E-RUNS-031",
        "a run is not what was recorded",
        "A record, a chain, a file of the package or an artifact contradicts another record of the run, or is gone.",
        "`tp runs audit EXP/RUN_ID --owner USER` lists everything; `tp log verify --records` says what stood there when it was logged.",
    ),
    ErrorKind(
        "E-RUNS-040",
        "no such metric",
        "No line of the run's metrics.jsonl has a number under that name, or there is no line yet.",
        "Choose one of the listed metrics, or wait for the first step.",
    ),
    ErrorKind(
        "E-RUNS-041",
        "no picture can be drawn here",
        "PNG output needs matplotlib, which the login node's installation may lack.",
        "Leave out --png for the chart in the terminal, or install tuneplane-hpc[plot].",
    ),
    ErrorKind(
        "E-RUNS-042",
        "the records of a run cannot be compared",
        "A file of its package is missing, cannot be read, or has another form.",
        "`tp runs audit RUN` says what is wrong with it.",
    ),
)
