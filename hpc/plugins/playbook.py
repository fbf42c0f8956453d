"""playbook.yaml (tuneplane-hpc/playbook/v1): a site's own wording for `tp job why`, its thresholds, and the errors it knows by their lines.

Everything in it adds to what the toolkit says by itself; `BUILTIN` adds nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from hpc.errors import Refusal, Refusals
from hpc.plugins.forms import Form
from hpc.plugins.opening import open_form, stored
from hpc.plugins.patterns import MAX_LENGTH, MAX_LINE, UnsafeError, compile_safe

NAME: Final = "playbook.yaml"
SCHEMA: Final = "tuneplane-hpc/playbook/v1"
ENDS: Final = (
    "error", "out_of_memory", "no_output", "refused", "no_progress", "timeout", "preempted", "node_fail", "cancelled", "vanished", "unknown",
)  # fmt: skip
"""What a diagnosis can end in: the classes of a run's end, and two kinds of error that are told apart: memory, and nothing written at all."""
OUTLOOKS: Final = ("wait", "user", "admin", "hopeless")
_REASON = re.compile(r"[A-Za-z][A-Za-z0-9_,]*")
_ID = re.compile(r"[a-z0-9][a-z0-9-]*")


@dataclass(frozen=True)
class Thresholds:
    """Where the diagnosis draws its lines. Seconds, ranks, lines of each log, files of one attempt's logs."""

    quick_end_s: int = 10
    ranks_shown: int = 8
    log_tail_lines: int = 4000
    logs_read: int = 256


@dataclass(frozen=True)
class EndWording:
    """What is said of one kind of end; "" and empty: the toolkit's own words. `replace`: `mend` takes the place of the toolkit's lines."""

    headline: str = ""
    mend: tuple[str, ...] = ()
    replace: bool = False

    def lines(self, own: list[str]) -> list[str]:
        """The lines of advice, given the toolkit's own."""
        return list(self.mend) if self.replace and self.mend else [*own, *self.mend]


@dataclass(frozen=True)
class ReasonWording:
    """What is said of one of Slurm's pending reasons; what is "" or empty stays the toolkit's own."""

    meaning: str = ""
    outlook: str = ""
    mend: tuple[str, ...] = ()


@dataclass(frozen=True)
class KnownError:
    """An error that the site knows by a line of a log. `ends`: only where the run ended so; empty: always."""

    id: str
    headline: str
    mend: tuple[str, ...] = ()
    contains: tuple[str, ...] = ()
    pattern: re.Pattern[str] | None = None
    ignore_case: bool = False
    ends: tuple[str, ...] = ()

    def matches(self, line: str) -> bool:
        """Whether the first 400 characters of the line hold all of `contains` and match `pattern`."""
        text = line[:MAX_LINE]
        low = text.lower() if self.ignore_case else text
        held = all((part.lower() if self.ignore_case else part) in low for part in self.contains)
        return held and (self.pattern is None or self.pattern.search(text) is not None)


@dataclass(frozen=True)
class Playbook:
    """One site's playbook. `contact` stands under every diagnosis that needs an admin."""

    name: str = ""
    title: str = ""
    contact: str = ""
    thresholds: Thresholds = field(default_factory=Thresholds)
    ends: Mapping[str, EndWording] = field(default_factory=dict)
    reasons: Mapping[str, ReasonWording] = field(default_factory=dict)
    errors: tuple[KnownError, ...] = ()

    def end(self, key: str) -> EndWording:
        """The wording of one of `ENDS`."""
        return self.ends.get(key, EndWording())

    def reason(self, text: str) -> ReasonWording:
        """The wording of a pending reason as squeue shows it; what Slurm adds after the word does not matter, nor does case."""
        word = text.strip().strip("()").split(",")[0].split("(")[0].strip().lower()
        return self.reasons.get(word, ReasonWording())

    def known_error(self, line: str, end: str = "") -> KnownError | None:
        """The first known error that the line shows, for a run that ended as `end` ("" for any)."""
        return next((e for e in self.errors if (not end or not e.ends or end in e.ends) and e.matches(line)), None)


BUILTIN: Final = Playbook(name="built-in")


