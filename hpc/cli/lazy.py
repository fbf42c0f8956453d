"""A group whose commands are imported when they are used, so that help and the other commands stay cheap."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import click

Table = Mapping[str, tuple[str, str]]
"""Command name → (`module:attribute`, help line)."""


class LazyGroup(click.Group):
    """Commands and their help lines come from `commands_at`; nothing is imported to list them."""

    def __init__(self, *args: Any, commands_at: Table, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._at = commands_at

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._at)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._at:
            return None
        module, attribute = self._at[cmd_name][0].split(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in self._at.items()])
