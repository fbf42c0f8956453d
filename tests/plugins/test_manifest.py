"""plugin.yaml: every rule has its field and code, all faults come at once, and whatever is accepted has a normal form."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc.plugins.manifest import CAPABILITIES, SCHEMA, Manifest, parse_manifest, read_manifest

BASE: dict[str, Any] = {
    "schema": SCHEMA,
    "name": "x",
    "version": "1.0",
    "capability": "algorithm",
    "entrypoint": "patch:install",
}
PAGE = """\
schema: tuneplane/plugin/v1
name: opsd-patch
version: 1.2.0
capability: algorithm
entrypoint: patch:install
load: eager
summary: OPSD teacher-sampling correction

requires:
  core: ">=0.3,<1"

# Shelf metadata — display and search only, never affects loading or security
icon: 🧩
author: Alice
license: Apache-2.0
homepage: https://github.com/alice/opsd-patch
keywords: [opsd, distillation]
"""
CLEANER = """\
schema: tuneplane/plugin/v1
name: cleaner
version: 1.0.0
capability: data-prep
execution: job
api: "1"
wheel: my_company_cleaner-1.0.0-py3-none-any.whl
provider: clean
requires:
  core: ">=0.3.56,<1"
  python: ">=3.12"
  frameworks: {custom: ""}
  methods: [custom/custom]
