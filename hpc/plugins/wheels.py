"""A wheel provider: a portable pure-Python wheel that is what its name, its metadata and its RECORD say. Nothing of it is imported or installed."""

from __future__ import annotations

import base64
import configparser
import csv
import hashlib
import io
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from email.message import Message
from email.parser import HeaderParser
from typing import Any, Final

from hpc.errors import Refusal
from hpc.plugins.layout import RESERVED, check_callable, import_roots, module_file
from hpc.plugins.manifest import CAPABILITIES, Manifest
from hpc.plugins.standard import STANDARD
from hpc.plugins.tree import Tree
from hpc.plugins.zips import NotZipError, TooMuchError, Zip
from hpc.spec.text import visible

FIELD: Final = "wheel"
_REFERENCE = re.compile(r"([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*):([A-Za-z_]\w*)", re.ASCII)
_NATIVE = re.compile(r"\.(so(\.[0-9.]+)?|pyd|dll|dylib|a|o|lib|exe|pyc|pyo)$", re.IGNORECASE)
_STRONG = {"sha256": hashlib.sha256, "sha384": hashlib.sha384, "sha512": hashlib.sha512}
_UNLISTED = ("RECORD", "RECORD.jws", "RECORD.p7s")
_METADATA_BYTES = 1 << 20
_RECORD_BYTES = 16 << 20
_MAX_TAG = 100
_MAX_TEXT = 1000
"""Characters of one version or requirement: what is longer is made to exhaust whoever parses it."""


@dataclass
class WheelFound:
    """What a wheel check found: faults, remarks, the facts that a record keeps, and the import names it brings."""

    faults: list[Refusal] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    import_roots: list[str] = field(default_factory=list)

    def no(self, code: str, message: str, *, field: str = FIELD, found: Any = None, allowed: str = "") -> None:
        self.faults.append(Refusal(code, message, field=field, found=found, allowed=allowed))


class _Stop(Exception):  # noqa: N818 - ends a check whose next step has nothing to stand on; the faults are kept already
    pass


def check_wheel(tree: Tree, manifest: Manifest) -> WheelFound:
    """Every fault of the package's wheel. `facts`: requires_python, requires_dist, entry_point, version."""
    found = WheelFound()
    if manifest.wheel not in tree.files:
        found.no("E-PLUGIN-040", "is not at the root of the package", found=manifest.wheel, allowed="a regular file")
        return found
    try:
        archive = Zip(tree.read(manifest.wheel))
        _check(archive, manifest, found)
    except TooMuchError as exc:
        found.no("E-PLUGIN-046", str(exc), found=manifest.wheel)
    except NotZipError as exc:
        found.no("E-PLUGIN-041", str(exc), found=manifest.wheel)
    except Refusal as exc:
        found.faults.append(exc)
    except _Stop:
        pass
    found.remarks += [
        f"{path}: another wheel, which nobody reads"
        for path in tree.files
        if path.endswith(".whl") and path != manifest.wheel
    ]
    return found


def _check(archive: Zip, manifest: Manifest, found: WheelFound) -> None:
    name, version, tags = _file_name(manifest.wheel, found)
    _members(archive, found)
    info = _dist_info(archive, found)
    folder_name, _, folder_version = info.removesuffix(".dist-info").partition("-")
    metadata = _headers(archive, f"{info}/METADATA", found)
    wheel = _headers(archive, f"{info}/WHEEL", found)
    _same(found, "distribution", name, {f"{info}/METADATA": metadata["Name"], info: folder_name}, _name)
    _same(found, "version", version, {f"{info}/METADATA": metadata["Version"], info: folder_version}, _version)
    _wheel_file(wheel, tags, found)
    _record(archive, info, found)
    found.import_roots = import_roots(n for n in archive.members if not n.startswith(f"{info}/"))
    for root in found.import_roots:
        if root in RESERVED or root in STANDARD:
            found.no(
                "E-PLUGIN-022", f"its import root {root!r} belongs to the platform, a framework or Python", found=root
            )
    found.facts = _requirements(metadata, version, found)
    if (point := _entry_point(archive, info, manifest, found)) and _callable(archive, point, manifest, found):
        found.facts["entry_point"] = point


def _name(text: str) -> str:
    return re.sub(r"[-_.]+", "-", text).lower()


def _version(text: str) -> str:
    """The version in the form in which 1.0 and 1.0.0 are one; the text itself where it is none."""
    from packaging.utils import canonicalize_version

    return str(canonicalize_version(text)) if len(text) <= _MAX_TEXT else text


