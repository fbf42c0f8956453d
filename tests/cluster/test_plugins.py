"""Plugins on the real cluster: written, published, locked, applied in every rank, refused when a byte differs; transforms as CPU jobs."""

from __future__ import annotations

import json
import os
import subprocess
import textwrap
from pathlib import Path
from typing import Any

import pytest
from lab import Lab, Person, Run, shared_dependencies
from tuneplane.record.digest import directory_digest_v1

pytestmark = [pytest.mark.cluster, pytest.mark.two_users]

HELD = ("--begin", "now+1hour")
MANIFEST = """\
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
PATCH = "import builtins\n\n\ndef install(hyperparams):\n    builtins.OPSD = sorted(hyperparams)\n"
TRAIN = "import builtins, os, sys\nprint('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'], builtins.OPSD, 'patch' in sys.modules)\n"
APPLIED = "plugin  : tpalice/opsd-patch@1.2.0 applied in entrypoint process"


def write(lab: Lab, who: Person, folder: Path, files: dict[str, str]) -> Path:
    """A folder of the user's own, written as the user."""
    for path, text in files.items():
        place = folder / path
        script = f"mkdir -p {place.parent} && cat >{place} <<'END_OF_FILE'\n{text}END_OF_FILE"
        lab.sh(who, script)
    return folder


def edit_a_byte(path: Path) -> bytes:
    """As root, behind everybody's back; returns what was there."""
    before = path.read_bytes()
    path.write_bytes(before[:-2] + b"#\n")
    return before


@pytest.fixture(scope="module")
def patched(lab: Lab, alice: Person) -> Lab:
    """alice's example plugin, published, and an experiment of hers that is locked to it."""
    folder = write(
        lab,
        alice,
        lab.project(alice) / "my-plugin",
        {"plugin.yaml": MANIFEST, "patch.py": PATCH, "README.md": "# OPSD\n"},
    )
    report = lab.tp(alice, "plugin", "validate", folder, "--json").json
    assert (report["verdict"], report["publishable"], report["digest"]) == ("accept", True, directory_digest_v1(folder))
    published = lab.tp(alice, "plugin", "publish", folder, "--json").json
    assert (published["id"], published["version"], published["digest"]) == (
        "tpalice/opsd-patch",
        "1.2.0",
        report["digest"],
    )
    lab.tp(alice, "new", "patched", "--from", "toy")
    write(lab, alice, lab.project(alice) / "experiments" / "patched", {"train.py": TRAIN})
    lab.tp(alice, "plugin", "install", "tpalice/opsd-patch", "--exp", "patched")
    lock = json.loads((lab.project(alice) / "experiments/patched/plugins.lock.json").read_text("utf-8"))
    assert lock["plugins"] == [{"id": "tpalice/opsd-patch", "version": "1.2.0", "digest": report["digest"]}]
    lab.sh(alice, "git add -A && git commit -q -m 'Locked to a plugin'")
    return lab


def test_the_page_s_example_is_applied_in_every_rank_of_two_nodes(patched: Lab, alice: Person) -> None:
    run = patched.submit(alice, "patched", "--profile", "ranks")
    assert run.wait_end()["class"] == "done", run.story()
    for rank in range(4):
        assert run.log(rank) == [APPLIED, f"rank {rank} of 4 [] True"], run.story()
    spec = run.read("work", ".tuneplane", "jobspec.json")
    assert [p["id"] for p in spec["spec"]["plugins"]] == ["tpalice/opsd-patch"]
    assert patched.tp(alice, "runs", "audit", run.id, "--json").json["verdict"] == "verified"
    uses = patched.tp(alice, "plugin", "usage", "tpalice/opsd-patch", "--json").json["uses"]
    assert run.id in [u["run_id"] for u in uses]


