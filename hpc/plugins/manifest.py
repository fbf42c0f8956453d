"""plugin.yaml: every rule of the manifest. Pure: text or a parsed value goes in, a manifest or all of its faults come out."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Final

from hpc.errors import Refusal
from hpc.plugins.forms import MANIFEST, Form, shown
from hpc.spec.text import MAX_SEGMENT, SEGMENT, SEGMENT_ALLOWED
from hpc.spec.yamltext import MAX_BYTES, parse_yaml

SCHEMA: Final = "tuneplane/plugin/v1"
MANIFEST_NAME: Final = "plugin.yaml"
PRESETS: Final = ("files", "filter")
POLICIES: Final = ("playbook", "prompt")
MAX_ICON_PATH: Final = 256
MAX_EMOJI: Final = 8
MAX_KEYWORDS: Final = 12


@dataclass(frozen=True)
class Capability:
    """What follows from a declared capability: where the code runs, the shelf group, and whether it has an entry point."""

    execution: str
    group: str
    entrypoint: bool = False
    wheel_group: str = ""
    """The entry-point group of wheel providers."""


CAPABILITIES: Final = {
    "algorithm": Capability("job", "runtime", True, "tuneplane.algorithms"),
    "environment": Capability("job", "runtime", True, "tuneplane.environments"),
    "data-prep": Capability("", "runtime", True, "tuneplane.transforms"),
    "framework-integration": Capability("job", "runtime"),
    "recipe": Capability("none", "asset"),
    "benchmark": Capability("none", "asset"),
    "playbook": Capability("none", "policy"),
    "prompt": Capability("none", "policy"),
}
_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_ENTRYPOINT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*:[A-Za-z_][A-Za-z0-9_]*")
_PROVIDER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_WHEEL = re.compile(r"[A-Za-z0-9_.!+-]+\.whl")
_METHOD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*){1,2}")
_HOMEPAGE = re.compile(r"https?://[^\s/?#]+([/?#]\S*)?", re.IGNORECASE)
_VERSION_ALLOWED = f"a letter or digit, then letters, digits, '.', '_' and '-', at most {MAX_SEGMENT} characters"
_HINTS = {
    "type": "the type follows from capability; remove the line",
    "kind": "the classification is called capability now",
    "owner": "the platform stamps your account on the package; remove the line",
    "id": "the id is made of your account and name; remove the line",
    "group": "the shelf group follows from capability; remove the line",
    "description": "one line goes into summary, the rest into README.md",
    "readme": "README.md at the root of the package is the long description",
}


@dataclass(frozen=True)
class Requires:
    """What the package asks for. Empty: no restriction."""

    core: str = ""
    python: str = ""
    frameworks: dict[str, str] = field(default_factory=dict)
    methods: tuple[str, ...] = ()
    backends: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        return {
            "core": self.core,
            "python": self.python,
            "frameworks": dict(self.frameworks),
            "methods": list(self.methods),
            "backends": list(self.backends),
        }


@dataclass(frozen=True)
class Manifest:
    """A sound plugin.yaml; what is not stated is "" or empty. `load` is "" where nothing is called at the start of a job."""

    name: str
    version: str
    capability: str
    execution: str
    entrypoint: str = ""
    load: str = ""
    wheel: str = ""
    provider: str = ""
    api: str = ""
    summary: str = ""
    requires: Requires = field(default_factory=Requires)
    icon: str = ""
    author: str = ""
    license: str = ""
    homepage: str = ""
    keywords: tuple[str, ...] = ()

    @property
    def group(self) -> str:
        return CAPABILITIES[self.capability].group

    @property
    def is_code(self) -> bool:
        """True where Python of the package itself runs: in a job, or on the user's machine."""
        return CAPABILITIES[self.capability].entrypoint

    @property
    def is_declarative(self) -> bool:
        """True where nothing of the package runs: recipe, benchmark, playbook, prompt."""
        return self.execution == "none"

    @property
    def is_policy(self) -> bool:
        """True for what changes the whole site and is admins' to publish."""
        return self.capability in POLICIES

    @property
    def icon_is_path(self) -> bool:
        return self.icon.lower().endswith(".png")

    def as_json(self) -> dict[str, Any]:
        """The normalised view, every key present."""
        out = {
            "schema": SCHEMA,
            "group": self.group,
            "requires": self.requires.as_json(),
            "keywords": list(self.keywords),
        }
        for key in ("name", "version", "capability", "execution", "entrypoint", "load", "wheel", "provider", "api", "summary",
                    "icon", "author", "license", "homepage"):  # fmt: skip
            out[key] = getattr(self, key)
        return out


