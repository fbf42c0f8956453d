"""A row as the model's chat template writes it, for counting tokens. The template is the model's: it runs in Jinja2's sandbox, or not at all."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

Render = Callable[[list[Mapping[str, Any]]], str]
_MAX_BYTES: Final = 1 << 20


def chat_template(model: Path) -> Render | None:
    """Writes messages as the model's folder says; None where it has no template, or none that can be used."""
    source = _source(model)
    if not source:
        return None
    from jinja2 import TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def refuse(message: str) -> None:
        raise TemplateError(message)

    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
    env.globals |= {"raise_exception": refuse, "strftime_now": lambda form: ""}
    try:
        template = env.from_string(source)
    except TemplateError:
        return None
    return lambda messages: template.render(messages=messages, add_generation_prompt=False, **_specials(model))


def _source(model: Path) -> str:
    path = model / "chat_template.jinja"
    try:
        if path.is_file() and path.stat().st_size <= _MAX_BYTES:
            return path.read_text("utf-8")
        found = _config(model).get("chat_template")
    except (OSError, UnicodeDecodeError):
        return ""
    return found if isinstance(found, str) else ""


def _config(model: Path) -> dict[str, Any]:
    try:
        value = json.loads((model / "tokenizer_config.json").read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _specials(model: Path) -> dict[str, str]:
    """`bos_token` and the like; a config has them as text or as an object with `content`."""
    config = _config(model)
    found = {name: config.get(name) for name in ("bos_token", "eos_token", "pad_token", "unk_token")}
    return {n: str(v.get("content", "") if isinstance(v, dict) else v or "") for n, v in found.items()}


def messages_of(row: Any) -> list[Mapping[str, Any]] | None:
    """The conversation in a row, of a preference with the chosen answer; None for a row of plain text, which no template touches."""
    if not isinstance(row, dict):
        return None
    whole, prompt, answer = row.get("messages"), row.get("prompt"), row.get("completion", row.get("chosen"))
    if not isinstance(whole, list):
        whole = [part for part in (prompt, answer) if isinstance(part, list)]
        whole = [message for part in whole for message in part]
    return [m for m in whole if isinstance(m, dict)] or None
