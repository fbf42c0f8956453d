"""The request's `config` object, read strictly: an unknown key or a wrong type is an error that names the key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

ON_INVALID = ("fail", "skip")
MAX_CHUNK_CHARS = 10_000_000


class ConfigError(ValueError):
    """The configuration is not one of this provider's; the message names the key and what is allowed."""


@dataclass(frozen=True)
class Config:
    """Sizes are characters (Unicode code points). `suffixes` decides which files of a folder are read; a file that is an input itself always is."""

    chunk_chars: int = 2000
    overlap_chars: int = 200
    suffixes: tuple[str, ...] = (".txt", ".md", ".markdown")
    on_invalid: str = "fail"

    @classmethod
    def read(cls, value: Mapping[str, Any]) -> Config:
        """Raises ConfigError."""
        known = {field.name for field in fields(cls)}
        if unknown := sorted(set(value) - known):
            raise ConfigError(f"config: unknown keys {', '.join(unknown)} (allowed: {', '.join(sorted(known))})")
        given = dict(value)
        _count("chunk_chars", given.get("chunk_chars", cls.chunk_chars), 1)
        _count("overlap_chars", given.get("overlap_chars", cls.overlap_chars), 0)
        if "suffixes" in given:
            given["suffixes"] = _suffixes(given["suffixes"])
        if given.get("on_invalid", "fail") not in ON_INVALID:
            raise ConfigError(f"config.on_invalid is {given['on_invalid']!r}; allowed: {', '.join(ON_INVALID)}")
        config = cls(**given)
        if config.overlap_chars >= config.chunk_chars:
            raise ConfigError(
                f"config.overlap_chars is {config.overlap_chars}; allowed: less than chunk_chars, {config.chunk_chars}"
            )
        return config

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"suffixes": list(self.suffixes)}


def _count(key: str, value: Any, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= MAX_CHUNK_CHARS:
        raise ConfigError(f"config.{key} is {value!r}; allowed: a whole number, {least} to {MAX_CHUNK_CHARS}")


def _suffixes(value: Any) -> tuple[str, ...]:
    good = isinstance(value, list) and value
    if not good or not all(isinstance(s, str) and s.startswith(".") and len(s) > 1 and "/" not in s for s in value):
        raise ConfigError(f'config.suffixes is {value!r}; allowed: a list like [".txt", ".md"]')
    return tuple(sorted({suffix.lower() for suffix in value}))
