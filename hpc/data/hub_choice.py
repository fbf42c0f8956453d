"""Which files of a repository are fetched, and what is left out and why. Pure.

A model: weights as safetensors, configuration, tokenizer, licence. Never pickles, which run code when they are opened, and never code.
A data set: JSONL, JSON and Parquet, in folders too. Everything else stays on the hub and is counted.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from tuneplane.record.digest import is_relative

from hpc.data.hub_names import Repo
from hpc.errors.core import Refusal
from hpc.spec.text import visible

PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".joblib", ".npy", ".npz")
CODE = (".py", ".pyc", ".so", ".sh", ".ipynb")
OTHER_WEIGHTS = (".h5", ".msgpack", ".gguf", ".ggml", ".onnx", ".ot", ".tflite", ".mlmodel", ".tar", ".zip", ".nemo")
DATA = (".jsonl", ".json", ".parquet")
WEIGHTS = ".safetensors"
_TEXTS = (".json", ".txt", ".model", ".jinja", ".md", ".tiktoken")
_LICENCE = re.compile(r"(LICEN[CS]E|NOTICE|COPYING|README)([._-].*)?", re.IGNORECASE)
_STANDARD = re.compile(r"(adapter_)?model(-\d{5}-of-\d{5})?\.safetensors")
MAX_PATH = 1024


@dataclass(frozen=True)
class RemoteFile:
    """A file of a repository at one commit: path, bytes, and `sha256:` (LFS) or `git-sha1:` of its content."""

    path: str
    size: int
    digest: str


@dataclass(frozen=True)
class Choice:
    """What is fetched, and how many files stay behind for which reason."""

    files: tuple[RemoteFile, ...]
    left_out: Mapping[str, int]

    @property
    def size(self) -> int:
        return sum(f.size for f in self.files)


def choose(repo: Repo, files: Sequence[RemoteFile], patterns: Sequence[str] = ()) -> Choice:
    """The files that are fetched; with `patterns` (of the whole path) only those that also match one.

    Raises Refusal E-HUB-003 (a path that would leave its folder), E-HUB-004 (weights only as pickles), E-HUB-005 (nothing is left).
    """
    for one in files:
        require_path(one.path)
    reason = _model_reason if repo.type == "model" else _data_reason
    standard = any(_STANDARD.fullmatch(f.path) for f in files)
    left: Counter[str] = Counter()
    kept: list[RemoteFile] = []
    for one in sorted(files, key=lambda f: f.path):
        why = reason(one.path, standard) or _unwanted(one.path, patterns)
        if why:
            left[why] += 1
        else:
            kept.append(one)
    _require_weights(repo, kept, files, patterns)
    if not kept:
        have = ", ".join(f.path for f in files[:10]) or "nothing"
        raise Refusal("E-HUB-005", f"{repo} has nothing to fetch", field=str(repo), found=have)
    return Choice(tuple(kept), dict(sorted(left.items())))


def require_path(path: str) -> None:
    """Return only for a path that stays inside its folder. Raises Refusal E-HUB-003."""
    if not is_relative(path) or len(path) > MAX_PATH:
        raise Refusal("E-HUB-003", "is no path inside a repository", field=visible(path), found=visible(path))


def _model_reason(path: str, standard: bool) -> str:
    name = path.rpartition("/")[2]
    lower = name.lower()
    if lower.endswith(PICKLES):
        return "pickle"
    if lower.endswith(CODE):
        return "code"
    if lower.endswith(OTHER_WEIGHTS):
        return "other format"
    if path != name:
        return "sub-folder"
    if lower.endswith(WEIGHTS):
        return "" if not standard or _STANDARD.fullmatch(name) else "other weights"
    if name.startswith("."):
        return "other"
    return "" if lower.endswith(_TEXTS) or _LICENCE.fullmatch(name) else "other"


def _data_reason(path: str, standard: bool) -> str:
    name = path.rpartition("/")[2]
    lower = name.lower()
    if lower.endswith(CODE):
        return "code"
    if lower.endswith(PICKLES):
        return "pickle"
    if any(part.startswith(".") for part in path.split("/")):
        return "other"
    return "" if lower.endswith(DATA) or _LICENCE.fullmatch(name) else "other format"


def _unwanted(path: str, patterns: Iterable[str]) -> str:
    patterns = list(patterns)
    return "" if not patterns or any(fnmatchcase(path, p) for p in patterns) else "not asked for"


def _require_weights(
    repo: Repo, kept: Sequence[RemoteFile], files: Sequence[RemoteFile], patterns: Sequence[str]
) -> None:
    if repo.type != "model" or patterns or any(f.path.endswith(WEIGHTS) for f in kept):
        return
    pickles = [f.path for f in files if f.path.lower().endswith(PICKLES)]
    if pickles:
        raise Refusal("E-HUB-004", f"{repo} has its weights as pickles only", field=str(repo), found=pickles[0])
