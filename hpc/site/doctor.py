"""What a machine's facts mean for jobs here: facts in, findings out. Pure.

Facts are those of `hpc.site.nodeprobe`, of the login node or of a compute node. A check fails only if jobs cannot run
right; what merely costs time, or must be known, is a warning or an information.
"""

from __future__ import annotations

from collections.abc import Mapping

from hpc.site.findings import Finding, Status
from hpc.site.model import Site

Facts = Mapping[str, str]
GIB_KB = 1 << 20
OLDEST_APPTAINER = (1, 1)
OLDEST_PYTHON = (3, 10)


def numbers(text: str) -> tuple[int, ...]:
    """`1.4.5-2` -> (1, 4, 5); () for anything that does not start with a number."""
    out = []
    for part in text.split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        out.append(int(digits))
        if digits != part:
            break
    return tuple(out)


def _size(kb: int) -> str:
    return f"{kb / GIB_KB:.1f} GiB"


def judge_host(facts: Facts, where: str, *, site: Site, node: bool) -> list[Finding]:
    """Everything about one machine; `where` starts each name (`login`, `n1`). `node`: it runs jobs."""
    return [
        judge_machine(facts, where, node=node),
        *judge_apptainer(facts, where, site=site, node=node),
        *judge_container(facts, where),
        judge_memlock(facts, where, node=node),
        judge_shm(facts, where, node=node),
        judge_scratch(facts, where, node=node),
        judge_files(facts, where),
        *judge_network(facts, where, site=site, node=node),
        *judge_gpus(facts, where, node=node),
    ]


def _cgroup(facts: Facts) -> str:
    return {"cgroup2fs": "v2", "tmpfs": "v1"}.get(facts.get("cgroup", ""), "none")


def judge_machine(facts: Facts, where: str, *, node: bool) -> Finding:
    """System, C library, CPUs, Python. Python is what the launcher needs where a job has no image."""
    text = f"{facts.get('kernel', '?')} {facts.get('arch', '?')}, glibc {facts.get('glibc') or '?'}"
    python = facts.get("python", "")
    found = f"{text}, {facts.get('cpus') or '?'} CPUs, cgroup {_cgroup(facts)}, python {python or 'none'}"
    if node and numbers(python) < OLDEST_PYTHON:
        return Finding(
            f"{where}.machine",
            "warn",
            "no Python 3.10 or newer as python3",
            found,
            "jobs in an image do not need it; jobs without one do",
            "install one, or give every recipe a runtime",
        )
    return Finding(f"{where}.machine", "info", found)


def judge_apptainer(facts: Facts, where: str, *, site: Site, node: bool) -> list[Finding]:
    """Apptainer is there, new enough, and can start: by setuid, or by user namespaces and FUSE (P60)."""
    path, version = facts.get("apptainer", ""), facts.get("apptainer_version", "")
    needed = any(f.kind == "slurm" for f in site.fleets.values())
    if not path:
        status: Status = "fail" if node else "warn" if needed else "info"
        expect = "jobs with an image cannot start" if node else "images cannot be inspected or built on this machine"
        mend = "install Apptainer 1.1 or newer" if needed else ""
        return [Finding(f"{where}.apptainer", status, "Apptainer is not there", "", expect, mend)]
    if numbers(version) < OLDEST_APPTAINER:
        return [
            Finding(f"{where}.apptainer", "fail" if node else "warn", "Apptainer is too old", version, "1.1 or newer")
        ]
    out = [_mode(facts, where, f"Apptainer {version} at {path}", node=node)]
    homes = [
        b for b in facts.get("apptainer_binds", "").split(",") if b.split(":")[0].rstrip("/") in ("/home", "/root")
    ]
    if homes:
        out.append(
            Finding(
                f"{where}.apptainer.binds",
                "warn",
                "apptainer.conf binds users' homes into every container",
                ", ".join(homes),
                "packages in ~/.local may hide the image's; tp sets PYTHONNOUSERSITE=1 and a private HOME",
                "remove the `bind path` from apptainer.conf",
            )
        )
    return out


