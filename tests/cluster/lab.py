"""A site as its users meet it: a login node's installation, a storage root, ordinary users who type `tp`, and their runs."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from labcluster import PATH, Cluster, until
from tuneplane.contract.layout import RunPaths, StorageRoot

REPO = Path(__file__).resolve().parents[2]
PARTS = ("pyproject.toml", "setup.cfg", "README.md", "LICENSE", "hpc", "recipes", "sbatch_templates", "containers")


def shared_dependencies() -> tuple[str, Path]:
    """The text of the .pth file that leads to the shared dependencies, and the Python beside them, which has pip."""
    site = next(p for p in map(Path, sys.path) if (p / "_deps.pth").is_file())
    text = (site / "_deps.pth").read_text("utf-8")
    return text, Path(text.split("'")[1]).parents[2] / "bin" / "python"


def install_login(folder: Path) -> Path:
    """The `bin` folder of an installation that every user can execute: a wheel of this checkout, beside the shared dependencies."""
    dependencies, python = shared_dependencies()
    source = folder / "source"
    source.mkdir(mode=0o755)
    for part in PARTS:
        if (REPO / part).is_dir():
            shutil.copytree(REPO / part, source / part, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        else:
            shutil.copy(REPO / part, source / part)
    venv = folder / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    (next(venv.glob("lib/python3*/site-packages")) / "_deps.pth").write_text(dependencies, "utf-8")
    pip = [python, "-m", "pip", "-q", "--python", venv / "bin" / "python"]
    done = subprocess.run(
        [*pip, "install", "--no-deps", "--no-build-isolation", source], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    shutil.rmtree(source)
    return venv / "bin"


@dataclass(frozen=True)
class Person:
    """One Unix account."""

    name: str
    uid: int
    gid: int
    home: Path

    @classmethod
    def of(cls, name: str) -> Person:
        entry = pwd.getpwnam(name)
        return cls(name, entry.pw_uid, entry.pw_gid, Path(entry.pw_dir))


ROOT = Person("root", 0, 0, Path("/root"))


def publish_toy_recipes(root: StorageRoot) -> None:
    """toy/ranks and toy/curve, put on the shelf by the site's admin with nothing but cp."""
    for name in ("ranks", "curve"):
        shutil.copytree(
            Path(__file__).with_name(f"toy-{name}"),
            root.recipes / "toy" / name,
            ignore=shutil.ignore_patterns("__pycache__"),
        )


MOODY = """\
#!/bin/bash
# An sbatch that takes the job, says so between a banner, and then hangs for longer than anybody waits.
echo '=== welcome to the cluster, job 4711 of today ==='
/usr/bin/sbatch "$@" >/dev/null
sleep 60
"""


def moody_slurm(folder: Path) -> None:
    """Slurm's commands as some sites wrap them."""
    folder.mkdir(mode=0o755)
    for name in ("squeue", "sacct", "scancel", "scontrol", "srun", "sinfo"):
        (folder / name).symlink_to(f"/usr/bin/{name}")
    (folder / "sbatch").write_text(MOODY, "utf-8")
    (folder / "sbatch").chmod(0o755)


@dataclass(frozen=True)
class Done:
    """A command that ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def codes(self) -> list[str]:
        """Error codes of a refusal that was printed with --json."""
        return [e["code"] for e in self.json["errors"]]


@dataclass
class Lab:
    """One storage root with its users on one cluster. `tp` types a command as one of them."""

    cluster: Cluster = field(repr=False)
    bin: Path
    root: StorageRoot
    projects: Path
    variables: dict[str, str] = field(default_factory=dict)

    def environment(self, who: Person) -> dict[str, str]:
        """What a fresh login gives, and no more."""
        return {
            "HOME": str(who.home), "USER": who.name, "LOGNAME": who.name, "SHELL": "/bin/bash", "LANG": "C.UTF-8",
            "PATH": f"{self.bin}:{PATH}", "TUNEPLANE_STORAGE_ROOT": str(self.root.path), "GIT_AUTHOR_NAME": who.name,
            "GIT_AUTHOR_EMAIL": "a@example.invalid", "GIT_COMMITTER_NAME": who.name, "GIT_COMMITTER_EMAIL": "a@example.invalid",
        } | self.variables  # fmt: skip

    def project(self, who: Person) -> Path:
        return self.projects / who.name

    def start(
        self, who: Person, *argv: str | Path, cwd: Path | None = None, env: dict[str, str] | None = None
    ) -> subprocess.Popen[str]:
        """Start a command as that user, in their project; `env` is added to the environment of a login."""
        return subprocess.Popen(
            [str(a) for a in argv], env=self.environment(who) | (env or {}), cwd=cwd or self.project(who), user=who.uid, group=who.gid,
            extra_groups=os.getgrouplist(who.name, who.gid), umask=0o022, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip

    def as_user(
        self,
        who: Person,
        *argv: str | Path,
        cwd: Path | None = None,
        env: dict[str, str] | None = None,
        code: int | None = 0,
        seconds: float = 180,
    ) -> Done:
        """Run a command as that user. It must end with `code`; None takes any."""
        process = self.start(who, *argv, cwd=cwd, env=env)
        out, err = process.communicate(timeout=seconds)
        if code is not None and process.returncode != code:
            raise AssertionError(
                f"{who.name}: {' '.join(map(str, argv))}\nended with {process.returncode}, not {code}\n{out}\n{err}"
            )
        return Done(process.returncode, out, err)

    def tp(self, who: Person, *words: str | Path, **how: Any) -> Done:
        return self.as_user(who, "tp", *words, **how)

    def admin(self, *words: str | Path, **how: Any) -> Done:
        """`tp` as root, from nowhere in particular."""
        return self.as_user(ROOT, "tp", *words, cwd=self.bin, **how)

    def sh(self, who: Person, script: str, **how: Any) -> Done:
        return self.as_user(who, "/bin/bash", "-c", script, **how)

    def slurm(self, who: Person, *words: str | Path, **how: Any) -> Done:
        """One of Slurm's own commands, as the user types it on a login node."""
        return self.as_user(who, *words, env={"SLURM_CONF": self.cluster.conf, **how.pop("env", {})}, **how)

    def new_project(self, who: Person) -> None:
        self.project(who).mkdir(mode=0o755)
        os.chown(self.project(who), who.uid, who.gid)
        self.tp(who, "init", ".", "--name", f"of-{who.name}")
        self.tp(who, "new", "own", "--method", "custom/custom")
        self.tp(who, "new", "sums", "--method", "deepspeed/sft")
        self.tp(who, "new", "toy", "--method", "toy/ranks")
        self.sh(who, "git add -A && git commit -q -m 'Three experiments'")

    def experiments(self, who: Person, scripts: dict[str, str]) -> None:
        """A custom experiment for each train.sh, all in one commit. What is there already is replaced."""
        for name, text in scripts.items():
            script = self.project(who) / "experiments" / name / "train.sh"
            if not script.parent.exists():
                self.tp(who, "new", name, "--from", "own")
            script.write_text(f"#!/bin/bash\nset -u\n{text}\n", "utf-8")
        self.sh(who, "git add -A && { git diff --cached --quiet || git commit -q -m 'Their train.sh'; }")

    def submit(self, who: Person, exp: str, *flags: str, **how: Any) -> Run:
        """`tp submit EXP …` as the user types it."""
        said = self.tp(who, "submit", exp, *flags, "--json", **how).json
        return Run(self, RunPaths(Path(said["run_dir"])), said["job_id"])

    def runs(self, who: Person, exp: str) -> list[str]:
        """Names in the folder of an experiment's runs, hidden ones too."""
        folder = self.root.owner_runs(who.name) / exp
        return sorted(os.listdir(folder)) if folder.is_dir() else []


