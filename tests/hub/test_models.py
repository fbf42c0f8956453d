"""Models on the shelf: what is one, what it says of itself, where it comes from, and what a channel means."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tuneplane.contract.layout import RunPaths, StorageRoot
from tuneplane.record.digest import digest_file
from tuneplane.record.files import write_json_new

from hpc.cli.model_register import _chosen
from hpc.data import models
from hpc.data.channels import channels, find, promote
from hpc.data.model_cards import card, listing
from hpc.data.model_check import check_model
from hpc.data.models import MODEL
from hpc.data.remove import remove_version
from hpc.data.safetensors import HeaderError, read_header
from hpc.errors import Refusal, Refusals
from hpc.registry.publish import Published
from hpc.registry.shelf import Ref, Shelf
from hpc.registry.switches import DISABLED, set_version
from hpc.site.sitefile import Site, load_site
from hpc.site.users import User, real_user
from tests.hub.toys import CONFIG, safetensors, write_adapter, write_model

EVALUATION = {"suites": ["behaviour"], "gates": [{"metric": "behaviour/score", "min": 0.5}]}
NOW = "2026-01-02T03:04:05Z"
Put = Callable[..., Published]


@pytest.fixture
def site(root: StorageRoot) -> Site:
    return load_site(root)


@pytest.fixture
def me() -> User:
    return real_user()


@pytest.fixture
def shelf(root: StorageRoot, site: Site) -> Shelf:
    return Shelf(root, MODEL, site=site)


@pytest.fixture
def put(root: StorageRoot, site: Site, me: User, scratch: Path) -> Put:
    def do(
        version: str, name: str = "toy", folder: Path | None = None, lineage: dict[str, Any] | None = None
    ) -> Published:
        source = folder or write_model(scratch / f"{name}-{version}")
        return models.register(
            root, site, source, name, version, user=me, now=NOW, lineage=lineage or models.of_folder(source)
        )

    return do


def codes(call: Callable[[], object]) -> list[tuple[str, str]]:
    """(code, field) of every refusal."""
    with pytest.raises((Refusal, Refusals)) as caught:
        call()
    items = [caught.value] if isinstance(caught.value, Refusal) else caught.value.items
    return [(i.code, i.field) for i in items]


def test_the_facts_of_a_model_and_of_an_adapter(scratch: Path) -> None:
    facts = check_model(write_model(scratch / "m"))
    assert facts["tokenizer"].startswith("sha256:")
    assert {k: v for k, v in facts.items() if k != "tokenizer"} == {
        "form": "model", "model_type": "llama", "architectures": ["LlamaForCausalLM"], "config": {"hidden_size": 8, "vocab_size": 16},
        "parameters": 3, "dtypes": {"F32": 3}, "tensors": 2,
    }  # fmt: skip
    assert check_model(write_adapter(scratch / "a")) == {
        "form": "adapter", "peft_type": "LORA", "base_model": "org/tiny", "base_revision": "", "lora_targets": ["q_proj", "v_proj"],
        "lora": {"r": 2, "lora_alpha": 4}, "parameters": 3, "dtypes": {"F32": 3}, "tensors": 2, "tokenizer": "",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("files", "wanted"),
    [
        ({"config__json": None}, [("E-MODEL-020", "")]),
        ({"config__json": b"{}"}, [("E-MODEL-020", "config.json")]),
        ({"config__json": b"not json"}, [("E-MODEL-020", "config.json")]),
        ({"config__json": b'{"hidden_size": 3}'}, [("E-MODEL-020", "config.json")]),
        ({"model__safetensors": None}, [("E-MODEL-021", "")]),
        ({"model__safetensors": safetensors({})}, [("E-MODEL-021", "model.safetensors")]),
        ({"pytorch_model__bin": b"x"}, [("E-MODEL-021", "pytorch_model.bin")]),
        ({"modeling__py": b""}, [("E-MODEL-022", "modeling.py")]),
        ({"config__json": json.dumps(CONFIG | {"auto_map": {}}).encode()}, [("E-MODEL-022", "config.json")]),
        ({"tokenizer_config__json": b'{"auto_map": {}}'}, [("E-MODEL-022", "tokenizer_config.json")]),
        ({"model__safetensors__index__json": b'{"weight_map": {"a": "gone.safetensors"}}'}, [("E-MODEL-021", "model.safetensors.index.json")]),
        ({"model__safetensors__index__json": b'{"weight_map": {"z": "model.safetensors"}}'}, [("E-MODEL-021", "model.safetensors.index.json")]),
    ],
)  # fmt: skip
def test_what_is_no_model_is_refused_and_says_why(
    scratch: Path, files: dict[str, bytes | None], wanted: list[tuple[str, str]]
) -> None:
    folder = write_model(scratch / "m", **files)
    assert [(c, f.replace(str(folder), "")) for c, f in codes(lambda: check_model(folder))] == wanted


def test_h8_an_empty_adapter_or_one_without_its_config_is_no_model(scratch: Path) -> None:
    assert codes(lambda: check_model(write_adapter(scratch / "zero", b=0.0))) == [
        ("E-MODEL-023", "adapter_model.safetensors")
    ]
    bare = write_adapter(scratch / "bare", adapter_config__json=None)
    assert codes(lambda: check_model(bare)) == [("E-MODEL-020", str(bare))]
    none = write_adapter(scratch / "none", adapter_model__safetensors=None)
    assert codes(lambda: check_model(none)) == [("E-MODEL-023", str(none))]


def test_every_cut_and_every_longer_file_of_safetensors_is_seen(scratch: Path) -> None:
    data = safetensors({"a": [1.0, 2.0], "b": [3.0]})
    path = scratch / "x.safetensors"
    for size in [*range(len(data)), len(data) + 1]:
        path.write_bytes((data + b"x")[:size])
        with pytest.raises(HeaderError):
            read_header(path)
    path.write_bytes(data)
    assert [(t.name, t.shape, t.values) for t in read_header(path)] == [("a", (2,), 2), ("b", (1,), 1)]


@pytest.mark.parametrize(
    "row",
    [
        {"dtype": "F33", "shape": [1], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]},
        {"dtype": "F32", "shape": [1], "data_offsets": [0]},
        {"dtype": "F32", "shape": [True], "data_offsets": [0, 4]},
        {"shape": [1]},
        7,
    ],
)
def test_a_header_that_does_not_fit_is_refused(scratch: Path, row: object) -> None:
    head = json.dumps({"a": row}).encode()
    path = scratch / "x.safetensors"
    path.write_bytes(len(head).to_bytes(8, "little") + head + b"\0" * 4)
    with pytest.raises(HeaderError):
        read_header(path)


def test_a_registered_model_is_a_copy_and_its_record_tells_what_it_is(
    put: Put, scratch: Path, shelf: Shelf, me: User
) -> None:
    source = write_model(scratch / "m")
    done = put("1.0", folder=source)
    (source / "model.safetensors").write_bytes(b"")
    version = find(shelf.root, shelf.site, f"{me.name}/toy@1.0")
    assert (version.digest, version.facts["form"], version.facts["parameters"]) == (done.digest, "model", 3)
    assert read_header(version.content / "model.safetensors")[0].name == "a"
    assert os.lstat(version.content / "model.safetensors").st_nlink == 1
    assert codes(lambda: put("1.0"))[0][0] == "E-REG-001"


def _run(root: StorageRoot, owner: str, ends: dict[int, str], export: Path | None = None) -> RunPaths:
    run = root.run(owner, "exp", "run-00ab")
    for number, ended in ends.items():
        paths = run.attempt(number)
        paths.out.mkdir(parents=True)
        write_json_new(paths.end, {"class": ended})
        if export and ended == "done":
            export.rename(paths.out / "final")
            final = paths.out / "final"
            rows = [{"path": n, "sha256": digest_file(final / n)} for n in sorted(os.listdir(final))]
            write_json_new(paths.out / "result.json", {"artefact": {"files": rows}})
    (run.work / ".tuneplane").mkdir(parents=True)
    spec = {
        "spec": {"recipe": {"name": "deepspeed/sft"}, "model": {"base": "hf:org/tiny"}, "evaluation": EVALUATION},
        "provenance": {"git_commit": "c0ffee"},
    }
    write_json_new(run.jobspec, spec)
    inputs = {
        "model": {
            "path": "/x",
            "source": "hf:org/tiny@" + "a" * 40,
            "files": [{"path": "config.json", "sha256": "sha256:1"}],
        }
    }
    write_json_new(run.launch, {"inputs": inputs, "runtime": {"sha256": "sha256:2"}})
    return run


def test_a_runs_model_knows_its_run_its_base_and_its_image(
    root: StorageRoot, put: Put, scratch: Path, me: User
) -> None:
    run = _run(root, me.name, {0: "preempted", 1: "done"}, write_adapter(scratch / "a"))
    folder, lineage = models.of_run(run)
    assert lineage == {
        "source": "run", "run_id": "run-00ab", "owner": me.name, "exp": "exp", "attempt": 1, "recorded": True, "recipe": "deepspeed/sft",
        "base": "hf:org/tiny", "base_source": "hf:org/tiny@" + "a" * 40, "base_files": {"config.json": "sha256:1"}, "git_commit": "c0ffee",
        "sif": "sha256:2", "evaluation": EVALUATION,
    }  # fmt: skip
    put("1", name="ad", folder=folder, lineage=lineage)
    shown = card(root, f"{me.name}/ad").as_json(full=True)
    assert shown["facts"]["lineage"]["run_id"] == "run-00ab"
    assert shown["facts"]["lineage"]["evaluation"] == EVALUATION
    assert (shown["form"], shown["architecture"]) == ("adapter", "LORA")


def test_an_exports_model_knows_the_run_that_was_trained(root: StorageRoot, scratch: Path, me: User) -> None:
    run = _run(root, me.name, {2: "done"}, write_adapter(scratch / "a"))
    export = root.run(me.name, "exp.export", "run-00ac")
    out = export.attempt(0).out
    out.mkdir(parents=True)
    write_json_new(export.attempt(0).end, {"class": "done"})
    (export.work / ".tuneplane").mkdir(parents=True)
    write_json_new(export.jobspec, {"spec": {"recipe": {"name": "deepspeed/sft"}, "model": {"base": "hf:org/tiny"}}})
    follows = {"run_id": run.run_id, "exp": "exp", "action": "export"}
    write_json_new(export.launch, {"inputs": {}, "follows": follows})
    result: dict[str, Any] = {"of": {"attempt": 2}}
    for part, key, make in (("model", "artefact", write_model), ("adapter", "adapter", write_adapter)):
        folder = make(out / "export" / part)
        rows = [{"path": n, "sha256": digest_file(folder / n)} for n in sorted(os.listdir(folder))]
        result[key] = {"path": f"export/{part}", "files": rows}
    write_json_new(out / "result.json", result)
    for part, place in (("export", "model"), ("adapter", "adapter")):
        folder, lineage = models.of_run(export, part=part)
        assert folder == out / "export" / place
        assert (lineage["run_id"], lineage["exp"], lineage["attempt"]) == ("run-00ab", "exp", 2)
        assert lineage["evaluation"] == EVALUATION
        assert lineage["export"] == {"run_id": "run-00ac", "exp": "exp.export", "attempt": 0, "part": part}
    assert codes(lambda: models.of_run(run, part="adapter"))[0][0] == "E-MODEL-030"


def test_an_export_that_was_changed_after_the_run_is_refused(root: StorageRoot, scratch: Path, me: User) -> None:
    run = _run(root, me.name, {0: "done"}, write_model(scratch / "m"))
    path = run.attempt(0).out / "final" / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert codes(lambda: models.of_run(run)) == [("E-MODEL-031", str(path))]


def test_a_run_that_did_not_end_well_has_no_model(root: StorageRoot, me: User) -> None:
    assert codes(lambda: models.of_run(_run(root, me.name, {0: "error"}))) == [("E-MODEL-030", "run-00ab")]


def test_an_attempt_that_did_not_end_well_has_no_model_either(root: StorageRoot, scratch: Path, me: User) -> None:
    run = _run(root, me.name, {0: "preempted", 1: "done"}, write_adapter(scratch / "a"))
    shutil.copytree(run.attempt(1).out / "final", run.attempt(0).out / "final")
    for attempt in (0, 7):
        assert codes(lambda n=attempt: models.of_run(run, n)) == [("E-MODEL-030", "run-00ab")]
    assert models.of_run(run, 1)[1]["attempt"] == 1


def test_a_name_is_a_version_or_a_channel_and_never_both(put: Put, shelf: Shelf, site: Site, me: User) -> None:
    put("1.0")
    ref = Ref(me.name, "toy", "1.0")
    assert codes(lambda: promote(shelf, ref, "1.0", user=me, site=site, now=NOW)) == [("E-MODEL-042", "--to")]
    promote(shelf, ref, "production", user=me, site=site, now=NOW)
    # Registering goes by no gate: it must not change what production means.
    assert codes(lambda: put("production")) == [("E-MODEL-042", "VERSION")]
    assert find(shelf.root, site, f"{ref.id}@production").version == "1.0"


def test_the_attempt_that_is_named_is_the_training_runs_own(
    root: StorageRoot, scratch: Path, me: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = _run(root, me.name, {0: "preempted", 1: "done"}, write_adapter(scratch / "a"))
    export = root.run(me.name, "exp.export", "run-00ac")
    export.root.mkdir(parents=True)
    write_json_new(export.report, {"result": {"of": {"attempt": 1}}})
    monkeypatch.setattr("hpc.submit.followlist.children", lambda *_: [("export", export)])
    assert _chosen(root, run, None, None) == (export, "export", None)
    assert _chosen(root, run, None, 1) == (export, "export", None)
    assert _chosen(root, run, None, 0) == (run, "final", 0)
    assert codes(lambda: _chosen(root, run, "adapter", 0)) == [("E-MODEL-030", "RUN")]
    assert _chosen(root, export, None, 0) == (export, "export", 0)


def test_a_channel_means_what_was_promoted_and_keeps_every_change(put: Put, shelf: Shelf, site: Site, me: User) -> None:
    put("1.0"), put("2.0")
    one, two = (Ref(me.name, "toy", v) for v in ("1.0", "2.0"))
    verdict = {"suite": "s", "passed": True}
    assert promote(shelf, one, "production", user=me, site=site, now=NOW, verdicts=(verdict,)).generation == 1
    assert promote(shelf, two, "production", user=me, site=site, now=NOW, expected=1).generation == 2
    assert find(shelf.root, site, f"{me.name}/toy@production").version == "2.0"
    (now,) = channels(shelf, one)
    assert (now.name, now.version, now.generation, now.by) == ("production", "2.0", 2, me.name)
    assert (
        codes(lambda: promote(shelf, one, "production", user=me, site=site, now=NOW, expected=1))[0][0] == "E-REG-020"
    )
    assert codes(lambda: find(shelf.root, site, f"{me.name}/toy@nope"))[0][0] == "E-MODEL-041"
    first = shelf.root.registry / "channels" / me.name / "toy" / "production" / "1.json"
    assert json.loads(first.read_text())["verdicts"] == [verdict]


def test_an_archived_version_is_refused_for_new_and_found_for_old(put: Put, shelf: Shelf, site: Site, me: User) -> None:
    put("1.0"), put("2.0")
    set_version(shelf, me.name, "toy", "2.0", DISABLED, user=me, site=site, now=NOW)
    assert find(shelf.root, site, f"{me.name}/toy").version == "1.0"
    assert codes(lambda: find(shelf.root, site, f"{me.name}/toy@2.0"))[0][0] == "E-REG-010"
    assert (
        codes(lambda: promote(shelf, Ref(me.name, "toy", "2.0"), "x", user=me, site=site, now=NOW))[0][0] == "E-REG-010"
    )
    assert find(shelf.root, site, f"{me.name}/toy@2.0", for_new=False).version == "2.0"
    states = {v["version"]: v["state"] for v in card(shelf.root, f"{me.name}/toy").versions}
    assert states == {"2.0": "archived", "1.0": "enabled"}


def test_a_version_that_another_model_names_cannot_be_removed(put: Put, shelf: Shelf, me: User) -> None:
    put("1.0")
    put("2.0", lineage={"source": "run", "base_source": f"{me.name}/toy@1.0"})
    assert codes(lambda: remove_version(shelf, Ref(me.name, "toy", "1.0"), user=me, now=NOW))[0][0] == "E-DATA-020"
    remove_version(shelf, Ref(me.name, "toy", "2.0"), user=me, now=NOW)
    remove_version(shelf, Ref(me.name, "toy", "1.0"), user=me, now=NOW)
    assert shelf.versions(me.name, "toy") == []


def test_a_damaged_model_spoils_no_list(put: Put, shelf: Shelf, me: User) -> None:
    put("1.0"), put("1.0", name="other")
    record = shelf.version(me.name, "toy", "1.0") / "record.json"
    record.chmod(0o644)
    record.write_text("{}")
    cards, faults = listing(shelf.root)
    assert ([(c.id, c.offered) for c in cards], [f.code for f in faults][:1]) == (
        [(f"{me.name}/other", "1.0"), (f"{me.name}/toy", "")],
        ["E-REG-015"],
    )


def test_the_deep_audit_finds_models_whole_and_a_flipped_byte(
    put: Put, shelf: Shelf, site: Site, me: User, scratch: Path
) -> None:
    put("1.0")
    put("1", name="ad", folder=write_adapter(scratch / "a"))
    for version in (find(shelf.root, site, f"{me.name}/toy"), find(shelf.root, site, f"{me.name}/ad")):
        found = MODEL.check(version.content)
        assert (found.name, found.version, dict(found.facts)) == (version.name, version.version, dict(version.facts))
    content = find(shelf.root, site, f"{me.name}/ad").content / "adapter_model.safetensors"
    content.chmod(0o644)
    data = bytearray(content.read_bytes())
    data[0] ^= 1
    content.write_bytes(data)
    assert codes(lambda: MODEL.check(content.parent)) == [("E-MODEL-021", "adapter_model.safetensors")]
