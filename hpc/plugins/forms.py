"""Takes a mapping of a manifest or declaration apart, key by key, and keeps every fault instead of stopping at the first. Pure."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from hpc.errors import Refusal
from hpc.spec.text import CONTROL, CONTROL_IN_PROSE, visible
from hpc.store.names import BIDI

MAX_LINE: Final = 1000
Grammar = re.Pattern[str] | Callable[[str], bool]


@dataclass(frozen=True)
class Codes:
    """The codes of one document's faults."""

    missing: str
    unknown: str
    wrong: str


MANIFEST: Final = Codes("E-PLUGIN-004", "E-PLUGIN-005", "E-PLUGIN-006")
DECLARATION: Final = Codes("E-PLUGIN-062", "E-PLUGIN-063", "E-PLUGIN-064")


def shown(value: Any) -> Any:
    """What a refusal may show of a value: scalars, text made visible, containers by their kind."""
    if isinstance(value, str):
        return visible(value)
    if value is None or isinstance(value, (bool, int, float)):
        return value
    return "a mapping" if isinstance(value, Mapping) else "a list"


def steering(text: str, *, prose: bool = False) -> str:
    """What in `text` would steer a display, as `U+202E`; "" if nothing does. `prose` allows line feed and tab."""
    hit = (CONTROL_IN_PROSE if prose else CONTROL).search(text) or BIDI.search(text)
    return f"U+{ord(hit.group()):04X}" if hit else ""


