"""The script that asks a machine what it is, and the batch script that carries it to a compute node.

Plain bash and coreutils, so that it runs where no Python of ours does. It only reads, apart from its own report: lines
`key=value` in a file that appears whole. The same script runs on the login node, so that both can be compared.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

ROUNDS: Final = 40
"""Rounds of the link contest between nodes."""

SCRIPT: Final = r"""#!/bin/bash
# usage: probe.sh FOLDER; writes FOLDER/<host>.facts. Settings come as TP_PROBE_* variables.
set -u
export LC_ALL=C PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin
folder=$1
host=$(uname -n)
out=$folder/.$host.$$.tmp
say() { printf '%s=%s\n' "$1" "$(printf '%s' "$2" | tr -d '\r' | tr '\n\t' '  ')" >>"$out"; }
have() { command -v "$1" >/dev/null 2>&1; }
first() { head -n 1 "$1" 2>/dev/null; }
room() { df -Pk "$1" 2>/dev/null | awk 'NR == 2 { print $2 " " $4 }'; }

: >"$out"
say host "$host"
say time "$(date -u +%s.%N)"
say kernel "$(uname -sr)"
say arch "$(uname -m)"
say uid "$(id -u)"
say glibc "$(getconf GNU_LIBC_VERSION 2>/dev/null | cut -d' ' -f2)"
say python "$(python3 -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])' 2>/dev/null)"
say cpus "$(nproc 2>/dev/null)"

# limits: what RDMA and many files need
say memlock "$(ulimit -l)"
say nofile "$(ulimit -n)"

# what Apptainer without setuid needs
say userns_max "$(first /proc/sys/user/max_user_namespaces)"
say userns_clone "$(first /proc/sys/kernel/unprivileged_userns_clone)"
say userns_apparmor "$(first /proc/sys/kernel/apparmor_restrict_unprivileged_userns)"
if have unshare; then
  if unshare --user --map-root-user true 2>/dev/null; then say userns yes; else say userns no; fi
fi
if [ -c /dev/fuse ]; then
  if [ -r /dev/fuse ] && [ -w /dev/fuse ]; then say fuse yes; else say fuse closed; fi
else
  say fuse missing
fi

# places
say shm "$(room /dev/shm)"
say tmp "$(room "${TMPDIR:-/tmp}")"
say tmp_path "${TMPDIR:-/tmp}"
say cgroup "$(stat -f -c %T /sys/fs/cgroup 2>/dev/null)"

# network and GPUs
names=''
for path in /sys/class/net/*; do
  [ -e "$path" ] && names+="${names:+,}${path##*/}:$(first "$path/operstate")"
done
say interfaces "$names"
names=''
for path in /sys/class/infiniband/*/ports/*; do
  [ -e "$path" ] || continue
  device=${path#/sys/class/infiniband/}
  names+="${names:+,}${device%%/*}:${path##*/}:$(first "$path/state" | tr -d ' 0-9:')"
done
say infiniband "$names"
count=0
for path in /dev/nvidia[0-9]*; do [ -e "$path" ] && count=$((count + 1)); done
say gpu_devices "$count"
say gpu_driver "$(first /proc/driver/nvidia/version | grep -o 'Module *[0-9.]*' | awk '{ print $2 }')"
if have nvidia-smi; then say gpu_listed "$(nvidia-smi -L 2>/dev/null | grep -c '^GPU')"; fi
say gpu_visible "${CUDA_VISIBLE_DEVICES-unset}"
say slurm_gpus "${SLURM_GPUS_ON_NODE-}"
say slurm_job "${SLURM_JOB_ID-}"

# the storage root as this machine sees it
if [ -n "${TP_PROBE_ROOT:-}" ]; then
  say root_fs "$(stat -f -c %T "$TP_PROBE_ROOT" 2>/dev/null)"
  say site_sha256 "$(sha256sum <"$TP_PROBE_ROOT/site/site.yaml" 2>/dev/null | cut -d' ' -f1)"
fi
if have klist; then
  if klist -s 2>/dev/null; then say ticket yes; else say ticket no; fi
fi

