"""A GGUF file beside an export, where the runtime has llama.cpp's converter. Standard library only.

The converter is none of ours: `convert_hf_to_gguf.py` on the PATH, or the file that TUNEPLANE_GGUF_CONVERTER names (a profile's `env` can). Whatever
it does, the export stands; what became of the file is said in the log, in result.json and in the model card.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from tuneplane.training.child import run
from tuneplane.training.going import size_below

VARIABLE = "TUNEPLANE_GGUF_CONVERTER"
PROGRAMS = ("convert_hf_to_gguf.py", "convert-hf-to-gguf")
TIMEOUT_S = 3600.0


def converter(env: Mapping[str, str]) -> str:
    """The converter's path, "" where there is none."""
    named = env.get(VARIABLE, "")
    if named:
        return named if os.path.isfile(named) else ""
    return next((path for name in PROGRAMS if (path := shutil.which(name, path=env.get("PATH")))), "")


def write_gguf(model: Path, out: Path, env: Mapping[str, str], *, timeout_s: float = TIMEOUT_S) -> dict[str, Any]:
    """Convert a folder; `{state: written | absent | failed, message, path, converter}`. Never raises for what the converter does; Warned when a
    warning comes.
    """
    program = converter(env)
    if not program:
        named = f"; {VARIABLE} names no file: {env[VARIABLE]}" if env.get(VARIABLE) else ""
        return {
            "state": "absent",
            "message": f"no GGUF: the runtime has no {PROGRAMS[0]}{named}",
            "path": "",
            "converter": "",
        }
    argv = [sys.executable, program] if program.endswith(".py") else [program]
    argv += [os.fspath(model), "--outfile", os.fspath(out), "--outtype", "auto"]
    try:
        with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
            code = run(argv, env, timeout_s, stdout=stdout, stderr=stderr, seen=lambda: size_below(out.parent))
            how = f"wrote nothing for {timeout_s:.0f} s" if code is None else f"exit code {code}"
            said = (_text(stderr) or _text(stdout)).splitlines()[-1:]
        good = code == 0 and out.is_file() and out.stat().st_size > 0
        message = f"{out.name}, {out.stat().st_size} bytes" if good else f"{how}: {' '.join(said)[:300]}"
    except OSError as exc:
        good, message = False, str(exc)[:300]
    if not good:
        out.unlink(missing_ok=True)
        return {"state": "failed", "message": f"no GGUF: {message}", "path": "", "converter": program}
    return {"state": "written", "message": message, "path": out.name, "converter": program}


def _text(stream: IO[bytes]) -> str:
    stream.seek(0)
    return stream.read().decode(errors="replace").strip()
