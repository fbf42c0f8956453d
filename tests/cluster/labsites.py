"""Storage roots as their admin lays them out."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from lab import Lab, Person, publish_toy_recipes
from labcluster import Cluster
from tuneplane.contract.layout import StorageRoot

WORDS = "a,b 'c' \"d\" $HOME `e` #f; g=h\\ \u00e9"
"""Everything that a shell, sbatch's tokeniser or --export would have spoilt."""

SITE = """\
schema: tuneplane-hpc/site/v1
name: {name}
service_user: "{service}"
fleets:
  main: {{kind: slurm, bin_dir: /usr/bin, conf: {conf}}}
  moody: {{kind: slurm, bin_dir: {moody}, conf: {conf}}}
default_fleet: main
default_profile: one
profiles:
  one: {{nodes: 1, cpus: 1, memory_gb: 1, partition: calm}}
  two: {{nodes: 2, cpus: 1, memory_gb: 1, partition: calm}}
  cpu: {{nodes: 2, cpus: 2, memory_gb: 3, ranks_per_node: 1, partition: calm, env: {{OMP_NUM_THREADS: "1"}}}}
  ranks: {{nodes: 2, cpus: 2, memory_gb: 1, ranks_per_node: 2, partition: calm}}
  any: {{nodes: 1, cpus: 1, memory_gb: 1, env: {{LAB_WORDS: {words}}}}}
  h200: {{series: h200, nodes: 2, gpus_per_node: 2, cpus_per_gpu: 1, partition: calm, gpu_dialect: gres, gres_type: h200}}
  moody: {{fleet: moody, nodes: 1, cpus: 1, memory_gb: 1, partition: calm}}
  h200b: {{series: h200, nodes: 1, gpus_per_node: 4, cpus_per_gpu: 1, partition: calm, gpu_dialect: gpus-per-node, gres_type: h200}}
images: {{allowed_hosts: [images.example]}}
quota: {{gpus: 12, jobs: 100}}
slurm:
  defaults: {{time: "10"}}
  limits: {{time: "1:00:00"}}
  poll_interval_s: 1
  poll_max_s: 2
  signal_lead_s: 60
  command_timeout_s: 15
"""


@dataclass(frozen=True)
class Sites:
    """Lays out storage roots on the one cluster; all share the users' projects."""

    scratch: Path
    cluster: Cluster
    login: Path
    images: dict[str, Path]
    people: dict[str, Person]

    def new(
        self, name: str, *, runtimes: tuple[str, ...] = ("general-1",), service_user: str = "", users_group: str = ""
    ) -> Lab:
        """A site with its recipes, kernels, runtimes and both users."""
        lab = Lab(self.cluster, self.login, StorageRoot(self.scratch / name), self.scratch / "projects")
        words = ("--name", name, "--fleet", "slurm", "--slurm-conf", self.cluster.conf)
        words += ("--service-user", service_user) if service_user else ()
        words += ("--users-group", users_group) if users_group else ()
        lab.admin("site", "init", lab.root.path, *words)
        moody = self.scratch / "moody"
        text = SITE.format(
            name=name, conf=self.cluster.conf, moody=moody, words=json.dumps(WORDS), service=service_user
        )
        lab.root.site_file.write_text(text, "utf-8")
        publish_toy_recipes(lab.root)
        lab.admin("site", "check")
        lab.admin("site", "sync")
        for runtime in runtimes:
            lab.admin("runtime", "add", runtime, self.images[runtime])
        for user in ("tpalice", "tpbob"):
            lab.admin("site", "user", "add", user)
        return lab
