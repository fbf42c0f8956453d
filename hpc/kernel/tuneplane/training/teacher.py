"""A second model that is only asked: frozen, without dropout, whole on each rank's device."""

from __future__ import annotations

import inspect
import os
from typing import Any

from tuneplane.record.digest import digest_file
from tuneplane.training.model import check_folder, identity, load_model, load_tokenizer
from tuneplane.training.program import Job
from tuneplane.training.refusals import refuse
from tuneplane.training.settings import SFT, parse

_FIELD = "hyperparams.teacher"


class Teacher:
    """Logits of the teacher, without gradients. `digest` is that of its files, weights included."""

    def __init__(self, model: Any, digest: str) -> None:
        self.digest, self._model = digest, model.requires_grad_(False).eval()
        self._names = inspect.signature(model.forward).parameters

    def __call__(self, **inputs: Any) -> Any:
        import torch

        with torch.no_grad():
            return self._model(**inputs)

    def accepts(self, name: str) -> bool:
        """True if the model's forward has an argument of this name."""
        return name in self._names


def load_teacher(job: Job, path: str, tokenizer: Any, dtype: Any) -> Teacher:
    """The model of the folder `path`, relative to the experiment. A collective; outside of `engine.building`, which would share it out.

    Raises Refused where the folder is no model or its vocabulary is not the tokenizer's.
    """
    folder = check_folder(job.place.exp_dir / path, _FIELD)
    check_vocabulary(tokenizer, load_tokenizer(folder, _FIELD), path)

    def digest() -> str:
        names = sorted(os.fspath(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())
        files = []
        for name in names:
            files.append({"path": name, "sha256": digest_file(folder / name, follow=True)})
            job.peers.moves()
        return identity(folder, files)

    found = job.peers.once("digest of the teacher", digest, job.launch.policies.start_timeout_s)
    return Teacher(load_model(folder, parse({}, None, SFT), dtype, _FIELD).to(job.device), found)


def check_vocabulary(student: Any, teacher: Any, path: str) -> None:
    """The same text must be the same ids to both. Raises Refused."""
    ours, theirs = student.get_vocab(), teacher.get_vocab()
    if ours == theirs:
        return
    other = sorted(t for t in ours.keys() | theirs.keys() if ours.get(t) != theirs.get(t))
    raise refuse(
        "E-TRAIN-035",
        "its vocabulary is not that of the student",
        field=_FIELD,
        found=f"{path}: {len(other)} tokens differ, {', '.join(repr(t) for t in other[:5])} among them",
        allowed="a teacher with the same tokens under the same ids",
    )
