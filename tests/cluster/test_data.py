"""Data and models on the cluster: one download for two users, jobs that are offline, read-only mounts, and a data set that a run gives out."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from fakehub import FakeHub
from lab import Done, Lab, Person, Run
from labsites import Sites

from hpc.data.hub_names import HubCache, Repo

pytestmark = [pytest.mark.cluster, pytest.mark.two_users]

GROUP = "tpcl_users"
TINY = Repo("model", "org/tiny")
HUBBED = """\
set -e
echo "offline $HF_HUB_OFFLINE $TRANSFORMERS_OFFLINE $HF_DATASETS_OFFLINE"
cd "$TUNEPLANE_MODEL_PATH" && sha256sum model.safetensors
"""
WORK = """\
set -e
wc -l <"$TUNEPLANE_TRAIN_DATA"
wc -l <"$TUNEPLANE_VALIDATION_DATA"
cat "$VOLUMES_DIR/a/note" "$VOLUMES_DIR/b/note"
chmod u+w "$VOLUMES_DIR/a/note" 2>&1 | sed 's/.*: //'
for place in "$VOLUMES_DIR/a/new" "$VOLUMES_DIR/b/new" "$SUMS_DATA_DIR/new"; do touch "$place" 2>&1 | sed 's/.*: //'; done
head -n 7 "$TUNEPLANE_TRAIN_DATA" >"$TUNEPLANE_DATASET_OUT_DIR/train.jsonl"
"""
NEXT = 'wc -l <"$TUNEPLANE_TRAIN_DATA"\ntest "$TUNEPLANE_TRAIN_DATA" = "$HALF_DATA_DIR/train.jsonl" && echo the same\n'


@pytest.fixture(scope="module")
def shared(sites: Sites, lab: Lab, alice: Person, bob: Person) -> Iterator[Lab]:
    """A site whose shared folders belong to a group of both users, who have their projects from `lab`."""
    subprocess.run(["groupadd", "--force", GROUP], check=True)
    try:
        for person in (alice, bob):
            subprocess.run(["usermod", "--append", "--groups", GROUP, person.name], check=True)
        yield sites.new("data", users_group=GROUP)
    finally:
        subprocess.run(["groupdel", GROUP], check=False)


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    made = FakeHub()
    yield made
    made.close()


def both(lab: Lab, people: tuple[Person, Person], *words: str, env: dict[str, str]) -> list[Done]:
    """The same command of two users at the same moment."""
    begun = [lab.start(who, "tp", *words, env=env) for who in people]
    said = [process.communicate(timeout=120) for process in begun]
    assert [process.returncode for process in begun] == [0, 0], said
    return [Done(0, out, err) for out, err in said]


def test_p64_two_users_fetch_one_model_once_and_both_jobs_run_offline(
    shared: Lab, hub: FakeHub, alice: Person, bob: Person
) -> None:
    weights = os.urandom(3 << 20)
    commit = hub.repo("org/tiny").commit({"config.json": b"{}", "model.safetensors": weights})
    hub.fail("/cdn/", pause_s=1.5)  # whoever comes first is held up, so that the other meets the claim
    for who in (alice, bob):
        shared.experiments(who, {"hubbed": HUBBED})
        (shared.project(who) / "experiments/hubbed/config.yaml").write_text("model: {base: hf:org/tiny}\n")
    said = both(shared, (alice, bob), "model", "prefetch", "hubbed", "--json", env={"HF_ENDPOINT": hub.endpoint})
    assert hub.sent("/cdn/") == len(weights)
    assert sorted(done.json["fetched"][0]["fetched_bytes"] for done in said) == [0, len(weights) + 2]
    asked = len(hub.log)
    runs = []
    for who in (alice, bob):
        shared.sh(who, "git add -A && git commit -q -m 'Inputs of hubbed'")
        runs.append(shared.submit(who, "hubbed"))
    digest = f"{Path(os.path.realpath(snapshot(shared, commit) / 'model.safetensors')).name}  model.safetensors"
    for run in runs:
        assert run.wait_end()["class"] == "done", run.story()
        assert run.log(0) == ["offline 1 1 1", digest]
    assert len(hub.log) == asked
    a_flipped_byte_is_named(shared, alice, commit)


def snapshot(lab: Lab, commit: str) -> Path:
    return HubCache(lab.root).snapshot(TINY, commit)


def a_flipped_byte_is_named(lab: Lab, who: Person, commit: str) -> None:
    assert lab.tp(who, "assets", "verify").code == 0
    blob = Path(os.path.realpath(snapshot(lab, commit) / "model.safetensors"))
    data = bytearray(blob.read_bytes())
    data[12_345] ^= 1
    blob.write_bytes(data)
    found = lab.tp(who, "assets", "verify", code=1)
    assert f"hf:org/tiny@{commit}/model.safetensors: has other bytes" in found.err
    refused = lab.tp(who, "submit", "hubbed", "--json", code=1)
    assert refused.codes == ["E-LOCK-005"]


def push_data(lab: Lab, who: Person) -> None:
    """A data set with two splits, and two volumes."""
    rows = [json.dumps({"prompt": f"{n} + {n}?", "completion": str(2 * n)}) + "\n" for n in range(30)]
    base = lab.project(who) / "outputs"
    for path, text in {
        "d/train.jsonl": rows[:20],
        "d/validation.jsonl": rows[20:],
        "a/note": ["one\n"],
        "b/note": ["two\n"],
    }.items():
        (base / path).parent.mkdir(parents=True, exist_ok=True)
        (base / path).write_text("".join(text))
    lab.tp(who, "dataset", "push", "sums", "1", base / "d")
    for name in ("a", "b"):
        lab.tp(who, "volume", "create", name)
        lab.tp(who, "volume", "push", name, base / name)


def published(lab: Lab, who: Person) -> list[str]:
    """Versions of half, as the shelf has them."""
    folder = lab.root.shelf("datasets") / who.name / "half"
    return sorted(os.listdir(folder)) if folder.exists() else []


def test_data_volumes_and_output_of_a_job_and_the_output_trains_the_next(shared: Lab, alice: Person) -> None:
    push_data(shared, alice)
    shared.experiments(alice, {"work": WORK, "failing": WORK + "exit 3", "next": NEXT})
    flags = ["--train-dataset", f"{alice.name}/sums@1", "--validation-dataset", f"{alice.name}/sums@1"]
    flags += ["--volume", f"{alice.name}/a", "--volume", f"{alice.name}/b"]
    failing = shared.submit(alice, "failing", *flags, "--output-dataset", f"{alice.name}/half@0")
    work = shared.submit(alice, "work", *flags, "--output-dataset", f"{alice.name}/half@1")
    ends: list[tuple[Run, str]] = [(failing, "error"), (work, "done")]
    for run, how in ends:
        assert run.wait_end()["class"] == how, run.story()
        assert run.log(0)[:8] == ["20", "10", "one", "two", *["Read-only file system"] * 4], run.story()
    assert published(shared, alice) == ["1"]
    made = shared.tp(alice, "dataset", "show", f"{alice.name}/half@1", "--json").json
    source = made["facts"]["produced_by"]
    assert (source["run_id"], source["inputs"]) == (work.id, [f"{alice.name}/sums@1"] * 2)
    assert made["facts"]["splits"]["train"]["rows"] == 7
    after = shared.submit(alice, "next", "--train-dataset", f"{alice.name}/half@1")
    assert after.wait_end()["class"] == "done", after.story()
    assert after.log(0) == ["7", "the same"]
    assert after.read("work", ".tuneplane", "launch.json")["inputs"]["train"]["dataset"]["digest"] == made["digest"]
    assert shared.tp(alice, "runs", "audit", work.id, "--json").json["verdict"] == "verified"
