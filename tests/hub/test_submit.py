"""Hub models and data sets in a submission, as it is typed, on the embedded fleet: resolved, locked, offline, and checked by the job."""

from __future__ import annotations

import getpass
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fakehub import FakeHub

from hpc.data.hub_names import HubCache, Repo
from tests.hub.conftest import MODEL
from tests.hub.toys import write_adapter, write_model
from tests.submit.test_submit_command import Lab

TINY = Repo("model", "org/tiny")
SCRIPT = 'env | sort; cat "$TUNEPLANE_WORK_DIR/.tuneplane/launch.json" > /dev/null; exit 0\n'


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    made = Lab(tmp_path_factory.mktemp("lab"))
    made.tp("site", "init", str(made.storage), "--name", "lab", "--fleet", "local")
    made.tp("init", str(made.project), "--name", "lab")
    made.tp("new", "job", "--method", "custom/custom")
    made.script(SCRIPT)
    return made


@pytest.fixture
def online(lab: Lab, hub: FakeHub) -> Iterator[str]:
    """The commit of a model that the experiment names, and a hub that has it."""
    yield hub.repo("org/tiny").commit(MODEL)
    cache = lab.storage / "cache" / "hf"
    for path in [*(cache / "hub").iterdir(), *(cache / "assets").iterdir()]:
        shutil.rmtree(path)
    lock_of(lab).unlink(missing_ok=True)


def lock_of(lab: Lab) -> Path:
    return lab.project / "experiments/job/tp.lock.json"


def fetch(lab: Lab, hub: FakeHub, *words: str, ok: bool = True, kind: str = "model") -> Any:
    return lab.tp(kind, "prefetch", *words, ok=ok, HF_ENDPOINT=hub.endpoint)


def configure(lab: Lab, text: str) -> None:
    path = lab.project / "experiments/job/config.yaml"
    path.write_text(text)
    lab.commit()


def codes(errors: list[dict[str, Any]]) -> list[str]:
    return [e["code"] for e in errors]


def environment(run: Path) -> dict[str, str]:
    """The job's own variables, as `env` printed them into its log; each line begins with a time."""
    log = (run / "attempts/0/logs/rank-00000.log").read_text()
    return dict(line.partition(" ")[2].partition("=")[::2] for line in log.splitlines())


def tree(lab: Lab) -> dict[str, float]:
    places = [lab.storage / "cache", lab.project]
    return {str(p): p.lstat().st_mtime for place in places for p in place.rglob("*") if ".git/" not in str(p)}


