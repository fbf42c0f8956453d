"""Speed and memory, as ratios in one run: `python tests/benchmarks/run.py [--write] [--large] [MEASURE...]`.

Ends with 1 if a target is missed by more than the noise: that is, in three quarters of the rounds. Best on a quiet machine.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import audits
import checkpointing
import commands
import datarows
import evaluating
import filtering
import hubs
import pieces
import report
import scene
import shelves
import starting
import sweeping
import training
from timing import Environment

MEASURES = (
    "help",
    "submit",
    "sweep",
    "status",
    "together",
    "verification",
    "kernel",
    "audit",
    "hub",
    "comparison",
    "behaviour",
    "training",
    "checkpoint",
    "start",
    "filter",
    "data",
    "registry",
    "runs",
)


def measures(folder: Path, env: Environment, conf: str, *, large: bool) -> dict[str, Callable[[], list[report.Figure]]]:
    """Each measure by name; a measure lays out what it needs."""
    return {
        "help": lambda: commands.help_page(folder, env),
        "submit": lambda: commands.submission(scene.slurm_place(folder / "submit", env, conf)),
        "sweep": lambda: sweeping.sweeps(folder, env, conf),
        "status": lambda: commands.status(scene.slurm_place(folder / "status", env, conf)),
        "together": lambda: commands.together(folder, env),
        "verification": lambda: pieces.verification(folder),
        "kernel": lambda: pieces.kernel(folder),
        "audit": lambda: pieces.audit(folder, env),
        "hub": lambda: hubs.prefetching(folder),  # before models make this process an offline one
        "comparison": lambda: evaluating.comparison(folder, env),
        "behaviour": lambda: evaluating.behaviour(folder),
        "training": lambda: training.training(folder),
        "checkpoint": lambda: checkpointing.checkpoints(folder),
        "start": lambda: starting.starts(folder, env, conf),
        "filter": lambda: filtering.filtering(folder, large=large),
        "data": lambda: datarows.datasets(folder, large=large),
        "registry": lambda: shelves.shelves(folder, large=large),
        "runs": lambda: audits.runs(folder, large=large),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure tp against its targets.")
    parser.add_argument("names", nargs="*", metavar="MEASURE", help=f"only these of: {', '.join(MEASURES)}")
    parser.add_argument("--write", action="store_true", help="write the figures into docs/performance.md")
    parser.add_argument(
        "--large",
        action="store_true",
        help="also what takes minutes: ten million records, a registry of 100,000 versions, 10,000 audited runs",
    )
    options = parser.parse_args()
    if unknown := set(options.names) - set(MEASURES):
        parser.error(f"no measure {', '.join(sorted(unknown))}")
    begin, figures = time.monotonic(), []
    with scene.scratch() as folder, scene.cluster(folder) as conf:
        version = scene.Place(folder / "version", scene.environment(folder), SLURM_CONF=conf).run("sbatch", "--version")
        for name, measure in measures(folder, scene.environment(folder), conf, large=options.large).items():
            if name in options.names or not options.names:
                print(f"bench: {name}", file=sys.stderr, flush=True)
                figures += measure()
    print(report.text(figures))
    about = report.machine(version.strip())
    print(f"\n{about}; {time.monotonic() - begin:.0f} s")
    if options.write:
        report.write(scene.REPO / "docs/performance.md", figures, about)
    missed = [figure.name for figure in figures if figure.missed]
    if missed:
        print(f"bench: missed in three quarters of the rounds or more: {'; '.join(missed)}", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