@dataclass
class Run:
    """A submitted run: its paths, its first job, and what it left."""

    lab: Lab = field(repr=False)
    paths: RunPaths
    job_id: str

    @property
    def id(self) -> str:
        return self.paths.run_id

    def read(self, *parts: str) -> Any:
        """A JSON record of the run, or None."""
        try:
            return json.loads(self.paths.root.joinpath(*parts).read_text("utf-8"))
        except (OSError, ValueError):
            return None

    def end(self, attempt: int) -> Any:
        return self.read("attempts", str(attempt), "end.json")

    def attempts(self) -> list[int]:
        return sorted(int(n) for n in os.listdir(self.paths.attempts))

    def log(self, rank: int, attempt: int = 0) -> list[str]:
        """Lines of a rank's log without their times."""
        try:
            text = self.paths.attempt(attempt).rank_log(rank).read_text("utf-8")
        except FileNotFoundError:
            return []
        return [line.partition(" ")[2] for line in text.splitlines()]

    def batch_log(self) -> str:
        return "".join(p.read_text("utf-8") for p in sorted(self.paths.batch.glob("*.log")))

    def steps(self, attempt: int = 0) -> int:
        """How many steps the attempt has reported."""
        try:
            return len((self.paths.attempt(attempt).out / "metrics.jsonl").read_bytes().splitlines())
        except FileNotFoundError:
            return 0

    def wait_attempt(self, attempt: int, *, seconds: float = 240) -> dict[str, Any]:
        """Wait for the end of one attempt and return its record."""

        def look() -> Any:
            return self.end(attempt)

        try:
            found = until(f"end of attempt {attempt} of {self.id}", look, seconds=seconds)
        except AssertionError as exc:
            raise AssertionError(f"{exc}\n{self.story()}") from None
        assert isinstance(found, dict)
        return found

    def wait_end(self, *, seconds: float = 240) -> dict[str, Any]:
        """Wait until an attempt has ended that does not run again, and Slurm is through with the job; its end record."""

        def look() -> Any:
            numbers = self.attempts()
            end = self.end(numbers[-1]) if numbers else None
            over = self.lab.cluster.job_state(self.job_id) not in (
                "PENDING",
                "RUNNING",
                "COMPLETING",
                "CONFIGURING",
                "SUSPENDED",
            )
            return over and end is not None and not end["requeue"] and end

        try:
            found = until(f"end of {self.id}", look, seconds=seconds)
        except AssertionError as exc:
            raise AssertionError(f"{exc}\n{self.story()}") from None
        assert isinstance(found, dict)
        return found

    def wait_line(self, line: str, *, rank: int = 0, attempt: int = 0, seconds: float = 120) -> None:
        """Wait until a rank has printed a line."""
        try:
            until(f"{line!r} of rank {rank} of {self.id}", lambda: line in self.log(rank, attempt), seconds=seconds)
        except AssertionError as exc:
            raise AssertionError(f"{exc}\n{self.story()}") from None

    def story(self) -> str:
        """Everything that tells why a run is not where it should be."""
        lines = [f"job {self.job_id}: {self.lab.cluster.job(self.job_id)}", self.batch_log()]
        for number in self.attempts():
            logs = sorted(self.paths.attempt(number).logs.glob("*.log"))
            lines += [
                f"attempt {number}: {self.end(number)}",
                *(f"{p.name}: {p.read_text('utf-8', 'replace')[-1500:]}" for p in logs),
            ]
        return "\n".join(lines)