def read_manifest(data: bytes) -> tuple[Manifest | None, list[Refusal], list[str]]:
    """The manifest of a plugin.yaml's bytes, or every fault at once; and remarks that refuse nothing."""
    if len(data) > MAX_BYTES:
        return (
            None,
            [
                Refusal(
                    "E-PLUGIN-002", "is too large", field=MANIFEST_NAME, found=len(data), allowed=f"{MAX_BYTES} bytes"
                )
            ],
            [],
        )
    try:
        value = parse_yaml(data.decode("utf-8"), origin=MANIFEST_NAME)
    except UnicodeDecodeError as exc:
        return None, [Refusal("E-PLUGIN-002", f"is not UTF-8: byte {exc.start}", field=MANIFEST_NAME)], []
    except Refusal as exc:
        return (
            None,
            [
                Refusal(
                    "E-PLUGIN-002", exc.message, field=exc.field, found=exc.found, allowed=exc.allowed, hint=exc.hint
                )
            ],
            [],
        )
    return parse_manifest(value)


def parse_manifest(value: Any) -> tuple[Manifest | None, list[Refusal], list[str]]:
    """The manifest of a parsed plugin.yaml, or every fault at once; and remarks that refuse nothing."""
    if not isinstance(value, dict):
        found = "nothing" if value is None else shown(value)
        return (
            None,
            [Refusal("E-PLUGIN-002", "is no mapping of fields", field=MANIFEST_NAME, found=found, allowed="a mapping")],
            [],
        )
    form, remarks = Form(value, [], MANIFEST), list[str]()
    if (schema := form.get("schema")) != SCHEMA:
        said = "is missing" if schema is None else "is another schema than this tp speaks"
        form.no("schema", said, found=schema, allowed=SCHEMA, code="E-PLUGIN-003")
    name = form.text("name", required=True, limit=MAX_SEGMENT, grammar=SEGMENT, allowed=SEGMENT_ALLOWED)
    version = _version(form, remarks)
    capability = form.choice("capability", CAPABILITIES, required=True)
    execution = _execution(form, capability)
    code = _code(form, capability, execution)
    shelf = _shelf(form, remarks)
    requires = _requires(form)
    form.only(_HINTS)
    if form.faults:
        return None, form.faults, remarks
    return Manifest(name, version, capability, execution, **code, **shelf, requires=requires), [], remarks


def _version(form: Form, remarks: list[str]) -> str:
    value = form.get("version")
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        # YAML reads an unquoted 1.10 as the number 1.1; the documents take the number's text.
        value = str(value)
        remarks.append(f"version: written without quotes it is a number, and the version is {value}; put it in quotes")
    if value is None or value == "":
        form.missing("version", _VERSION_ALLOWED)
        return ""
    return form.checked("version", value, limit=MAX_SEGMENT, grammar=_VERSION, allowed=_VERSION_ALLOWED)


def _execution(form: Form, capability: str) -> str:
    """Where the code runs: declared for data-prep alone, derived for all others."""
    stated = form.get("execution")
    if capability == "data-prep":
        return form.choice("execution", ("local", "job"), required=True)
    if stated is not None and capability:
        form.no("execution", f"follows from capability {capability}", found=stated, code="E-PLUGIN-007",
                allowed="nothing; only data-prep has two places", hint="remove the line")  # fmt: skip
    return CAPABILITIES[capability].execution if capability else ""


def _code(form: Form, capability: str, execution: str) -> dict[str, Any]:
    """entrypoint, or wheel and provider; load; api; scope."""
    runs = bool(capability) and CAPABILITIES[capability].entrypoint and execution == "job"
    undecided = not capability or not execution
    entrypoint = form.text("entrypoint", limit=256, grammar=_ENTRYPOINT, allowed="module.path:callable")
    wheel = form.text("wheel", limit=200, grammar=_WHEEL, allowed="the name of a .whl file at the root of the package")
    provider = form.text(
        "provider", limit=MAX_SEGMENT, grammar=_PROVIDER, allowed="the name of an entry point in the wheel"
    )
    stated = {key for key in ("entrypoint", "wheel", "provider") if form.value.get(key) not in (None, "")}
    if not undecided and not runs:
        what = f"{capability} ({execution})" if capability == "data-prep" else capability
        for key in sorted(stated):
            form.no(
                key,
                f"{what} has no entry point",
                found=form.value[key],
                allowed="nothing",
                hint="remove the line",
                code="E-PLUGIN-007",
            )
    elif runs:
        _entry(form, stated)
    form.known.append("load")  # ignored where nothing is called
    load = form.choice("load", ("eager", "deferred"), default="eager") if runs or undecided else ""
    api = form.get("api")
    if api not in (None, 1, "1") or isinstance(api, (bool, float)):
        form.no("api", "is no version of the provider interface that this tp speaks", found=api, allowed='"1"')
    form.choice("scope", ("entrypoint",))
    return {
        "entrypoint": entrypoint, "wheel": wheel, "provider": provider, "load": load, "api": "" if api is None else "1",
    }  # fmt: skip


