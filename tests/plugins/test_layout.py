"""The files of a package: what is refused, where the fault is, and that looking runs nothing."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from hpc.errors import Refusal
from hpc.plugins import tree as tree_room
from hpc.plugins.layout import README_BYTES, import_roots, module_file
from hpc.plugins.validate import Report, validate
from tests.plugins.making import ALGORITHM, INSTALL, algorithm, build, cleaner, png

REPO = Path(__file__).parents[2]


def codes(report: Report) -> list[tuple[str, str]]:
    return [(e.code[-3:], e.field) for e in report.errors]


def test_a_sound_package_has_facts_for_its_record(tmp_path: Path) -> None:
    folder = algorithm(tmp_path, {"sub/mod.py": "", "data/x": "1"}, manifest="icon: i.png\n")
    (folder / "i.png").write_bytes(png())
    (folder / "README.md").write_text("# x\n")
    report = validate(folder)
    assert (report.verdict, report.publishable, report.warnings) == ("accept", True, [])
    assert report.facts["import_roots"] == ["patch", "sub"]
    assert report.facts["readme"] is True
    assert report.facts["icon_digest"].startswith("sha256:")
    assert report.facts["manifest"] == report.as_json()["manifest"]
    assert "wheel" not in report.facts


@pytest.mark.parametrize("name", ["sitecustomize.py", "usercustomize.py", "torch.py", "tuneplane/x.py", "common/data.txt", "json.so", "yaml.abi3.so",
                                  "numpy.pyd", "random.py", "logging/__init__.py", "email/deep/down.py"])  # fmt: skip
def test_a_top_level_name_of_somebody_else_is_refused(tmp_path: Path, name: str) -> None:
    assert codes(validate(algorithm(tmp_path, {name: ""}))) == [("022", "package")]


@pytest.mark.parametrize(
    "name", ["json.txt", "sub/torch.py", "my_torch.py", "email/template.txt", "torch", "random.md", "os.d.py"]
)
def test_names_that_only_resemble_them_are_taken(tmp_path: Path, name: str) -> None:
    assert codes(validate(algorithm(tmp_path, {name: ""}))) == []


@pytest.mark.parametrize("capability", ["recipe", "benchmark", "playbook", "prompt"])
@pytest.mark.parametrize(
    "name", ["a.py", "A.SH", "docs/x.Js", "sub/template/x.sh", "lib.so", "x.pyc", "tool.exe", "Template/x.py"]
)
def test_a_program_outside_template_is_refused_in_a_declarative_pack(
    tmp_path: Path, capability: str, name: str
) -> None:
    text = f"schema: tuneplane/plugin/v1\nname: x\nversion: 1.0.0\ncapability: {capability}\n"
    assert ("023", "package") in codes(validate(build(tmp_path, {"plugin.yaml": text, name: ""})))


@pytest.mark.parametrize(
    "name",
    ["template/a.py", "template/deep/x.sh", "notes.ipynb", "Makefile", "a.jar", "py", "sh.txt", "__pycache__/x.pyc"],
)
def test_what_is_no_program_or_lies_under_template_is_taken(tmp_path: Path, name: str) -> None:
    text = "schema: tuneplane/plugin/v1\nname: x\nversion: 1.0.0\ncapability: benchmark\n"
    assert codes(validate(build(tmp_path, {"plugin.yaml": text, name: ""}))) == []


@pytest.mark.parametrize(
    ("entrypoint", "files", "code"),
    [
        ("nope:install", {}, "020"),
        ("patch.sub:install", {}, "020"),
        ("Patch:install", {}, "020"),
        ("pkg.sub:install", {"pkg.py": INSTALL, "pkg/sub.py": INSTALL}, "020"),
        ("patch:other", {}, "021"),
        ("m:install", {"m.py": "install = 5\n"}, "021"),
        ("m:install", {"m.py": "install = [print]\n"}, "021"),
        ("m:install", {"m.py": "class A:\n    def install(self): ...\n"}, "021"),
        ("m:install", {"m.py": "def f():\n    def install(): ...\n"}, "021"),
        ("m:install", {"m.py": "# def install(): ...\n"}, "021"),
        ("m:install", {"m.py": "def install(:\n"}, "028"),
        ("m:install", {"m.py": b"\xff\xfe def install"}, "028"),
        ("m:install", {"m.py": b"def install(): ...\n\0"}, "028"),
        ("m:install", {"m.py": "(" * 5000}, "028"),
        ("m:install", {"m.py": "x = " + "not " * 100_000 + "1\n"}, "028"),
        ("m:install", {"m.py": "if 1: pass\n" + "elif 1: pass\n" * 700}, "028"),
        ("both:install", {"both.py": INSTALL, "both/__init__.py": ""}, "021"),
    ],
    ids=lambda v: str(v)[:50],
)
def test_an_entry_point_that_would_not_be_found(
    tmp_path: Path, entrypoint: str, files: dict[str, str], code: str
) -> None:
    manifest = ALGORITHM.replace("patch:install", entrypoint)
    assert codes(validate(build(tmp_path, {"plugin.yaml": manifest, "patch.py": INSTALL, **files}))) == [
        (code, "entrypoint")
    ]


@pytest.mark.parametrize(
    "source",
    [
        "def install(p): ...\n",
        "async def install(p): ...\n",
        "class install:\n    pass\n",
        "install = print\n",
        "install: object = print\n",
        "a, (install, b) = f()\n",
        "from impl import install\n",
        "from impl import thing as install\n",
        "import install\n",
        "import install.sub\n",
        "import x as install\n",
        "try:\n    from fast import install\nexcept ImportError:\n    from slow import install\n",
        "if 1:\n    pass\nelse:\n    def install(p): ...\n",
        "with x:\n    for a in b:\n        while c:\n            install = f\n",
        "match x:\n    case 1:\n        def install(): ...\n",
        "install = None\ndef install(p): ...\n",
        "x = '\\d'  # an old escape is no reason to refuse\ndef install(p): ...\n",
        "# -*- coding: latin-1 -*-\ndef install(p): ...\n",
    ],
)
def test_every_way_to_bind_a_callable_at_the_top_is_found(tmp_path: Path, source: str) -> None:
    report = validate(build(tmp_path, {"plugin.yaml": ALGORITHM, "patch.py": source}))
    assert (codes(report), report.warnings) == ([], [])


def test_a_star_import_may_bind_it_and_is_remarked_on(tmp_path: Path) -> None:
    report = validate(build(tmp_path, {"plugin.yaml": ALGORITHM, "patch.py": "from impl import *\n"}))
    assert codes(report) == []
    assert "import *" in report.warnings[0]


def test_source_of_a_newer_python_is_searched_by_line_where_the_package_asks_for_it(tmp_path: Path) -> None:
    newer = "def install(p):\n    pass\nthis is = python 9\n"
    assert codes(validate(build(tmp_path / "a", {"plugin.yaml": ALGORITHM, "patch.py": newer}))) == [
        ("028", "entrypoint")
    ]
    asks = ALGORITHM + "requires: {python: '>=9'}\n"
    report = validate(build(tmp_path / "b", {"plugin.yaml": asks, "patch.py": newer}))
    assert codes(report) == []
    assert "by its line alone" in report.warnings[0]
    other = build(tmp_path / "c", {"plugin.yaml": asks, "patch.py": newer.replace("install", "other")})
    assert codes(validate(other)) == [("028", "entrypoint")]


def test_links_and_special_files_are_refused_wherever_they_lead(tmp_path: Path) -> None:
    folder = algorithm(tmp_path / "pkg")
    (folder / "inside").symlink_to("patch.py")
    (folder / "outside").symlink_to("/etc/passwd")
    (folder / "gone").symlink_to("missing")
    (folder / "folder").symlink_to("..")
    os.mkfifo(folder / "pipe")
    with socket.socket(socket.AF_UNIX) as sock:
        os.chdir(folder)
        sock.bind("sock")
        os.chdir(REPO)
        report = validate(folder)
    assert codes(report) == [("024", "package")] * 6
    assert sorted(str(e.found) for e in report.errors) == ["folder", "gone", "inside", "outside", "pipe", "sock"]
    assert (report.digest, report.digest_v2) == ("", "")


def test_a_manifest_behind_a_link_is_none(tmp_path: Path) -> None:
    algorithm(tmp_path / "real")
    folder = build(tmp_path / "pkg", {"patch.py": INSTALL}, symlinks={"plugin.yaml": "../real/plugin.yaml"})
    assert codes(validate(folder)) == [("001", "plugin.yaml")]


@pytest.mark.parametrize(
    ("name", "code"),
    [("a\x1b[2J", "025"), ("a\nb", "025"), ("a\\b", "025"), ("a\u202eb", "025"), ("end.", "025"), ("end ", "025"), ("aux.py", "025"),
     ("n" * 241, "025"), ("Patch.py", "026"), ("PLUGIN.yaml", "026")],
)  # fmt: skip
def test_names_that_cannot_be_stored(tmp_path: Path, name: str, code: str) -> None:
    folder = algorithm(tmp_path)
    (folder / name).write_text("")
    assert codes(validate(folder)) == [(code, "package")]


def test_a_name_that_is_no_utf8(tmp_path: Path) -> None:
    algorithm(tmp_path)
    with open(os.fsencode(tmp_path) + b"/caf\xe9", "wb"):
        pass
    report = validate(tmp_path)
    assert codes(report) == [("025", "package")]
    assert "udce9" in report.errors[0].message
    report.as_json()


def test_accents_written_in_two_ways_are_one_name(tmp_path: Path) -> None:
    folder = algorithm(tmp_path)
    (folder / "caf\u00e9").write_text("")
    (folder / "cafe\u0301").write_text("")
    assert codes(validate(folder)) == [("026", "package")]


def test_byte_code_and_caches_are_no_part_of_the_package_and_are_named(tmp_path: Path) -> None:
    clean = validate(algorithm(tmp_path / "a"))
    folder = algorithm(tmp_path / "b")
    for path in (
        "__pycache__/patch.cpython-311.pyc",
        "patch.pyc",
        ".git/HEAD",
        ".venv/bin/python",
        "sub/.DS_Store",
        ".mypy_cache/x",
    ):
        build(folder, {path: "junk"})
    dirty = validate(folder)
    assert dirty.publishable is True
    assert (dirty.digest, dirty.digest_v2) == (clean.digest, clean.digest_v2)
    assert "6 files or folders are no part of the package" in dirty.warnings[0]


def test_limits_of_size_count_and_depth(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree_room, "MAX_FILES", 4)
    monkeypatch.setattr(tree_room, "MAX_BYTES", 1000)
    monkeypatch.setattr(tree_room, "MAX_DEPTH", 3)
    assert codes(validate(algorithm(tmp_path / "a", {"one": "", "two": ""}))) == []
    assert codes(validate(algorithm(tmp_path / "b", {"one": "", "two": "", "three": ""}))) == [("027", "package")]
    assert codes(validate(algorithm(tmp_path / "c", {"one": "x" * 1000}))) == [("027", "package")]
    assert codes(validate(algorithm(tmp_path / "d", {"1/2/3/f": ""}))) == []
    assert codes(validate(algorithm(tmp_path / "e", {"1/2/3/4/f": ""}))) == [("027", "package")]


def test_a_sparse_giant_is_refused_without_being_read(tmp_path: Path) -> None:
    folder = algorithm(tmp_path)
    with open(folder / "model.bin", "wb") as out:
        out.truncate(1 << 42)
    assert codes(validate(folder)) == [("027", "package")]


def test_a_long_readme_is_cut_for_display_and_covered_whole(tmp_path: Path) -> None:
    text = "é" * README_BYTES
    one = validate(algorithm(tmp_path / "a", {"README.md": text}))
    other = validate(algorithm(tmp_path / "b", {"README.md": text[:-1] + "e"}))
    assert "first 64 KiB" in one.warnings[0]
    assert one.digest != other.digest


def test_what_looks_like_a_secret_is_remarked_on(tmp_path: Path) -> None:
    report = validate(algorithm(tmp_path, {".env": "A=1\n", "keys/id_rsa": "", "environment.md": ""}))
    assert report.publishable is True
    assert [w.partition(" ")[0] for w in report.warnings] == [".env", "keys/id_rsa"]


def test_manifest_only_looks_at_nothing_else(tmp_path: Path) -> None:
    folder = build(tmp_path, {"plugin.yaml": ALGORITHM, "torch.py": ""})
    report = validate(folder, manifest_only=True)
    assert (report.verdict, report.publishable, report.good, report.digest) == ("accept", None, True, "")


def test_no_folder_at_all(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for name in ("missing", "file"):
        with pytest.raises(Refusal) as caught:
            validate(tmp_path / name)
        assert caught.value.code == "E-PLUGIN-001"


def test_validation_runs_nothing_of_the_package(tmp_path: Path) -> None:
    """Bombs in every place where Python, or a careless checker, would run them: none goes off, from inside the folder or beside it."""
    bomb = f"import pathlib\npathlib.Path({str(tmp_path / 'ran')!r}).write_text(__name__)\n"
    folder = algorithm(tmp_path / "pkg", manifest="icon: i.png\n")
    code = compile(bomb, "patch.py", "exec")
    import importlib.util
    import marshal

    pyc = (
        importlib.util.MAGIC_NUMBER
        + b"\0\0\0\0"
        + (folder / "patch.py").stat().st_mtime_ns.to_bytes(8, "little")[:4]
        + b"\0\0\0\0"
        + marshal.dumps(code)
    )
    tag = sys.implementation.cache_tag
    files: dict[str, str | bytes] = {
        "patch.py": bomb + INSTALL, "i.png": png(), "sitecustomize.py": bomb, "usercustomize.py": bomb,
        "x.pth": "import sys; exec(open('patch.py').read())",
        f"__pycache__/patch.{tag}.pyc": pyc, "patch.pyc": pyc, "setup.py": bomb, "conftest.py": bomb, "__init__.py": bomb, "__main__.py": bomb,
        "ast.py": bomb, "yaml.py": bomb, "hpc/__init__.py": bomb, "packaging/__init__.py": bomb, ".venv/bin/python": "#!/bin/sh\ntouch ran\n",
        "pyproject.toml": "[build-system]\nrequires=[]\nbuild-backend='patch'\n",
    }  # fmt: skip
    build(folder, files)
    cleaner(tmp_path / "wheel", None)
    for where, target in ((folder, "."), (tmp_path, "pkg"), (tmp_path, "wheel")):
        entry = (
            "import sys; sys.argv=['tp','x']; from pathlib import Path; from hpc.plugins.validate import validate; "
            f"print(validate(Path({target!r})).verdict)"
        )
        env = {"PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(
            [sys.executable, "-I", "-c", entry], cwd=where, capture_output=True, text=True, check=False, env=env
        )
        assert (done.stdout, done.stderr) == (f"{'accept' if target == 'wheel' else 'refuse'}\n", "")
    assert not (tmp_path / "ran").exists()
    assert sorted(p.name for p in (folder / "__pycache__").iterdir()) == [f"patch.{tag}.pyc"]


def test_which_file_an_import_would_run() -> None:
    files = ["a.py", "a/__init__.py", "b/c.py", "d.py", "d/e.py", "f/__init__.py", "f/g/__init__.py"]
    assert [module_file(m, files) for m in ("a", "b.c", "d", "d.e", "f.g", "f.h", "b")] == [
        "a/__init__.py", "b/c.py", "d.py", "", "f/g/__init__.py", "", "",
    ]  # fmt: skip


def test_import_roots_are_modules_and_folders_with_python() -> None:
    assert import_roots(["plugin.yaml", "a.py", "b/x.txt", "c/d/e.py", "f.cpython-311-x86_64-linux-gnu.so", "not-a-name/x.py", "g/h.so"]) == [
        "a", "c", "f", "g",
    ]  # fmt: skip


@pytest.mark.two_users
def test_a_file_that_may_not_be_read_is_named() -> None:
    """An ordinary user looks at packages of which a part is closed to them."""
    scratch = Path(tempfile.mkdtemp(prefix="tp-plugin-test-"))
    try:
        scratch.chmod(0o755)
        for part, mode in (("closed", 0o700), ("patch.py", 0o600), ("data.txt", 0o600), ("plugin.yaml", 0o600)):
            folder = algorithm(scratch / part, {"closed/x.py": "", "data.txt": "x"})
            (folder / part).chmod(mode)
        expected = {
            "closed": [("029", "closed")],
            "patch.py": [("029", "patch.py")],
            "data.txt": [("029", "data.txt")],
            "plugin.yaml": [("001", "plugin.yaml"), ("029", "plugin.yaml")],
        }
        assert _as_another_user(lambda: {part: codes(validate(scratch / part)) for part in expected}) == repr(expected)
    finally:
        shutil.rmtree(scratch)


def _as_another_user(look: Callable[[], object]) -> str:
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        try:
            os.setresgid(54321, 54321, 54321)
            os.setresuid(54321, 54321, 54321)
            os.write(writer, repr(look()).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as stream:
        answer = stream.read()
    os.waitpid(child, 0)
    return answer
