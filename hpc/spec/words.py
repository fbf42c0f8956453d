"""The small alphabets of single directive values: what sbatch's tokeniser, bash and a person read alike.

No spaces, quotes, backslashes, '#', '$' or '%' anywhere. Richer text belongs into `metadata.display_name`, which no script sees.
"""

from __future__ import annotations

import re

from hpc.errors import Refusal
from hpc.spec.durations import format_time, parse_time
from hpc.spec.sizes import format_memory, parse_memory
from hpc.spec.text import visible

MAX_TEXT = 512
MAIL_TYPES = [
    "NONE",
    "BEGIN",
    "END",
    "FAIL",
    "REQUEUE",
    "ALL",
    "INVALID_DEPEND",
    "STAGE_OUT",
    "TIME_LIMIT",
    "TIME_LIMIT_90",
    "TIME_LIMIT_80",
    "TIME_LIMIT_50",
    "ARRAY_TASKS",
]
_NAME = r"[A-Za-z0-9_][A-Za-z0-9_.-]*"
_COUNTED = r"[0-9]+(?:\*[1-9][0-9]*)?"
_MASK = r"0x[0-9A-Fa-f]+(?:\*[1-9][0-9]*)?"
_LICENSE = rf"{_NAME}(?:@[A-Za-z0-9.-]+)?(?::[1-9][0-9]{{0,6}})?"
_NAMES_RE = re.compile(rf"{_NAME}(?:,{_NAME})*")
_NAME_RE = re.compile(_NAME)
_COMMENT_RE = re.compile(r"[A-Za-z0-9_.,:@/+=-]{1,200}")
_MAIL_RE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*(?:@[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?)?")
_LICENSES_RE = re.compile(rf"{_LICENSE}(?:,{_LICENSE})*|{_LICENSE}(?:\|{_LICENSE})+")
_BIND_RE = re.compile(
    r"(?:verbose,)?(?:none|closest|single:[1-9][0-9]{0,3}|per_task:[1-9][0-9]{0,3}"
    rf"|map_gpu:{_COUNTED}(?:,{_COUNTED})*|mask_gpu:{_MASK}(?:,{_MASK})*)"
)
_SWITCHES_RE = re.compile(r"([1-9][0-9]{0,5})(?:@(.+))?")


def _matched(grammar: re.Pattern[str], text: str, field: str, what: str, allowed: str) -> str:
    if len(text) > MAX_TEXT or not grammar.fullmatch(text):
        raise Refusal("E-SPEC-046", f"not {what}", field=field, found=visible(text), allowed=allowed)
    return text


def name(text: str, field: str = "") -> str:
    """One name: account, QOS. Raises Refusal E-SPEC-046, as all of this module do."""
    return _matched(_NAME_RE, text, field, "a name", "letters, digits, '_', '.' and '-'")


def names(text: str, field: str = "") -> str:
    """Names joined by ',': partitions, reservations, clusters."""
    return _matched(_NAMES_RE, text, field, "a list of names", "names of letters, digits, '_', '.', '-', joined by ','")


def comment(text: str, field: str = "") -> str:
    """A comment of one word; sbatch would cut it at a space."""
    allowed = "up to 200 letters, digits and _ . , : @ / + = -, no spaces"
    return _matched(_COMMENT_RE, text, field, "a comment", allowed)


def mail_user(text: str, field: str = "") -> str:
    """A user name or a plain mail address."""
    return _matched(_MAIL_RE, text, field, "a mail address", "user or user@host")


def mail_type(text: str, field: str = "") -> str:
    """Slurm's event names joined by ',', in upper case."""
    parts = text.upper().split(",")
    if unknown := next((p for p in parts if p not in MAIL_TYPES), None):
        message = f"unknown event {visible(unknown)!r}"
        raise Refusal("E-SPEC-046", message, field=field, found=visible(text), allowed=", ".join(MAIL_TYPES))
    if "" in parts:
        raise Refusal("E-SPEC-046", "an empty event", field=field, found=visible(text), allowed=", ".join(MAIL_TYPES))
    return ",".join(dict.fromkeys(parts))


def licenses(text: str, field: str = "") -> str:
    """`name[@server][:count]`, all of them (',') or any (`|`)."""
    return _matched(_LICENSES_RE, text, field, "a list of licenses", "name[@server][:count], joined by ',' or by '|'")


def gpu_bind(text: str, field: str = "") -> str:
    allowed = "[verbose,]none, closest, single:N, per_task:N, map_gpu:LIST or mask_gpu:LIST"
    return _matched(_BIND_RE, text, field, "a GPU binding", allowed)


def switches(text: str, field: str = "") -> str:
    """`COUNT[@TIME]`, the time in its canonical form."""
    _matched(_SWITCHES_RE, text, field, "a switch count", "COUNT or COUNT@TIME")
    count, at, limit = text.partition("@")
    return f"{count}@{time(limit, field)}" if at else count


def time(text: str, field: str = "") -> str:
    """A time limit in its canonical form. Zero is refused: to sbatch it would mean no limit at all."""
    seconds = parse_time(text, field)
    if seconds == 0:
        message = "a time of zero"
        raise Refusal(
            "E-SPEC-040", message, field=field, found=text, allowed="more than zero", hint="no limit is UNLIMITED"
        )
    return format_time(seconds)


def memory(text: str, field: str = "") -> str:
    """A memory size in its canonical form."""
    return format_memory(parse_memory(text, field))
