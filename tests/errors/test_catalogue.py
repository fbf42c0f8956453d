"""Every code is declared once, is used, is documented, and every code that is used is declared."""

from __future__ import annotations

import re
from pathlib import Path

from hpc.errors import Refusal, Refusals
from hpc.errors.catalogue import AREAS, CATALOGUE
from hpc.errors.page import PAGE, page

REPO = Path(__file__).parents[2]
CODE = re.compile(r"E-[A-Z]+-\d{3}")


def used() -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for path in [*(REPO / "hpc").rglob("*.py"), *(REPO / "sbatch_templates").iterdir()]:
        if "errors" in path.parts or (path.name == "faults.py" and path.parent.name == "contract"):
            continue
        for code in CODE.findall(path.read_text("utf-8")):
            found.setdefault(code, set()).add(str(path.relative_to(REPO)))
    return found


def test_every_used_code_is_declared() -> None:
    assert {c: w for c, w in used().items() if c not in CATALOGUE} == {}


def test_every_declared_code_is_used() -> None:
    assert sorted(set(CATALOGUE) - set(used())) == []


def test_codes_have_the_documented_form_and_their_area() -> None:
    for area in AREAS:
        prefixes = {code.split("-")[1] for code in area.KINDS}
        assert len(prefixes) <= 1, (area.__name__, prefixes)
        assert all(CODE.fullmatch(code) for code in area.KINDS)


def test_every_kind_says_why_and_how_to_mend_it() -> None:
    for kind in CATALOGUE.values():
        assert all((kind.title, kind.cause, kind.mend)), kind.code
        assert kind.exit in (1, 2, 64, 70, 75, 130), kind.code


def test_the_page_is_current() -> None:
    assert PAGE.read_text("utf-8") == page()


def test_a_refusal_is_an_object_for_programs() -> None:
    refusal = Refusal("E-CLI-002", "no storage root", field="x", found={"a"}, allowed="y")
    assert refusal.as_json() == {
        "code": "E-CLI-002", "field": "x", "message": "no storage root", "found": "{'a'}", "allowed": "y",
        "hint": CATALOGUE["E-CLI-002"].mend,
    }  # fmt: skip
    assert Refusals([refusal]).exit == 64
