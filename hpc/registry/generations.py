"""A pointer that several people may move: a folder of numbered generations, each a file that is created once and never changed.

Moving it is compare-and-set without any lock: the file of the next number is created exclusively, so of two writers who saw the same generation
exactly one wins, whatever the file system does with locks. Readers take the newest generation that can be read and believed, and say so when that
is not the newest that is there. A record names its pointer and its number, so one that was put in another's place shows.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tuneplane.contract.layout import StorageRoot
from tuneplane.record import files

from hpc.errors.core import Refusal
from hpc.registry.problems import TAMPERED, Problem, is_stale, of_error
from hpc.registry.records import DIGEST, FILE_MODE, RecordError, decode_record, encode_record, read_raw
from hpc.site.users import User
from hpc.store.faults import refusal
from hpc.store.folders import make_folder

SCHEMA: Final = "tuneplane-hpc/generation/v1"
MAX_GENERATION: Final = 1 << 20
_NAME = re.compile(r"([1-9][0-9]{0,8})\.json")
_OWN: Final = frozenset(("schema", "pointer", "generation", "previous", "after", "actor", "uid", "at", DIGEST))
Judge = Callable[[Path, os.stat_result], "Problem | None"]
"""(path of a generation's file, what the kernel says) -> why it is not to be believed, or None."""


@dataclass(frozen=True)
class Generation:
    """One generation that can be believed. `after`: the number of the one it was made from (0: none)."""

    number: int
    body: Mapping[str, Any]
    digest: str
    previous: str
    after: int
    actor: str
    uid: int
    at: str


@dataclass(frozen=True)
class State:
    """`number`: the highest number that is there (0: none), which is what a writer must name; `good`: the newest that can be believed."""

    number: int
    good: Generation | None
    problems: tuple[Problem, ...] = field(default=())

    @property
    def whole(self) -> bool:
        return self.number == (self.good.number if self.good else 0)


def believe(path: Path, found: os.stat_result) -> Problem | None:
    """The judge of a pointer whose folder is trusted otherwise."""
    return None


class Pointer:
    """The pointer whose generations lie in `folder`. `subject` is its name in every record: its path below registry/."""

    def __init__(self, root: StorageRoot, folder: Path, *, judge: Judge = believe) -> None:
        self.root, self.folder, self.judge = root, folder, judge
        self.subject = folder.relative_to(root.registry).as_posix()

    def path(self, number: int) -> Path:
        return self.folder / f"{number}.json"

    def numbers(self) -> list[int]:
        """The numbers that are there, rising. Raises Refusal E-STORE-02x."""
        try:
            names = os.listdir(self.folder)
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as exc:
            raise refusal(exc, self.folder, "list") from exc
        return sorted(int(m[1]) for m in map(_NAME.fullmatch, names) if m)

    def state(self) -> State:
        """The newest good generation and what is wrong with newer ones. Older ones are not looked at."""
        numbers = self.numbers()
        problems: list[Problem] = []
        for number in reversed(numbers):
            good, problem = self.read(number)
            if problem is not None:
                problems.append(problem)
            if good is not None:
                return State(numbers[-1], good, tuple(problems))
        return State(numbers[-1] if numbers else 0, None, tuple(problems))

    def current(self) -> tuple[int, Mapping[str, Any]]:
        """(number that a writer must name, body in force). The body is empty where there was no generation yet.

        Raises Refusal E-REG-022 where generations are there and none can be believed, so that nobody guesses.
        """
        state = self.believed()
        return state.number, state.good.body if state.good else {}

    def believed(self) -> State:
        """`state`, or Refusal E-REG-022 where generations are there and none can be believed."""
        state = self.state()
        if state.good is None and state.number:
            raise _unreadable(self, state)
        return state

    def history(self) -> list[Generation]:
        """Every generation that can be believed, newest first."""
        found = (self.read(number)[0] for number in reversed(self.numbers()))
        return [g for g in found if g is not None]

    def read(self, number: int) -> tuple[Generation | None, Problem | None]:
        """One generation, or what is wrong with it. A stale handle is tried again, twice."""
        path = self.path(number)
        where = str(path)
        for attempt in (0, 1, 2):
            try:
                raw = read_raw(path, limit=MAX_GENERATION, names=2)
                break
            except RecordError as exc:
                return None, Problem(TAMPERED, "E-REG-012", where, str(exc))
            except FileNotFoundError:
                return None, Problem(TAMPERED, "E-REG-012", where, "is missing")
            except OSError as exc:
                if not is_stale(exc) or attempt == 2:
                    return None, of_error(exc, where)
        if doubt := self.judge(path, raw.found):
            return None, doubt
        try:
            return self.decode(raw.data, number), None
        except RecordError as exc:
            return None, Problem(TAMPERED, "E-REG-012", where, str(exc))

    def decode(self, data: bytes, number: int) -> Generation:
        """Raises RecordError for anything but generation `number` of this pointer."""
        if not data:
            raise RecordError("is empty: a writer is at work in this moment, or died")
        value = decode_record(data, SCHEMA)
        if not value.keys() >= _OWN:
            raise RecordError(f"lacks {', '.join(sorted(_OWN - value.keys()))}")
        if value["pointer"] != self.subject or value["generation"] != number:
            raise RecordError(f"is generation {value['generation']!r:.20} of {value['pointer']!r:.120}")
        after = value["after"]
        if type(after) is not int or not 0 <= after < number or not isinstance(value["previous"], str):
            raise RecordError("has a field of another shape")
        body = {k: v for k, v in value.items() if k not in _OWN}
        texts = (str(value["actor"]), value["uid"], str(value["at"]))
        return Generation(number, body, value[DIGEST], value["previous"], after, *texts)

    def advance(self, expected: int, body: Mapping[str, Any], *, by: User, now: str, mode: int = FILE_MODE) -> int:
        """Make `body` the next generation if the newest that is there still is `expected`; its number.

        Naming the number of a generation that is not whole goes on from the last good one. Raises Refusal E-REG-020 (somebody was faster),
        E-STORE-02x (the file system refuses).
        """
        if clash := _OWN & body.keys():
            raise ValueError(f"these keys are the pointer's own: {sorted(clash)}")
        state = self.state()
        if state.number != expected:
            raise stale(self, expected, state.number)
        number, last = expected + 1, state.good
        value = {
            "schema": SCHEMA,
            "pointer": self.subject,
            "generation": number,
            "previous": last.digest if last else "",
            "after": last.number if last else 0,
            "actor": by.name,
            "uid": by.uid,
            "at": now,
            **body,
        }
        try:
            files.write_new(self.path(number), encode_record(value), mode=mode)
        except FileExistsError:
            raise stale(self, expected, number) from None
        except OSError as exc:
            raise refusal(exc, self.path(number), "write") from exc
        return number

    def make(self, anchor: Path, mode: int, uid: int = -1) -> None:
        """Make the pointer's folder and the missing ones above it, up to `anchor`. Raises Refusal E-STORE-01x, E-STORE-02x."""
        here = anchor
        for part in self.folder.relative_to(anchor).parts:
            here = here / part
            # What another admin made is left as it is: readers judge it.
            if not here.is_dir() or here.is_symlink():
                make_folder(here, mode, uid=uid, anchor=anchor)


def stale(pointer: Pointer, expected: int, found: int) -> Refusal:
    text = f"generation {expected} was expected and {found} is there"
    return Refusal("E-REG-020", text, field=str(pointer.folder), found=found, allowed=str(expected))


def _unreadable(pointer: Pointer, state: State) -> Refusal:
    first = state.problems[0]
    return Refusal("E-REG-022", f"{state.number} generations, none whole: {first.message}", field=str(pointer.folder))


def require_whole(pointer: Pointer, state: State) -> None:
    """Return only if the newest generation is good: who changes a pointer must have read it. Raises Refusal E-REG-021, E-REG-022."""
    if state.whole:
        return
    if state.good is None:
        raise _unreadable(pointer, state)
    first = state.problems[0]
    text = f"generation {state.number} {first.message}; {state.good.number} is in force"
    raise Refusal("E-REG-021", text, field=first.path, found=state.number, allowed=str(state.good.number))
