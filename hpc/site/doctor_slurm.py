"""What Slurm's configuration means for jobs here: `scontrol show config` as a dict in, findings out. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

from hpc.site.doctor import numbers
from hpc.site.findings import Finding, Status
from hpc.site.model import Profile, Site

Config = Mapping[str, str]
OLDEST_SLURM = (20, 11)


def _number(config: Config, key: str, default: int) -> int:
    match = re.match(r"\d+", config.get(key, ""))
    return int(match.group()) if match else default


def judge_version(config: Config, site: Site) -> Finding:
    text = config.get("SLURM_VERSION", "")
    version = numbers(text.split()[-1] if text else "")
    if version < OLDEST_SLURM:
        return Finding(
            "slurm.version", "warn", "a Slurm that tp was never tried on", text or "unknown", "20.11 or newer"
        )
    return Finding("slurm.version", "info", f"Slurm {text}, cluster {config.get('ClusterName', '?')}")


def judge_accounting(config: Config, site: Site) -> Finding:
    """sacct answers only with slurmdbd (P18)."""
    kind = config.get("AccountingStorageType", "")
    if "slurmdbd" in kind:
        comments = "job_comment" in config.get("AccountingStoreFlags", "")
        expect = "" if comments else "after MinJobAge a job is found by its name, not by its comment"
        mend = "" if comments else "AccountingStoreFlags=job_comment"
        return Finding(
            "slurm.accounting", "ok" if comments else "info", "accounting by slurmdbd", expect=expect, mend=mend
        )
    return Finding(
        "slurm.accounting",
        "warn",
        "no accounting",
        kind or "none",
        "finished jobs are known from their own records only; a job that left none is 'vanished'",
        "slurmdbd and AccountingStorageType=accounting_storage/slurmdbd",
    )


def judge_arrays(config: Config, site: Site) -> Finding:
    """MaxArraySize caps the highest index (P13)."""
    size = _number(config, "MaxArraySize", 1001)
    if size < 2:
        return Finding("slurm.arrays", "warn", "job arrays are off", f"MaxArraySize={size}")
    return Finding("slurm.arrays", "info", f"array indices go up to {size - 1}")


def judge_preemption(config: Config, site: Site) -> Finding:
    """What being preempted does to a job, and how much time it has then (P27, P30)."""
    mode = config.get("PreemptMode", "OFF").upper().split(",")[0].strip()
    kind, name = config.get("PreemptType", "preempt/none"), "slurm.preemption"
    parameters = config.get("PreemptParameters", "")
    found = f"PreemptType={kind} PreemptMode={mode}" + (f" PreemptParameters={parameters}" if parameters else "")
    if kind.endswith("none") or mode == "OFF":
        return Finding(name, "info", "jobs are not preempted", found)
    wait = f"SIGTERM, then SIGKILL after the partition's GraceTime and KillWait ({_number(config, 'KillWait', 30)} s)"
    if mode == "REQUEUE":
        return Finding(name, "ok", "a preempted job is requeued and resumes from its checkpoint", found, wait)
    if mode == "CANCEL":
        expect = f"{wait}; the job ends and `tp job retry` starts it again"
        return Finding(name, "warn", "a preempted job is cancelled, not requeued", found, expect, "PreemptMode=REQUEUE")
    expect = "a suspended job keeps its GPU memory, and other ranks run into their timeouts"
    return Finding(name, "warn", f"PreemptMode {mode} does not suit training", found, expect, "PreemptMode=REQUEUE")


def judge_kill_wait(config: Config, site: Site) -> Finding:
    wait, lead = _number(config, "KillWait", 30), site.slurm.signal_lead_s
    text = f"KillWait {wait} s: a save must end within the warning's {lead} s (slurm.signal_lead_s)"
    return Finding("slurm.kill_wait", "info", text)


def judge_requeue(config: Config, site: Site) -> Finding:
    if _number(config, "JobRequeue", 1) == 1:
        return Finding("slurm.requeue", "ok", "batch jobs may be requeued")
    expect = "tp says --requeue itself, unless the user says no"
    return Finding("slurm.requeue", "info", "JobRequeue=0: not requeued unless a job says so", expect=expect)


def judge_part_limits(config: Config, site: Site) -> Finding:
    """Without enforcement a job above its partition's limits waits for ever (P25)."""
    value = config.get("EnforcePartLimits", "NO").upper()
    if value in ("ALL", "ANY", "YES"):
        return Finding("slurm.part_limits", "ok", f"EnforcePartLimits={value}: impossible jobs are refused at submit")
    expect = "a job above its partition's limits waits for ever, with reason PartitionTimeLimit or PartitionNodeLimit"
    mend = "EnforcePartLimits=ALL, or slurm.limits in site.yaml"
    return Finding("slurm.part_limits", "warn", f"EnforcePartLimits={value}", expect=expect, mend=mend)


