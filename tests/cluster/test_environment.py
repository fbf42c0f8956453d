"""Nothing of the place where a job was submitted reaches it: no outer allocation, no home, no secret; what the site says arrives byte for byte."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from lab import Lab, Person, Run
from labcluster import until
from labsites import WORDS

pytestmark = pytest.mark.cluster

SECRETS = {
    "HF_TOKEN": "hf_canaryAAAA1111",
    "WANDB_API_KEY": "canaryBBBB2222",
    "AWS_SECRET_ACCESS_KEY": "canaryCCCC3333",
    "MY_WORDS": "canaryDDDD,4444",
}
OUTER = {
    "SBATCH_ACCOUNT": "nosuch", "SBATCH_PARTITION": "short", "SBATCH_TIMELIMIT": "1", "SBATCH_EXPORT": "ALL", "SBATCH_JOB_NAME": "outer",
    "SLURM_CPU_BIND": "verbose,map_cpu:0", "SRUN_CPUS_PER_TASK": "7", "SBATCH_MEM_PER_CPU": "77", "PYTHONPATH": "/outer", "LD_PRELOAD": "",
}  # fmt: skip
LOOKS = """\
tr '\\0' '\\n' </proc/self/environ >"$TUNEPLANE_OUT_DIR/env.txt"
python3 - <<'END'
import json, os, site, sys
try:
    import poison
    poisoned = True
except ImportError:
    poisoned = False
out = {
    "path": sys.path, "user_site": site.ENABLE_USER_SITE, "poisoned": poisoned, "home": os.path.expanduser("~"), "environ": dict(os.environ),
    "homes": sorted(os.listdir("/home")) if os.path.isdir("/home") else [], "cwd": os.getcwd(), "cpus": len(os.sched_getaffinity(0)),
    "passwd_home": os.path.isdir(os.environ.get("LAB_HOME", "/nowhere")),
}
with open(os.path.join(os.environ["TUNEPLANE_OUT_DIR"], "looks.json"), "w") as stream:
    json.dump(out, stream)
