"""`tp doctor`: is this machine and site in order, and what should one expect here?"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpc.cli.context import json_option, print_json, storage_root

if TYPE_CHECKING:
    from tuneplane.contract.layout import StorageRoot

    from hpc.cli.doctor_node import Answer
    from hpc.site.doctor_store import Room
    from hpc.site.findings import Finding
    from hpc.site.sitefile import Site
    from hpc.slurm.commands import Slurm

SCRIPT_DEADLINE_S = 60
TOOLS = ("sbatch", "squeue", "scancel", "scontrol", "srun", "sinfo")


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--probe", "probe_nodes", is_flag=True, help="Ask a compute node, too, by a small batch job.")
@click.option("--fleet", default="", help="The Slurm fleet to ask (default: the first).")
@click.option("--nodes", type=click.IntRange(1, 64), default=1, help="With --probe: this many nodes at once.")
@click.option("--profile", default="", help="With --probe: use this profile's partition and one of its GPUs.")
@click.option("--partition", default="", help="With --probe: this partition.")
@click.option("--runtime", default="", help="With --probe: start a container of this runtime (default: the first).")
@click.option("--wait", "wait_s", type=click.IntRange(5, 3600), default=120, help="With --probe: seconds to wait.")
@json_option
def doctor(
    probe_nodes: bool, fleet: str, nodes: int, profile: str, partition: str, runtime: str, wait_s: int, as_json: bool
) -> int:
    """Check this machine and site, and say what to expect.

    Ends with 1 if anything must be mended before jobs can run right; warnings do not count.
    """
    from hpc.cli.site import print_findings
    from hpc.errors.core import Refusal, Refusals
    from hpc.site.check import check_root
    from hpc.site.findings import failed, summary
    from hpc.site.sitefile import load_site

    root = storage_root()
    findings = check_root(root)
    try:
        site = load_site(root)
    except (Refusal, Refusals):
        site = None  # check_root has said why, and nothing below makes sense without it
    if site is not None:
        findings += _login(root, site)
        findings += [f for name in _fleets(site, fleet) for f in _slurm(site, name)]
        if probe_nodes:
            chosen = _Choice(
                _one_fleet(site, fleet, profile), nodes, profile, partition, runtime, wait_s, quiet=as_json
            )
            findings += _nodes(root, site, chosen)
    if as_json:
        print_json(summary(findings))
    else:
        print_findings(findings)
        counts = summary(findings)["counts"]
        click.echo(", ".join(f"{count} {status}" for status, count in counts.items() if count))
    return 1 if failed(findings) else 0


def _fleets(site: Site, fleet: str) -> list[str]:
    slurms = [n for n, f in site.fleets.items() if f.kind == "slurm"]
    return [fleet] if fleet in slurms else slurms


def _one_fleet(site: Site, fleet: str, profile: str) -> str:
    """The Slurm fleet that --probe asks. Raises Refusal E-SITE-004, E-SITE-050."""
    from hpc.errors.core import Refusal

    if profile and profile not in site.profiles:
        raise Refusal(
            "E-SITE-004", f"there is no profile {profile}", field="--profile", allowed=", ".join(site.profiles)
        )
    wanted = fleet or (site.fleet_of(profile) if profile else "")
    slurms = _fleets(site, "")
    if not slurms or (wanted and wanted not in slurms):
        allowed = ", ".join(slurms) or "a fleet of kind slurm in site.yaml"
        raise Refusal("E-SITE-050", "there is no Slurm fleet to ask", field="--fleet", found=wanted, allowed=allowed)
    return wanted or slurms[0]


def _command(site: Site, name: str) -> Slurm:
    from hpc.slurm.commands import Slurm

    fleet = site.fleets[name]
    return Slurm(fleet.bin_dir, fleet.conf, float(site.slurm.command_timeout_s), fleet.cluster)


def _login(root: StorageRoot, site: Site) -> list[Finding]:
    """This machine: its own facts, the file system of the root, free space."""
    from hpc.site.doctor import judge_host, judge_ticket
    from hpc.site.doctor_store import judge_places
    from hpc.site.findings import Finding
    from hpc.store.mounts import mount_of

    facts = _local_facts(root)
    if not facts:
        return [Finding("login.machine", "warn", "the probe script did not end on this machine")]
    python = ".".join(map(str, sys.version_info[:3]))
    return [
        Finding("login.python", "ok", f"tp runs on Python {python}", found=sys.executable),
        *judge_host(facts, "login", site=site, node=False),
        *judge_ticket(facts, "login", kerberos=mount_of(root.path).kerberos),
        *_file_system(root),
        *judge_places(_rooms(root)),
    ]


def _local_facts(root: StorageRoot) -> dict[str, str]:
    from hpc.site.nodeprobe import SCRIPT, Ask, parse_facts

    with tempfile.TemporaryDirectory(prefix="tp-doctor-") as folder:
        script = Path(folder) / "probe.sh"
        script.write_text(SCRIPT, "utf-8")
        kept = {k: v for k, v in os.environ.items() if k in ("HOME", "TMPDIR", "KRB5CCNAME", "LANG")}
        try:
            subprocess.run(
                ["/bin/bash", str(script), folder],
                env=kept | Ask(str(root.path)).variables(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=SCRIPT_DEADLINE_S,
                check=False,
            )
            reports = [p for p in Path(folder).iterdir() if p.suffix == ".facts"]
            return parse_facts(reports[0].read_text("utf-8", "replace")) if reports else {}
        except (OSError, subprocess.TimeoutExpired):
            return {}


def _file_system(root: StorageRoot) -> list[Finding]:
    from hpc.errors.core import Refusal
    from hpc.site.doctor_store import judge_file_system
    from hpc.site.findings import Finding, from_refusal
    from hpc.site.users import real_user
    from hpc.store.probe import probe

    try:
        return judge_file_system(probe(root.user_state(real_user().name)))
    except Refusal as fault:
        if fault.code == "E-STORE-025":
            mend = "`tp site user add NAME`, then run this again"
            return [Finding("store.file_system", "warn", "you have no folder here to try it in", mend=mend)]
        return [from_refusal("store.file_system", fault)]


def _rooms(root: StorageRoot) -> dict[str, Room]:
    from hpc.site.doctor_store import Room

    places = {"root": str(root.path), "home": os.path.expanduser("~"), "temp": tempfile.gettempdir()}
    out: dict[str, Room] = {}
    for name, path in places.items():
        if os.path.isdir(path):
            found = os.statvfs(path)
            out[name] = Room(path, found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize)
    return out


def _slurm(site: Site, name: str) -> list[Finding]:
    """One fleet: its commands, its configuration, the partitions and GPUs of its profiles."""
    from hpc.errors.core import Refusal
    from hpc.site.doctor_slurm import judge_grace, judge_profiles, judge_slurm, parse_gres, parse_partitions
    from hpc.site.findings import Finding, from_refusal
    from hpc.slurm import site_facts

    slurm = _command(site, name)
    out: list[Finding] = []
    try:
        for tool in TOOLS:
            slurm.path(tool)
        out.append(Finding("slurm.commands", "ok", f"Slurm's commands are in {slurm.bin_dir}"))
        config = site_facts.read(slurm).config
        partitions = parse_partitions(slurm.run("scontrol", ["show", "partition", "--oneliner"]).out)
        gres = parse_gres(slurm.run("sinfo", ["--noheader", "--format=%R|%G"]).out)
        out += judge_slurm(config, site) + judge_grace(partitions, config)
        out += judge_profiles(site, name, partitions, gres)
    except Refusal as fault:
        out.append(from_refusal("slurm.commands" if fault.code == "E-SLURM-001" else "slurm.controller", fault))
    if len(_fleets(site, "")) > 1:
        out = [replace(f, name=f"{f.name}@{name}") for f in out]
    return out


@dataclass(frozen=True)
class _Choice:
    """What --probe was asked for."""

    fleet: str
    nodes: int
    profile: str
    partition: str
    runtime: str
    wait_s: int
    quiet: bool


def _nodes(root: StorageRoot, site: Site, choice: _Choice) -> list[Finding]:
    """Compute nodes: the same facts as here, and how they differ from here."""
    from hpc.cli.doctor_node import ask_nodes
    from hpc.errors.core import Refusal
    from hpc.site.findings import Finding, from_refusal
    from hpc.site.members import ensure_owner
    from hpc.site.nodeprobe import Ask
    from hpc.site.users import real_user

    user = real_user()
    terminal = sys.stderr.isatty() and not choice.quiet
    try:
        ensure_owner(root, user, site=site)
        sif, known = _image(root, choice.runtime)
        answer = ask_nodes(
            _command(site, choice.fleet),
            root.user_state(user.name),
            Ask(str(root.path), sif=sif, nodes=choice.nodes),
            options=_batch_options(site, choice),
            gpus=_gpu_request(site, choice.profile),
            wait_s=choice.wait_s,
            tell=lambda text: click.echo(text, err=True) if terminal else None,
        )
    except Refusal as fault:
        return [from_refusal("nodes.probe", fault)]
    out = [answer.trouble] if answer.trouble else [Finding("nodes.probe", "ok", f"job {answer.job_id} answered")]
    if not known:
        mend = "`tp runtime add ID FILE.sif`"
        out.append(Finding("nodes.container", "warn", "no runtime is registered, so no container was tried", mend=mend))
    return out + _judge_answer(root, site, answer)


def _judge_answer(root: StorageRoot, site: Site, answer: Answer) -> list[Finding]:
    from hpc.site.doctor import judge_clock, judge_contest, judge_host, judge_root, judge_ticket
    from hpc.site.findings import Finding
    from hpc.site.nodeprobe import ROUNDS, contest_won
    from hpc.store.mounts import mount_of

    here = hashlib.sha256(root.site_file.read_bytes()).hexdigest()
    out: list[Finding] = []
    for host, facts in sorted(answer.facts.items()):
        out.append(judge_root(facts, host, site_sha256=here))
        out.append(judge_clock(facts, host, earliest=answer.started, latest=answer.ended))
        out += judge_ticket(facts, host, kerberos=mount_of(root.path).kerberos)
        out += judge_host(facts, host, site=site, node=True)
        if answer.batch and answer.batch.get("batch_memlock") != facts.get("memlock"):
            found = f"{answer.batch.get('batch_memlock')} in the batch step, {facts.get('memlock')} in srun's"
            out.append(Finding(f"{host}.memlock.step", "warn", "another memlock limit in srun's steps", found))
    won, contenders = contest_won(answer.facts)
    if contenders > 1:
        out.append(judge_contest(won, contenders, rounds=ROUNDS))
    return out


def _image(root: StorageRoot, runtime: str) -> tuple[str, bool]:
    """(path of the SIF to try, whether one is known). Raises Refusal E-CATALOG-040 for an unknown id."""
    from hpc.catalog.runtimes import Runtimes

    runtimes = Runtimes.load(root)
    if runtime:
        return str(runtimes.get(runtime, "--runtime").sif), True
    first = next(iter(runtimes), None)
    return (str(first.sif), True) if first is not None else ("", False)


def _batch_options(site: Site, choice: _Choice) -> dict[str, str]:
    """The site's defaults that decide where a job may run; the command line's and the profile's partition win."""
    defaults = site.slurm_defaults()
    options = {k: getattr(defaults, k) for k in ("partition", "account", "qos", "constraint", "reservation")}
    profile = site.profiles.get(choice.profile)
    options["partition"] = choice.partition or (profile.partition if profile else "") or options["partition"]
    options["clusters"] = site.fleets[choice.fleet].cluster
    return options


def _gpu_request(site: Site, profile: str) -> list[str]:
    """One GPU in the site's dialect, if the profile has any (P49)."""
    from hpc.submit.directives import gpu_directive

    if not profile or site.profiles[profile].cpu_only:
        return []
    directive = gpu_directive(site.profiles[profile].model_dump(), 1)
    return [f"--{directive.name}={directive.value}"] if directive else []