@dataclass
class Form:
    """One mapping. Every `take` of a key returns a usable value, the default where the given one is at fault.

    `origin` (a file name) and `path` (the keys down to this mapping) start each fault's field.
    """

    value: Mapping[str, Any]
    faults: list[Refusal]
    codes: Codes = MANIFEST
    origin: str = ""
    path: str = ""
    known: list[str] = field(default_factory=list)

    def where(self, key: str = "") -> str:
        """The field of a key as a fault names it: `benchmark.yaml: metrics[0].key`."""
        path = visible(f"{self.path}.{key}" if self.path and key else self.path or key, 200)
        return f"{self.origin}: {path}" if self.origin and path else self.origin or path

    def no(
        self, key: str, message: str, *, found: Any = None, allowed: str = "", hint: str = "", code: str = ""
    ) -> None:
        """Keep one fault of `key`."""
        self.faults.append(
            Refusal(
                code or self.codes.wrong, message, field=self.where(key), found=shown(found), allowed=allowed, hint=hint
            )
        )

    def get(self, key: str) -> Any:
        """The raw value; None where it is absent or null."""
        self.known.append(key)
        return self.value.get(key)

    def missing(self, key: str, allowed: str = "") -> None:
        self.no(key, "is missing", allowed=allowed or "a value", code=self.codes.missing)

    def only(self, hints: Mapping[str, str] | None = None) -> None:
        """Refuse every key that was not asked for, with the nearest one that is read."""
        names = sorted(set(self.known))
        for key in [key for key in self.value if key not in names]:
            near = difflib.get_close_matches(key, names, 1)
            hint = (hints or {}).get(key) or (f"did you mean {near[0]!r}?" if near else "")
            self.no(
                visible(key),
                f"unknown field {visible(key)!r}",
                allowed=", ".join(names),
                hint=hint,
                code=self.codes.unknown,
            )

    def text(
        self,
        key: str,
        *,
        required: bool = False,
        limit: int = MAX_LINE,
        prose: bool = False,
        grammar: Grammar | None = None,
        allowed: str = "",
    ) -> str:
        """Text without white space around it; "" where it is absent. With `prose`, several lines are allowed."""
        value = self.get(key)
        if value is None or value == "":
            if required:
                self.missing(key, allowed)
            return ""
        return self.checked(key, value, required=required, limit=limit, prose=prose, grammar=grammar, allowed=allowed)

    def checked(
        self,
        key: str,
        value: Any,
        *,
        required: bool = True,
        limit: int = MAX_LINE,
        prose: bool = False,
        grammar: Grammar | None = None,
        allowed: str = "",
    ) -> str:
        """`value` as text of that grammar; "" and a fault of `key` where it is something else."""
        if not isinstance(value, str):
            self.no(
                key,
                "must be text",
                found=value,
                allowed=allowed or "text",
                hint="put it in quotes" if _scalar(value) else "",
            )
            return ""
        text = value.strip()
        if hit := steering(text, prose=prose):
            self.no(
                key,
                f"holds {hit}",
                found=text,
                allowed="plain text" if prose else "one line of plain text",
                code="E-PLUGIN-009",
            )
        elif not text:
            if required:
                self.no(key, "must not be empty", allowed=allowed or "some text")
        elif len(text) > limit:
            self.no(
                key, f"is longer than {limit} characters", found=len(text), allowed=allowed or f"{limit} characters"
            )
        elif grammar is not None and not _fits(grammar, text):
            self.no(key, "has another form", found=text, allowed=allowed)
        else:
            return text
        return ""

    def texts(self, key: str, *, most: int = 1000, limit: int = MAX_LINE, grammar: Grammar | None = None, allowed: str = "",
              prose: bool = False, blank: bool = False) -> list[str]:  # fmt: skip
        """A list of texts, each once, in their order; [] where it is absent. With `blank`, empty ones are left out."""
        out = [self.checked(f"{key}[{n}]", v, required=not blank, limit=limit, grammar=grammar, allowed=allowed, prose=prose)
               for n, v in enumerate(self.items(key, most=most))]  # fmt: skip
        return list(dict.fromkeys(text for text in out if text))

    def items(self, key: str, *, most: int = 1000) -> list[Any]:
        """A list of anything; [] where it is absent."""
        value = self.get(key)
        if value is None:
            return []
        if not isinstance(value, list):
            self.no(key, "must be a list", found=value, allowed="a list")
        elif len(value) > most:
            self.no(key, f"has {len(value)} entries", found=len(value), allowed=f"at most {most}")
        else:
            return value
        return []

    def choice(self, key: str, options: Iterable[str], *, required: bool = False, default: str = "") -> str:
        """One of `options`; the default where it is absent or another."""
        names = list(options)
        value = self.get(key)
        allowed = ", ".join(names)
        if value is None:
            if required:
                self.missing(key, allowed)
        elif value in names and isinstance(value, str):
            return value
        else:
            near = difflib.get_close_matches(str(value), names, 1)
            hint = f"did you mean {near[0]!r}?" if near else ""
            self.no(key, "is none of the values", found=value, allowed=allowed, hint=hint)
        return default

    def number(self, key: str, low: int, high: int, default: int) -> int:
        """A whole number from `low` to `high`; the default where it is absent or another."""
        value = self.get(key)
        if value is None:
            return default
        if type(value) is int and low <= value <= high:
            return value
        self.no(key, "is no whole number in the range", found=value, allowed=f"{low} to {high}")
        return default

    def flag(self, key: str, default: bool) -> bool:
        value = self.get(key)
        if value is None or isinstance(value, bool):
            return default if value is None else value
        self.no(key, "must be true or false", found=value, allowed="true or false")
        return default

    def part(self, key: str, value: Any = ...) -> Form | None:
        """The mapping under `key` (or `value`, an entry of a list) as a form of its own; None where there is none."""
        given = self.get(key) if value is ... else value
        if given is None and value is ...:
            return None
        if not isinstance(given, dict):
            self.no(key, "must be a mapping", found=given, allowed="a mapping")
            return None
        return Form(given, self.faults, self.codes, self.origin, f"{self.path}.{key}" if self.path else key)

    def parts(self, key: str, *, most: int = 1000) -> list[Form]:
        """The mappings of the list under `key`."""
        found = [self.part(f"{key}[{n}]", v) for n, v in enumerate(self.items(key, most=most))]
        return [form for form in found if form is not None]


def _scalar(value: Any) -> bool:
    return isinstance(value, (int, float, bool))


def _fits(grammar: Grammar, text: str) -> bool:
    return bool(grammar.fullmatch(text)) if isinstance(grammar, re.Pattern) else grammar(text)
