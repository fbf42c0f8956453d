"""A repository of a hub, and where the shared cache keeps it: the layout of huggingface_hub, so that jobs find it through HF_HUB_CACHE.

    cache/hf/hub/models--<org>--<name>/{refs/<revision>, snapshots/<commit>/<path> → ../../blobs/<digest>, blobs/<digest>}
    cache/hf/assets/models--<org>--<name>/<commit>.<user>.json      who fetched what
    cache/hf/hub/.claims/                                           who is fetching now

Pure path algebra; nothing here touches the disk.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tuneplane.contract.layout import StorageRoot
from tuneplane.record.digest import PREFIX

from hpc.errors.core import Refusal
from hpc.spec.refs import HubRef, parse_hub_ref
from hpc.spec.text import visible

RepoType = Literal["model", "dataset"]
GIT_PREFIX = "git-sha1:"
MAIN = "main"
COMMIT = re.compile(r"[0-9a-f]{40}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_REVISION = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]|/(?=[A-Za-z0-9]))*")
_FOLDER = re.compile(r"(model|dataset)s--(.+)")


@dataclass(frozen=True)
class Repo:
    """`<org>/<name>` of Hugging Face (or `<name>`, for some models), and what kind of thing it holds."""

    type: RepoType
    id: str

    @property
    def folder(self) -> str:
        return f"{self.type}s--" + self.id.replace("/", "--")

    def prefetch(self, revision: str = "") -> str:
        """The command that brings the repository into the cache."""
        pin = f" --revision {revision}" if revision else ""
        return f"tp {self.type} prefetch --repo hf:{self.id}{pin}"

    def __str__(self) -> str:
        return f"hf:{self.id}"


@dataclass(frozen=True)
class HubCache:
    """The paths of the shared cache below one storage root."""

    root: StorageRoot

    @property
    def hub(self) -> Path:
        return self.root.cache / "hf" / "hub"

    @property
    def assets(self) -> Path:
        return self.root.cache / "hf" / "assets"

    @property
    def claims(self) -> Path:
        return self.hub / ".claims"

    def repo(self, repo: Repo) -> Path:
        return self.hub / repo.folder

    def blobs(self, repo: Repo) -> Path:
        return self.repo(repo) / "blobs"

    def snapshot(self, repo: Repo, commit: str) -> Path:
        return self.repo(repo) / "snapshots" / commit

    def ref(self, repo: Repo, revision: str) -> Path:
        return self.repo(repo) / "refs" / revision

    def claim(self, repo: Repo, commit: str) -> Path:
        return self.claims / f"{repo.folder}--{commit}.json"


def is_commit(text: str) -> bool:
    return COMMIT.fullmatch(text) is not None


def check_revision(text: str, field: str = "--revision") -> str:
    """`text` itself: a commit, or a branch's or tag's name that can be a path. Raises Refusal E-HUB-002."""
    if text and (not _REVISION.fullmatch(text) or ".." in text or len(text) > 200):
        raise Refusal("E-HUB-002", "is no name of a revision", field=field, found=visible(text))
    return text


def repo_of(ref: HubRef, kind: RepoType, field: str = "") -> Repo:
    """The Hugging Face repository that a reference means. Raises Refusal E-HUB-001 (another hub), E-HUB-002 (no name of a repository)."""
    if ref.hub != "hf":
        raise Refusal("E-HUB-001", f"{ref.hub} is no hub that files are fetched from", field=field, found=str(ref))
    text = f"{ref.namespace}/{ref.name}" if ref.namespace else ref.name
    # The cache joins the parts of a name by `--`, so a name that holds it could be another repository's folder.
    if "--" in text or ".." in text or text.endswith((".git", ".")) or len(text) > 96:
        raise Refusal("E-HUB-002", "is no name of a repository", field=field, found=visible(text))
    return Repo(kind, text)


def parse_repo(text: str, kind: RepoType, field: str = "") -> tuple[Repo, str]:
    """(repository, revision or "") of `hf:ORG/NAME[@revision]`. Raises Refusal E-SPEC-026, E-HUB-001, E-HUB-002."""
    ref = parse_hub_ref(text, field, kind=kind)
    return repo_of(ref, kind, field), ref.revision


def repo_of_folder(name: str) -> Repo | None:
    """The repository whose folder has this name, None for any other name."""
    match = _FOLDER.fullmatch(name)
    if not match or "." in (name[0], name[-1]):
        return None
    kind: RepoType = "model" if match[1] == "model" else "dataset"
    return Repo(kind, match[2].replace("--", "/"))


def blob_name(digest: str) -> str:
    """The file of the blobs folder that holds the bytes with this digest."""
    return digest.partition(":")[2]


def digest_of_blob(name: str) -> str:
    """The digest that the name of a blob states, "" for a name that states none."""
    if _SHA256.fullmatch(name):
        return PREFIX + name
    return GIT_PREFIX + name if COMMIT.fullmatch(name) else ""


def is_content_digest(value: object) -> bool:
    """True for `sha256:<64 hex>` and `git-sha1:<40 hex>`."""
    return isinstance(value, str) and value == digest_of_blob(blob_name(value)) != ""
