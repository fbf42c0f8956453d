"""The files that travel: `experiments/<exp>/`, `common/` and `configs/`, nothing else.

With git: what is tracked, and what is untracked but not ignored. Without: a walk that skips results, environments and caches. In both, byte
code and PDF files stay behind; and links, special files, names that no record can hold, and anything that looks like a secret refuse the
whole package, every one of them named. The package writer turns the line ends of `.sh` and `.conf` files into LF.
"""

from __future__ import annotations

import fnmatch
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tuneplane.record.digest import is_relative

from hpc.errors import Refusal, Refusals
from hpc.project import git
from hpc.project.project import Experiment, Project
from hpc.spec.text import visible

SHARED_TOPS = ("common", "configs")
SECRET_NAMES = (
    ".env*", "*.env", ".netrc", "_netrc", ".pgpass", ".htpasswd", ".npmrc", ".pypirc", ".git-credentials", ".dockercfg",
    "*.pem", "*.key", "*.p12", "*.pfx", "*.jks", "*.keystore", "*.kdbx", "*.keytab", "*.ppk",
    "id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*", "krb5cc*", "kubeconfig", "service-account*.json", "service_account*.json",
    "secrets.*", "secret.json", "secret.y*ml", "secret.toml", "hf_token*", "hf-token*", "*_token.txt", "token.txt",
    "credentials", "credentials.json", "credentials.y*ml", "credentials.toml", "credentials.csv", "credentials.ini",
)  # fmt: skip
SECRET_FOLDERS = frozenset({".ssh", ".aws", ".gnupg", ".kube", ".docker", ".azure", ".gcloud", ".secrets"})
SKIPPED = frozenset(
    {
        "outputs", "datasets", "tuneplane_plugins", "tuneplane_recipes", ".tuneplane", ".tuneplane-data", ".git", ".hg", ".svn",
        ".venv", "venv", "node_modules", "wandb", "mlruns", ".mypy_cache", ".ruff_cache", ".pytest_cache", ".hypothesis",
        ".ipynb_checkpoints", ".cache", ".idea", ".vscode", ".DS_Store",
    }
)  # fmt: skip
"""Left out of a walk; where there is git, its ignore rules say what stays behind."""
BYTE_CODE = "__pycache__"
LEFT_SUFFIXES = (".pyc", ".pyo", ".pdf")
_SECRET = re.compile("|".join(fnmatch.translate(pattern) for pattern in SECRET_NAMES))


@dataclass(frozen=True)
class Travelling:
    """One file that travels: where it is, and its path in the package."""

    source: Path
    path: str


def travelling(project: Project, experiment: Experiment) -> list[Travelling]:
    """The files of a package, in the order of their paths. Raises Refusals E-PROJECT-030 … 034, all at once."""
    tops = (experiment.rel, *SHARED_TOPS)
    names = git.listed(project.root, tops)
    if names is None:
        names = sorted(_walk(os.fspath(project.root), tops))
    out: list[Travelling] = []
    faults: list[Refusal] = []
    real: set[str] = set()
    for name in names:
        if _stays(name):
            continue
        found = _judge(project.root, name, real)
        if isinstance(found, Travelling):
            out.append(found)
        elif found is not None:
            faults.append(found)
    if not any(t.path.startswith(f"{experiment.rel}/") for t in out) and not faults:
        message = f"{experiment.rel} has no file that travels"
        faults.append(
            Refusal(
                "E-PROJECT-033", message, field=experiment.rel, allowed="at least one file that git does not ignore"
            )
        )
    if faults:
        raise Refusals(faults)
    return out


def looks_secret(path: str) -> bool:
    """True for names of keys, tokens, environment files and credential folders; the content is not looked at."""
    *folders, name = path.lower().split("/")
    return bool(_SECRET.match(name)) or not SECRET_FOLDERS.isdisjoint(folders)


def _stays(path: str) -> bool:
    return path.lower().endswith(LEFT_SUFFIXES) or BYTE_CODE in path.split("/")


def _judge(root: Path, name: str, real: set[str]) -> Travelling | Refusal | None:
    """The file, why it must not travel, or None for one that is gone from disk. `real` collects folders that are no links."""
    shown = visible(name, 400)
    if not is_relative(name.removesuffix("/")) or any("\ud800" <= c <= "\udfff" for c in name):
        allowed = "UTF-8 without control characters and backslashes"
        return Refusal(
            "E-PROJECT-032", "a name that no record can hold", field=shown, found=ascii(name), allowed=allowed
        )
    if looks_secret(name):
        return Refusal("E-PROJECT-030", "looks like a secret", field=shown, found=name.rpartition("/")[2])
    if link := _linked_folder(root, name, real):
        return Refusal(
            "E-PROJECT-031",
            f"lies behind the link {visible(link)}",
            field=shown,
            found="a link",
            allowed="real folders",
        )
    try:
        mode = os.lstat(root / name).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None
    if stat.S_ISREG(mode):
        return Travelling(root / name, name)
    if stat.S_ISDIR(mode):
        return Refusal(
            "E-PROJECT-034", "is a git repository of its own", field=shown, found="a nested repository or submodule"
        )
    kind = "a link" if stat.S_ISLNK(mode) else "a special file"
    return Refusal("E-PROJECT-031", f"is {kind}", field=shown, found=kind, allowed="regular files")


def _linked_folder(root: Path, name: str, real: set[str]) -> str:
    """The first folder of the path that is a link, or "": git still lists what it tracked there before."""
    folder = ""
    for part in name.rstrip("/").split("/")[:-1]:
        folder = f"{folder}/{part}" if folder else part
        if folder not in real:
            if os.path.islink(root / folder):
                return folder
            real.add(folder)
    return ""


def _walk(root: str, tops: tuple[str, ...]) -> Iterator[str]:
    """Paths of everything below `tops` that is no folder, without what is skipped; links are named, not followed."""
    for top in tops:
        full = os.path.join(root, top)
        if os.path.islink(full) or os.path.isfile(full):
            yield top
        elif os.path.isdir(full):
            yield from _below(full, top)


def _below(folder: str, rel: str) -> Iterator[str]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name in SKIPPED:
                continue
            path = f"{rel}/{entry.name}"
            if entry.is_dir(follow_symlinks=False):
                yield from _below(entry.path, path)
            else:
                yield path
