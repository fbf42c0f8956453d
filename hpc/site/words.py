"""The small grammars of the site file's values. Each returns its text or raises a Refusal; no I/O."""

from __future__ import annotations

import re
from typing import Any

from hpc.errors.core import Refusal
from hpc.spec.text import MAX_SEGMENT, SEGMENT, SEGMENT_ALLOWED, check_plain, visible

_WORD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_ACCOUNT = re.compile(r"[A-Za-z_][A-Za-z0-9._-]{0,31}")
_VERSION = re.compile(r"[0-9]{1,6}(\.[0-9]{1,6}){0,3}")
_FOLDER = re.compile(r"/[A-Za-z0-9._/+@-]{0,1023}")
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?(:[0-9]{1,5})?")
_INTERFACE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,14}")
_HCA = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,31}(:[0-9]{1,3})?")
_KEY = re.compile(r"[0-9a-f]{64}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_TAKEN = re.compile(
    r"(TUNEPLANE_|SLURM_|SLURMD_|SBATCH_|SRUN_|APPTAINERENV_|SINGULARITYENV_).*"
    r"|RANK|LOCAL_RANK|WORLD_SIZE|LOCAL_WORLD_SIZE|NODE_RANK|MASTER_ADDR|MASTER_PORT|HOME|PYTHONPATH"
)
_SECRET = re.compile(
    r"(^|_)(TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?|API_KEY|ACCESS_KEY|PRIVATE_KEY)($|_)", re.IGNORECASE
)
NEVER_BOUND = frozenset({"/", "/dev", "/proc", "/sys", "/etc", "/root"})


def _matched(grammar: re.Pattern[str], text: str, what: str, allowed: str) -> str:
    if not grammar.fullmatch(text):
        raise Refusal("E-SITE-003", f"not {what}", found=visible(text), allowed=allowed)
    return text


def word(text: str) -> str:
    """A name as Slurm writes them: partition, account, GPU type, cluster."""
    return _matched(_WORD, text, "a name", "letters, digits, '_', '.' and '-'")


def account(text: str) -> str:
    """A Unix user or group."""
    return _matched(_ACCOUNT, text, "a user or group name", "letters, digits, '.', '_', '-', the first no digit")


def version(text: str) -> str:
    """A release number; `0.4` stands for all of its releases."""
    return _matched(_VERSION, text, "a version", "numbers joined by dots, such as 0.4 or 0.4.0")


def folder(text: str) -> str:
    """An absolute path in normal form, of characters that mount options and shells read alike."""
    if not _FOLDER.fullmatch(text) or (text != "/" and any(p in ("", ".", "..") for p in text.split("/")[1:])):
        allowed = "an absolute path of letters, digits and . _ + @ -, without '.', '..' or empty parts"
        raise Refusal("E-SITE-003", "not a plain absolute path", found=visible(text), allowed=allowed)
    return text


def bind(text: str) -> str:
    """A folder that jobs may see. The machine's own folders and whole user homes are never shown."""
    if folder(text) in NEVER_BOUND:
        raise Refusal("E-SITE-003", f"{text} is never shown to jobs", found=text, allowed="a folder of the site's own")
    return text


def host(text: str) -> str:
    """The host of an image registry, with or without a port."""
    return _matched(_HOST, text, "a host", "HOST or HOST:PORT, no scheme and no path")


def interface(text: str) -> str:
    """The exact name of one network interface; prefixes and `^`, `=` are not written here."""
    return _matched(_INTERFACE, text, "an interface name", "the exact name, such as ib0, without '=' or '^'")


def hca(text: str) -> str:
    """The exact name of one InfiniBand device, with or without a port."""
    return _matched(_HCA, text, "a device name", "the exact name, such as mlx5_0 or mlx5_0:1, without '=' or '^'")


def public_key(text: str) -> str:
    """A raw Ed25519 public key in hexadecimal."""
    return _matched(_KEY, text, "a public key", "64 lower-case hexadecimal digits")


def variables(value: dict[str, str]) -> dict[str, str]:
    """Environment of a profile: plain names that nobody else sets, plain values, nothing secret."""
    for name, text in value.items():
        if not _VARIABLE.fullmatch(name) or _TAKEN.fullmatch(name):
            allowed = "letters, digits and '_'; not a name that Slurm, Apptainer or the launcher sets"
            raise Refusal("E-SITE-003", f"{visible(name)!r} cannot be set here", found=visible(name), allowed=allowed)
        if _SECRET.search(name) and text:
            raise Refusal("E-SITE-006", f"{name} looks like a secret", field=f".{name}", allowed="no value here")
        check_plain(text, f".{name}")
    return value


def keyed(value: dict[str, Any]) -> dict[str, Any]:
    """A table whose keys are names."""
    for name in value:
        if len(name) > MAX_SEGMENT or not SEGMENT.fullmatch(name):
            raise Refusal(
                "E-SITE-003", f"{visible(name)!r} is not a name", found=visible(name), allowed=SEGMENT_ALLOWED
            )
    return value
