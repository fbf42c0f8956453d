"""Opens a declaration's file as a form: strict YAML or strict JSON of at most 1 MiB, or one fault that says why not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from tuneplane.record.canonical import CanonicalError, parse_json
from tuneplane.record.files import read_bytes

from hpc.errors import Refusal
from hpc.plugins.forms import DECLARATION, Form, shown
from hpc.spec.yamltext import parse_yaml

MAX_BYTES: Final = 1 << 20
_JSON_DEPTH: Final = 64


def open_form(name: str, read: Callable[[], bytes], faults: list[Refusal]) -> Form | None:
    """The mapping in the file `name` (.yaml or .json); None, and a fault E-PLUGIN-061, where there is none."""
    try:
        data = read()
        text = data.decode("utf-8")
        value = _json(text) if name.endswith(".json") else parse_yaml(text, origin=name)
    except Refusal as exc:
        field = exc.field if exc.field.startswith(name) else name
        code = exc.code if exc.code == "E-PLUGIN-060" else "E-PLUGIN-061"
        faults.append(Refusal(code, exc.message, field=field, found=exc.found, allowed=exc.allowed))
        return None
    except (UnicodeDecodeError, CanonicalError) as exc:
        message = f"is not UTF-8: byte {exc.start}" if isinstance(exc, UnicodeDecodeError) else str(exc)
        faults.append(Refusal("E-PLUGIN-061", message, field=name))
        return None
    if not isinstance(value, dict):
        faults.append(Refusal("E-PLUGIN-061", "is no mapping", field=name, found=shown(value), allowed="a mapping"))
        return None
    return Form(value, faults, DECLARATION, name)


def _json(text: str) -> Any:
    value = parse_json(text)
    if _deeper(value, _JSON_DEPTH):
        raise CanonicalError(f"nested deeper than {_JSON_DEPTH} levels")
    return value


def _deeper(value: Any, left: int) -> bool:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return left < 0 or any(_deeper(item, left - 1) for item in inner)


def stored(folder: Path, name: str) -> Callable[[], bytes]:
    """Reads the file of a stored package. Raises Refusal E-PLUGIN-060 where it is not there, E-PLUGIN-061 where it cannot be read."""

    def read() -> bytes:
        try:
            return read_bytes(folder / name, limit=MAX_BYTES)
        except FileNotFoundError:
            raise Refusal("E-PLUGIN-060", "is not in the package", field=name) from None
        except (OSError, ValueError) as exc:
            raise Refusal("E-PLUGIN-061", f"cannot be read: {exc}", field=name) from exc

    return read