def judge_propagation(config: Config, site: Site) -> Finding:
    """Limits of the login shell travel into jobs unless Slurm is told otherwise (P45)."""
    kept = config.get("PropagateResourceLimitsExcept", "")
    value = config.get("PropagateResourceLimits", "ALL")
    name, gpus = "slurm.propagation", any(not p.cpu_only for p in site.profiles.values())
    if (
        value.upper() == "NONE"
        or "MEMLOCK" in kept.upper()
        or (value.upper() != "ALL" and "MEMLOCK" not in value.upper())
    ):
        return Finding(name, "ok", "the login shell's memlock limit does not travel into jobs")
    status: Status = "warn" if gpus else "info"
    mend = "PropagateResourceLimitsExcept=MEMLOCK"
    return Finding(
        name, status, "the login shell's memlock limit travels into jobs", value, "RDMA needs unlimited", mend
    )


def judge_min_job_age(config: Config, site: Site) -> Finding:
    age = _number(config, "MinJobAge", 300)
    if age < site.slurm.poll_max_s and "slurmdbd" not in config.get("AccountingStorageType", ""):
        expect = f"more than slurm.poll_max_s ({site.slurm.poll_max_s} s), or accounting"
        text = "finished jobs leave squeue before they are asked for"
        return Finding("slurm.min_job_age", "warn", text, f"MinJobAge={age}", expect, "MinJobAge=300")
    return Finding("slurm.min_job_age", "ok", f"finished jobs stay in squeue for {age} s")


def judge_requeue_delay(config: Config, site: Site) -> Finding:
    match = re.search(r"cred_expire=(\d+)", config.get("AuthInfo", ""))
    seconds = int(match.group(1)) if match else 120
    return Finding(
        "slurm.requeue_delay", "info", f"a requeued job starts {seconds} s later at the earliest (cred_expire)"
    )


def judge_devices(config: Config, site: Site) -> Finding:
    """GPUs: Slurm knows them, and fences them (P52)."""
    wanted = sorted(n for n, p in site.profiles.items() if not p.cpu_only)
    types, name = config.get("GresTypes", ""), "slurm.gpus"
    if not wanted:
        return Finding(name, "info", "no profile has GPUs")
    if "gpu" not in types.split(","):
        found = f"GresTypes={types or '(null)'}"
        return Finding(name, "fail", f"Slurm has no GPUs, profiles {', '.join(wanted)} do", found, "GresTypes=gpu")
    if config.get("ConstrainDevices", "no").lower() != "yes":
        expect = "a job can see its neighbours' GPUs; tp hands CUDA_VISIBLE_DEVICES into the container"
        mend = "ConstrainDevices=yes in cgroup.conf"
        return Finding(name, "warn", "GPUs are not fenced by cgroups", "ConstrainDevices is not yes", expect, mend)
    return Finding(name, "ok", "GPUs are known and fenced by cgroups")


RULES: tuple[Callable[[Config, Site], Finding], ...] = (
    judge_version,
    judge_accounting,
    judge_arrays,
    judge_preemption,
    judge_kill_wait,
    judge_requeue,
    judge_requeue_delay,
    judge_part_limits,
    judge_min_job_age,
    judge_propagation,
    judge_devices,
)


def judge_slurm(config: Config, site: Site) -> list[Finding]:
    """Every rule about the controller's configuration."""
    return [rule(config, site) for rule in RULES]


