"""What git says about a project: one `git status` for the facts, one `git ls-files` for the files, each with a deadline.

A project outside of any repository, and a machine without git, are no errors: there is no commit then. A git that is there and refuses or
hangs is one, because going on without it would let ignored files travel.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tuneplane.record.digest import digest_bytes

from hpc.errors import Refusal
from hpc.spec.text import visible

DEADLINE_S = 60.0
_QUIET = {"GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "GIT_PAGER": "cat", "LC_ALL": "C"}


@dataclass(frozen=True)
class GitFacts:
    """The commit ("" without one), and whether anything under the project differs from it, untracked files included.

    `dirty_paths` are relative to the project, sorted, with control characters made visible.
    """

    commit: str = ""
    dirty: bool = False
    dirty_paths: tuple[str, ...] = ()


def repository(root: Path) -> Path | None:
    """The nearest folder from `root` upwards that has a `.git`."""
    folder = Path(os.path.realpath(root))
    return next((f for f in (folder, *folder.parents) if os.path.lexists(f / ".git")), None)


def facts(root: Path, *, program: str = "git", deadline_s: float = DEADLINE_S) -> GitFacts:
    """Commit and dirty paths of the project at `root`. Raises Refusal E-PROJECT-020 (no answer in time), 021, 022."""
    top = repository(root)
    arguments = ["status", "--porcelain=v2", "--branch", "--untracked-files=all", "--no-renames", "-z", "--", "."]
    out = None if top is None else run(root, arguments, program=program, deadline_s=deadline_s)
    if top is None or out is None:
        return GitFacts()
    prefix = os.fsencode(os.path.relpath(os.path.realpath(root), top)) + b"/"
    commit, paths = "", []
    for entry in out.split(b"\0"):
        if entry.startswith(b"# branch.oid "):
            oid = entry[13:].decode("ascii", "replace")
            commit = "" if oid == "(initial)" else oid
        elif entry[:2] in (b"1 ", b"u ", b"? "):
            path = entry[2:] if entry[:2] == b"? " else entry.split(b" ", 8 if entry[:2] == b"1 " else 10)[-1]
            paths.append(visible(os.fsdecode(path.removeprefix(prefix)), 4096))
    return GitFacts(commit, bool(paths), tuple(sorted(paths)))


def diff_sha256(root: Path, *, program: str = "git", deadline_s: float = DEADLINE_S) -> str | None:
    """SHA-256 of the text of `git diff HEAD` for tracked files of the project; None without a commit. What is untracked travels by its own digest."""
    out = run(
        root,
        ["diff", "--binary", "--no-ext-diff", "--no-textconv", "HEAD", "--", "."],
        program=program,
        deadline_s=deadline_s,
    )
    return None if out is None else digest_bytes(out)


def listed(
    root: Path, tops: Sequence[str], *, program: str = "git", deadline_s: float = DEADLINE_S
) -> list[str] | None:
    """Tracked files and untracked ones that are not ignored, below `tops`; None without a repository or without git.

    Paths are relative to `root`; bytes that are no UTF-8 come as lone surrogates. Raises Refusal as `facts` does.
    """
    if repository(root) is None:
        return None
    arguments = [
        "ls-files",
        "-z",
        "--cached",
        "--others",
        "--exclude-standard",
        "--",
        *(f":(literal){t}" for t in tops),
    ]
    out = run(root, arguments, program=program, deadline_s=deadline_s)
    return None if out is None else sorted({os.fsdecode(name) for name in out.split(b"\0") if name})


def run(root: Path, arguments: Sequence[str], *, program: str = "git", deadline_s: float = DEADLINE_S) -> bytes | None:
    """Output of one git command; None where there is no git. No prompt, no pager, no hook of the file system monitor."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")} | _QUIET
    command = [program, "-c", "core.fsmonitor=false", "-c", "core.untrackedCache=false", *arguments]
    try:
        done = subprocess.run(
            command,
            cwd=root,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=deadline_s,
            check=False,
        )
    except FileNotFoundError:
        return None
    except OSError as exc:
        raise Refusal(
            "E-PROJECT-022", f"git cannot be started: {exc.strerror}", field=str(root), found=exc.filename
        ) from exc
    except subprocess.TimeoutExpired as exc:
        message = f"git {arguments[0]} gave no answer in {deadline_s:g} s"
        raise Refusal("E-PROJECT-020", message, field=str(root)) from exc
    if done.returncode == 0:
        return done.stdout
    words = visible(" ".join(done.stderr.decode("utf-8", "replace").split()), 400)
    if "dubious ownership" in words or "safe.directory" in words:
        hint = f"if you trust this folder: git config --global --add safe.directory {repository(root) or root}"
        raise Refusal("E-PROJECT-021", "git does not trust this repository", field=str(root), found=words, hint=hint)
    raise Refusal("E-PROJECT-022", f"git {arguments[0]} failed", field=str(root), found=words)