def test_p64_from_prefetch_to_a_job_that_is_offline_and_has_checked_every_byte(
    lab: Lab, hub: FakeHub, online: str
) -> None:
    configure(lab, "model: {base: hf:org/tiny}\n")
    said = fetch(lab, hub, "job")
    assert "left on the hub: 1 code, 1 other, 1 other format, 1 pickle" in said.stdout
    assert "\r" not in said.stderr
    hub.close()
    before = tree(lab)
    lab.tp("submit", "job", "--dry-run")
    lab.tp("submit", "job", "--preview")
    now = tree(lab)
    assert {p for p in now.keys() ^ before.keys() if ".tuneplane-data" not in p} == set()
    assert {
        p for p in before if now[p] != before[p] and Path(p).is_file()
    } == set()  # E5: a dry run leaves lock and cache untouched
    done = lab.submit("--allow-dirty")
    assert lab.end(done["run_id"])["class"] == "done"
    run = Path(done["run_dir"])
    model = json.loads((run / "work/.tuneplane/launch.json").read_text())["inputs"]["model"]
    assert model["path"] == f"{lab.storage}/cache/hf/hub/{TINY.folder}/snapshots/{online}"
    assert (model["source"], model["closed"], len(model["files"])) == (f"hf:org/tiny@{online}", True, 4)
    seen = environment(run)
    assert {seen[k] for k in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE")} == {"1"}
    assert seen["TINY_MODEL_DIR"] == model["path"]
    assert seen["HF_HUB_CACHE"] == f"{lab.storage}/cache/hf/hub"


def test_p66_compile_caches_of_a_job_are_its_own_and_not_on_shared_storage(lab: Lab) -> None:
    configure(lab, "{}\n")
    done = lab.submit("--again")
    lab.end(done["run_id"])
    values = environment(Path(done["run_dir"]))
    for name in (
        "TRITON_CACHE_DIR",
        "TORCH_EXTENSIONS_DIR",
        "TORCHINDUCTOR_CACHE_DIR",
        "CUDA_CACHE_PATH",
        "XDG_CACHE_HOME",
    ):
        assert values[name].startswith("/"), name
        assert not values[name].startswith(str(lab.storage)), name
        assert not os.path.exists(values[name]), f"{name} outlived the job"


def test_the_first_submission_completes_the_lock_and_the_second_is_not_dirty(
    lab: Lab, hub: FakeHub, online: str
) -> None:
    configure(lab, f"model: {{base: 'hf:org/tiny@{online}'}}\n")
    fetch(lab, hub, "--repo", f"hf:org/tiny@{online}")
    assert not lock_of(lab).exists()
    first = lab.tp("submit", "job", "--again")
    assert "experiments/job/tp.lock.json was completed: commit it" in first.stderr
    entry = json.loads(lock_of(lab).read_text())["inputs"]["model"]
    assert (entry["commit"], entry["requested"], len(entry["files"])) == (online, online, 4)
    second = lab.tp("submit", "job", "--again")  # without --allow-dirty
    assert "tp.lock.json" not in second.stderr


def test_b1_an_unpinned_model_without_a_lock_is_refused_with_the_command_that_locks_it(
    lab: Lab, hub: FakeHub, online: str
) -> None:
    configure(lab, "model: {base: hf:org/tiny}\n")
    fetch(lab, hub, "--repo", "hf:org/tiny")
    (error,) = lab.refused()
    assert (error["code"], error["hint"]) == ("E-MODEL-012", "run: tp model prefetch job")


def test_e5_each_difference_stops_before_the_queue_and_the_stated_command_mends_it(
    lab: Lab, hub: FakeHub, online: str
) -> None:
    configure(lab, "model: {base: hf:org/tiny}\n")
    fetch(lab, hub, "job")
    lab.commit()
    runs = lab.runs()
    folder = HubCache(root_of(lab)).snapshot(TINY, online)
    blob = Path(os.path.realpath(folder / "model.safetensors"))
    blob.chmod(0o644)
    blob.write_bytes(b"x" + blob.read_bytes()[1:])
    (error,) = lab.refused()
    assert (error["code"], error["hint"]) == ("E-LOCK-005", "run: tp model prefetch job")
    fetch(lab, hub, "job")
    (folder / "config.json").unlink()
    (error,) = lab.refused()
    assert error["code"] == "E-LOCK-004"
    fetch(lab, hub, "job")
    new = hub.repo("org/tiny").commit(MODEL | {"config.json": b'{"x": 1}'})
    configure(lab, f"model: {{base: 'hf:org/tiny@{new}'}}\n")
    (error,) = lab.refused()
    assert (error["code"], error["hint"]) == ("E-LOCK-003", "run: tp model prefetch job --accept")
    fetch(lab, hub, "job", "--accept")
    os.rename(lab.storage / "cache/hf/hub" / TINY.folder, lab.storage / "cache/hf/hub/moved")
    (error,) = lab.refused()
    assert error["code"] == "E-LOCK-006"
    fetch(lab, hub, "job")
    assert lab.runs() == runs
    assert lab.end(lab.submit("--again")["run_id"])["class"] == "done"


def root_of(lab: Lab) -> Any:
    from tuneplane.contract.layout import StorageRoot

    return StorageRoot(lab.storage)


def test_p65_a_data_set_of_a_hub_is_one_locked_file(lab: Lab, hub: FakeHub, online: str) -> None:
    hub.repo("org/rows", "dataset").commit({"data/train.jsonl": b'{"a": 1}\n', "data/test.jsonl": b'{"a": 2}\n'})
    configure(lab, "data: {train: {dataset: 'hf:org/rows'}, validation: {dataset: 'hf:org/rows'}}\n")
    (error,) = lab.refused()
    assert (error["code"], error["hint"]) == ("E-HUB-020", "run: tp dataset prefetch job")
    fetch(lab, hub, "job", kind="dataset")
    hub.close()
    done = lab.submit("--allow-dirty", "--again")
    inputs = json.loads((Path(done["run_dir"]) / "work/.tuneplane/launch.json").read_text())["inputs"]
    assert [Path(inputs[r]["path"]).name for r in ("train", "validation")] == ["train.jsonl", "test.jsonl"]
    assert lab.end(done["run_id"])["class"] == "done"


def test_a_model_of_the_shelf_trains_a_job_and_an_adapter_does_not(lab: Lab, tmp_path: Path) -> None:
    configure(lab, "{}\n")
    me = getpass.getuser()
    lab.tp("model", "register", str(write_model(tmp_path / "m")), "toy", "1.0")
    lab.tp("model", "register", str(write_adapter(tmp_path / "a")), "ad", "1")
    lab.tp("model", "promote", f"{me}/toy@1.0", "--to", "production")
    done = lab.submit("--again", "--model", f"{me}/toy@production")
    model = json.loads((Path(done["run_dir"]) / "work/.tuneplane/launch.json").read_text())["inputs"]["model"]
    assert (model["source"], model["model"]["ref"]) == (f"{me}/toy@1.0", f"{me}/toy@1.0")
    assert lab.end(done["run_id"])["class"] == "done"
    assert environment(Path(done["run_dir"]))["TOY_MODEL_DIR"] == f"{lab.storage}/registry/models/{me}/toy/1.0/content"
    assert codes(lab.refused("--again", "--model", f"{me}/ad@1")) == ["E-MODEL-024"]
    assert "E-DATA-020" in lab.tp("model", "promote", f"{me}/toy@1.0", "--to", "x").stderr + _rm(lab, me)


def _rm(lab: Lab, me: str) -> str:
    """A second version is free to go, the one that a run used is not."""
    for channel in ("production", "x"):
        folder = lab.storage / "registry/channels" / me / "toy" / channel
        shutil.rmtree(folder)
    return lab.tp("model", "rm", f"{me}/toy@1.0", ok=False).stderr