def _file_name(text: str, found: WheelFound) -> tuple[str, str, set[str]]:
    """(distribution, version, tags) of the file name."""
    from packaging.utils import InvalidWheelFilename, parse_wheel_filename

    try:
        name, version, _, tags = parse_wheel_filename(text)
    except InvalidWheelFilename as exc:
        found.no(
            "E-PLUGIN-043", f"the file name is no wheel's: {exc}", found=text, allowed="name-version-py3-none-any.whl"
        )
        raise _Stop from exc
    shown = {str(tag) for tag in tags}
    if any(tag.abi != "none" or tag.platform != "any" for tag in tags) or not any(
        tag.interpreter.startswith("py3") for tag in tags
    ):
        found.no("E-PLUGIN-042", f"is built for {', '.join(sorted(shown))}", found=text, allowed="py3-none-any")
    return str(name), str(version), shown


def _members(archive: Zip, found: WheelFound) -> None:
    for name in archive.members:
        top, base = name.partition("/")[0], name.rsplit("/", 1)[-1]
        if top.endswith(".data") and "/" in name:
            found.no(
                "E-PLUGIN-042",
                f"{visible(name)} would be relocated when installed",
                found=visible(name),
                allowed="no .data folder",
            )
        elif base.endswith(".pth"):
            found.no(
                "E-PLUGIN-042",
                f"{visible(name)} would run at the start of every Python",
                found=visible(name),
                allowed="no .pth file",
            )
        elif _NATIVE.search(base):
            found.no(
                "E-PLUGIN-042",
                f"{visible(name)} is native or byte code",
                found=visible(name),
                allowed="Python source and data",
            )


def _dist_info(archive: Zip, found: WheelFound) -> str:
    folders = sorted({n.partition("/")[0] for n in archive.members if n.partition("/")[0].endswith(".dist-info")})
    if len(folders) != 1:
        found.no(
            "E-PLUGIN-043", f"has {len(folders)} .dist-info folders", found=", ".join(folders), allowed="exactly one"
        )
        raise _Stop
    return folders[0]


def _text(archive: Zip, name: str, found: WheelFound) -> str:
    if name not in archive.members:
        found.no("E-PLUGIN-043", f"has no {name}", allowed="METADATA, WHEEL, RECORD and entry_points.txt")
        raise _Stop
    limit = _RECORD_BYTES if name.endswith("/RECORD") else _METADATA_BYTES
    if archive.members[name].size > limit:
        raise TooMuchError(f"{name}: is larger than {limit} bytes")
    try:
        return archive.read(name).decode("utf-8")
    except UnicodeDecodeError as exc:
        found.no("E-PLUGIN-043", f"{name} is not UTF-8: byte {exc.start}")
        raise _Stop from exc


def _headers(archive: Zip, name: str, found: WheelFound) -> Message:
    """The header fields; those that say who the wheel is stand once."""
    message = HeaderParser().parsestr(_text(archive, name, found))
    for key in ("Name", "Version", "Requires-Python", "Root-Is-Purelib", "Wheel-Version"):
        if len(message.get_all(key, [])) > 1:
            found.no("E-PLUGIN-043", f"{name} says {key} twice", allowed="once")
    return message


def _same(found: WheelFound, what: str, wanted: str, others: dict[str, str | None], form: Callable[[str], str]) -> None:
    """What the others say is, in its normal form, what the file name says."""
    for where, said in others.items():
        if form(said or "") != form(wanted):
            message = f"the {what} is {wanted} in the file name and {visible(said or 'nothing')} in {where}"
            found.no("E-PLUGIN-043", message, found=visible(said or ""), allowed=wanted)


def _wheel_file(wheel: Message, tags: set[str], found: WheelFound) -> None:
    from packaging.tags import parse_tag

    if (wheel["Root-Is-Purelib"] or "").strip().lower() != "true":
        found.no("E-PLUGIN-042", "does not say Root-Is-Purelib: true", found=wheel["Root-Is-Purelib"], allowed="true")
    if not (wheel["Wheel-Version"] or "").strip().startswith("1."):
        found.no("E-PLUGIN-043", "WHEEL is of another format version", found=wheel["Wheel-Version"], allowed="1.x")
    # A tag of many dots stands for every combination of them.
    lines = [text.strip() for text in wheel.get_all("Tag", [])]
    sound = all(text.count("-") == 2 and len(text) <= _MAX_TAG for text in lines)
    stated = {str(tag) for text in lines for tag in parse_tag(text)} if sound else set()
    if stated != tags:
        found.no(
            "E-PLUGIN-043",
            f"WHEEL says the tags {', '.join(sorted(stated)) or 'none'}",
            allowed=", ".join(sorted(tags)),
        )