"""


def faults(**changes: Any) -> list[tuple[str, str]]:
    """(code, field) of each fault of the base manifest with these changes; a value ... removes the key."""
    value = {key: item for key, item in (BASE | changes).items() if item is not ...}
    manifest, found, _ = parse_manifest(value)
    assert (manifest is None) == bool(found)
    return [(f.code[-3:], f.field) for f in found]


def accepted(**changes: Any) -> Manifest:
    manifest, found, _ = parse_manifest(BASE | changes)
    assert manifest is not None, list(map(str, found))
    return manifest


def test_the_pages_first_example_in_its_normal_form() -> None:
    manifest, found, remarks = read_manifest(PAGE.encode())
    assert manifest is not None
    assert (found, remarks) == ([], [])
    assert manifest.as_json() == {
        "schema": SCHEMA, "name": "opsd-patch", "version": "1.2.0", "capability": "algorithm", "execution": "job", "group": "runtime",
        "entrypoint": "patch:install", "load": "eager", "wheel": "", "provider": "", "api": "", "summary": "OPSD teacher-sampling correction",
        "requires": {"core": ">=0.3,<1", "python": "", "frameworks": {}, "methods": [], "backends": []}, "icon": "🧩", "author": "Alice",
        "license": "Apache-2.0", "homepage": "https://github.com/alice/opsd-patch", "keywords": ["opsd", "distillation"],
    }  # fmt: skip


def test_the_pages_wheel_provider_in_its_normal_form() -> None:
    manifest, found, _ = read_manifest(CLEANER.encode())
    assert manifest is not None, found
    assert (manifest.wheel, manifest.provider, manifest.api, manifest.load) == (
        "my_company_cleaner-1.0.0-py3-none-any.whl", "clean", "1", "eager",
    )  # fmt: skip
    assert manifest.requires.as_json() == {
        "core": ">=0.3.56,<1", "python": ">=3.12", "frameworks": {"custom": ""}, "methods": ["custom/custom"], "backends": [],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"schema": ...}, [("003", "schema")]),
        ({"schema": "tuneplane/plugin/v0"}, [("003", "schema")]),
        ({"name": ...}, [("004", "name")]),
        ({"name": "  "}, [("006", "name")]),
        ({"name": "alice/x"}, [("006", "name")]),
        ({"name": "-x"}, [("006", "name")]),
        ({"name": "n" * 129}, [("006", "name")]),
        ({"name": 7}, [("006", "name")]),
        ({"name": "x\x1b[2J"}, [("009", "name")]),
        ({"version": ...}, [("004", "version")]),
        ({"version": "1.0+local"}, [("006", "version")]),
        ({"version": "1.0/../2"}, [("006", "version")]),
        ({"version": True}, [("006", "version")]),
        ({"version": ["1"]}, [("006", "version")]),
        ({"capability": ...}, [("004", "capability")]),
        ({"capability": "algoritm"}, [("006", "capability")]),
        ({"capability": ["algorithm"]}, [("006", "capability")]),
        ({"execution": "job"}, [("007", "execution")]),
        ({"capability": "data-prep"}, [("004", "execution")]),
        ({"capability": "data-prep", "execution": "console"}, [("006", "execution")]),
        ({"capability": "data-prep", "execution": "local"}, [("007", "entrypoint")]),
        ({"capability": "benchmark"}, [("007", "entrypoint")]),
        ({"capability": "framework-integration"}, [("007", "entrypoint")]),
        ({"entrypoint": ...}, [("004", "entrypoint")]),
        ({"entrypoint": ""}, [("004", "entrypoint")]),
        ({"entrypoint": "patch:a.b"}, [("006", "entrypoint")]),
        ({"entrypoint": "patch:a:b"}, [("006", "entrypoint")]),
        ({"entrypoint": "pkg..sub:f"}, [("006", "entrypoint")]),
        ({"entrypoint": "pkg/sub:f"}, [("006", "entrypoint")]),
        ({"load": "lazy"}, [("006", "load")]),
        ({"scope": "job"}, [("006", "scope")]),
        ({"api": "2"}, [("006", "api")]),
        ({"api": 1.0}, [("006", "api")]),
        ({"api": True}, [("006", "api")]),
        ({"wheel": "x-1-py3-none-any.whl"}, [("008", "entrypoint")]),
        ({"entrypoint": ..., "wheel": "x-1-py3-none-any.whl"}, [("008", "provider")]),
        ({"entrypoint": ..., "provider": "p"}, [("008", "wheel")]),
        ({"entrypoint": ..., "wheel": "..\\x.whl", "provider": "p"}, [("006", "wheel")]),
        ({"entrypoint": ..., "wheel": "x.whl", "provider": "a b"}, [("006", "provider")]),
        ({"summary": "two\nlines"}, [("009", "summary")]),
        ({"summary": "right\u202eleft"}, [("009", "summary")]),
        ({"summary": 5}, [("006", "summary")]),
        ({"author": "\ud800"}, [("009", "author")]),
        ({"homepage": "ftp://x"}, [("006", "homepage")]),
        ({"homepage": "javascript:alert(1)"}, [("006", "homepage")]),
        ({"homepage": "https://"}, [("006", "homepage")]),
        ({"homepage": "http://a b"}, [("006", "homepage")]),
        ({"icon": "/logo.png"}, [("006", "icon")]),
        ({"icon": "a/../logo.png"}, [("006", "icon")]),
        ({"icon": "c:logo.png"}, [("006", "icon")]),
        ({"icon": "a\\logo.png"}, [("006", "icon")]),
        ({"icon": "i" * 253 + ".png"}, [("006", "icon")]),
        ({"icon": "ninechars"}, [("006", "icon")]),
        ({"icon": "a/b"}, [("006", "icon")]),
        ({"icon": "\u202e🧩"}, [("009", "icon")]),
        ({"keywords": "opsd"}, [("006", "keywords")]),
        ({"keywords": [1]}, [("006", "keywords[0]")]),
        ({"keywords": [f"k{n}" for n in range(13)]}, [("006", "keywords")]),
        ({"requires": []}, [("006", "requires")]),
        ({"requires": {"core": "latest"}}, [("006", "requires.core")]),
        ({"requires": {"core": 0.3}}, [("006", "requires.core")]),
        ({"requires": {"python": "3.12"}}, [("006", "requires.python")]),
        ({"requires": {"pyton": ">=3"}}, [("005", "requires.pyton")]),
        ({"requires": {"frameworks": ["custom"]}}, [("006", "requires.frameworks")]),
        ({"requires": {"frameworks": {"trl": "latest"}}}, [("006", "requires.frameworks.trl")]),
        ({"requires": {"frameworks": {"a b": ""}}}, [("006", "requires.frameworks.a b")]),
        ({"requires": {"methods": "custom/custom"}}, [("006", "requires.methods")]),
        ({"requires": {"methods": ["custom"]}}, [("006", "requires.methods[0]")]),
        ({"requires": {"backends": [""]}}, [("006", "requires.backends[0]")]),
        ({"type": "runtime"}, [("005", "type")]),
    ],
    ids=str,
)  # fmt: skip
def test_each_rule_has_its_field_and_code(changes: dict[str, Any], expected: list[tuple[str, str]]) -> None:
    assert faults(**changes) == expected


def test_all_faults_come_at_once() -> None:
    found = faults(
        schema="v2",
        name="a b",
        version="+",
        load="x",
        homepage="x",
        requires={"core": "x", "cor": 1},
        nmae="y",
        b=1,
        a=2,
    )
    assert found == [
        ("003", "schema"), ("006", "name"), ("006", "version"), ("006", "load"), ("006", "homepage"), ("006", "requires.core"),
        ("005", "requires.cor"), ("005", "nmae"), ("005", "b"), ("005", "a"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("entypoint", "did you mean 'entrypoint'?"),
        ("type", "the type follows from capability"),
        ("kind", "capability"),
        ("owner", "stamps your account"),
    ],
)
def test_an_unknown_field_is_answered_with_the_one_that_is_meant(key: str, hint: str) -> None:
    _, found, _ = parse_manifest(BASE | {key: "x"})
    assert [f.field for f in found] == [key]
    assert hint in found[0].hint


@pytest.mark.parametrize("value", [None, [], "x", 7, True])
def test_a_key_cannot_steer_what_is_printed(value: Any) -> None:
    _, found, _ = parse_manifest(BASE | {"a\x1b[2Jb": value, "requires": {"frameworks": {"c\nd": value}}})
    assert all(f.field.isprintable() and f.message.isprintable() for f in found)
    assert found


@pytest.mark.parametrize("value", [None, [], "x", 7, True])
def test_a_document_that_is_no_mapping(value: Any) -> None:
    manifest, found, _ = parse_manifest(value)
    assert manifest is None
    assert [f.code for f in found] == ["E-PLUGIN-002"]


@pytest.mark.parametrize(
    "text",
    [
        "a: [\n",
        "a: &x 1\nb: *x\n",
        "a: 1\na: 2\n",
        "!!python/object:os.system x\n",
        "a: 1\n---\nb: 2\n",
        "x" * (1 << 20) + "yy",
    ],
)
def test_yaml_that_is_not_taken(text: str) -> None:
    manifest, found, _ = read_manifest(text.encode())
    assert manifest is None
    assert [(f.code, f.field.partition(":")[0]) for f in found] == [("E-PLUGIN-002", "plugin.yaml")]


def test_bytes_that_are_no_utf8() -> None:
    assert [f.code for f in read_manifest(b"name: caf\xe9\n")[1]] == ["E-PLUGIN-002"]


@pytest.mark.parametrize(
    ("written", "version"), [("1.10", "1.1"), ("1.0", "1.0"), ("3", "3"), ("'1.10'", "1.10"), ("1.2.0", "1.2.0")]
)
def test_a_version_without_quotes_is_the_numbers_text_and_is_remarked_on(written: str, version: str) -> None:
    manifest, _, remarks = read_manifest(PAGE.replace("1.2.0", written).encode())
    assert manifest is not None
    assert manifest.version == version
    assert bool(remarks) == (written in ("1.10", "1.0", "3"))


def test_text_is_trimmed_and_keywords_are_folded_before_they_are_counted() -> None:
    many = [" OPSD ", "opsd", "", *(f"k{n % 11}" for n in range(22))]
    found = accepted(name=" x ", keywords=many, summary="  one line  ")
    assert (found.name, found.summary, len(found.keywords), found.keywords[0]) == ("x", "one line", 12, "opsd")


def test_what_is_null_is_not_stated() -> None:
    optional = (
        "load",
        "summary",
        "requires",
        "scope",
        "icon",
        "homepage",
        "license",
        "keywords",
        "author",
        "wheel",
        "provider",
        "api",
        "execution",
    )
    assert accepted(**dict.fromkeys(optional)).as_json() == accepted().as_json()


@pytest.mark.parametrize("icon", ["filter", "files", "🧩", "👩🏽‍💻", "icons/logo.png", "LOGO.PNG", "★"])
def test_icons_that_are_taken(icon: str) -> None:
    manifest, _, remarks = parse_manifest(BASE | {"icon": icon})
    assert manifest is not None
    assert (manifest.icon, remarks) == (icon, [])


def test_a_word_that_is_no_preset_is_remarked_on() -> None:
    _, found, remarks = parse_manifest(BASE | {"icon": "rocket"})
    assert (found, len(remarks)) == ([], 1)


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_load_is_ignored_where_nothing_is_called(capability: str) -> None:
    rule = CAPABILITIES[capability]
    changes: dict[str, Any] = {"capability": capability, "load": "sometimes", "entrypoint": ...}
    if capability == "data-prep":
        changes["execution"] = "local"
    if rule.entrypoint and capability != "data-prep":
        assert faults(**changes | {"entrypoint": "p:f"}) == [("006", "load")]
    else:
        assert faults(**changes) == []


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
KEYS = st.sampled_from(
    ["schema", "name", "version", "capability", "execution", "entrypoint", "load", "requires", "wheel", "provider", "api", "icon", "keywords",
     "homepage", "summary", "scope"]
)  # fmt: skip


@given(st.dictionaries(KEYS, JSON, max_size=4))
def test_any_values_give_a_manifest_or_faults_that_name_the_changed_fields(changes: dict[str, Any]) -> None:
    manifest, found, _ = parse_manifest(BASE | changes)
    assert (manifest is None) == bool(found)
    # wheel and provider speak to each other and to entrypoint; execution and capability to what depends on them.
    related = (
        {"entrypoint", "wheel", "provider", "execution"}
        if changes.keys() & {"wheel", "provider", "capability", "execution"}
        else set()
    )
    for fault in found:
        assert fault.code.startswith("E-PLUGIN-00")
        assert fault.field.partition(".")[0].partition("[")[0] in changes.keys() | related
    if manifest is not None:
        again, _, _ = parse_manifest({key: value for key, value in manifest.as_json().items() if value and key not in ("group", "execution")}
                                     | ({"execution": manifest.execution} if manifest.capability == "data-prep" else {}))  # fmt: skip
        assert again == manifest