def test_bob_publishes_into_her_namespace_neither_by_the_registry_nor_by_the_file_system(
    patched: Lab, alice: Person, bob: Person
) -> None:
    folder = write(patched, bob, patched.project(bob) / "my-plugin", {"plugin.yaml": MANIFEST, "patch.py": PATCH})
    refused = patched.tp(bob, "plugin", "publish", folder, "--owner", "tpalice", "--json", code=1)
    assert refused.codes == ["E-REG-003"]
    shelf = patched.root.shelf("plugins") / "tpalice"
    for script in (
        f"mkdir {shelf}/evil",
        f"mkdir {shelf}/opsd-patch/9.9.9",
        f"echo x >{shelf}/opsd-patch/1.2.0/content/patch.py",
    ):
        assert "denied" in patched.sh(bob, script, code=None).err
    again = patched.tp(alice, "plugin", "publish", patched.project(alice) / "my-plugin", "--json", code=1)
    assert again.codes == ["E-REG-001"]


def test_a_byte_of_the_stored_package_stops_the_submission_and_is_named_by_the_audit(
    patched: Lab, alice: Person
) -> None:
    stored = patched.root.shelf("plugins") / "tpalice/opsd-patch/1.2.0/content/patch.py"
    before = edit_a_byte(stored)
    try:
        refused = patched.tp(alice, "submit", "patched", "--profile", "two", "--json", code=1)
        assert all(code.startswith("E-REG-") for code in refused.codes), refused.codes
        audit = patched.admin("registry", "audit", "--deep", "--json", code=2)
        assert "tpalice/opsd-patch/1.2.0" in json.dumps(audit.json)
        assert "patch.py" in audit.out
    finally:
        stored.write_bytes(before)
    assert patched.admin("registry", "audit", "--deep", "--no-runs", "--json", code=None).code == 0


def test_a_byte_of_the_job_s_copy_stops_the_job_with_both_digests(patched: Lab, alice: Person) -> None:
    run = patched.submit(alice, "patched", "--profile", "two", *HELD)
    copy = run.paths.work / "tuneplane_plugins" / "opsd-patch"
    spec = run.read("work", ".tuneplane", "jobspec.json")["spec"]["plugins"][0]["digest"]
    edit_a_byte(copy / "patch.py")
    patched.slurm(alice, "scontrol", "update", f"JobId={run.job_id}", "StartTime=now")
    end = run.wait_end()
    actual = directory_digest_v1(copy)
    words = f"plugin tpalice/opsd-patch@1.2.0 content digest mismatch: spec={spec}, actual={actual}"
    assert (end["class"], end["message"]) == ("refused", f"E-JOB-030 {words}"), run.story()
    assert run.log(0) == []
    assert patched.tp(alice, "runs", "audit", run.id, "--json", code=2).json["verdict"] == "tampered"


PACK = {
    "plugin.yaml": "schema: tuneplane/plugin/v1\nname: echo\nversion: '1.0'\ncapability: recipe\nsummary: Says it\n",
    "recipe.yaml": (Path(__file__).parent / "toy-ranks" / "recipe.yaml").read_text("utf-8")
    .replace("name: ranks", "name: echo").replace("kind: experiment, value: train.py", "kind: file, value: say.py"),
    "template/say.py": "import os\nprint('said by', os.environ['RANK'])\n",
}  # fmt: skip


def test_a_published_recipe_pack_is_locked_and_travels_under_its_owner(lab: Lab, alice: Person, bob: Person) -> None:
    folder = write(lab, alice, lab.project(alice) / "pack", PACK)
    lab.tp(alice, "plugin", "publish", folder)
    assert "tpalice/echo" in lab.tp(bob, "methods").out
    lab.tp(bob, "new", "echoed", "--method", "tpalice/echo")
    lab.sh(bob, "git add -A && git commit -q -m 'Her method'")
    run = lab.submit(bob, "echoed", "--profile", "two")
    assert run.wait_end()["class"] == "done", run.story()
    assert [run.log(rank) for rank in (0, 1)] == [["said by 0"], ["said by 1"]]
    assert (run.paths.work / "tuneplane_recipes/tpalice/echo/template/say.py").is_file()
    assert run.read("work", ".tuneplane", "jobspec.json")["spec"]["recipe"]["name"] == "tpalice/echo"


