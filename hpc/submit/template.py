"""Batch templates: complete bash scripts with three holes (`directives`, `about`, `settings`). A site's copy wins over the shipped one.

Rendering is sandboxed and strict: an unknown hole, a lint error or a script larger than 256 KiB is refused with the line, never submitted.
Templates are Jinja. One that uses nothing but holes and one level of include, as the shipped ones do, is filled in here with the same result,
because loading Jinja costs more than everything else that a script needs.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tuneplane.contract.layout import StorageRoot

from hpc.errors import Refusal, Refusals
from hpc.spec.text import check_plain
from hpc.submit.scriptlint import lint_script

CHECKPOINTS = "checkpoints.sh.j2"
"""What a script does for the evaluations of its run's checkpoints; it stands behind the settings, so that every template takes it."""
NAMES = ("train.sbatch.j2", "custom.sbatch.j2", "local.sh.j2", "functions.sh.j2", CHECKPOINTS)
HOLES = ("directives", "about", "settings")
MAX_SCRIPT = 256 << 10
_SIMPLE = re.compile(r"{{\s*([A-Za-z_][A-Za-z0-9_]*)\s*}}|{%\s*include\s+\"([A-Za-z0-9_.]+)\"\s*%}", re.ASCII)
_MORE = re.compile(r"{{|{%|{#|{\0|\r")


@dataclass(frozen=True)
class Source:
    """Where a template comes from."""

    name: str
    path: Path
    site: bool

    def text(self) -> str:
        try:
            return self.path.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as exc:
            raise Refusal("E-SUBMIT-020", f"{self.path}: {exc}", field=self.name) from exc


def shipped_folder() -> Path:
    from hpc.catalog.shipped import shipped

    return shipped("sbatch_templates")


def find(root: StorageRoot | None, name: str) -> Source:
    """The template in force. Raises Refusal E-SUBMIT-021 for an unknown name, E-SITE-01x for a site's copy that others than admins can write:
    what stands in it runs as whoever submits."""
    if name not in NAMES:
        raise Refusal("E-SUBMIT-021", f"no template {name!r}", found=name, allowed=", ".join(NAMES))
    if root is not None and os.path.lexists(root.templates / name):
        from hpc.site.trust import require_admin_owned

        require_admin_owned(root, root.templates / name)
        return Source(name, root.templates / name, True)
    return Source(name, shipped_folder() / name, False)


def settings_text(settings: Mapping[str, str]) -> str:
    """`export NAME='value'` lines; each value exactly as it is, with control characters refused except newlines between mounts."""
    lines = []
    for name, value in settings.items():
        for line in value.split("\n"):
            check_plain(line, name)
        lines.append(f"export {name}={shlex.quote(value)}")
    return "\n".join(lines)


def fill(text: str, values: Mapping[str, str], load: Callable[[str], str | None] | None) -> str | None:
    """What Jinja would make of `text`, where it has only holes of `values` and includes that `load` finds; None for anything else."""
    if "\0" in text or _MORE.search(_SIMPLE.sub("\0", text)):
        return None
    parts, at = [], 0
    for match in _SIMPLE.finditer(text):
        hole, wanted = match.groups()
        inner = values.get(hole)
        if wanted is not None:
            found = load(wanted) if load is not None else None
            inner = None if found is None else fill(found, values, None)
        if inner is None:
            return None
        parts += [text[at : match.start()], inner]
        at = match.end()
    return "".join([*parts, text[at:]])


def _jinja(root: StorageRoot | None, name: str, values: Mapping[str, str], load: Callable[[str], str | None]) -> str:
    import jinja2
    from jinja2.sandbox import SandboxedEnvironment

    environment = SandboxedEnvironment(
        loader=jinja2.FunctionLoader(load),
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        autoescape=False,
    )
    try:
        return environment.get_template(name).render(values)
    except jinja2.TemplateError as exc:
        line = getattr(exc, "lineno", None)
        place = f"{find(root, name).path}" + (f":{line}" if line else "")
        raise Refusal(
            "E-SUBMIT-022", f"{exc.message or exc}", field=place, allowed=f"the holes {', '.join(HOLES)}"
        ) from exc


def render(
    root: StorageRoot | None, name: str, *, directives: str, about: str, settings: Mapping[str, str], evaluated: bool = False
) -> str:  # fmt: skip
    """The finished script; `evaluated` with what lets the evaluations of checkpoints go. Raises Refusal(s) E-SUBMIT-02x naming template and line."""
    values = {"directives": directives, "about": check_plain(about, "about"), "settings": settings_text(settings)}
    if evaluated:
        values["settings"] += f"\n\n{find(root, CHECKPOINTS).text()}"

    def load(wanted: str) -> str | None:
        return find(root, wanted).text() if wanted in NAMES else None

    text = fill(find(root, name).text(), values, load)
    if text is None:
        text = _jinja(root, name, values, load)
    if len(text) > MAX_SCRIPT:
        raise Refusal("E-SUBMIT-023", f"the script has {len(text)} characters", field=name, allowed=str(MAX_SCRIPT))
    if name != "local.sh.j2" and (faults := lint_script(text, find(root, name).path)):
        raise Refusals(faults)
    return text