def load(folder: Path) -> Playbook:
    """The playbook of a stored package. Raises Refusals (E-PLUGIN-06x): all faults at once, and then nothing of it counts."""
    faults: list[Refusal] = []
    form = open_form(NAME, stored(folder, NAME), faults)
    found = read_playbook(form) if form is not None else BUILTIN
    if faults:
        raise Refusals(faults)
    return found


def read_playbook(form: Form, name: str = "") -> Playbook:
    """The playbook, with every fault kept in the form. `name`, where given, is the package's."""
    form.choice("schema", (SCHEMA,), required=True)
    stated = form.text("name", required=True, limit=128)
    if name and stated and stated != name:
        form.no("name", "is not the package's name", found=stated, allowed=name)
    title, contact = form.text("title"), form.text("contact", limit=300)
    thresholds = _thresholds(form.part("thresholds"))
    ends: dict[str, EndWording] = {}
    if (table := form.part("ends")) is not None:
        ends = {key: _end(part) for key in ENDS if (part := table.part(key)) is not None}
        table.only()
    reasons: dict[str, ReasonWording] = {}
    if (table := form.part("reasons")) is not None:
        reasons = _reasons(table)
    errors = [_error(part) for part in form.parts("errors", most=200)]
    for error in errors:
        if error.id and sum(e.id == error.id for e in errors) > 1:
            form.no("errors", "an id stands twice", found=error.id, allowed="each id once")
            break
    form.only()
    return Playbook(stated, title, contact, thresholds, ends, reasons, tuple(errors))


def _thresholds(form: Form | None) -> Thresholds:
    if form is None:
        return Thresholds()
    own = Thresholds()
    found = Thresholds(
        form.number("quick_end_s", 1, 3600, own.quick_end_s),
        form.number("ranks_shown", 1, 256, own.ranks_shown),
        form.number("log_tail_lines", 100, 20_000, own.log_tail_lines),
        form.number("logs_read", 1, 4096, own.logs_read),
    )
    form.only()
    return found


def _mend(form: Form) -> tuple[str, ...]:
    return tuple(form.texts("mend", most=8, limit=300))


def _end(form: Form) -> EndWording:
    found = EndWording(form.text("headline", limit=120), _mend(form), form.flag("replace", False))
    if found.replace and not found.mend:
        form.no("replace", "replaces the advice by nothing", found=True, allowed="mend lines beside it")
    form.only()
    return found


def _reasons(table: Form) -> dict[str, ReasonWording]:
    out: dict[str, ReasonWording] = {}
    if len(table.value) > 200:
        table.no("", f"has {len(table.value)} reasons", found=len(table.value), allowed="at most 200")
        return out
    for word in table.value:
        if not _REASON.fullmatch(word) or len(word) > 128:
            table.no(word, "is no reason of Slurm's", found=word, allowed="a word as `squeue -o %r` shows it")
        elif (part := table.part(word)) is not None:
            out[word.lower()] = ReasonWording(
                part.text("meaning", limit=300), part.choice("outlook", OUTLOOKS), _mend(part)
            )
            part.only()
    return out


def _error(form: Form) -> KnownError:
    ignore_case = form.flag("ignore_case", False)
    contains = tuple(form.texts("contains", most=4, limit=MAX_LENGTH))
    text = form.text("pattern", limit=MAX_LENGTH)
    pattern = None
    if text:
        try:
            pattern = compile_safe(text, ignore_case=ignore_case)
        except UnsafeError as exc:
            form.no("pattern", str(exc), found=text, allowed="a pattern of the safe part", code="E-PLUGIN-065")
    if not text and not contains:
        form.no(
            "pattern", "is missing, and so is contains", allowed="pattern, contains, or both", code=form.codes.missing
        )
    ends = tuple(form.texts("ends", most=len(ENDS)))
    for end in ends:
        if end not in ENDS:
            form.no("ends", "is no kind of end", found=end, allowed=", ".join(ENDS))
    found = KnownError(
        form.text("id", required=True, limit=64, grammar=_ID, allowed="lower-case letters, digits and '-'"),
        form.text("headline", required=True, limit=120),
        _mend(form), contains, pattern, ignore_case, ends,
    )  # fmt: skip
    form.only()
    return found
