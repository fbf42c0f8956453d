"""Wheel providers: the page's cleaner is taken; every disagreement inside a wheel, and everything that acts at installation, is refused."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hpc.plugins.validate import Report, validate
from tests.plugins.making import CLEANER, WHEEL_NAME, Member, cleaner, record_of, wheel_members, zipped

INFO = "my_company_cleaner-1.0.0.dist-info"


def codes(report: Report) -> list[tuple[str, str]]:
    return [(e.code[-3:], e.field) for e in report.errors]


def changed(name: str, data: bytes | None, *, record: bool = True) -> list[Member]:
    """The sound wheel with one member replaced, added or (None) removed, and RECORD made anew unless told not to."""
    members = [(n, d) for n, d in wheel_members() if n != name]
    if data is not None:
        members.insert(0, (name, data))
    if record and not name.endswith("RECORD"):
        members = [(n, d) for n, d in members if n != f"{INFO}/RECORD"]
        members.append((f"{INFO}/RECORD", record_of(members, f"{INFO}/RECORD")))
    return members


def test_the_pages_cleaner_is_publishable_and_its_facts_are_kept(tmp_path: Path) -> None:
    members = wheel_members(
        metadata="Requires-Python: >=3.12\nRequires-Dist: orjson>=3\nRequires-Dist: x; extra == 'dev'\nProvides-Extra: dev\n"
    )
    report = validate(cleaner(tmp_path, members))
    assert (codes(report), report.publishable, report.warnings) == ([], True, [])
    assert report.facts["import_roots"] == ["my_company_cleaner"]
    assert report.facts["wheel"] == {
        "requires_python": ">=3.12", "requires_dist": ["orjson>=3", "x; extra == 'dev'"],
        "entry_point": "my_company_cleaner:transform", "version": "1.0.0",
    }  # fmt: skip


def test_a_wheel_of_a_standard_build_backend_is_taken(tmp_path: Path) -> None:
    """Built by setuptools without a network, as an author would with --no-isolation."""
    source = tmp_path / "src"
    source.mkdir()
    (source / "my_company_cleaner.py").write_text("def transform(request):\n    return None\n")
    (source / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n[project]\nname = "my-company-cleaner"\n'
        'version = "1.0.0"\nrequires-python = ">=3.12"\ndependencies = ["orjson"]\n[project.entry-points."tuneplane.transforms"]\n'
        'clean = "my_company_cleaner:transform"\n[tool.setuptools]\npy-modules = ["my_company_cleaner"]\n'
    )
    (tmp_path / "pkg").mkdir()
    build = "import sys; from setuptools.build_meta import build_wheel; print(build_wheel(sys.argv[1]))"
    done = subprocess.run(
        [sys.executable, "-c", build, str(tmp_path / "pkg")], cwd=source, capture_output=True, text=True, check=False
    )
    if "No module named" in done.stderr:
        pytest.skip("no setuptools here")
    assert done.returncode == 0, done.stderr
    (tmp_path / "pkg" / "plugin.yaml").write_text(CLEANER)
    report = validate(tmp_path / "pkg")
    assert (codes(report), report.warnings) == ([], [])
    assert report.facts["wheel"]["requires_python"] == ">=3.12"
    assert report.facts["wheel"]["requires_dist"] == ["orjson"]


METADATA = b"Metadata-Version: 2.1\nName: %s\nVersion: %s\n"
WHEEL = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
MANY = "-".join(".".join([word] * 300) for word in ("py3", "none", "any"))
"""One tag that stands for 27 million."""
POINTS = f"{INFO}/entry_points.txt"


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        (changed(f"{INFO}/METADATA", METADATA % (b"other", b"1.0.0")), [("043", "wheel")]),
        (changed(f"{INFO}/METADATA", METADATA % (b"my.company-cleaner", b"1.0")), []),
        (changed(f"{INFO}/METADATA", METADATA % (b"my-company-cleaner", b"1.0.1")), [("043", "wheel")]),
        (changed(f"{INFO}/METADATA", METADATA % (b"my-company-cleaner", b"1.0") + b"Version: 2.0\n"), [("043", "wheel")]),
        (changed(f"{INFO}/METADATA", METADATA % (b"my-company-cleaner", b"1.0") + b"Requires-Python: new\n"), [("043", "wheel")]),
        (changed(f"{INFO}/METADATA", METADATA % (b"my-company-cleaner", b"1.0") + b"Requires-Dist: a b c\n"), [("043", "wheel")]),
        (changed(f"{INFO}/METADATA", b"Name: caf\xe9"), [("043", "wheel")]),
        (changed(f"{INFO}/METADATA", None), [("043", "wheel")]),
        (changed(f"{INFO}/WHEEL", None), [("043", "wheel")]),
        (changed(f"{INFO}/WHEEL", WHEEL.replace("true", "false").encode()), [("042", "wheel")]),
        (changed(f"{INFO}/WHEEL", b"Wheel-Version: 1.0\nTag: py3-none-any\n"), [("042", "wheel")]),
        (changed(f"{INFO}/WHEEL", WHEEL.replace("1.0", "2.0").encode()), [("043", "wheel")]),
        (changed(f"{INFO}/WHEEL", WHEEL.replace("any", "linux_x86_64").encode()), [("043", "wheel")]),
        (changed(f"{INFO}/WHEEL", WHEEL.replace("Tag: py3-none-any\n", "").encode()), [("043", "wheel")]),
        (changed(f"{INFO}/WHEEL", f"{WHEEL}Tag: {MANY}\n".encode()), [("043", "wheel")]),
        (changed(f"{INFO}/METADATA", METADATA % (b"my-company-cleaner", b"1.0") + b"Requires-Python: >=" + b"9" * 5000), [("043", "wheel")]),
        (changed(f"{INFO}/METADATA", METADATA % (b"my-company-cleaner", b"9" * 5000)), [("043", "wheel")]),
        (changed("other-1.0.dist-info/METADATA", b""), [("043", "wheel")]),
        (changed("my_company_cleaner-1.0.0.data/scripts/run", b"#!python"), [("042", "wheel")]),
        (changed("my_company_cleaner-1.0.0.data/purelib/torch.py", b""), [("042", "wheel")]),
        (changed("evil.pth", b"import evil"), [("042", "wheel")]),
        (changed("my_company_cleaner/fast.cpython-312-x86_64-linux-gnu.so", b"\x7fELF"), [("042", "wheel")]),
        (changed("my_company_cleaner/libx.so.1.2", b"\x7fELF"), [("042", "wheel")]),
        (changed("my_company_cleaner/__pycache__/x.cpython-312.pyc", b""), [("042", "wheel")]),
        (changed("torch.py", b""), [("022", "wheel")]),
        (changed("random.py", b""), [("022", "wheel")]),
        (changed("sitecustomize.py", b""), [("022", "wheel")]),
        (changed("tuneplane/contract.py", b""), [("022", "wheel")]),
        (changed(POINTS, None), [("043", "wheel")]),
        (changed(POINTS, b"[tuneplane.algorithms]\nclean = my_company_cleaner:transform\n"), [("044", "provider")]),
        (changed(POINTS, b"[tuneplane.transforms]\nClean = my_company_cleaner:transform\n"), [("044", "provider")]),
        (changed(POINTS, b"[tuneplane.transforms]\nclean = a:b\nclean = my_company_cleaner:transform\n"), [("044", "provider")]),
        (changed(POINTS, b"[tuneplane.transforms]\nclean = my_company_cleaner:transform [fast]\n"), [("044", "provider")]),
        (changed(POINTS, b"[tuneplane.transforms]\nclean = my_company_cleaner\n"), [("044", "provider")]),
        (changed(POINTS, b"[tuneplane.transforms]\nclean = my_company_cleaner:A.b\n"), [("044", "provider")]),
        (changed(POINTS, b"[tuneplane.transforms]\nclean = os:system\n"), [("044", "provider")]),
        (changed(POINTS, b"clean = my_company_cleaner:transform\n"), [("044", "provider")]),
        (changed(POINTS, b"[tuneplane.transforms]\nclean = my_company_cleaner:nope\n"), [("021", "provider")]),
        (changed(POINTS, b"[tuneplane.transforms]\nclean=my_company_cleaner : transform\n[console_scripts]\nx = a:b\n"), []),
        (changed("my_company_cleaner.py", b"def transform(:\n"), [("028", "provider")]),
        (changed("my_company_cleaner.py", None), [("044", "provider")]),
    ],
)  # fmt: skip
def test_what_the_wheel_says_must_agree_with_itself(
    tmp_path: Path, members: list[Member], expected: list[tuple[str, str]]
) -> None:
    assert codes(validate(cleaner(tmp_path, members))) == expected


GOOD_RECORD = dict(wheel_members())[f"{INFO}/RECORD"]


@pytest.mark.parametrize(
    ("record", "wrong"),
    [
        (GOOD_RECORD, False),
        (GOOD_RECORD.replace(b"\n", b"\r\n"), False),
        (GOOD_RECORD + b"my_company_cleaner.py,,\n", True),
        (GOOD_RECORD + b"gone.py,sha256=x,1\n", True),
        (GOOD_RECORD + b"../../etc/passwd,sha256=x,1\n", True),
        (GOOD_RECORD + b"a,b\n", True),
        (GOOD_RECORD + b'"open quote\n', True),
        (b"\n".join(line for line in GOOD_RECORD.split(b"\n") if b"METADATA" not in line), True),
        (GOOD_RECORD.replace(b"sha256=", b"md5="), True),
        (GOOD_RECORD.replace(b"sha256=", b""), True),
        (GOOD_RECORD.replace(b"clean", b"clone"), True),
        (GOOD_RECORD.replace(b".py,sha256=", b".py,sha256=A"), True),
        (GOOD_RECORD.replace(b",40\n", b",41\n"), True),
        (b"not a record\n", True),
    ],
)
def test_a_record_that_is_not_empty_is_complete_and_right(tmp_path: Path, record: bytes, wrong: bool) -> None:
    report = validate(cleaner(tmp_path, changed(f"{INFO}/RECORD", record)))
    found = [e for e in report.errors if e.code == "E-PLUGIN-045"]
    assert len(report.errors) == len(found)
    assert bool(found) is wrong


def test_an_empty_record_is_remarked_on_and_none_at_all_is_refused(tmp_path: Path) -> None:
    report = validate(cleaner(tmp_path / "a", changed(f"{INFO}/RECORD", b"")))
    assert (codes(report), len(report.warnings)) == ([], 1)
    assert codes(validate(cleaner(tmp_path / "b", changed(f"{INFO}/RECORD", None)))) == [("043", "wheel")]


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("my_company_cleaner-1.0.0-cp312-cp312-linux_x86_64.whl", "042"),
        ("my_company_cleaner-1.0.0-py3-none-manylinux_2_28_x86_64.whl", "042"),
        ("my_company_cleaner-1.0.0-py2-none-any.whl", "042"),
        ("my_company_cleaner-1.0.0.whl", "043"),
        ("my_company_cleaner-one-py3-none-any.whl", "043"),
        ("other-1.0.0-py3-none-any.whl", "043"),
    ],
)
def test_the_file_name_must_be_that_of_a_portable_wheel(tmp_path: Path, name: str, code: str) -> None:
    report = validate(cleaner(tmp_path, manifest=CLEANER.replace(WHEEL_NAME, name), name=name))
    assert code in [c for c, _ in codes(report)]


def test_a_wheel_for_both_pythons_and_with_a_build_number_is_taken(tmp_path: Path) -> None:
    name = "my_company_cleaner-1.0.0-1-py2.py3-none-any.whl"
    members = changed(
        f"{INFO}/WHEEL", b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py2-none-any\nTag: py3-none-any\nBuild: 1\n"
    )
    assert codes(validate(cleaner(tmp_path, members, manifest=CLEANER.replace(WHEEL_NAME, name), name=name))) == []


def test_each_capability_has_its_group(tmp_path: Path) -> None:
    for capability, group in (("algorithm", "tuneplane.algorithms"), ("environment", "tuneplane.environments")):
        manifest = CLEANER.replace("data-prep\nexecution: job", capability)
        assert codes(validate(cleaner(tmp_path / capability, wheel_members(group=group), manifest=manifest))) == []
        wrong = validate(cleaner(tmp_path / f"{capability}-wrong", manifest=manifest))
        assert codes(wrong) == [("044", "provider")]


def test_a_missing_wheel_and_a_wheel_behind_a_link(tmp_path: Path) -> None:
    folder = cleaner(tmp_path / "a")
    shutil.move(folder / WHEEL_NAME, tmp_path / WHEEL_NAME)
    assert codes(validate(folder)) == [("040", "wheel")]
    (folder / WHEEL_NAME).symlink_to(tmp_path / WHEEL_NAME)
    assert codes(validate(folder)) == [("024", "package"), ("040", "wheel")]


def test_a_wheel_that_is_no_zip_and_one_that_blows_up(tmp_path: Path) -> None:
    assert codes(validate(cleaner(tmp_path / "a", data=b"nope"))) == [("041", "wheel")]
    assert codes(validate(cleaner(tmp_path / "b", [*wheel_members(), ("zeros", bytes(8 << 20))]))) == [("046", "wheel")]
    assert codes(validate(cleaner(tmp_path / "c", data=zipped(wheel_members()) + b"x"))) == [("041", "wheel")]


def test_a_damaged_member_is_found_although_record_is_empty(tmp_path: Path) -> None:
    data = bytearray(zipped(changed(f"{INFO}/RECORD", b"")))
    at = data.index(b"def transform") if b"def transform" in data else data.index(b"my_company_cleaner.py") + 30
    data[at] ^= 1
    assert [c for c, _ in codes(validate(cleaner(tmp_path, data=bytes(data))))] == ["041"]


def test_a_second_wheel_in_the_package_is_remarked_on(tmp_path: Path) -> None:
    folder = cleaner(tmp_path)
    (folder / "other-1.0-py3-none-any.whl").write_bytes(b"")
    report = validate(folder)
    assert (codes(report), len(report.warnings)) == ([], 1)


def test_the_providers_module_may_lie_in_a_package(tmp_path: Path) -> None:
    members = wheel_members(
        point="clean = my_company.cleaner:transform",
        more={"my_company/__init__.py": "", "my_company/cleaner.py": "transform = print\n"},
    )
    report = validate(cleaner(tmp_path, members))
    assert codes(report) == []
    assert report.facts["import_roots"] == ["my_company", "my_company_cleaner"]
