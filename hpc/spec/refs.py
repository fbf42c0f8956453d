"""References to what a job takes in: models and data sets on a hub, owned names, and checkpoints of earlier runs.

    [<hub>:]<namespace>/<name>[@revision]     hub tp (also tuneplane, sf), hf (huggingface), ms (modelscope); none = this platform
    <owner>/<name>[@version]                  this platform only: volumes, data sets to publish, environments, task sets
    run/<run_id>/<kind>[@step=N][,attempt=A]  an output of an earlier run

`hub://` before a hub reference is read and never written.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

from hpc.errors import Refusal
from hpc.spec.text import SEGMENT, visible

HUBS = {"tp": "tp", "tuneplane": "tp", "sf": "tp", "hf": "hf", "huggingface": "hf", "ms": "ms", "modelscope": "ms"}
MAX_TEXT = 512
_HUB = re.compile(r"([A-Za-z][A-Za-z0-9_-]*):(.*)", re.DOTALL)
_GIT_REVISION = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]|/(?=[A-Za-z0-9]))*")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_PATH = re.compile(r"[/~]|\.\.?/|[A-Za-z]:[\\/]")
_RUN = re.compile(r"run/([^/@]+)/([^/@]+)(?:@(.+))?", re.DOTALL)
_SELECTOR = re.compile(r"(step|attempt)=(0|[1-9][0-9]{0,11})")
REF_ALLOWED = "[hf:|ms:|tp:]<namespace>/<name>[@revision]; without a hub, this platform"
RUN_ALLOWED = "run/<run_id>/<kind>[@step=N][,attempt=A], or {run_id, kind, step}"


@dataclass(frozen=True)
class HubRef:
    """A model or data set. `namespace` is empty only for the single-segment models of hf."""

    hub: str
    namespace: str
    name: str
    revision: str = ""

    @property
    def pinned(self) -> bool:
        """True for a version of this platform and for a full commit id; a branch or tag may move."""
        return bool(self.revision) if self.hub == "tp" else bool(_COMMIT.fullmatch(self.revision))

    def __str__(self) -> str:
        hub = "" if self.hub == "tp" else f"{self.hub}:"
        namespace = f"{self.namespace}/" if self.namespace else ""
        return f"{hub}{namespace}{self.name}" + (f"@{self.revision}" if self.revision else "")


@dataclass(frozen=True)
class OwnedRef:
    """A name of this platform under its owner."""

    owner: str
    name: str
    version: str = ""

    def __str__(self) -> str:
        return f"{self.owner}/{self.name}" + (f"@{self.version}" if self.version else "")


@dataclass(frozen=True)
class InitFrom:
    """An output of an earlier run; without a step the newest, without an attempt the last."""

    run_id: str
    kind: str = "checkpoint"
    step: int | None = None
    attempt: int | None = None

    def __str__(self) -> str:
        picks = [f"{k}={v}" for k, v in (("step", self.step), ("attempt", self.attempt)) if v is not None]
        return f"run/{self.run_id}/{self.kind}" + (f"@{','.join(picks)}" if picks else "")


def is_path(text: str) -> bool:
    """True for what `model.base` passes through: a path, or an interpolation `${…}`."""
    return bool(_PATH.match(text)) or "\\" in text or "${" in text


def parse_hub_ref(text: str, field: str = "", *, kind: Literal["model", "dataset"] = "model") -> HubRef:
    """Raises Refusal E-SPEC-026; a revision after ':' is answered with the corrected spelling."""

    def no(message: str, hint: str = "") -> Refusal:
        return Refusal("E-SPEC-026", message, field=field, found=visible(text), allowed=REF_ALLOWED, hint=hint)

    rest = text.removeprefix("hub://")
    if rest != text and (parts := rest.split("/", 1))[0] in HUBS and "/" in parts[-1]:
        rest = ":".join(parts)  # hub://hf/org/name
    hub = "tp"
    if match := _HUB.fullmatch(rest):
        if match[1] not in HUBS:
            raise no(f"unknown hub {match[1]!r}", f"use one of {', '.join(HUBS)}")
        hub, rest = HUBS[match[1]], match[2]
    path, at, revision = rest.partition("@")
    if ":" in path:
        fixed = f"{'' if hub == 'tp' else hub + ':'}{path.replace(':', '@', 1)}"
        raise no("a revision is written after '@'", f"write {visible(fixed)}")
    parts = path.split("/")
    if len(text) > MAX_TEXT or not all(SEGMENT.fullmatch(part) for part in parts):
        raise no("not a hub reference")
    if len(parts) == 1 and not (hub == "hf" and kind == "model"):
        why = "a data set needs <namespace>/<name>" if kind == "dataset" else "unprefixed names are <namespace>/<name>"
        raise no(why, "" if kind == "dataset" else f"write hf:{path} if Hugging Face is meant")
    if len(parts) > 2:
        raise no("more than <namespace>/<name>")
    grammar = SEGMENT if hub == "tp" else _GIT_REVISION
    if at and (not grammar.fullmatch(revision) or ".." in revision):
        raise no("not a revision")
    return HubRef(hub, parts[0] if len(parts) == 2 else "", parts[-1], revision)


def model_base(text: str, field: str = "") -> str:
    """The canonical spelling of `spec.model.base`: a path or `${…}` as it is, else a hub reference."""
    return text if is_path(text) else str(parse_hub_ref(text, field, kind="model"))


def dataset_ref(text: str, field: str = "") -> str:
    """The canonical spelling of a data set's reference on any hub."""
    return str(parse_hub_ref(text, field, kind="dataset"))