END
"""


@pytest.fixture(scope="module")
def inside(lab: Lab, alice: Person) -> Run:
    """`tp submit` typed inside another job, with everything that could leak set there."""
    lab.experiments(alice, {"looks": LOOKS})
    poison = alice.home / ".local" / "lib" / "python3.13" / "site-packages"
    for folder in (alice.home / ".local", alice.home / ".local/lib", alice.home / ".local/lib/python3.13", poison):
        folder.mkdir(exist_ok=True)
    (poison / "poison.py").write_text("")
    (poison / "usercustomize.py").write_text("import poison\n")
    out = lab.project(alice).parent / "outer"
    out.mkdir(mode=0o777)
    out.chmod(0o777)
    script = out / "outer.sh"
    script.write_text(
        f"#!/bin/bash\ncd {lab.project(alice)}\nenv >{out}/env\ntp submit looks --profile any --json >{out}/said 2>{out}/err\necho $? >{out}/code\n"
    )
    words = ("--partition=calm", "--cpus-per-task=3", "--mem=700", f"--output={out}/log", str(script))
    # What steers sbatch itself is put in front of it only inside the outer job.
    inner = "".join(f"export {name}='{value}'\n" for name, value in OUTER.items())
    script.write_text(script.read_text().replace("#!/bin/bash\n", f"#!/bin/bash\n{inner}", 1))
    lab.slurm(alice, "sbatch", *words, env=SECRETS)
    until("the outer job has submitted", lambda: (out / "code").exists(), seconds=180)
    assert (out / "code").read_text() == "0\n", (out / "err").read_text()
    said = json.loads((out / "said").read_text())
    outer = dict(line.split("=", 1) for line in (out / "env").read_text().splitlines() if "=" in line)
    assert outer["SLURM_CPUS_PER_TASK"] == "3"
    assert outer["HF_TOKEN"] == SECRETS["HF_TOKEN"]
    from tuneplane.contract.layout import RunPaths

    run = Run(lab, RunPaths(Path(said["run_dir"])), said["job_id"])
    assert run.wait_end()["class"] == "done"
    return run


@pytest.fixture(scope="module")
def looks(inside: Run) -> dict[str, Any]:
    value = inside.read("attempts", "0", "out", "looks.json")
    assert isinstance(value, dict)
    return value


def test_p07_the_outer_allocation_is_not_inherited(lab: Lab, inside: Run) -> None:
    job = lab.cluster.job(inside.job_id)
    assert (job["Partition"], job["Account"], job["TimeLimit"], job["NumCPUs"]) == ("batch", "lab", "00:10:00", "1")
    assert (job["MinMemoryNode"], job["JobName"]) == ("1G", f"looks.{inside.id}.0")
    removed = inside.read("submissions", "0.json")["removed_environment"]
    assert {
        "SLURM_JOB_ID",
        "SLURM_CPUS_PER_TASK",
        "SLURM_MEM_PER_NODE",
        *(k for k in OUTER if k.startswith("S")),
    } <= set(removed)
    assert "HF_TOKEN" not in removed


def test_p07_p09_the_rank_has_the_documented_environment_and_nothing_else(inside: Run, looks: dict[str, Any]) -> None:
    env = looks["environ"]
    recorded = inside.read("attempts", "0", "env.json")
    bash = {"PWD", "OLDPWD", "SHLVL", "_"}
    assert {k: v for k, v in env.items() if k not in bash} == {k: v for k, v in recorded.items() if k not in bash}
    assert [k for k in env if k.startswith(("SLURM", "SBATCH", "SRUN", "TP_", "APPTAINER"))] == []
    assert env["RUN_USER"] == env["NRL_SUBMIT_USER"] == "tpalice"
    batch, step = (inside.paths.attempt(0).root / f"env-{layer}.sha256" for layer in ("batch", "step-0"))
    assert [len(p.read_text().strip()) for p in (batch, step)] == [64, 64]
    names = (inside.paths.attempt(0).root / "env-batch.names").read_text().split()
    assert [n for n in names if n.startswith(("SLURM", "TP_"))] == []


def test_p03_a_value_full_of_commas_and_quotes_arrives_byte_for_byte(looks: dict[str, Any]) -> None:
    assert looks["environ"]["LAB_WORDS"] == WORDS


def test_p54_the_home_of_the_user_is_not_there(alice: Person, inside: Run, looks: dict[str, Any]) -> None:
    assert (looks["poisoned"], looks["user_site"], looks["homes"]) == (False, False, [])
    assert looks["home"].startswith("/tmp/")
    assert [p for p in looks["path"] if str(alice.home) in p or ".local" in p] == []
    kernel = inside.read("work", ".tuneplane", "launch.json")["kernel"]["training"]
    assert looks["environ"]["PYTHONPATH"] == f"{kernel}:{inside.paths.work}"


def test_p64_hubs_are_offline(looks: dict[str, Any]) -> None:
    offline = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE")
    assert [looks["environ"][name] for name in offline] == ["1", "1", "1"]


def test_no_secret_of_the_submitting_shell_is_anywhere_below_the_run(lab: Lab, inside: Run) -> None:
    canaries = [value.encode() for value in SECRETS.values()]
    seen = 0
    for top in (inside.paths.root, lab.root.user_state("tpalice")):
        for folder, _, names in os.walk(top):
            for name in names:
                data = Path(folder, name).read_bytes()
                assert [c for c in canaries if c in data] == [], f"{folder}/{name}"
                seen += 1
    assert seen > 25
    until("accounting has the script", lambda: inside.id in stored(lab, inside, "-B"))
    said = (
        lab.cluster.tool("scontrol", "-dd", "show", "job", inside.job_id)
        + stored(lab, inside, "-B")
        + stored(lab, inside, "--env-vars")
    )
    assert f"#SBATCH --job-name=looks.{inside.id}.0" in said
    assert [c for c in SECRETS.values() if c in said] == []


def stored(lab: Lab, run: Run, what: str) -> str:
    """The script or the environment that accounting keeps of a job."""
    return lab.cluster.tool("sacct", "-j", run.job_id, what)
