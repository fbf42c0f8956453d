"""`tp dataset prepare`: the project's own script before an installed one, run as if it had been called itself."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tuneplane.record.digest import directory_digest_v1

from hpc.errors import Refusal
from hpc.project.preparing import Script, find_script, scripts
from tests.project.conftest import Make

TP = Path(sys.executable).parent / "tp"
SAY = '"""Make the sums.\n\nMore."""\nimport os, sys\nprint(*sys.argv[1:], os.getcwd(), sep="|", flush=True)\n'
MANIFEST = "schema: tuneplane/plugin/v1\nname: {name}\nversion: '2'\ncapability: data-prep\nexecution: local\n"


def package(owner: str, name: str, **files: str) -> dict[str, str]:
    base = f"tuneplane_plugins/{owner}/{name}"
    out = {f"{base}/plugin.yaml": MANIFEST.format(name=name)}
    return out | {f"{base}/prepare_{k}.py": text for k, text in files.items()}


def nothing(package: str, version: str) -> str:
    return ""


def refused(make: Make, files: dict[str, str], name: str) -> Refusal:
    with pytest.raises(Refusal) as caught:
        find_script(make(files), name, nothing)
    return caught.value


def tp(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    env = {"PATH": os.environ["PATH"], "HOME": str(folder), "LC_ALL": "C.UTF-8"}
    return subprocess.run(
        [TP, "dataset", "prepare", *words], cwd=folder, env=env, text=True, capture_output=True, check=False, timeout=60
    )


def test_scripts_are_described_and_not_run(make: Make) -> None:
    own = {
        "common/data/prepare_sums.py": SAY,
        "common/data/prepare_odd.py": "raise SystemExit(1)",
        "common/data/prepare_bad.py": "x = (",
    }
    project = make(
        own | package("ann", "corpus", sums="'Another.'", books='"""Books."""') | {"common/data/other.py": ""}
    )
    found = [(s.name, s.summary, s.package) for s in scripts(project)]
    assert found == [
        ("bad", "", ""),
        ("books", "Books.", "ann/corpus"),
        ("odd", "", ""),
        ("sums", "Make the sums.", ""),
    ]


def test_the_projects_own_comes_before_an_installed_one(make: Make) -> None:
    project = make({"common/data/prepare_sums.py": SAY} | package("ann", "corpus", sums="'''Theirs.'''"))
    assert find_script(project, "sums", nothing) == Script(
        "sums", project.root / "common/data/prepare_sums.py", "Make the sums."
    )


def test_what_is_not_there_or_means_two_is_refused(make: Make) -> None:
    fault = refused(make, {"common/data/prepare_sums.py": SAY}, "books")
    assert (fault.code, fault.allowed) == ("E-PROJECT-052", "sums")
    both = package("ann", "one", books="") | package("ben", "two", books="")
    fault = refused(make, both, "books")
    assert (fault.code, fault.found) == ("E-PROJECT-053", "ann/one, ben/two")


def test_an_installed_package_runs_only_with_bytes_that_somebody_published(make: Make) -> None:
    project = make(package("ann", "corpus", books="1") | {"experiments/a/method": "custom/custom"})
    folder = project.root / "tuneplane_plugins/ann/corpus"
    digest = directory_digest_v1(folder)
    assert (
        find_script(
            project, "books", lambda package, version: digest if (package, version) == ("ann/corpus", "2") else ""
        ).name
        == "books"
    )
    with pytest.raises(Refusal) as caught:
        find_script(project, "books", nothing)
    assert (caught.value.code, caught.value.found) == ("E-PROJECT-054", digest)
    lock = {"plugins": [{"id": "ann/corpus", "version": "2", "digest": digest}]}
    (project.root / "experiments/a/plugins.lock.json").write_text(json.dumps(lock))
    assert find_script(project, "books", nothing).package == "ann/corpus"
    (folder / "prepare_books.py").write_text("2")
    with pytest.raises(Refusal) as caught:
        find_script(project, "books", nothing)
    assert (caught.value.code, caught.value.allowed) == ("E-PROJECT-054", digest)


def test_a_package_of_another_kind_prepares_nothing(make: Make) -> None:
    files = package("ann", "job", books="")
    files["tuneplane_plugins/ann/job/plugin.yaml"] = (
        MANIFEST.format(name="job").replace("local", "job") + "entrypoint: m:f\n"
    )
    assert scripts(make(files)) == []


def test_the_script_gets_its_arguments_the_folder_and_keeps_its_exit_code(make: Make) -> None:
    project = make({"common/data/prepare_sums.py": SAY + "sys.exit(int(sys.argv[2]))\n", "deep/x": ""})
    done = tp(project.root / "deep", "sums", "--rows", "41", "--help", "--json")
    assert (done.returncode, done.stdout, done.stderr) == (41, f"--rows|41|--help|--json|{project.root}/deep\n", "")


def test_a_script_that_is_killed_looks_killed(make: Make) -> None:
    project = make({"common/data/prepare_die.py": "import os, signal\nos.kill(os.getpid(), signal.SIGTERM)\n"})
    assert tp(project.root, "die").returncode == -signal.SIGTERM


def test_without_a_name_the_scripts_are_listed(make: Make) -> None:
    project = make({"common/data/prepare_sums.py": SAY} | package("ann", "corpus", books='"""Books."""'))
    done = tp(project.root)
    assert [line.split() for line in done.stdout.splitlines()] == [
        ["NAME", "FROM", "WHAT"], ["books", "ann/corpus@2", "Books."], ["sums", "common/data", "Make", "the", "sums."],
    ]  # fmt: skip
    listed = json.loads(tp(project.root, "--json").stdout)["scripts"]
    assert [(s["name"], s["package"], s["version"]) for s in listed] == [("books", "ann/corpus", "2"), ("sums", "", "")]
    missing = tp(project.root, "nothing")
    assert (missing.returncode, "E-PROJECT-052" in missing.stderr) == (1, True)
