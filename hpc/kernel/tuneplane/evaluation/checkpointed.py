"""An evaluation of a checkpoint while its run goes on: the model is put together from the ranks' parts, asked, and removed again.

It informs and decides nothing: gates are judged on what the run left in the end.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tuneplane.contract.followups import CANDIDATE
from tuneplane.evaluation.followup import Suite, Where, place_of, subject
from tuneplane.evaluation.job import Job, say, write_result
from tuneplane.record.files import read_json
from tuneplane.training.consolidating import write_model

FOLDER: Final = ".checkpoint"
"""Below the out folder, while the evaluation goes on: the model, which takes the place of its weights once."""
SCREENING, FULL = "screening", "full"
"""What a score is worth: that of a sample of the rows screens."""


def run_checkpoint(job: Job, suites: Sequence[Suite]) -> None:
    """Ask every suite of the checkpoint that the launcher found, and leave result.json. Raises Refused, or Warned with every answer kept."""
    late, out, base = job.late[CANDIDATE], job.place.out_dir, job.launch.input_path("model", job.place)
    assert base is not None
    path, folder = Path(late["path"]), out / FOLDER / "model"
    for left in out.parent.parent.glob(f"*/out/{FOLDER}"):  # of an attempt that was killed
        shutil.rmtree(left, ignore_errors=True)
    try:
        made = write_model(path, read_json(path / "manifest.json", limit=64 << 20), base, folder)
        say(f"{path.name} of {late['run_id']}: {made['kind']} of {made['tensors']} tensors, put together and compared")
        one = subject({"path": str(folder), "files": made["files"]}, job.launch.inputs["model"], CANDIDATE)
        wheres = [Where(place_of(s.name, suites, out), place_of(s.name, suites, job.kept)) for s in suites]
        reports = [suite.ask(one, where) for suite, where in zip(suites, wheres, strict=True)]
    finally:
        shutil.rmtree(out / FOLDER, ignore_errors=True)
    of = {key: late[key] for key in ("run_id", "exp", "attempt", "artefact", "step", "digest")}
    tier = SCREENING if job.wanted.get("limit") else FULL
    write_result(job, {"reports": reports}, step=late["step"], tier=tier, of=of)