# Apptainer, and a container if there is an image
app=${TP_PROBE_APPTAINER:-}
[ -n "$app" ] || app=$(command -v apptainer || true)
say apptainer "$app"
if [ -n "$app" ]; then
  say apptainer_version "$("$app" --version 2>/dev/null | grep -o '[0-9][0-9.]*' | head -n 1)"
  config=$("$app" buildcfg 2>/dev/null)
  starter=$(printf '%s\n' "$config" | sed -n 's/^LIBEXECDIR=//p')/apptainer/bin/starter-suid
  if [ -u "$starter" ]; then say apptainer_setuid yes; else say apptainer_setuid no; fi
  conf=$(printf '%s\n' "$config" | sed -n 's/^APPTAINER_CONF_FILE=//p')
  say apptainer_binds "$(sed -n 's/^bind path *= *//p' "$conf" 2>/dev/null | paste -sd, -)"
  say apptainer_mount_home "$(sed -n 's/^mount home *= *//p' "$conf" 2>/dev/null)"
fi
sif=${TP_PROBE_SIF:-}
if [ -n "$app" ] && [ -n "$sif" ]; then
  run=("$app" -q exec --cleanenv --contain --no-home)
  before=$(date +%s%N)
  said=$("${run[@]}" "$sif" /bin/sh -c 'ulimit -l' 2>"$out.err")
  code=$?
  say container_ms "$((($(date +%s%N) - before) / 1000000))"
  say container_code "$code"
  say container_memlock "$said"
  say container_said "$(tail -c 400 "$out.err")"
  if [ "$count" -gt 0 ]; then
    said=$("${run[@]}" --nv "$sif" /bin/sh -c 'ls /dev/nvidia[0-9]* | wc -l; nvidia-smi -L >/dev/null && echo usable' 2>"$out.err")
    say container_gpus "${said%%[!0-9]*}"
    case $said in *usable*) say container_nv yes ;; *) say container_nv "failed: $(tail -c 400 "$out.err")" ;; esac
  fi
  rm -f "$out.err"
fi

# Between nodes: a name is linked by exactly one of the contenders.
if [ "${TP_PROBE_NODES:-1}" -gt 1 ]; then
  mine=$folder/.contender.$host
  printf '%s\n' "$host" >"$mine"
  : >"$folder/ready.$host"
  for _ in $(seq 100); do
    set -- "$folder"/ready.*
    [ $# -ge "$TP_PROBE_NODES" ] && break
    sleep 0.1
  done
  say contenders $#
  won=0
  for round in $(seq "${TP_PROBE_ROUNDS:-40}"); do
    if ln "$mine" "$folder/round.$round" 2>/dev/null; then won=$((won + 1)); fi
  done
  say links_won "$won"
fi
sync "$out" 2>/dev/null
mv "$out" "$folder/$host.facts"
"""


@dataclass(frozen=True)
class Ask:
    """What the probe is to look at: the root, an Apptainer ("" = the one on PATH), an image ("" = none), how many
    nodes.
    """

    root: str
    apptainer: str = ""
    sif: str = ""
    nodes: int = 1

    def variables(self) -> dict[str, str]:
        return {
            "TP_PROBE_ROOT": self.root,
            "TP_PROBE_APPTAINER": self.apptainer,
            "TP_PROBE_SIF": self.sif,
            "TP_PROBE_NODES": str(self.nodes),
            "TP_PROBE_ROUNDS": str(ROUNDS),
        }


def parse_facts(text: str) -> dict[str, str]:
    """The report as a dict; lines of another shape are left out, control characters are dropped."""
    out: dict[str, str] = {}
    for line in text.splitlines():
        key, found, value = line.partition("=")
        if found and key.isidentifier():
            out[key] = "".join(c for c in value if c.isprintable()).strip()
    return out


def batch_script(ask: Ask, folder: str, srun: str) -> str:
    """The batch script that runs the probe once a node. `folder` holds probe.sh and gets the reports."""
    lines = ["#!/bin/bash", "set -u", "export LC_ALL=C PATH=/usr/local/bin:/usr/bin:/bin", "unset SLURM_EXPORT_ENV"]
    lines += [f"export {name}={shlex.quote(value)}" for name, value in sorted(ask.variables().items())]
    lines.append(f"printf 'batch_memlock=%s\\n' \"$(ulimit -l)\" >{shlex.quote(folder)}/batch.txt")
    step = [
        srun,
        f"--nodes={ask.nodes}",
        f"--ntasks={ask.nodes}",
        "--ntasks-per-node=1",
        "--cpus-per-task=1",
        "--mpi=none",
    ]
    lines.append(shlex.join([*step, "--export=ALL", "/bin/bash", f"{folder}/probe.sh", folder]))
    return "\n".join(lines) + "\n"


def contest_won(facts: Mapping[str, Mapping[str, str]]) -> tuple[int, int]:
    """(links won by all nodes together, contenders) of a probe on several nodes."""
    won = sum(int(f["links_won"]) for f in facts.values() if f.get("links_won", "").isdigit())
    return won, len(facts)