def parse_owned(
    text: str, field: str = "", *, version: Literal["required", "optional", "forbidden"] = "optional"
) -> OwnedRef:
    """`<owner>/<name>[@version]`. Raises Refusal E-SPEC-028, its field ending in `.version` when only that is wrong."""
    shape = {"required": "<owner>/<name>@<version>", "optional": "<owner>/<name>[@version]"}
    allowed = shape.get(version, "<owner>/<name>, without a version")

    def no(message: str, part: str = "") -> Refusal:
        return Refusal("E-SPEC-028", message, field=field + part, found=visible(text), allowed=allowed)

    path, at, number = text.partition("@")
    parts = path.split("/")
    if len(text) > MAX_TEXT or len(parts) != 2 or not all(SEGMENT.fullmatch(part) for part in parts):
        raise no("not <owner>/<name>")
    if (at and version == "forbidden") or (not at and version == "required"):
        raise no("has no version" if not at else "has a version")
    if at and not SEGMENT.fullmatch(number):
        raise no("not a version", ".version")
    return OwnedRef(parts[0], parts[1], number)


def volume_ref(text: str, field: str = "") -> str:
    """A volume: `<owner>/<name>`. Raises Refusal E-SPEC-027; a path would go round the access check."""
    if is_path(text):
        message = "a hard-coded path is not a volume; it would skip the access check"
    else:
        try:
            return str(parse_owned(text, field, version="forbidden"))
        except Refusal as refusal:
            message = refusal.message
    allowed = "<owner>/<name>, without a version"
    raise Refusal("E-SPEC-027", message, field=field, found=visible(text), allowed=allowed)


def parse_init_from(text: str, field: str = "") -> InitFrom:
    """Raises Refusal E-SPEC-029. `step` and `attempt` may come in either order, each once."""

    def no(message: str) -> Refusal:
        return Refusal("E-SPEC-029", message, field=field, found=visible(text), allowed=RUN_ALLOWED)

    match = _RUN.fullmatch(text)
    if len(text) > MAX_TEXT or not match or not SEGMENT.fullmatch(match[1]) or not SEGMENT.fullmatch(match[2]):
        raise no("not an output of a run")
    picks: dict[str, int] = {}
    for part in match[3].split(",") if match[3] else []:
        pick = _SELECTOR.fullmatch(part)
        if not pick:
            raise no(f"not a selector: {visible(part)!r}")
        if pick[1] in picks:
            raise no(f"{pick[1]} stands twice")
        picks[pick[1]] = int(pick[2])
    return InitFrom(match[1], match[2], picks.get("step"), picks.get("attempt"))


def init_from_text(value: Any, field: str = "") -> Any:
    """The text form of the documented object {run_id, kind, step, attempt}; any other value comes back as it is.

    Raises Refusal E-SPEC-029 for an object that has no text form.
    """
    if not isinstance(value, dict):
        return value

    def no(message: str) -> Refusal:
        return Refusal("E-SPEC-029", message, field=field, allowed=RUN_ALLOWED)

    if unknown := sorted(str(k) for k in value.keys() - {"run_id", "kind", "step", "attempt"}):
        raise no(f"unknown key {visible(unknown[0])!r}")
    run_id, kind = value.get("run_id"), value.get("kind", "checkpoint")
    numbers = [value.get("step"), value.get("attempt")]
    if not isinstance(run_id, str) or not isinstance(kind, str):
        raise no("run_id and kind must be text")
    if any(n is not None and (type(n) is not int or n < 0) for n in numbers):
        raise no("step and attempt must be whole numbers from 0")
    text = str(InitFrom(run_id, kind, *numbers))
    parse_init_from(text, field)
    return text
