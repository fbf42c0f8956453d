"""The request's `config` object, read strictly: an unknown key or a wrong type is an error that names the key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

ON_INVALID = ("fail", "skip")
DEDUPLICATE = ("record", "text", "off")
MAX_RECORD_BYTES = 1 << 30


class ConfigError(ValueError):
    """The configuration is not one of this provider's; the message names the key and what is allowed."""


@dataclass(frozen=True)
class Config:
    """Lengths are characters (Unicode code points) of the record's `text_field`, both bounds included; None for no bound."""

    text_field: str = "text"
    required_fields: tuple[str, ...] = ()
    min_length: int = 0
    max_length: int | None = None
    deduplicate: str = "record"
    on_invalid: str = "fail"
    max_record_bytes: int = 16 << 20

    @property
    def needs_text(self) -> bool:
        """True where a record without a text cannot be judged."""
        return self.min_length > 0 or self.max_length is not None or self.deduplicate == "text"

    @classmethod
    def read(cls, value: Mapping[str, Any]) -> Config:
        """Raises ConfigError."""
        known = {field.name for field in fields(cls)}
        if unknown := sorted(set(value) - known):
            raise ConfigError(f"config: unknown keys {', '.join(unknown)} (allowed: {', '.join(sorted(known))})")
        given = dict(value)
        if "text_field" in given:
            _text("text_field", given["text_field"])
        if "required_fields" in given:
            given["required_fields"] = _texts("required_fields", given["required_fields"])
        if "min_length" in given:
            _count("min_length", given["min_length"], 0)
        if given.get("max_length") is not None:
            _count("max_length", given["max_length"], 0)
        if "max_record_bytes" in given:
            _count("max_record_bytes", given["max_record_bytes"], 2, MAX_RECORD_BYTES)
        for key, allowed in (("deduplicate", DEDUPLICATE), ("on_invalid", ON_INVALID)):
            if key in given and given[key] not in allowed:
                raise ConfigError(f"config.{key} is {given[key]!r}; allowed: {', '.join(allowed)}")
        config = cls(**given)
        if config.max_length is not None and config.max_length < config.min_length:
            raise ConfigError(f"config.max_length {config.max_length} is below min_length {config.min_length}")
        return config

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"required_fields": list(self.required_fields)}


def _text(key: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ConfigError(f"config.{key} is {value!r}; allowed: the name of a field")
    return value


def _texts(key: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise ConfigError(f"config.{key} is {value!r}; allowed: a list of field names")
    names = tuple(_text(f"{key}[{index}]", item) for index, item in enumerate(value))
    if len(set(names)) != len(names):
        raise ConfigError(f"config.{key} names a field twice: {value!r}")
    return names


def _count(key: str, value: Any, least: int, most: int | None = None) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least or (most is not None and value > most):
        upper = f" to {most}" if most is not None else " or more"
        raise ConfigError(f"config.{key} is {value!r}; allowed: a whole number, {least}{upper}")