def _mode(facts: Facts, where: str, found: str, *, node: bool) -> Finding:
    name = f"{where}.apptainer"
    if facts.get("apptainer_setuid") == "yes":
        return Finding(name, "ok", f"{found}, setuid", expect="images are mounted by the kernel")
    if facts.get("userns") == "no":
        sysctls = {
            "user.max_user_namespaces": facts.get("userns_max", ""),
            "kernel.unprivileged_userns_clone": facts.get("userns_clone", ""),
            "kernel.apparmor_restrict_unprivileged_userns": facts.get("userns_apparmor", ""),
        }
        told = ", ".join(f"{k}={v}" for k, v in sysctls.items() if v)
        mend = "allow unprivileged user namespaces with these sysctls, or install apptainer-suid"
        message = "no setuid starter and no user namespaces: containers cannot start"
        return Finding(name, "fail" if node else "warn", message, told, "one of the two", mend)
    if facts.get("fuse") != "yes":
        what = "/dev/fuse is missing" if facts.get("fuse") == "missing" else "/dev/fuse is closed to users"
        expect = "images are unpacked at each start: seconds instead of 0.1 s, and room in the temp folder"
        return Finding(name, "warn", f"{found}, user namespaces, but {what}", "", expect, "mode 0666 for /dev/fuse")
    return Finding(name, "ok", f"{found}, user namespaces and FUSE", expect="one mount a node, about 0.1 s")


def judge_container(facts: Facts, where: str) -> list[Finding]:
    """A container from a registered image started, and has the limits of the host (P45)."""
    code = facts.get("container_code", "")
    if not code:
        return []
    name = f"{where}.container"
    if code != "0":
        said = facts.get("container_said", "")
        return [
            Finding(name, "fail", f"a container does not start, exit {code}", said, "exit 0", "see the words above")
        ]
    out = [Finding(name, "ok", f"a container starts in {facts.get('container_ms', '?')} ms")]
    inside, outside = facts.get("container_memlock", ""), facts.get("memlock", "")
    if inside != outside:
        found = f"{inside or '?'} inside, {outside or '?'} outside"
        out.append(Finding(f"{name}.memlock", "warn", "another memlock limit in the container", found, "the same"))
    return out


def judge_memlock(facts: Facts, where: str, *, node: bool) -> Finding:
    """RDMA pins memory, so with InfiniBand the limit must be unlimited (P45)."""
    limit, name = facts.get("memlock", "?"), f"{where}.memlock"
    if limit == "unlimited":
        return Finding(name, "ok", "memlock is unlimited")
    if not node or "ACTIVE" not in facts.get("infiniband", ""):
        return Finding(name, "info", f"memlock is {limit} KiB", expect="unlimited only where there is InfiniBand")
    return Finding(
        name,
        "fail",
        "memlock is limited, so RDMA will fail inside jobs",
        f"{limit} KiB",
        "unlimited",
        "LimitMEMLOCK=infinity in slurmd's unit, and PropagateResourceLimitsExcept=MEMLOCK in slurm.conf",
    )


def _room(facts: Facts, key: str) -> tuple[int, int]:
    """(total, free) in KiB of a place; (0, 0) where it is missing."""
    total, _, free = facts.get(key, "").partition(" ")
    return (int(total), int(free)) if total.isdigit() and free.isdigit() else (0, 0)


def judge_shm(facts: Facts, where: str, *, node: bool) -> Finding:
    """Shared memory, which NCCL and data loaders use."""
    total, free = _room(facts, "shm")
    name, found = f"{where}.shm", f"{_size(total)}, {_size(free)} free"
    if total < GIB_KB:
        status: Status = "warn" if node else "info"
        mend = "mount -o remount,size=50% /dev/shm"
        return Finding(
            name, status, "shared memory (/dev/shm) is small", found, "1 GiB or more for NCCL and data loaders", mend
        )
    return Finding(name, "ok", f"shared memory (/dev/shm): {found}")


