"""What is measured on: storage roots, projects and a Slurm of our own, in a scratch folder that goes away."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from timing import Environment

HERE = Path(__file__).resolve().parent
REPO = HERE.parents[1]
PYTHON = sys.executable
TP = str(Path(sys.executable).parent / "tp")
CLUSTER = REPO / "tests/cluster/slurm-cluster"
GIT = {f"GIT_{who}_{what}": "bench@example.invalid" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
sys.path[:0] = [str(REPO / "tests/sif"), str(REPO / "tests/faults")]


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder of our own; packages in it are read-only and are removed all the same."""
    folder = Path(tempfile.mkdtemp(prefix="tp-bench-"))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        for parent, _, _ in os.walk(folder):
            os.chmod(parent, 0o700)
        shutil.rmtree(folder, ignore_errors=True)


def environment(folder: Path) -> Environment:
    """What measured processes see: nothing of the caller's but PATH. Byte code is kept, as an installed tool has it."""
    return {
        "PATH": f"{Path(PYTHON).parent}:{os.environ.get('PATH', '/usr/bin:/bin')}",
        "HOME": str(folder),
        "LC_ALL": "C.UTF-8",
        "PYTHONPYCACHEPREFIX": str(folder / "pycache"),
        **GIT,
    }


@contextmanager
def cluster(folder: Path) -> Iterator[str]:
    """A one-node Slurm without accounting; its slurm.conf."""
    env = {
        **os.environ,
        "SLURM_CLUSTER_DIR": str(folder / "slurm"),
        "SLURM_CLUSTER_NODES": "1",
        "SLURM_CLUSTER_GPUS": "0",
        "SLURM_CLUSTER_ACCOUNTING": "0",
        "SLURM_CLUSTER_PORT": os.environ.get("SLURM_CLUSTER_PORT", "21817"),
        "SLURM_CLUSTER_PREFIX": os.environ.get("SLURM_CLUSTER_PREFIX", "b"),
    }
    started = subprocess.run([CLUSTER, "up"], env=env, capture_output=True, text=True, check=False)
    try:
        if started.returncode:
            raise SystemExit(f"bench: the test cluster does not start (it needs root)\n{started.stderr}")
        yield started.stdout.strip().rpartition("=")[2]
    finally:
        subprocess.run([CLUSTER, "down"], env=env, capture_output=True, check=False)


class Place:
    """One storage root with its project."""

    def __init__(self, folder: Path, env: Environment, **more: str) -> None:
        folder.mkdir()
        self.folder, self.storage, self.project = folder, folder / "storage", folder / "project"
        self.env = {**env, "TUNEPLANE_STORAGE_ROOT": str(self.storage), **more}

    def run(self, *words: str) -> str:
        cwd = self.project if self.project.exists() else self.folder
        done = subprocess.run(words, env=self.env, cwd=cwd, text=True, capture_output=True, check=False)
        if done.returncode:
            raise SystemExit(f"bench: {' '.join(words)} ended with {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout

    def tp(self, *words: str) -> str:
        return self.run(TP, *words)

    def site(self, *words: str, before: str = "", after: str = "") -> None:
        """Lay out the root; `before` in the site file becomes `after`."""
        self.tp("site", "init", str(self.storage), "--name", "bench", *words)
        path = self.storage / "site/site.yaml"
        content = path.read_text(encoding="utf-8")
        if before not in content:
            raise SystemExit(f"bench: the site file has no {before!r}")
        path.write_text(content.replace(before, after), encoding="utf-8")

    def experiment(self, name: str, method: str, files: int = 0) -> None:
        """A project with one experiment of `files` files, committed."""
        self.tp("init", str(self.project), "--name", "bench")
        self.tp("new", name, "--method", method)
        folder = self.project / "experiments" / name
        have = sum(1 for path in folder.rglob("*") if path.is_file())
        for number in range(max(0, files - have)):
            part = folder / f"data/{number // 20:02d}/part-{number:03d}.jsonl"
            part.parent.mkdir(parents=True, exist_ok=True)
            rows = ({"prompt": f"{number} + {n}", "completion": str(number + n)} for n in range(100))
            part.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        self.commit()

    def commit(self) -> None:
        self.run("git", "add", "-A")
        self.run("git", "commit", "-q", "--allow-empty", "-m", "bench")


def slurm_place(folder: Path, env: Environment, conf: str, *, bin_dir: str = "/usr/bin") -> Place:
    """A root whose fleet is that Slurm, a small registered image, a model, data, and an experiment of 200 files."""
    from sifs import small_sif

    place = Place(folder, env, SLURM_CONF=conf)
    # Long poll intervals: what is measured is the index, and the one refresh is measured by itself.
    place.site(
        *("--fleet", "slurm", "--bin-dir", bin_dir, "--slurm-conf", conf),
        before="  poll_interval_s: 30\n  poll_max_s: 180\n", after="  poll_interval_s: 3600\n  poll_max_s: 3600\n",
    )  # fmt: skip
    small_sif(folder / "image.sif")
    place.tp("runtime", "add", "deepspeed-0.19.8", str(folder / "image.sif"), "--copy")
    model = folder / "model"
    model.mkdir()
    (model / "config.json").write_text("{}", encoding="ascii")
    (model / "model.safetensors").write_bytes(os.urandom(4 << 20))
    (folder / "train.jsonl").write_text('{"prompt": "1 + 1", "completion": "2"}\n' * 1000, encoding="ascii")
    place.experiment("big", "deepspeed/sft", files=200)
    return place


def submit_words(place: Place, label: str) -> list[str]:
    """`tp submit` of the 200 files; the label makes it another spec than the one before. The job waits for an hour."""
    inputs = ["--model", str(place.folder / "model"), "--train-data", str(place.folder / "train.jsonl")]
    return [
        "submit",
        "big",
        "--profile",
        "cpu",
        "--time",
        "30",
        "--begin",
        "now+1hour",
        *inputs,
        "--label",
        f"n={label}",
    ]
