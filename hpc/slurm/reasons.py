"""Why a job is pending, and what that means for the person who waits.

`wait`: it clears by itself. `user`: the owner can mend it. `admin`: only an admin can. `hopeless`: it will never start as it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Outlook = Literal["wait", "user", "admin", "hopeless", "unknown"]


@dataclass(frozen=True)
class Reason:
    """One of Slurm's reasons: its word, the outlook, what it means, how to mend it."""

    word: str
    outlook: Outlook
    meaning: str
    mend: str = ""


HELD_FOR_CHECKPOINT: Final = "HeldForCheckpoint"
"""Our word for JobHeldUser where the job of another run lets the job go."""
_WAIT: Final = "Nothing to do."
_TABLE: Final = {
    r.word.lower(): r
    for r in (
        Reason("None", "wait", "Slurm has not looked at the job yet.", _WAIT),
        Reason("Priority", "wait", "Jobs with a higher priority come first.", "A shorter --time lets the job fill a gap."),
        Reason("Resources", "wait", "The nodes are busy.", "A smaller profile or a shorter --time starts sooner."),
        Reason("Prolog", "wait", "The nodes run their prolog.", _WAIT),
        Reason("Cleaning", "wait", "An earlier run of this job is being cleaned up before it is requeued.", _WAIT),
        Reason("BeginTime", "wait", "The begin time is not reached; a requeued job waits here for a moment, too.", _WAIT),
        Reason("JobArrayTaskLimit", "wait", "The array's own limit of running tasks (%) is reached.", "Raise the % of --array."),
        Reason("Licenses", "wait", "The licences are in use.", _WAIT),
        Reason("Dependency", "wait", "A job that this one depends on has not ended.", "`tp job why` shows the chain."),
        Reason("Reservation", "wait", "The reservation has not begun, or its nodes are busy.", "`scontrol show reservation`."),
        Reason("NodeDown", "wait", "A node that the job needs is down.", "Drop --nodelist if you set it, or tell your admins."),
        Reason("ReqNodeNotAvail", "wait", "Nodes that the job needs are down, drained or reserved.",
               "Look with `sinfo -R`; drop --nodelist, or shorten --time so that the job ends before a maintenance window."),
        Reason("FrontEndDown", "admin", "No front end node can run the job.", "Tell your admins."),
        Reason("SchedDefer", "wait", "The scheduler is told to defer single jobs.", _WAIT),
        Reason("PowerReserved", "wait", "The site's power is kept for other jobs.", _WAIT),
        Reason("PowerNotAvail", "wait", "The site's power budget is used up.", _WAIT),
        Reason("BurstBufferStageIn", "wait", "Data are being staged in.", _WAIT),
        Reason("BurstBufferResources", "wait", "The burst buffer is full.", _WAIT),
        Reason("FedJobLock", "wait", "Another cluster of the federation considers the job.", _WAIT),
        Reason("ReservationDeleted", "user", "The reservation was deleted.", "Submit again without --reservation."),
        Reason("JobHeldUser", "user", "You hold the job.", "`scontrol release JOBID`."),
        Reason(HELD_FOR_CHECKPOINT, "wait", "It is held until the run that it follows has published its checkpoint.",
               "Nothing to do: that run's job releases it, or cancels it in the end; by hand `scontrol release JOBID`."),
        Reason("JobHeldAdmin", "admin", "An admin holds the job.", "Ask your admins why."),
        Reason("JobHoldMaxRequeue", "user", "The job was requeued more often than MaxBatchRequeue allows.",
               "Look at `tp job logs`, mend the cause, `tp job resume`."),
        Reason("launch_failed_requeued_held", "admin", "The job could not be started on its node and is held now.",
               "Tell your admins the node's name (`scontrol show job JOBID`); then `scontrol release JOBID`."),
        Reason("PartitionDown", "admin", "The partition is down.", "Another --partition, or ask your admins."),
        Reason("PartitionInactive", "admin", "The partition takes no jobs.", "Another --partition, or ask your admins."),
        Reason("PartitionNodeLimit", "user", "The job asks for more (or fewer) nodes than the partition allows.",
               "`sinfo -o '%P %s'` shows the limit; choose another profile count or --partition."),
        Reason("PartitionTimeLimit", "user", "The time asked for is above the partition's limit.",
               "`sinfo -o '%P %l'` shows the limit; stop the job and submit it with a shorter --time."),
        Reason("PartitionConfig", "user", "The partition's configuration cannot take this job.",
               "Another --partition, or ask your admins."),
        Reason("AccountNotAllowed", "user", "The account may not use this partition.", "Another --account or --partition."),
        Reason("AccountingPolicy", "user", "An accounting limit is reached.", "Wait for your other jobs, or ask for less."),
        Reason("InvalidAccount", "user", "The account is not valid.", "Stop the job and submit it with a valid --account."),
        Reason("InvalidQOS", "user", "The QOS is not valid.", "Stop the job and submit it with a valid --qos."),
        Reason("QOSNotAllowed", "user", "The QOS may not be used with this account or partition.", "Another --qos."),
        Reason("BadConstraints", "hopeless", "No node can ever satisfy what the job asks for.",
               "Stop the job; compare the profile and --constraint with `sinfo -o '%P %c %m %G %f'`."),
        Reason("DependencyNeverSatisfied", "hopeless", "A job that this one depends on ended in another way than asked for.",
               "Stop this job, mend the parent, and submit both again."),
        Reason("DeadLine", "hopeless", "The job's deadline cannot be met any more.", "Stop it and submit it again."),
        Reason("NonZeroExitCode", "user", "The job ended with an error.", "`tp job why`, `tp job logs`."),
        Reason("RaisedSignal", "user", "The job was ended by a signal.", "`tp job why`, `tp job logs`."),
        Reason("OutOfMemory", "user", "The job used more memory than it asked for.", "Ask for more --mem, or use less."),
        Reason("TimeLimit", "user", "The job reached its time limit.", "`tp job resume`, or a longer --time."),
        Reason("InactiveLimit", "user", "The job was idle longer than InactiveLimit.", "`tp job resume`."),
        Reason("JobLaunchFailure", "admin", "The job could not be started: program, file system or node.",
               "Check that the storage root is mounted on the node; tell your admins the node's name."),
        Reason("BurstBufferOperation", "admin", "The burst buffer failed.", "Ask your admins."),
        Reason("SystemFailure", "admin", "Slurm, a file system or the network failed.", "Ask your admins."),
        Reason("NoDetail", "unknown", "Slurm gives no reason.", "`scontrol show job JOBID`."),
        Reason("WaitingForScheduling", "wait", "Slurm has not looked at the job yet.", _WAIT),
        Reason("MaxRequeue", "user", "The job was requeued too often.", "Look at `tp job logs`; then `tp job resume`."),
        Reason("Nodes_required_for_job_are_DOWN,_DRAINED_or_reserved_for_jobs_in_higher_priority_partitions", "wait",
               "The nodes are down, drained or kept for a partition of higher priority.", "`sinfo -R` shows why nodes are down."),
    )
}  # fmt: skip
_HELD_OVER_LIMIT: Final = "Wait for your other jobs, or ask for less; your admins know the limit."


