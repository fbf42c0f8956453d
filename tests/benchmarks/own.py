"""Runs `tp` and says what the process itself cost: `own.py OUT WORD...` writes JSON to OUT.

`cpu_ms`: user and system time of the process, all its threads, from its first instruction; its children are not in it. `peak_mb`: the most
memory that the process had in use (VmHWM).
"""

from __future__ import annotations

import json
import resource
import sys


def cost() -> dict[str, float]:
    used = resource.getrusage(resource.RUSAGE_SELF)
    with open("/proc/self/status", encoding="ascii") as lines:
        peak = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
    return {"cpu_ms": (used.ru_utime + used.ru_stime) * 1000, "peak_mb": peak / 1024}


if __name__ == "__main__":
    from hpc.cli.main import main

    try:
        main(sys.argv[2:])
    finally:
        with open(sys.argv[1], "w", encoding="ascii") as out:
            json.dump(cost(), out)