TRANSFORM = """\
python -m tuneplane.transforms --plugin {plugin} --request {request} --output "$TUNEPLANE_OUT_DIR/dataset" \
  --report "$TUNEPLANE_OUT_DIR/transform-result.json" --timeout 60
"""
CLEANER = '''\
"""The page's cleaner: keeps the records that are long enough."""

from tuneplane.contract.transforms import TransformResult


def transform(request):
    source, kept = request.inputs["documents"], 0
    with open(request.output_dir / "data.jsonl", "wb") as out:
        for line in source.read_bytes().splitlines(keepends=True):
            if len(line) >= request.config["min_length"]:
                out.write(line)
                kept += 1
    return TransformResult(files=("data.jsonl",), records=kept)
'''
PYPROJECT = """\
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"

[project]
name = "my-company-cleaner"
version = "1.0.0"
requires-python = ">=3.12"

[project.entry-points."tuneplane.transforms"]
clean = "my_company_cleaner:transform"

[tool.setuptools]
py-modules = ["my_company_cleaner"]
"""
CLEANER_MANIFEST = """\
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


@pytest.fixture(scope="module")
def cleaner(lab: Lab, alice: Person, scratch: Path) -> str:
    """The page's wheel, built by an ordinary build backend, validated and published by alice."""
    source = scratch / "cleaner-source"
    source.mkdir()
    (source / "pyproject.toml").write_text(PYPROJECT, "utf-8")
    (source / "my_company_cleaner.py").write_text(CLEANER, "utf-8")
    pip = [
        shared_dependencies()[1],
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-deps",
        "--no-build-isolation",
        "--no-index",
        "--ignore-requires-python",
    ]  # it is for the image's Python
    subprocess.run([*pip, "-w", scratch / "wheels", source], check=True, cwd=scratch)
    folder = write(lab, alice, lab.project(alice) / "cleaner", {"plugin.yaml": CLEANER_MANIFEST})
    lab.sh(alice, f"cp {scratch}/wheels/*.whl {folder}/")
    assert lab.tp(alice, "plugin", "validate", folder, "--json").json["verdict"] == "accept"
    lab.tp(alice, "plugin", "publish", folder)
    return "tpalice/cleaner"


INPUT = "".join(json.dumps({"text": text}) + "\n" for text in ("short", "long enough to stay", "long enough to stay"))
REQUESTS = {
    "tpalice/cleaner": {"inputs": {"documents": "input.jsonl"}, "config": {"min_length": 20}},
    "tuneplane/jsonl-filter": {"inputs": {"documents": "input.jsonl"}, "config": {"min_length": 10}},
    "tuneplane/text-records": {"inputs": {"documents": "input.txt"}, "config": {"chunk_chars": 40, "overlap_chars": 10}},
}  # fmt: skip


@pytest.mark.parametrize("plugin", list(REQUESTS))
def test_a_transform_is_a_cpu_job_that_publishes_on_success_only(
    lab: Lab, alice: Person, cleaner: str, plugin: str
) -> None:
    name = plugin.rpartition("/")[2]
    text = textwrap.fill("Every word of this text is cut into chunks that overlap a little. " * 4, 60)
    requests = {name: REQUESTS[plugin], f"{name}-bad": REQUESTS[plugin] | {"config": {"no_such_key": 1}}}
    lab.experiments(alice, {exp: TRANSFORM.format(plugin=plugin, request="request.json") for exp in requests})
    for exp, request in requests.items():
        body = json.dumps({"api": "tuneplane/transform/v1", **request})
        files = {"request.json": f"{body}\n", "input.jsonl": INPUT, "input.txt": f"{text}\n"}
        write(lab, alice, lab.project(alice) / "experiments" / exp, files)
        lab.tp(alice, "plugin", "install", plugin, "--exp", exp)
    lab.sh(alice, "git add -A && git commit -q -m 'A transform, and one that fails'")
    good, bad = (lab.submit(alice, exp, "--profile", "one") for exp in requests)
    assert good.wait_end()["class"] == "done", good.story()
    report = result_of(good)
    assert (report["status"], report["provider"]["id"]) == ("succeeded", plugin)
    assert sorted(os.listdir(good.paths.attempt(0).out / "dataset")) == sorted(report["files"])
    assert bad.wait_end()["class"] == "error", bad.story()
    assert result_of(bad)["status"] == "failed"
    assert not (bad.paths.attempt(0).out / "dataset").exists()


def result_of(run: Run) -> dict[str, Any]:
    value: dict[str, Any] = json.loads((run.paths.attempt(0).out / "transform-result.json").read_text("utf-8"))
    return value