def _entry(form: Form, stated: set[str]) -> None:
    """One entry point is named once: by a source module, or by a wheel and its provider."""
    if not stated:
        form.missing("entrypoint", "module.path:callable, or wheel and provider instead")
    elif "entrypoint" in stated and stated & {"wheel", "provider"}:
        form.no("entrypoint", "stands beside wheel or provider, which take its place", found=form.value["entrypoint"],
                allowed="entrypoint, or wheel and provider", code="E-PLUGIN-008")  # fmt: skip
    elif len(stated) == 1 and (lone := next(iter(stated))) != "entrypoint":
        other = "provider" if lone == "wheel" else "wheel"
        form.no(other, f"is missing beside {lone}", allowed="wheel and provider together", code="E-PLUGIN-008")


def _shelf(form: Form, remarks: list[str]) -> dict[str, Any]:
    """What is shown and searched; never loading or security."""
    keywords = [k.lower() for k in form.texts("keywords", limit=64, blank=True)]
    if len(unique := list(dict.fromkeys(keywords))) > MAX_KEYWORDS:
        form.no("keywords", f"has {len(unique)} keywords", found=len(unique), allowed=f"at most {MAX_KEYWORDS}")
    return {
        "summary": form.text("summary"),
        "icon": _icon(form, remarks),
        "author": form.text("author", limit=256),
        "license": form.text("license", limit=256),
        "homepage": form.text("homepage", limit=2048, grammar=_HOMEPAGE, allowed="http://… or https://…"),
        "keywords": tuple(unique),
    }


def _icon(form: Form, remarks: list[str]) -> str:
    icon = form.text("icon")
    if not icon:
        return ""
    allowed = f"a preset ({', '.join(PRESETS)}), an emoji of at most {MAX_EMOJI} characters, or a path to a PNG in the package"
    if icon.lower().endswith(".png"):
        parts = icon.split("/")
        if len(icon) > MAX_ICON_PATH or ":" in icon or "\\" in icon or any(p in ("", ".", "..") for p in parts):
            form.no("icon", "is no path inside the package", found=icon, allowed=allowed)
    elif len(icon) > MAX_EMOJI:
        form.no("icon", f"is longer than {MAX_EMOJI} characters", found=icon, allowed=allowed)
    elif "/" in icon or ":" in icon or "\\" in icon:
        form.no("icon", "is neither a preset nor an emoji nor a PNG", found=icon, allowed=allowed)
    elif icon.isascii() and icon not in PRESETS:
        remarks.append(f"icon: {icon!r} is no preset ({', '.join(PRESETS)}); it is shown as text")
    return icon


def _requires(form: Form) -> Requires:
    part = form.part("requires")
    if part is None:
        return Requires()
    frameworks: dict[str, str] = {}
    if (table := part.part("frameworks")) is not None:
        for name, spec in table.value.items():
            if not SEGMENT.fullmatch(name) or len(name) > MAX_SEGMENT:
                table.no(name, "is no framework's name", found=name, allowed=SEGMENT_ALLOWED)
            frameworks[name] = "" if spec in (None, "") else _range(table, name, spec)
    found = Requires(
        _range(part, "core", part.get("core")),
        _range(part, "python", part.get("python")),
        frameworks,
        tuple(part.texts("methods", grammar=_METHOD, allowed="method IDs such as custom/custom", limit=400)),
        tuple(part.texts("backends", grammar=SEGMENT, allowed="names of backends, such as slurm, local")),
    )
    part.only({"sdk": "the toolkit's version is required as core"})
    return found


def _range(form: Form, key: str, value: Any) -> str:
    """A PEP 440 range, as written; "" is no restriction."""
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    if value in (None, ""):
        return ""
    text = form.checked(key, value, required=False, limit=200, allowed="a range such as >=0.4,<1")
    try:
        SpecifierSet(text)
    except InvalidSpecifier:
        form.no(key, "is no PEP 440 range", found=text, allowed="a range such as >=0.4,<1")
    return text