def judge_scratch(facts: Facts, where: str, *, node: bool) -> Finding:
    """Node-local scratch: private /tmp of containers, compile caches (P53, P66)."""
    total, free = _room(facts, "tmp")
    path = facts.get("tmp_path", "")
    found = f"{_size(free)} of {_size(total)} free at {path}"
    if node and free < 10 * GIB_KB:
        expect = "10 GiB: caches of compilers and the job's private /tmp lie there"
        return Finding(
            f"{where}.scratch", "warn", "little node-local room", found, expect, "set TMPDIR to a larger disk"
        )
    return Finding(f"{where}.scratch", "ok", found)


def judge_files(facts: Facts, where: str) -> Finding:
    limit = facts.get("nofile", "?")
    if limit.isdigit() and int(limit) < 4096:
        expect = "4096 or more: data loaders with many workers open many files"
        return Finding(f"{where}.nofile", "info", f"{limit} open files", "", expect, "LimitNOFILE in slurmd's unit")
    return Finding(f"{where}.nofile", "ok", f"{limit} open files")


def _interfaces(facts: Facts) -> dict[str, str]:
    pairs = (item.partition(":") for item in facts.get("interfaces", "").split(",") if item)
    return {name: state for name, _, state in pairs}


def judge_network(facts: Facts, where: str, *, site: Site, node: bool) -> list[Finding]:
    """The interfaces and devices that the site names exist here, by exact name (P44)."""
    if not node:
        return []
    there = _interfaces(facts)
    up = sorted(n for n, state in there.items() if state != "down" and n != "lo")
    out = []
    for key, wanted in (("nccl", site.network.nccl_interfaces), ("gloo", site.network.gloo_interfaces)):
        name = f"{where}.{key}"
        chosen = [n for n in wanted if there.get(n, "down") != "down"]
        if not wanted:
            status: Status = "warn" if len(up) > 1 and site.profiles and key == "nccl" else "info"
            text = f"{key} chooses by itself among {', '.join(up) or 'nothing'}"
            mend = f"name the right ones in site.yaml: network.{key}_interfaces" if status == "warn" else ""
            out.append(Finding(name, status, text, mend=mend))
        elif not chosen:
            found = ", ".join(up)
            mend = f"correct network.{key}_interfaces in site.yaml"
            out.append(Finding(name, "fail", "none of the named interfaces is up", found, " or ".join(wanted), mend))
        else:
            out.append(Finding(name, "ok", f"{key} uses {', '.join(chosen)}"))
    return [*out, *_devices(facts, where, site)]


def _devices(facts: Facts, where: str, site: Site) -> list[Finding]:
    ports = dict(item.rsplit(":", 1) for item in facts.get("infiniband", "").split(",") if item.count(":") == 2)
    active = sorted(port for port, state in ports.items() if state == "ACTIVE")
    wanted = site.network.hcas
    name = f"{where}.infiniband"
    if not wanted:
        text = f"InfiniBand ports active: {', '.join(active)}" if active else "no InfiniBand; NCCL uses sockets"
        return [Finding(name, "info", text)]
    missing = [w for w in wanted if not any(p == w or p.partition(":")[0] == w for p in active)]
    if missing:
        mend = "correct network.hcas in site.yaml, or see why the port is down"
        text = "a named InfiniBand device has no active port"
        return [Finding(name, "fail", text, ", ".join(active) or "none active", ", ".join(missing), mend)]
    return [Finding(name, "ok", f"InfiniBand: {', '.join(wanted)} active")]


