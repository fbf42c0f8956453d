"""Every path below a storage root, in one place. Pure path algebra: nothing here touches the disk.

<root>/site/ registry/ runs/<owner>/<exp>/<run_id>/ admitted/ cache/ state/<user>/
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

SEGMENT = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
VOLUMES = "/tuneplane/volumes"
"""Where volumes are mounted in a job's container: `$VOLUMES_DIR`."""
RUN_ID = re.compile(r"^run-[0-9a-f]{4,32}$")


@dataclass(frozen=True)
class AttemptPaths:
    """One execution of a run: `attempts/<n>/`."""

    root: Path

    @property
    def number(self) -> int:
        return int(self.root.name)

    @property
    def out(self) -> Path:
        return self.root / "out"

    @property
    def logs(self) -> Path:
        """`rank-<r>.log` a rank, `node-<k>.log` a node's launcher, `batch.log` the batch script."""
        return self.root / "logs"

    @property
    def claim(self) -> Path:
        """Created exclusively by the job that owns this attempt: `<job id> <restart count> <nonce>`."""
        return self.root / "claim"

    @property
    def start(self) -> Path:
        """start.json, by the batch step's first launcher."""
        return self.root / "start.json"

    @property
    def end(self) -> Path:
        """end.json, by the last writer that knows how the attempt ended."""
        return self.root / "end.json"

    @property
    def requeue(self) -> Path:
        """requeue.json, by the launcher after every rank has saved."""
        return self.root / "requeue.json"

    @property
    def output(self) -> Path:
        """output.json: what became of the data set that a successful attempt was to publish."""
        return self.root / "output.json"

    @property
    def continuity(self) -> Path:
        """out/continuity.json: what a resumed attempt holds, compared with what was saved; by its first rank."""
        return self.out / "continuity.json"

    @property
    def saves(self) -> Path:
        """out/saves.jsonl: a line a save."""
        return self.out / "saves.jsonl"

    @property
    def rendezvous(self) -> Path:
        return self.root / "rendezvous.json"

    @property
    def nodes(self) -> Path:
        """`<k>.start.json` and `<k>.end.json` for each node's launcher."""
        return self.root / "nodes"

    @property
    def env(self) -> Path:
        """The job's documented environment as JSON, mode 0600."""
        return self.root / "env.json"

    def rank_log(self, rank: int) -> Path:
        return self.logs / f"rank-{rank:05d}.log"


@dataclass(frozen=True)
class RunPaths:
    """One run: `<root>/runs/<owner>/<exp>/<run_id>/`."""

    root: Path

    @property
    def run_id(self) -> str:
        return self.root.name

    @property
    def exp(self) -> str:
        return self.root.parent.name

    @property
    def owner(self) -> str:
        return self.root.parent.parent.name

    @property
    def work(self) -> Path:
        """The job package."""
        return self.root / "work"

    @property
    def jobspec(self) -> Path:
        return self.work / ".tuneplane" / "jobspec.json"

    @property
    def package(self) -> Path:
        """package.json: the list of every file of the package but itself."""
        return self.work / ".tuneplane" / "package.json"

    @property
    def recipe(self) -> Path:
        """recipe.json: the resolved recipe manifest."""
        return self.work / ".tuneplane" / "recipe.json"

    @property
    def variants(self) -> Path:
        """variants.json: the table of a sweep; other packages have none."""
        return self.work / ".tuneplane" / "variants.json"

    @property
    def launch(self) -> Path:
        """launch.json: runtime, shape, profile environment, resolved hyperparameters, policies."""
        return self.work / ".tuneplane" / "launch.json"

    @property
    def admission(self) -> Path:
        return self.root / "admission.json"

    @property
    def batch(self) -> Path:
        """Frozen scripts: `<n>.sh` for the submission whose first attempt is n."""
        return self.root / "batch"

    @property
    def submissions(self) -> Path:
        """`<n>.json`: one record a submission (job id, nonce, times)."""
        return self.root / "submissions"

    @property
    def attempts(self) -> Path:
        return self.root / "attempts"

    def attempt(self, number: int) -> AttemptPaths:
        return AttemptPaths(self.attempts / str(number))

    @property
    def array(self) -> Path:
        """`<index>/` for each element of an array: attempts, checkpoints, events and report of its own."""
        return self.root / "array"

    def element(self, index: int) -> RunPaths:
        """One element of an array. Its folder names no run: run id, experiment and owner are the run's."""
        return RunPaths(self.array / str(index))

    @property
    def checkpoints(self) -> Path:
        """Shared by all attempts of the run."""
        return self.root / "checkpoints"

    @property
    def evaluations(self) -> Path:
        """`<job>_<index>` for each evaluation of a checkpoint that the batch script released or cancelled."""
        return self.root / "evaluations"

    @property
    def rungs(self) -> Path:
        """`<step>.json` for each rung of early stopping that an element of a sweep has reached."""
        return self.root / "rungs"

    @property
    def events(self) -> Path:
        return self.root / "events"

    @property
    def report(self) -> Path:
        return self.root / "report.json"


@dataclass(frozen=True)
class StorageRoot:
    """The storage root and everything below it, by name."""

    path: Path

    @property
    def site(self) -> Path:
        return self.path / "site"

    @property
    def site_file(self) -> Path:
        return self.site / "site.yaml"

    @property
    def templates(self) -> Path:
        return self.site / "sbatch_templates"

    @property
    def runtimes_file(self) -> Path:
        return self.site / "runtimes.yaml"

    @property
    def images(self) -> Path:
        """SIF files that `tp runtime add --copy` and `tp runtime build` put here."""
        return self.site / "images"

    @property
    def kernels(self) -> Path:
        return self.site / "kernels"

    @property
    def keys(self) -> Path:
        return self.site / "keys"

    @property
    def registry(self) -> Path:
        return self.path / "registry"

    @property
    def recipes(self) -> Path:
        return self.registry / "recipes"

    @property
    def activation(self) -> Path:
        return self.registry / "activation"

    @property
    def seals(self) -> Path:
        return self.registry / "seals"

    @property
    def index(self) -> Path:
        return self.registry / "index"

    @property
    def log(self) -> Path:
        """The witnessed log: signed checkpoint, tiles and entries as plain files."""
        return self.registry / "log"

    def shelf(self, kind: str) -> Path:
        """A registry shelf whose sub-folders are owners: plugins, datasets, volumes, models, environments."""
        return self.registry / kind

    @property
    def runs(self) -> Path:
        return self.path / "runs"

    @property
    def admitted(self) -> Path:
        """Copies of packages that the service uid verified and signed: `admitted/<run_id>/`."""
        return self.path / "admitted"

    @property
    def cache(self) -> Path:
        return self.path / "cache"

    @property
    def state(self) -> Path:
        return self.path / "state"

    def user_state(self, user: str) -> Path:
        return self.state / user

    def owner_runs(self, owner: str) -> Path:
        return self.runs / owner

    def run(self, owner: str, exp: str, run_id: str) -> RunPaths:
        return RunPaths(self.runs / owner / exp / run_id)
