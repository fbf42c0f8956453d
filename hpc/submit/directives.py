"""Typed `#SBATCH` directives from a spec and the site's defaults. Pure.

A value is text of a small alphabet that sbatch's own tokeniser and bash read alike: no blank, quote, backslash, dollar, hash or control character.
Everything richer travels in the package, never on a directive line.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hpc.errors import Refusal

VALUE = re.compile(r"^[A-Za-z0-9_.,:/@%+=&|()*\[\]~^-]+$")
NAME = re.compile(r"^[a-z][a-z-]*$")
MAX_LINE = 1000

# SlurmOptions field -> sbatch option, for those that are passed on as they are.
PLAIN = {
    "partition": "partition", "account": "account", "qos": "qos", "constraint": "constraint", "reservation": "reservation",
    "dependency": "dependency", "array": "array", "nice": "nice", "mail_type": "mail-type", "mail_user": "mail-user",
    "exclude": "exclude", "nodelist": "nodelist", "mem": "mem", "mem_per_gpu": "mem-per-gpu", "licenses": "licenses",
    "switches": "switches", "begin": "begin", "clusters": "clusters", "gpu_bind": "gpu-bind", "time": "time",
}  # fmt: skip
PER_POOL = ("partition", "constraint", "mem", "mem_per_gpu", "exclude", "nodelist", "gpu_bind")


@dataclass(frozen=True)
class Directive:
    """One `#SBATCH` line; `value` None is a flag."""

    name: str
    value: str | None = None

    def __post_init__(self) -> None:
        if not NAME.match(self.name):
            raise Refusal("E-SUBMIT-010", f"{self.name!r} is no option name", field="directives", found=self.name)
        if self.value is not None and not VALUE.match(self.value):
            raise Refusal(
                "E-SUBMIT-010",
                "a value that sbatch and bash would read differently",
                field=f"--{self.name}",
                found=repr(self.value),
                allowed="letters, digits and _ . , : / @ % + = & | ( ) * [ ] ~ ^ -",
            )
        if len(self.line()) > MAX_LINE:
            raise Refusal(
                "E-SUBMIT-011",
                f"the line has {len(self.line())} characters",
                field=f"--{self.name}",
                allowed=f"{MAX_LINE}",
            )

    def line(self) -> str:
        return f"#SBATCH --{self.name}" + ("" if self.value is None else f"={self.value}")


def gpu_directive(profile: Mapping[str, Any], gpus: int) -> Directive | None:
    """GPUs of one node in the site's dialect."""
    if not gpus:
        return None
    kind = profile.get("gres_type", "")
    if profile.get("gpu_dialect", "gres") == "gpus-per-node":
        return Directive("gpus-per-node", f"{kind}:{gpus}" if kind else str(gpus))
    return Directive("gres", f"gpu:{kind}:{gpus}" if kind else f"gpu:{gpus}")


def cpus_of(pool: Mapping[str, Any], profile: Mapping[str, Any], options: Mapping[str, Any]) -> int:
    """CPUs of the one task a node: the spec's word, the pool's, else the profile's share for its GPUs."""
    explicit = options.get("cpus_per_task") or pool.get("cpus")
    return int(explicit or max(1, pool["gpus_per_node"] * (profile.get("cpus_per_gpu") or 1)))


def _pool_block(pool: Mapping[str, Any], profile: Mapping[str, Any], options: Mapping[str, Any]) -> list[Directive]:
    out = [
        Directive("nodes", str(pool["nodes"])),
        Directive("ntasks-per-node", "1"),
        Directive("cpus-per-task", str(cpus_of(pool, profile, options))),
    ]
    gpus = gpu_directive(profile, pool["gpus_per_node"])
    if gpus:
        out.append(gpus)
    own = {name: options[name] for name in PER_POOL if options.get(name)}
    if profile.get("partition") and "partition" not in own:
        own["partition"] = profile["partition"]
    if pool.get("memory_gb") and not options.get("mem") and not options.get("mem_per_gpu"):
        own["mem"] = f"{pool['memory_gb']}G"
    out += [Directive(PLAIN[name], str(own[name])) for name in PER_POOL if name in own]
    if options.get("exclusive"):
        out.append(Directive("exclusive"))
    return out


@dataclass(frozen=True)
class Identity:
    """What ties a Slurm job to a submission: name, comment with run id and nonce, log path, working folder."""

    job_name: str
    comment: str
    log: str
    chdir: str


def job_directives(
    identity: Identity,
    pools: list[tuple[Mapping[str, Any], Mapping[str, Any]]],
    options: Mapping[str, Any],
    *,
    signal: str | None,
) -> list[list[Directive]]:
    """One list of directives a heterogeneous component (one for a single pool). `pools` pairs each pool with its profile.

    `options` are merged SlurmOptions as a dict without empty values; `signal` is the warning (`B:USR2@120`) or None.
    """
    user_comment = options.get("comment", "")
    first = [
        Directive("job-name", identity.job_name),
        Directive("comment", identity.comment + (f":{user_comment}" if user_comment else "")),
        Directive("output", identity.log),
        Directive("open-mode", "append"),
        Directive("chdir", identity.chdir),
        Directive("export", "NIL"),
    ]
    if options.get("requeue") is not None:
        first.append(Directive("requeue" if options["requeue"] else "no-requeue"))
    if signal:
        first.append(Directive("signal", signal))
    if options.get("hold"):
        first.append(Directive("hold"))
    if options.get("kill_on_invalid_dep") is not None:
        first.append(Directive("kill-on-invalid-dep", "yes" if options["kill_on_invalid_dep"] else "no"))
    shared = [name for name in PLAIN if name not in PER_POOL and options.get(name) not in (None, "", 0)]
    first += [Directive(PLAIN[name], str(options[name])) for name in shared]
    blocks = [_pool_block(pool, profile, options) for pool, profile in pools]
    return [first + blocks[0], *blocks[1:]]


def render(blocks: list[list[Directive]]) -> str:
    """The directive lines, components separated by `#SBATCH hetjob`."""
    return "\n#SBATCH hetjob\n".join("\n".join(d.line() for d in block) for block in blocks)
