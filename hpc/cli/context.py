"""What every command needs from its surroundings: the storage root, the user, the clock. Read once, handed down by argument."""

from __future__ import annotations

import importlib
import json
import os
import pwd
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from tuneplane.contract.layout import StorageRoot
from tuneplane.record.canonical import CanonicalError, pretty_bytes

from hpc.errors import Refusal

if TYPE_CHECKING:
    from hpc.catalog.shelf import Catalogue

ROOT_VARIABLE = "TUNEPLANE_STORAGE_ROOT"
_JOINER = "\u200d"
"""Makes one emoji of several; it steers nothing."""
F = TypeVar("F", bound=Callable[..., Any])


class GivenPath(click.Path):
    """A path as an argument. An empty one, such as an unset variable of a script leaves, is refused: it would be the current folder."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(path_type=Path, **settings)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not os.fspath(value):
            self.fail("is empty; '.' is the current folder", param, ctx)
        return super().convert(value, param, ctx)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Around what writes a file that the user named: where it cannot be written is the user's matter. Raises Refusal E-STORE-02x."""
    try:
        yield
    except OSError as exc:
        from hpc.store.faults import refusal

        raise refusal(exc, path, "write") from exc


def config_file() -> Path:
    """The user's own config.toml (XDG)."""
    return Path(os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")) / "tuneplane" / "config.toml"


def user_config() -> dict[str, Any]:
    """The user's config.toml, or nothing. Raises Refusal E-CLI-004."""
    path = config_file()
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as exc:
        raise Refusal("E-CLI-004", f"{path}: {exc}") from exc
    tomllib = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    try:
        value: dict[str, Any] = tomllib.loads(text)
        return value
    except tomllib.TOMLDecodeError as exc:
        raise Refusal("E-CLI-004", f"{path}: {exc}") from exc


def named_root() -> tuple[str, str]:
    """(path, who says so), or empty strings. The variable wins over the file."""
    if value := os.environ.get(ROOT_VARIABLE):
        return value, ROOT_VARIABLE
    value = user_config().get("storage_root", "")
    if not isinstance(value, str):
        raise Refusal("E-CLI-004", "storage_root is not text", field="storage_root", found=value, allowed="a path")
    return (os.path.expanduser(value), str(config_file())) if value else ("", "")


def storage_root() -> StorageRoot:
    """The storage root that is in force. Raises Refusal E-CLI-002, E-CLI-003."""
    text, origin = named_root()
    if not text:
        raise Refusal("E-CLI-002", f"no storage root: neither ${ROOT_VARIABLE} nor {config_file()} names one")
    root = StorageRoot(Path(text))
    if not root.path.is_absolute() or not root.site_file.is_file():
        raise Refusal(
            "E-CLI-003", f"{text} has no site/site.yaml", field=origin, found=text, allowed="an absolute path of a root"
        )
    return root


def current_user() -> str:
    """The Unix user, as the kernel reports the real uid; never an environment variable."""
    uid = os.getuid()
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid{uid}"


def json_option(function: F) -> F:
    """The `--json` flag that every command has."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")(function)


def print_json(value: Any) -> None:
    """Print one JSON document. Text that has no UTF-8, such as a file's odd name, is shown with escapes.

    What would steer a terminal stands as JSON's own escape: a program reads the same text, and a person who looks on is not fooled.
    """
    try:
        text = pretty_bytes(value).decode()
    except CanonicalError:
        text = pretty_bytes(_utf8(value)).decode()
    click.echo("\n".join(map(_inert, text.split("\n"))), nl=False)


def _inert(line: str) -> str:
    """A line of JSON in which every character is printable; where one is not, it is within a string."""
    return line if line.isprintable() else "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in line)


def _utf8(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {_utf8(key): _utf8(item) for key, item in value.items()}
    return [_utf8(item) for item in value] if isinstance(value, (list, tuple)) else value


def table(rows: list[list[str]], headers: list[str]) -> str:
    """A plain left-aligned table; columns two spaces apart; safe for pipes and for terminals, whoever wrote what the cells hold."""
    from hpc.spec.text import escaped

    lines = [headers, *([escaped(c, keep=_JOINER) for c in row] for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(headers))]
    return "\n".join("  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in lines)


def catalogue_here() -> tuple[Catalogue, str]:
    """The catalogue in force and where it is: the storage root's where one is named, else the one that comes with this tp."""
    from hpc.catalog.shelf import Catalogue

    if named_root()[0]:
        root = storage_root()
        return Catalogue.load(root), str(root.recipes)
    return Catalogue.shipped(), "shipped with this tp (no storage root is set)"