def parse_partitions(text: str) -> dict[str, dict[str, str]]:
    """`scontrol show partition --oneliner` by partition name."""
    out: dict[str, dict[str, str]] = {}
    for line in text.splitlines():
        pairs = dict(word.partition("=")[::2] for word in line.split() if "=" in word)
        if name := pairs.get("PartitionName"):
            out[name] = pairs
    return out


def parse_gres(text: str) -> dict[str, list[str]]:
    """`sinfo --format=%R|%G` by partition: the GRES words of its nodes, each once."""
    out: dict[str, list[str]] = {}
    for line in text.splitlines():
        name, found, words = line.strip().partition("|")
        if found:
            here = out.setdefault(name, [])
            # Commas separate words, and stand inside of the brackets and parentheses of one.
            here += [w for w in re.findall(r"[^,(]+(?:\([^)]*\))?", words) if w not in here and w != "null)"]
    return out


def gpus_in(words: Iterable[str], kind: str) -> int:
    """The most GPUs of a type ("" = any) that one of the words states: `gpu:h200:8(S:0-1)` -> 8."""
    best = 0
    for word in words:
        parts = word.partition("(")[0].split(":")
        if parts[0] != "gpu" or (kind and len(parts) == 3 and parts[1] != kind) or (kind and len(parts) == 2):
            continue
        if parts[-1].isdigit():
            best = max(best, int(parts[-1]))
    return best


def judge_profiles(
    site: Site, fleet: str, partitions: Mapping[str, Mapping[str, str]], gres: Mapping[str, Iterable[str]]
) -> list[Finding]:
    """Each profile of a fleet can be had: its partition is up, and its nodes have such GPUs (P49)."""
    default = next((n for n, p in partitions.items() if p.get("Default") == "YES"), "")
    mine = [(n, p) for n, p in site.profiles.items() if (p.fleet or site.default_fleet) == fleet]
    return [_judge_profile(name, profile, default, partitions, gres) for name, profile in mine]


def _judge_profile(
    name: str,
    profile: Profile,
    default: str,
    partitions: Mapping[str, Mapping[str, str]],
    gres: Mapping[str, Iterable[str]],
) -> Finding:
    check, wanted = f"profile.{name}", profile.partition or default
    known = ", ".join(partitions) or "none"
    if not wanted:
        mend = f"state profiles.{name}.partition"
        return Finding(check, "warn", "no partition, and Slurm has no default one", known, mend=mend)
    if wanted not in partitions:
        mend = f"correct profiles.{name}.partition in site.yaml"
        return Finding(check, "fail", f"there is no partition {wanted}", known, mend=mend)
    if partitions[wanted].get("State", "UP") != "UP":
        return Finding(check, "warn", f"partition {wanted} is {partitions[wanted]['State']}")
    if profile.cpu_only:
        return Finding(check, "ok", f"partition {wanted}")
    most = gpus_in(gres.get(wanted, ()), profile.gres_type)
    if most < profile.gpus_per_node:
        kind = profile.gres_type or "any type"
        found = ", ".join(gres.get(wanted, ())) or "no GRES"
        mend = f"correct gres_type or gpus_per_node of profiles.{name}"
        text = f"no node of {wanted} has {profile.gpus_per_node} GPUs of {kind}"
        return Finding(check, "fail", text, found, mend=mend)
    return Finding(check, "ok", f"partition {wanted}, up to {most} GPUs a node, asked for by {profile.gpu_dialect}")


def judge_grace(partitions: Mapping[str, Mapping[str, str]], config: Config) -> list[Finding]:
    """Partitions whose jobs can be preempted, and the grace they give."""
    if config.get("PreemptType", "preempt/none").endswith("none"):
        return []
    out = []
    for name, partition in partitions.items():
        mode = partition.get("PreemptMode", "OFF")
        if mode != "OFF":
            grace, wait = partition.get("GraceTime", "0"), _number(config, "KillWait", 30)
            text = f"partition {name}: PreemptMode {mode}, GraceTime {grace} s, then KillWait {wait} s"
            out.append(
                Finding(f"slurm.grace.{name}", "info", text, expect="a save on preemption must end in that time")
            )
    return out
