"""From the start of a job to the end of its first step: `tp submit` of deepspeed/sft against a bare torchrun script in the same image."""

from __future__ import annotations

import json
import os
import time
from datetime import datetime
from pathlib import Path

from report import Figure, ratio
from scene import PYTHON, Place
from timing import Environment, in_turn

ROUNDS, RANKS, PATIENCE_S = 4, 2, 300
SETTINGS = {"max_steps": 1, "micro_batch_size": 4, "max_length": 128, "zero_stage": 2, "lora_rank": 0}
PEER = f"""\
import json, os, sys, time
import torch, deepspeed, deepspeed.ops
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # it would be compiled, and the image has no compiler
from transformers import AutoModelForCausalLM, AutoTokenizer

rank = int(os.environ["RANK"])
torch.set_num_threads(1)
deepspeed.init_distributed("gloo", auto_mpi_discovery=False)
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
rows = [json.loads(line)["messages"] for line in open(sys.argv[2])]
mine = rows[rank * {SETTINGS["micro_batch_size"]} : (rank + 1) * {SETTINGS["micro_batch_size"]}]
batch = tokenizer([tokenizer.apply_chat_template(m, tokenize=False) for m in mine], return_tensors="pt", padding=True)
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32)
config = {{
    "train_micro_batch_size_per_gpu": {SETTINGS["micro_batch_size"]}, "zero_optimization": {{"stage": {SETTINGS["zero_stage"]}}},
    "zero_allow_untested_optimizer": True,
}}
engine, *_ = deepspeed.initialize(model=model, optimizer=torch.optim.AdamW(model.parameters(), lr=1e-4), config=config)
engine.backward(engine(**batch, labels=batch["input_ids"]).loss)
engine.step()
if rank == 0:
    print("first step", time.time(), flush=True)
os._exit(0)
"""
SCRIPT = """\
#!/bin/bash
#SBATCH --job-name=bare --nodes=1 --ntasks=1 --cpus-per-task=2 --output={log}
echo begin $(date +%s.%N)
srun --ntasks=1 apptainer -s exec --cleanenv --contain --no-home --mount type=bind,src={folder},dst={folder} \\
  --env OMP_NUM_THREADS=1,DS_ACCELERATOR=cpu,HF_HUB_OFFLINE=1 {image} \\
  python3 -m torch.distributed.run --nproc-per-node={ranks} {folder}/peer.py {model} {rows}
"""


def _image() -> Path:
    cache = Path(os.environ.get("TP_BUILD_CACHE") or "/var/cache/tuneplane-hpc")
    if not (found := cache / "training.sif").is_file():
        raise SystemExit(f"bench: {found} is missing: run `make setup` as root")
    return found.resolve()


def lay_out(folder: Path, env: Environment, conf: str) -> Place:
    """A root on that Slurm with the training image, a tiny model and small rows."""
    place = Place(folder, env, SLURM_CONF=conf)
    place.site("--fleet", "slurm", "--bin-dir", "/usr/bin", "--slurm-conf", conf)
    site = place.storage / "site/site.yaml"
    lines = site.read_text("utf-8").splitlines()
    (at,) = (n for n, line in enumerate(lines) if line.startswith("  cpu: {"))
    lines[at] = f"  cpu: {{nodes: 1, cpus: 2, memory_gb: 6, ranks_per_node: {RANKS}, partition: batch}}"
    site.write_text("\n".join(lines) + "\n", "utf-8")
    place.tp("runtime", "add", "deepspeed-0.19.8", str(_image()), "--copy")
    place.run(PYTHON, "-m", "tuneplane.training.tiny", str(folder / "model"))
    place.run(PYTHON, "-m", "tuneplane.training.sums", str(folder / "sums.jsonl"), "--rows", "256", "--seed", "7")
    place.experiment("sums", "deepspeed/sft")
    (folder / "peer.py").write_text(PEER, "utf-8")
    return place


def _until(what: str, path: Path, word: str) -> str:
    """The first line of a file that holds `word`."""
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        lines = path.read_text("utf-8").splitlines() if path.exists() else []
        if found := next((line for line in lines if word in line), ""):
            return found
        time.sleep(0.1)
    raise SystemExit(f"bench: {what} did not come within {PATIENCE_S} s\n" + "\n".join(lines[-20:]))


def _alone(place: Place) -> None:
    """Wait until the one node has nothing to do."""
    end = time.monotonic() + PATIENCE_S
    while place.run("squeue", "-h", "--me", "-o", "%A"):
        if time.monotonic() > end:
            raise SystemExit(f"bench: the job did not end within {PATIENCE_S} s")
        time.sleep(0.2)


def ours(place: Place, n: int) -> float:
    """Milliseconds from the claim, which the batch script writes first, to the line of metrics of step 1."""
    words = [
        "--profile",
        "cpu",
        "--time",
        "10",
        "--model",
        str(place.folder / "model"),
        "--train-data",
        str(place.folder / "sums.jsonl"),
    ]
    words += [word for name, value in SETTINGS.items() for word in ("--set", f"{name}={value}")]
    said = json.loads(place.tp("submit", "sums", *words, "--label", f"n={n}", "--json"))
    attempt = Path(said["run_dir"]) / "attempts/0"
    line = json.loads(_until("our first step", attempt / "out/metrics.jsonl", '"total_steps":1}'))
    _alone(place)
    begin = (attempt / "claim").stat().st_mtime
    return (datetime.fromisoformat(line["time"].replace("Z", "+00:00")).timestamp() - begin) * 1000


def bare(place: Place, n: int) -> float:
    """The same of the peer, by its own clock on the same machine."""
    folder = place.folder
    log, script = folder / f"bare-{n}.log", folder / f"bare-{n}.sh"
    made = SCRIPT.format(
        log=log, folder=folder, image=_image(), ranks=RANKS, model=folder / "model", rows=folder / "sums.jsonl"
    )
    script.write_text(made, "utf-8")
    place.run("sbatch", str(script))
    end = float(_until("the peer's first step", log, "first step").split()[-1])
    begin = float(_until("the peer's begin", log, "begin").split()[-1])
    _alone(place)
    return (end - begin) * 1000


def starts(folder: Path, env: Environment, conf: str) -> list[Figure]:
    """Pairs in turn, each job alone on the one node."""
    place = lay_out(folder / "start", env, conf)
    mine, theirs = in_turn(ROUNDS, lambda n: ours(place, n), lambda n: bare(place, n))
    return [
        ratio(
            f"start of a job to its first step, deepspeed/sft, {RANKS} ranks",
            mine,
            theirs,
            "torchrun in the same image",
            1.3,
        )
    ]