def judge_gpus(facts: Facts, where: str, *, node: bool) -> list[Finding]:
    """Devices, driver, what the job was given, and whether `--nv` works (P52, P56)."""
    count = int(facts.get("gpu_devices") or 0)
    granted = facts.get("slurm_gpus", "")
    if not node or (not count and not granted):
        return [Finding(f"{where}.gpus", "info", f"{count} GPU devices")] if node else []
    name = f"{where}.gpus"
    driver = facts.get("gpu_driver") or "none"
    found = f"{count} devices, driver {driver}, given {granted or 'none'}, visible {facts.get('gpu_visible', 'unset')}"
    out = []
    if granted.isdigit() and count < int(granted):
        out.append(Finding(name, "warn", "fewer GPU devices than Slurm gave", found, mend="see gres.conf of this node"))
    elif granted.isdigit() and facts.get("gpu_visible") == "unset":
        text = "Slurm gave GPUs but set no CUDA_VISIBLE_DEVICES"
        out.append(Finding(name, "warn", text, found, mend="File= in gres.conf"))
    else:
        out.append(Finding(name, "ok", found))
    nv = facts.get("container_nv", "")
    if nv and nv != "yes":
        newer = "GLIBC" in nv
        mend = (
            "build the image on a newer base, or use --nvccli"
            if newer
            else "see `apptainer exec --nv IMAGE nvidia-smi`"
        )
        text = "the driver needs a newer C library than the image has" if newer else "--nv does not work"
        out.append(Finding(f"{where}.nv", "fail", text, nv, "nvidia-smi runs in the container", mend))
    elif nv:
        inside = facts.get("container_gpus", "?")
        text = f"--nv works, {inside} devices in the container"
        fenced = not granted.isdigit() or inside == granted
        expect = "" if fenced else "cgroups do not fence devices; tp hands CUDA_VISIBLE_DEVICES in"
        out.append(Finding(f"{where}.nv", "ok" if fenced else "warn", text, expect=expect))
    return out


def judge_root(facts: Facts, where: str, *, site_sha256: str) -> Finding:
    """The machine sees the same storage root, by the bytes of its site file."""
    seen, name = facts.get("site_sha256", ""), f"{where}.root"
    if seen == site_sha256:
        return Finding(name, "ok", f"the storage root is there ({facts.get('root_fs', '?')})")
    if not seen:
        return Finding(name, "fail", "the storage root is not there", mend="mount it on this node at the same path")
    text = "another site.yaml at the same path"
    return Finding(name, "fail", text, seen[:16], site_sha256[:16], "see whether the mount is the same, or lags")


def judge_clock(facts: Facts, where: str, *, earliest: float, latest: float, tolerance_s: float = 5.0) -> Finding:
    """The machine's clock lies between the moments (seconds since 1970) that the login node's clock allows."""
    try:
        there = float(facts.get("time", ""))
    except ValueError:
        return Finding(f"{where}.clock", "warn", "the clock could not be read", facts.get("time", ""))
    off = earliest - there if there < earliest else there - latest if there > latest else 0.0
    if off > tolerance_s:
        text = f"the clock differs from the login node's by {off:.0f} s or more"
        return Finding(
            f"{where}.clock", "warn", text, expect="events of one run out of order", mend="see chrony or ntpd"
        )
    return Finding(f"{where}.clock", "ok", "the clock agrees with the login node's")


def judge_ticket(facts: Facts, where: str, *, kerberos: bool) -> list[Finding]:
    """On a Kerberos mount jobs and cron need a ticket that lives as long as they do (P73)."""
    if not kerberos:
        return []
    if facts.get("ticket") == "yes":
        expect = "a job that outlives its ticket loses the file system"
        return [
            Finding(f"{where}.ticket", "warn", "the storage root needs a Kerberos ticket; one is there", "", expect)
        ]
    mend = "kinit; for jobs and cron a keytab or auks"
    return [Finding(f"{where}.ticket", "fail", "the storage root needs a Kerberos ticket and there is none", mend=mend)]


def judge_contest(won: int, contenders: int, *, rounds: int) -> Finding:
    """Between nodes each name was linked exactly once: what the strict lock stands on (P62)."""
    name = "nodes.links"
    if won == rounds:
        return Finding(name, "ok", f"{contenders} nodes, {rounds} names, each linked exactly once")
    text = "hard links do not exclude between nodes: locks cannot be trusted here"
    return Finding(
        name, "fail", text, f"{won} links", f"{rounds} links", "move the storage root to another file system"
    )
