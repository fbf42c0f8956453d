"""The launch plan that a compiler answers with: its form, checked strictly. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any, Final

from tuneplane.contract import plans
from tuneplane.record.digest import is_relative

from hpc.errors import Refusal, Refusals
from hpc.plugins.forms import Codes, Form

CONTRACT_VERSION: Final = 1
MODES: Final = {"process-group": plans.DIRECT, None: plans.DIRECT, "ray": plans.RAY_DRIVER}
"""The launch mode that belongs to each orchestrator of a recipe."""
MAX_WORDS, MAX_WORD, MAX_VARIABLES, MAX_FILES, MAX_FILE = 2048, 32 << 10, 256, 64, 1 << 20
MAX_ALL: Final = 4 << 20
_CODES: Final = Codes("E-FRAME-008", "E-FRAME-008", "E-FRAME-008")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
OURS: Final = frozenset(
    {
        "PATH", "HOME", "USER", "TMPDIR", "PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "LD_PRELOAD", "LD_LIBRARY_PATH", "LD_AUDIT",
        "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT", "CUDA_VISIBLE_DEVICES",
        "RAY_ADDRESS", "BASH_ENV", "ENV",
    }
)  # fmt: skip
"""Variables that the launcher sets, or that would change what it starts."""
OUR_PREFIXES: Final = ("TUNEPLANE_", "TP_", "SLURM_", "SBATCH_", "APPTAINER", "SINGULARITY", "PMI", "PMIX", "OMPI_")


def check_plan(
    value: Any, *, origin: str, orchestrator: str | None, inputs: Collection[str], total: int
) -> dict[str, Any]:
    """The plan's normalised body: launch_mode, argv, env, files, summary. `total` are the bytes of the whole document.

    Raises Refusals E-FRAME-008, -009: everything that is wrong at once.
    """
    faults: list[Refusal] = []
    if not isinstance(value, dict):
        raise Refusals([Refusal("E-FRAME-008", "is no object", field=origin, allowed="an object")])
    form = Form(value, faults, _CODES, origin)
    if type(form.get("contract_version")) is not int or value["contract_version"] != CONTRACT_VERSION:
        form.no("contract_version", "is another contract", found=value.get("contract_version"), allowed="1")
    if total > MAX_ALL:
        form.no("", "is too large", found=total, allowed=f"{MAX_ALL >> 20} MiB")
    mode = form.choice("launch_mode", (plans.DIRECT, plans.RAY_DRIVER), required=True)
    if mode and mode != MODES[orchestrator]:
        form.no("launch_mode", f"the recipe's orchestrator is {orchestrator}", found=mode, allowed=MODES[orchestrator])
    words = plans.words_of(inputs)
    plan = {
        "launch_mode": mode,
        "argv": _argv(form, words),
        "env": check_env(form, words),
        "files": _files(form, words),
        "summary": form.text("summary", limit=500),
    }
    form.only()
    if faults:
        raise Refusals(faults)
    return plan


def _argv(form: Form, words: Collection[str]) -> list[str]:
    items = form.items("argv", most=MAX_WORDS)
    if form.value.get("argv") in (None, []):
        form.missing("argv", 'a command, such as ["$PYTHON", "-m", "toy"]')
    out = [_line(form, f"argv[{n}]", item, words) for n, item in enumerate(items)]
    if out and out[0].startswith("-"):
        form.no("argv[0]", "is no program", found=out[0], allowed="$PYTHON, a name, or an absolute path")
    if out == ["$PYTHON"]:
        form.no("argv", "$PYTHON runs nothing", allowed='a program for it, such as ["$PYTHON", "-m", "toy"]')
    if "$PYTHON" in out[1:]:
        form.no("argv", "$PYTHON is the program, not an argument", allowed="$PYTHON first, if at all")
    return out


def check_env(form: Form, words: Collection[str]) -> dict[str, str]:
    """The form's `env`, sound: variables that are not the launcher's, their texts with no words but these. Its faults are kept in the form."""
    part = form.part("env")
    if part is None:
        return {}
    out = {}
    if len(part.value) > MAX_VARIABLES:
        form.no("env", "has too many variables", found=len(part.value), allowed=str(MAX_VARIABLES))
    for name, item in sorted(part.value.items()):
        if not _VARIABLE.fullmatch(name):
            part.no(name, "is no name of a variable", found=name, allowed="letters, digits and _")
        elif name in OURS or name.startswith(OUR_PREFIXES):
            part.no(name, "belongs to the launcher", found=name, allowed="a variable of the framework's own")
        else:
            out[name] = _line(part, name, item, words)
    return out


def _files(form: Form, words: Collection[str]) -> dict[str, str]:
    part = form.part("files")
    if part is None:
        return {}
    if len(part.value) > MAX_FILES:
        form.no("files", "has too many", found=len(part.value), allowed=str(MAX_FILES))
    out: dict[str, str] = {}
    for path, item in sorted(part.value.items()):
        above = {path.rsplit("/", n)[0] for n in range(1, path.count("/") + 1)}
        if not is_relative(path) or _CONTROL.search(path):
            part.no(path, "leaves the generated folder", found=path, allowed="a relative path", code="E-FRAME-009")
        elif above & out.keys():
            part.no(path, "lies below another file", found=path, allowed="each path a file or a folder")
        elif not isinstance(item, str):
            part.no(path, "is no text", found=type(item).__name__, allowed="the file's text")
        elif len(item.encode("utf-8", "surrogatepass")) > MAX_FILE:
            part.no(path, "is too large", found=len(item), allowed=f"{MAX_FILE >> 20} MiB")
        else:
            out[path] = _known(part, path, item, words)
    return out


def _line(form: Form, key: str, value: Any, words: Collection[str]) -> str:
    if not isinstance(value, str):
        form.no(key, "is no text", found=type(value).__name__, allowed="text")
    elif _CONTROL.search(value) or "\n" in value:
        form.no(key, "holds a control character", found=value[:100], allowed="one line of text")
    elif len(value) > MAX_WORD:
        form.no(key, "is too long", found=len(value), allowed=str(MAX_WORD))
    else:
        return _known(form, key, value, words)
    return ""


def _known(form: Form, key: str, value: str, words: Collection[str]) -> str:
    for word in dict.fromkeys(plans.unknown_words(value, words)):
        form.no(key, f"${{{word}}} is nothing that this job has", found=word, allowed=", ".join(sorted(words)))
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        form.no(key, "is no UTF-8", allowed="text")
    return value


def as_record(plan: Mapping[str, Any], integration: Mapping[str, str]) -> dict[str, Any]:
    """plan.json: the plan, and which package's profile made it."""
    return {"schema": plans.SCHEMA, "integration": dict(integration), **plan}
