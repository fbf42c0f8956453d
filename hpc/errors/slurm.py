"""Error kinds of the slurm area: Slurm's commands and what they answer."""

from __future__ import annotations

from tuneplane.contract import exits

from hpc.errors.core import ErrorKind, table

KINDS: dict[str, ErrorKind] = table(
    ErrorKind(
        "E-SLURM-001",
        "a Slurm command is not there",
        "fleets.<name>.bin_dir in site.yaml names a folder that does not hold the command, or may not be run.",
        "An admin corrects bin_dir in site.yaml (`command -v sbatch` shows it); `tp doctor` checks it.",
    ),
    ErrorKind(
        "E-SLURM-002",
        "Slurm's controller is away or busy",
        "A time-out, a refused connection or a rate limit. The request may or may not have been done.",
        "Try again in a minute. A submission is looked for before it is repeated, so that nothing runs twice.",
        exits.TRY_LATER,
    ),
    ErrorKind(
        "E-SLURM-003",
        "a Slurm command did not end in time",
        "The command was ended after slurm.command_timeout_s of site.yaml. The request may or may not have been done.",
        "Try again in a minute; if it stays so, ask your admins whether slurmctld, slurmdbd and munge answer.",
        exits.TRY_LATER,
    ),
    ErrorKind(
        "E-SLURM-004",
        "Slurm answered with a text that is not known here",
        "The command failed and its message is in no table of ours, so nothing is assumed about what happened.",
        "Read Slurm's own words below; `tp job ls` shows whether a job exists.",
    ),
    ErrorKind(
        "E-SLURM-005",
        "Slurm's configuration cannot be read",
        "SLURM_CONF (fleets.<name>.conf in site.yaml) or Slurm's own default names no usable configuration.",
        "An admin corrects fleets.<name>.conf in site.yaml, or installs Slurm's configuration on this machine.",
    ),
    ErrorKind(
        "E-SLURM-006",
        "there is no accounting",
        "The site runs without slurmdbd, so sacct has no answer. States come from the run's own record and squeue.",
        "Nothing to do for users; an admin who wants history sets AccountingStorageType.",
    ),
    ErrorKind(
        "E-SLURM-007",
        "Slurm's output has another shape than asked for",
        "A wrapper, a patched command or a Slurm release that prints other columns.",
        "Run the command that is named by hand; an admin points bin_dir at Slurm's own commands.",
    ),
    ErrorKind(
        "E-SLURM-010",
        "Slurm knows no such partition, or you may not use it",
        "The partition does not exist, is closed, or does not admit your group or account.",
        "`sinfo -o '%P %a %l'` lists partitions; set --partition, or the profile's partition in site.yaml.",
    ),
    ErrorKind(
        "E-SLURM-011",
        "the account is not valid here",
        "You have no association with that account in that partition.",
        "`sacctmgr show assoc user=$USER format=account,partition,qos` lists yours; set --account.",
    ),
    ErrorKind(
        "E-SLURM-012",
        "the QOS is not valid here",
        "The QOS does not exist or your association may not use it.",
        "`sacctmgr show assoc user=$USER format=account,qos` lists yours; set --qos.",
    ),
    ErrorKind(
        "E-SLURM-013",
        "a limit of your account or QOS forbids the job",
        "The number of submitted jobs, the size or the time is past what the association or QOS allows.",
        "Ask for less, or wait until other jobs end; your admins know the limits.",
    ),
    ErrorKind(
        "E-SLURM-014",
        "the time limit is not acceptable",
        "The time is missing, malformed or above the partition's limit.",
        "`sinfo -o '%P %l'` shows each partition's limit; set --time.",
    ),
    ErrorKind(
        "E-SLURM-015",
        "no node has what is asked for",
        "CPUs, memory, GPUs, features or node names that no node of the partition offers together.",
        "Compare the profile with `sinfo -o '%P %c %m %G %f'`.",
    ),
    ErrorKind(
        "E-SLURM-016",
        "the dependency is not valid",
        "A malformed --dependency, or a job id that Slurm does not know any more.",
        "Check the ids with `tp job ls` or `squeue`.",
    ),
    ErrorKind(
        "E-SLURM-017",
        "the array is not valid here",
        "MaxArraySize caps the highest index, not the count; or the expression is malformed.",
        "`scontrol show config | grep MaxArraySize` names the cap; split the array.",
    ),
    ErrorKind(
        "E-SLURM-018",
        "the reservation cannot be used",
        "It does not exist, is not active, or does not admit you.",
        "`scontrol show reservation` lists them.",
    ),
    ErrorKind(
        "E-SLURM-019",
        "sbatch does not accept an option or its value",
        "An option that this Slurm release does not know, or a value that it does not accept.",
        "Read Slurm's own words; `tp template lint` names the line of the template.",
    ),
    ErrorKind(
        "E-SLURM-020",
        "Slurm has no such job",
        "The id was never given, or the job left Slurm's memory.",
        "`tp job ls` lists your runs and their job ids.",
    ),
    ErrorKind(
        "E-SLURM-021",
        "Slurm says that you may not do this",
        "The job belongs to another user, or the operation is for admins.",
        "`tp job ls` lists the runs that are yours.",
    ),
    ErrorKind(
        "E-SLURM-022",
        "Slurm refused the request",
        "The controller said no for the reason that is quoted; nothing was created.",
        "Read Slurm's own words; the same request gives the same answer.",
    ),
)
