"""Error kinds of sweeps."""

from __future__ import annotations

from tuneplane.contract import exits

from hpc.errors.core import ErrorKind, table

_K = ErrorKind
KINDS: dict[str, ErrorKind] = table(
    _K("E-SWEEP-001", "not an axis of a sweep", "--grid, or `sweep.grid` of config.yaml, has another form.", "Write -g NAME=VALUE,VALUE or, with --random, -g NAME=LOW..HIGH.", exits.USAGE),
    _K("E-SWEEP-002", "twice in a sweep", "A parameter or a value is given more than once; two elements would train the same.", "Give each once."),
    _K("E-SWEEP-003", "a range without --random", "Every combination of a range's values cannot be listed.", "Add --random N, or list the values.", exits.USAGE),
    _K("E-SWEEP-004", "no such number of variants", "The axes make none, too many, or fewer than --random asks for.", "Change the axes or the number."),
    _K("E-SWEEP-005", "not early stopping", "Metric, mode, rungs or keep has another form, or the metric cannot be there.", "Give --stop-metric NAME --rungs 100,300,900 --keep 3; validation_* needs validation data."),
    _K("E-SWEEP-006", "a sweep section of another form", "`sweep:` of config.yaml knows grid, random, seed, early_stopping and max_running.", "Mend the named key."),
    _K("E-SWEEP-007", "not a sweep", "The run has no table of variants.", "`tp sweep status` and its kin take a run that `tp sweep` made; `tp job status` and `tp job stop` take any."),
    _K("E-SWEEP-008", "the table of variants does not fit the job", "variants.json in the package and the spec's array disagree, or it has another form.", "Submit again with `tp sweep`."),
    _K("E-SWEEP-009", "no sweep on this fleet", "A sweep is a job array, and only Slurm has those.", "Choose a profile of a Slurm fleet."),
    _K("E-SWEEP-010", "a part of the sweep is not submitted", "Slurm took the first parts of the array and refused a later one, most often for a limit on queued jobs.", "`tp job retry RUN` submits what is missing, once there is room."),
    _K("E-SWEEP-012", "no sweep with this recipe", "Its framework's files and flags are compiled into the package, one set a job.", "Submit the variants one by one with `tp submit --set NAME=VALUE`."),
    _K("E-SWEEP-011", "nothing of the sweep is left to do", "Every element is done.", "`tp sweep status RUN` shows them; `tp sweep EXP` makes a new sweep."),
)  # fmt: skip