def _record(archive: Zip, info: str, found: WheelFound) -> None:
    """Every member is read and compared, so that its checksum is right even where RECORD is empty."""
    text = _text(archive, f"{info}/RECORD", found)
    signatures = {f"{info}/{name}" for name in _UNLISTED}
    listed: dict[str, tuple[str, str]] = {}
    for row in _rows(text, found):
        if row[0] in listed:
            found.no("E-PLUGIN-045", f"RECORD lists {visible(row[0])} twice", found=visible(row[0]))
        listed[row[0]] = (row[1], row[2])
    if not text.strip():
        found.remarks.append(f"{info}/RECORD is empty: the wheel does not say what it holds")
    for name in sorted(listed.keys() - archive.members.keys()):
        found.no("E-PLUGIN-045", f"RECORD lists {visible(name)}, which is not there", found=visible(name))
    for name in archive.members:
        data = archive.read(name)
        if name in signatures or not text.strip():
            continue
        if name not in listed:
            found.no("E-PLUGIN-045", f"RECORD does not list {visible(name)}", found=visible(name))
        elif fault := _differs(data, *listed[name]):
            found.no("E-PLUGIN-045", f"{visible(name)} {fault}", found=listed[name][0], allowed="sha256=…")


def _rows(text: str, found: WheelFound) -> Iterator[list[str]]:
    try:
        for row in csv.reader(io.StringIO(text), strict=True):
            if len(row) == 3:
                yield row
            elif row:
                found.no(
                    "E-PLUGIN-045",
                    f"a row of RECORD has {len(row)} fields",
                    found=visible(",".join(row)),
                    allowed="path,digest,size",
                )
    except csv.Error as exc:
        found.no("E-PLUGIN-045", f"RECORD is no CSV: {exc}")


def _differs(data: bytes, digest: str, size: str) -> str:
    """How a member differs from its row of RECORD; "" if it does not."""
    method, _, value = digest.partition("=")
    if method not in _STRONG:
        return "has no digest, or a weak one"
    if base64.urlsafe_b64encode(_STRONG[method](data).digest()).decode().rstrip("=") != value:
        return "has another digest than RECORD says"
    return "has another size than RECORD says" if size and size != str(len(data)) else ""


def _requirements(metadata: Message, version: str, found: WheelFound) -> dict[str, Any]:
    """What the job's interpreter must have; checked there, only its form here."""
    from packaging.requirements import InvalidRequirement, Requirement
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    python = (metadata["Requires-Python"] or "").strip()
    dist = [str(text).strip() for text in metadata.get_all("Requires-Dist", [])]
    try:
        if long := next((text for text in (python, *dist) if len(text) > _MAX_TEXT), ""):
            raise InvalidRequirement(long[:80])
        SpecifierSet(python)
        for text in dist:
            Requirement(text)
    except (InvalidSpecifier, InvalidRequirement) as exc:
        found.no(
            "E-PLUGIN-043", f"METADATA asks for something that is no requirement: {visible(str(exc).splitlines()[0])}"
        )
    return {"requires_python": python, "requires_dist": dist, "entry_point": "", "version": version}


def _entry_point(archive: Zip, info: str, manifest: Manifest, found: WheelFound) -> str:
    """`module:callable` of the provider in the group of the capability; "" with a fault."""
    group = CAPABILITIES[manifest.capability].wheel_group
    parser = configparser.ConfigParser(
        delimiters=("=",), comment_prefixes=("#", ";"), interpolation=None, strict=True, default_section=""
    )
    parser.optionxform = str  # type: ignore[assignment,method-assign] # names keep their case
    try:
        parser.read_string(_text(archive, f"{info}/entry_points.txt", found))
    except configparser.Error as exc:
        found.no("E-PLUGIN-044", f"entry_points.txt is damaged: {visible(str(exc).splitlines()[0])}", field="provider")
        return ""
    points = dict(parser[group]) if parser.has_section(group) else {}
    value = points.get(manifest.provider)
    if value is None:
        allowed = ", ".join(sorted(map(visible, points))) or f"an entry point of the group {group}"
        found.no(
            "E-PLUGIN-044",
            f"{manifest.provider!r} is not in the group {group}",
            field="provider",
            found=manifest.provider,
            allowed=allowed,
        )
        return ""
    match = _REFERENCE.fullmatch(re.sub(r"\s*:\s*", ":", value.strip()))
    if match is None:
        found.no(
            "E-PLUGIN-044",
            "is no module:callable without extras",
            field="provider",
            found=visible(value),
            allowed="module:callable",
        )
        return ""
    return match.group()


def _callable(archive: Zip, point: str, manifest: Manifest, found: WheelFound) -> bool:
    module, _, name = point.partition(":")
    path = module_file(module, archive.members)
    if not path:
        found.no("E-PLUGIN-044", f"its module {module!r} is not in the wheel", field="provider", found=point)
        return False
    python = found.facts["requires_python"] or manifest.requires.python
    faults, remarks = check_callable(lambda: archive.read(path), path, name, "provider", python)
    found.faults += faults
    found.remarks += remarks
    return not faults