def explain(text: str) -> Reason:
    """What a reason means. Slurm adds detail (`ReqNodeNotAvail, UnavailableNodes:n1`) and families (`QOSMaxJobsPerUserLimit`)."""
    word = text.strip().strip("()")
    key = word.split(",")[0].split("(")[0].strip()
    if found := _TABLE.get(word.replace(" ", "_").lower()) or _TABLE.get(key.lower()):
        return Reason(word, found.outlook, found.meaning, found.mend)
    low = key.lower()
    if low.startswith("nodes required for job are down"):
        return Reason(
            word, "wait", "The nodes are down, drained or kept for others.", "`sinfo -R` shows why nodes are down."
        )
    if low.startswith(("assoc", "qos", "max")):
        return _limit(word, low)
    return Reason(
        word, "unknown", "This reason is in no table of ours.", "`scontrol show job JOBID`, or ask your admins."
    )


def _limit(word: str, low: str) -> Reason:
    """Families of limits: one job's size or time never clears by waiting, a limit on the sum of running jobs does."""
    whose = "the QOS" if low.startswith("qos") else "your association (account)"
    if "perjob" in low or "pernode" in low or "timelimit" in low or low == "maxmemperlimit":
        return Reason(word, "user", f"The job alone is past a limit of {whose}.", "Stop it and submit it with less.")
    if low.startswith("qosmin"):
        return Reason(
            word, "user", f"The job is below a minimum of {whose}.", "Stop it; ask for more, or another --qos."
        )
    if "threshold" in low or (low.endswith(("minutes", "minuteslimit")) and "runminutes" not in low):
        return Reason(
            word, "admin", f"The budget of {whose} is used up.", "Ask your admins, or wait for the budget's reset."
        )
    return Reason(word, "wait", f"A limit of {whose} on running or submitted jobs is reached.", _HELD_OVER_LIMIT)


def words() -> list[str]:
    """Every reason of the table, for the docs and a test."""
    return sorted(r.word for r in _TABLE.values())
