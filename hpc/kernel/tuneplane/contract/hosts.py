"""Slurm host lists without `scontrol`: `n[1-3,07-09],login` and the names it stands for.

A list is names separated by commas; a name may hold bracket groups of numbers and ranges (`r[1-2]n[1-4]`,
`n[08-11]-ib`). The width of a range's first number is kept (`n[08-10]` is n08, n09, n10). Does not know node sets,
`all`, or files of hosts.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable

MAX_HOSTS = 1 << 17
"""More names than any machine has; a longer list is a mistake or an attack."""

_NAME = re.compile(r"[A-Za-z0-9._-]+")
_RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?")
_TRAILING = re.compile(r"^(.*?)([0-9]{1,18})$")


class HostListError(ValueError):
    """The text is not a host list; the message says where."""


def expand(text: str) -> list[str]:
    """The names of a host list in the order written, duplicates kept; an empty text is none. Raises HostListError."""
    names: list[str] = []
    for item in _items(text):
        names.extend(_expand_one(item, MAX_HOSTS - len(names)))
    return names


def _items(text: str) -> list[str]:
    """Split at commas outside brackets."""
    if not text:
        return []
    items, depth, start = [], 0, 0
    for at, char in enumerate(text):
        if char == "[":
            depth += 1
        elif char == "]":
            depth -= 1
        elif char == "," and depth == 0:
            items.append(text[start:at])
            start = at + 1
        if depth not in (0, 1):
            raise HostListError(f"brackets do not match at character {at + 1} of {text!r}")
    if depth:
        raise HostListError(f"a bracket is not closed in {text!r}")
    items.append(text[start:])
    return items


def _expand_one(item: str, room: int) -> Iterable[str]:
    parts: list[list[str]] = []
    total, at = 1, 0
    while at < len(item):
        if item[at] == "[":
            end = item.index("]", at)
            choices = _numbers(item[at + 1 : end], item, room)
            parts.append(choices)
            total *= len(choices)
            at = end + 1
        else:
            plain = _NAME.match(item, at)
            if plain is None:
                raise HostListError(f"{item[at]!r} cannot stand in the host name {item!r}")
            parts.append([plain.group()])
            at = plain.end()
        if total > room:
            raise HostListError(f"{item!r} stands for more than {MAX_HOSTS} hosts")
    if not parts:
        raise HostListError("an empty host name")
    return ("".join(choice) for choice in itertools.product(*parts))


def _numbers(inside: str, item: str, room: int) -> list[str]:
    out: list[str] = []
    for piece in inside.split(","):
        match = _RANGE.fullmatch(piece)
        if match is None:
            raise HostListError(f"{piece!r} in {item!r} is neither a number nor a range")
        low, high = match.group(1), match.group(2) or match.group(1)
        first, last = int(low), int(high)
        if last < first:
            raise HostListError(f"{piece!r} in {item!r} runs backwards")
        if last - first >= room - len(out):
            raise HostListError(f"{item!r} stands for more than {MAX_HOSTS} hosts")
        out.extend(f"{n:0{len(low)}d}" for n in range(first, last + 1))
    return out


def compress(hosts: Iterable[str]) -> str:
    """A host list that expands to exactly `hosts`, same order; neighbours of one prefix share a bracket.

    Raises HostListError for what is no host name.
    """
    out: list[str] = []
    for prefix, group in itertools.groupby(hosts, key=_prefix):
        members = list(group)
        if prefix is None or len(members) == 1:
            out.extend(members)
        else:
            out.append(f"{prefix}[{','.join(_runs([m[len(prefix) :] for m in members]))}]")
    return ",".join(out)


def _prefix(host: str) -> str | None:
    """What stands before the final number, or None for a name without one. The digits stay as they are written."""
    if _NAME.fullmatch(host) is None:
        raise HostListError(f"{host!r} is not a host name")
    match = _TRAILING.match(host)
    return match.group(1) if match else None


def _runs(numbers: list[str]) -> list[str]:
    """Successive numbers as ranges, wherever the width of the first one gives the others back."""
    runs: list[tuple[str, str]] = []
    for number in numbers:
        if runs and number == f"{int(runs[-1][1]) + 1:0{len(runs[-1][0])}d}":
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    return [low if low == high else f"{low}-{high}" for low, high in runs]
