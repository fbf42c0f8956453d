"""The commented site file that `tp site init` writes: every key, with its default or a value that works at once."""

from __future__ import annotations

import json
from typing import Final

import tuneplane

FLEETS: Final = {
    "local": """\
  # This machine itself: no Slurm, the embedded default.
  local: {kind: local}
""",
    "slurm": """\
  # kind: slurm or local. bin_dir: folder of Slurm's commands. conf: SLURM_CONF for them ("" = Slurm's own default).
  # cluster: name for -M, only on sites with several.
  main: {kind: slurm, bin_dir: @BIN_DIR@, conf: @CONF@, cluster: ""}
""",
}

TEMPLATE: Final = """\
# The site file of this storage root. Only admins write it; everybody reads it, so it holds no secret.
# Every key but `schema` and `name` may be left out and then has the value shown here (tables: empty).
# After an edit: `tp site check`. Every key is explained in docs/site-file.md.
schema: tuneplane-hpc/site/v1

# What people call this site.
name: @NAME@

# Unix group whose members are admins ("" = only root and the owner of site/).
admin_group: @ADMIN_GROUP@
# Account that owns seals, index, cache and admitted packages ("" = the admin).
service_user: @SERVICE_USER@

# Versions of tp that may be used here ("" = any; 0.4 means every 0.4.x).
tp_min: @TP_MIN@
tp_max: ""

# Where jobs run. A profile names its fleet; default_fleet is for those that name none.
default_fleet: @FLEET@
fleets:
@FLEETS@
# Shapes that users ask for with `--profile NAME` or `--profile NAME:GPUS`.
# With GPUs: series, nodes, gpus_per_node. CPU-only: cpus and memory_gb (in GiB) a node, and ranks_per_node.
# gpu_dialect: gres (--gres=gpu:TYPE:N) or gpus-per-node. env: variables of the job. overrides: framework settings.
default_profile: cpu
profiles:
  cpu: {nodes: 1, cpus: 2, memory_gb: 4, ranks_per_node: 2}
  # h200:
  #   series: h200
  #   nodes: 1
  #   gpus_per_node: 8
  #   cpus_per_gpu: 12
  #   partition: gpu
  #   gpu_dialect: gres
  #   gres_type: h200
  #   env: {NCCL_NVLS_ENABLE: "1"}

# Registry hosts that `--image` may name. The image must also be registered as a SIF (`tp runtime add`).
images:
  allowed_hosts: []

# What each user may have queued and running at once; users: exceptions, such as alice: {gpus: 32}.
quota:
  gpus: 16
  jobs: 100
  users: {}

slurm:
  # Batch options where the user states none: time, partition, account, qos, constraint, mail_type, ...
  defaults: {time: "1:00:00"}
  # What a submission may ask for at most. "", 0 and [] are no limit here; Slurm's own limits hold beside these.
  limits: {time: "7-00:00:00", nodes: 0, partitions: [], accounts: []}
  # One query for all of a user's jobs, at most every poll_interval_s seconds, growing to poll_max_s.
  poll_interval_s: 30
  poll_max_s: 180
  # Seconds between the warning and the time limit, in which a job saves and asks to be requeued.
  signal_lead_s: 120
  # Deadline of each Slurm command in seconds.
  command_timeout_s: 30
  # Seconds that the ranks of our own training bear a silent peer, and without a sign of progress at the start and in a save: more for slow storage.
  peer_timeout_s: 300
  start_timeout_s: 1800
  save_timeout_s: 1800

# Exact names, as `ip link` and `ibv_devices` show them. Empty lists leave the choice to NCCL and Gloo.
network:
  nccl_interfaces: []
  gloo_interfaces: []
  hcas: []

# What is checked when a job starts: full (SHA-256 of the SIF) or stat (size, mtime and admin owner).
runtimes:
  verify: full

# advisory: the user's own uid checks. enforced: service_user checks, copies and signs; needs public_key.
admission:
  mode: advisory
  public_key: ""

packages:
  max_mb: 64

# Further folders that jobs see read-only, such as /apps/data.
binds: []
"""


def starter(
    *,
    name: str,
    admin_group: str = "",
    service_user: str = "",
    fleet: str = "local",
    bin_dir: str = "/usr/bin",
    conf: str = "",
    version: str = tuneplane.__version__,
) -> str:
    """The text of a first site file.

    `fleet` is `local` or `slurm`; the values are taken as they are and checked on reading.
    """
    values = {
        "NAME": name,
        "ADMIN_GROUP": admin_group,
        "SERVICE_USER": service_user,
        "TP_MIN": version,
        "FLEET": {"local": "local", "slurm": "main"}[fleet],
        "BIN_DIR": bin_dir,
        "CONF": conf,
    }
    text = TEMPLATE.replace("@FLEETS@\n", FLEETS[fleet])
    for key, value in values.items():
        # A JSON string is a YAML string, whatever it holds.
        text = text.replace(f"@{key}@", json.dumps(value, ensure_ascii=False))
    return text
