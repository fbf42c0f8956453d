"""`tp sweep`: one package, one array a piece, variants judged before anything is written."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tuneplane.contract.sweeps import Stopping, Sweep

from hpc.catalog.recipes import load_recipe
from hpc.errors import Refusal, Refusals
from hpc.submit.package import discard
from hpc.submit.pieces import LONGEST, STRIDE, Piece, pieces_of
from hpc.submit.sweeps import Asked, begin, metric_refusals, plan, table_refusals, variant_refusals

sys.path.insert(0, str(Path(__file__).parents[1] / "sif"))
sys.path.insert(0, str(Path(__file__).parent))

from test_submit_command import Lab

CURVE = Path(__file__).parents[1] / "cluster" / "toy-curve"


class TestPlan:
    """Flags and config to a table."""

    def test_flags_win_over_the_section_of_the_config(self) -> None:
        config = {
            "sweep": {
                "grid": {"lr": [1e-5, 2e-5], "bias": [True, False]}, "max_running": 4,
                "early_stopping": {"metric": "validation_loss", "rungs": [10, 20]},
            }
        }  # fmt: skip
        found = plan(Asked(), config)
        assert [v["bias"] for v in found.sweep.variants] == [True, False, True, False]
        assert found.sweep.stopping == Stopping("validation_loss", "min", (10, 20), 3)
        assert found.array == "0-3%4"
        over = plan(Asked(grid=("lr=1,2,3",), rungs="5", maximise=True, keep=2, max_running=1), config)
        assert (over.array, over.sweep.stopping) == ("0-2%1", Stopping("validation_loss", "max", (5,), 2))

    def test_a_section_of_another_form_names_every_key(self) -> None:
        with pytest.raises(Refusals) as caught:
            plan(Asked(), {"sweep": {"gird": {}, "random": "many"}})
        assert [(f.code, f.field) for f in caught.value.items] == [
            ("E-SWEEP-006", "sweep.gird"),
            ("E-SWEEP-006", "sweep.random"),
        ]

    @pytest.mark.parametrize("rungs", ["0", "3,2", "2,2", "x", "-1", "1_000", "1,,2"])
    def test_rungs_ascend_from_one(self, rungs: str) -> None:
        with pytest.raises(Refusal) as caught:
            plan(Asked(grid=("a=1,2",), rungs=rungs), {})
        assert (caught.value.code, caught.value.found) == ("E-SWEEP-005", rungs)
        assert "rungs" in caught.value.message

    def test_a_metric_that_is_none_is_what_was_found(self) -> None:
        with pytest.raises(Refusal) as caught:
            plan(Asked(grid=("a=1,2",), metric="step", rungs="4,8"), {})
        assert (caught.value.code, caught.value.found) == ("E-SWEEP-005", "step")

    def test_a_value_of_the_configs_list_is_never_taken_apart(self) -> None:
        grid = {"lora_targets": ["q_proj,v_proj", "all-linear"], "lr": ["1e-5"], "note": ["1..3"], "seed": "0,1"}
        first = plan(Asked(), {"sweep": {"grid": grid}}).sweep.variants
        assert first[0] == {"lora_targets": "q_proj,v_proj", "lr": 1e-5, "note": "1..3", "seed": 0}
        assert [v["lora_targets"] for v in first] == ["q_proj,v_proj"] * 2 + ["all-linear"] * 2

    @pytest.mark.parametrize("value", [None, [None, 1], [[1, 2]], {"b": 1}, [], ["", 1]])
    def test_what_is_no_list_of_values_is_refused(self, value: Any) -> None:
        with pytest.raises(Refusals) as caught:
            plan(Asked(), {"sweep": {"grid": {"a": value}}})
        assert [(f.code, f.field) for f in caught.value.items] == [("E-SWEEP-001", "sweep.grid.a")]

    def test_early_stopping_that_says_nothing_is_not_left_out(self) -> None:
        with pytest.raises(Refusal) as caught:
            plan(Asked(grid=("a=1,2",)), {"sweep": {"early_stopping": {}}})
        assert (caught.value.code, caught.value.message) == ("E-SWEEP-005", "rungs are steps from 1 on")

    def test_numbers_of_the_section_begin_at_one(self) -> None:
        with pytest.raises(Refusals) as caught:
            plan(Asked(grid=("a=1,2",)), {"sweep": {"random": 0, "max_running": -1}})
        assert [(f.field, f.found) for f in caught.value.items] == [("sweep.random", 0), ("sweep.max_running", -1)]

    def test_a_table_that_does_not_fit_the_array_is_refused(self) -> None:
        record = Sweep(({"a": 1}, {"a": 2})).as_json()
        assert table_refusals(record, {"array": "0-1%1"}, {})[1] == []
        for array in ("0-2", "1-2", ""):
            (fault,) = table_refusals(record, {"array": array}, {})[1]
            assert (fault.code, fault.allowed) == ("E-SWEEP-008", "0-1")
        (fault,) = table_refusals({**record, "more": 1}, {"array": "0-1"}, {})[1]
        assert fault.code == "E-SWEEP-008"

    def test_a_validation_metric_needs_validation_data(self) -> None:
        record = Sweep(({"a": 1}, {"a": 2}), Stopping("validation_loss", "min", (5,), 2)).as_json()
        assert [f.code for f in table_refusals(record, {"array": "0-1"}, {})[1]] == ["E-SWEEP-005"]
        assert table_refusals(record, {"array": "0-1"}, {"validation": {}})[1] == []


class TestPieces:
    """P13: MaxArraySize bounds the index."""

    def test_p13_a_large_array_is_several_submissions_that_share_the_limit(self) -> None:
        found = pieces_of(range(2500), 16, 1001, 0)
        assert found == [Piece(0, 0, "0-1000%5"), Piece(STRIDE, 1001, "0-1000%5"), Piece(2 * STRIDE, 2002, "0-497%5")]

    def test_what_is_left_to_do_is_never_a_line_too_long(self) -> None:
        odd = [i for i in range(1000) if i % 3]
        found = pieces_of(odd[::2], 0, 1001, 5000)
        assert all(len(p.tasks) <= LONGEST + 12 for p in found)
        assert sorted(int(t) for p in found for t in p.tasks.split(",")) == odd[::2]
        assert [p.first for p in found] == [5000 + n * STRIDE for n in range(len(found))]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> tuple[Lab, Any]:
    """A site with toy/curve on a Slurm of files whose arrays end at index 9."""
    from fakeslurm import FakeSlurm
    from sifs import small_sif

    folder = tmp_path_factory.mktemp("sweeps")
    made, fake = Lab(folder), FakeSlurm(folder / "slurm", MaxArraySize="10")
    made.tp("site", "init", str(made.storage), "--name", "lab", "--fleet", "local")
    site = made.storage / "site/site.yaml"
    fleet = f'  local: {{kind: local}}\n  batch: {{kind: slurm, bin_dir: "{fake.bin}", conf: "{fake.conf}"}}'
    text = site.read_text().replace("  local: {kind: local}", fleet)
    text = text.replace(
        "profiles:\n",
        "profiles:\n  gpu: {fleet: batch, series: h200, nodes: 1, gpus_per_node: 1, gres_type: h200}\n",
        1,
    )
    site.write_text(text.replace("  gpus: 16", "  gpus: 12"))
    shutil.copytree(CURVE, made.storage / "registry/recipes/toy/curve")
    small_sif(made.folder / "general.sif")
    made.tp("runtime", "add", "general-1", str(made.folder / "general.sif"), "--copy")
    made.tp("init", str(made.project), "--name", "lab")
    made.tp("new", "job", "--method", "toy/curve")
    made.commit()
    made.git("tag", "laid-out")
    return made, fake


@pytest.fixture
def lab(place: tuple[Lab, Any]) -> Iterator[tuple[Lab, Any]]:
    """The same, as if nothing had been submitted yet."""
    yield place
    made, fake = place
    fake.faults("")
    for job in fake.jobs():
        fake.finish(job["id"], "COMPLETED", 0, 0)
    (fake.folder / "calls.jsonl").unlink(missing_ok=True)
    for run in made.runs():
        discard(run)
    shutil.rmtree(made.storage / "site/sbatch_templates", ignore_errors=True)
    made.git("reset", "-q", "--hard", "laid-out")


def sweep(lab: Lab, *words: str, ok: bool = True) -> subprocess.CompletedProcess[str]:
    return lab.tp("sweep", "job", "--profile", "gpu", "--max-running", "4", "--json", *words, ok=ok)


def faults(done: subprocess.CompletedProcess[str]) -> list[tuple[str, Any]]:
    assert done.stdout, done.stderr
    return [(e["code"], e["found"]) for e in json.loads(done.stdout)["errors"]]


def heights(count: int) -> str:
    return f"height={','.join(map(str, range(count)))}"


def test_p13_one_run_one_package_and_one_sbatch_a_piece(lab: tuple[Lab, Any]) -> None:
    made, fake = lab
    said = json.loads(sweep(made, "-g", heights(25), "--rungs", "5,10").stdout)
    run = Path(said["run_dir"])
    assert (said["variants"], len(said["job_ids"]), len(fake.calls("sbatch"))) == (25, 3, 3)
    assert [p.name for p in made.runs()] == [run.name]
    table = Sweep.parse(json.loads((run / "work/.tuneplane/variants.json").read_text()))
    assert (table.variants[7], table.stopping) == ({"height": 7}, Stopping("loss", "min", (5, 10), 3))
    listed = {f["path"] for f in json.loads((run / "work/.tuneplane/package.json").read_text())["files"]}
    assert ".tuneplane/variants.json" in listed
    spec = json.loads((run / "work/.tuneplane/jobspec.json").read_text())["spec"]
    assert spec["slurm"]["array"] == "0-24%4"
    records = [json.loads((run / f"submissions/{n}.json").read_text()) for n in (0, 1000, 2000)]
    assert [r["array"] for r in records] == [
        {"offset": 0, "tasks": "0-9%1"}, {"offset": 10, "tasks": "0-9%1"}, {"offset": 20, "tasks": "0-4%1"},
    ]  # fmt: skip
    assert [str(r["job_id"]) for r in records] == said["job_ids"]
    last = (run / "batch/2000.sh").read_text()
    assert "#SBATCH --array=0-4%1\n" in last
    assert f"#SBATCH --output={run}/batch/2000_%a.log\n" in last
    assert "export TP_ARRAY_OFFSET=20\n" in last
    assert "TP_ARRAY_OFFSET=" not in (run / "batch/0.sh").read_text()
    assert made.tp("again", said["run_id"], "--submission", "2000").stdout.splitlines()[0].endswith("byte-identical")


def test_every_bad_value_is_named_once_and_nothing_is_written(lab: tuple[Lab, Any]) -> None:
    made, fake = lab
    done = sweep(made, "-g", "height=1,-5,2000", "-g", "wide=1,2", ok=False)
    assert done.returncode == 1
    assert sorted(faults(done), key=str) == [
        ("E-CATALOG-010", "wide=1"),
        ("E-CATALOG-012", -5),
        ("E-CATALOG-012", 2000),
    ]
    assert (made.runs(), fake.calls("sbatch")) == ([], [])


def test_the_quota_counts_the_elements_that_may_run_at_once(lab: tuple[Lab, Any]) -> None:
    made, _ = lab
    done = sweep(made, "-g", heights(20), "--max-running", "13", ok=False)
    assert faults(done) == [("E-SUBMIT-072", 13)]
    sweep(made, "-g", heights(20), "--max-running", "10")
    assert faults(sweep(made, "-g", "height=1,2,3", "--max-running", "3", ok=False)) == [("E-SUBMIT-072", 13)]


def test_a_plain_array_of_a_training_recipe_stays_refused(lab: tuple[Lab, Any]) -> None:
    made, _ = lab
    errors = made.refused("--profile", "gpu", "--array", "0-3%1")
    assert [e["code"] for e in errors] == ["E-SUBMIT-065"]


def test_what_would_follow_a_run_is_left_out_with_a_word(lab: tuple[Lab, Any]) -> None:
    made, _ = lab
    config = made.project / "experiments/job/config.yaml"
    config.write_text(
        config.read_text() + "\nlifecycle: {on_success: [export], max_attempts: 2}\neval: {suites: [behaviour]}\n"
    )
    made.commit()
    done = sweep(made, "-g", heights(2))
    assert "nothing follows an element of a sweep: eval and lifecycle.on_success of config.yaml left out" in done.stderr
    spec = json.loads((Path(json.loads(done.stdout)["run_dir"]) / "work/.tuneplane/jobspec.json").read_text())["spec"]
    assert spec["lifecycle"]["max_attempts"] == 2
    assert "evaluation" not in spec
    assert faults(sweep(made, "-g", heights(3), "--then", "export", ok=False))[0][0] == "E-SUBMIT-095"


def test_a_sweep_needs_a_slurm(lab: tuple[Lab, Any]) -> None:
    made, _ = lab
    done = made.tp("sweep", "job", "-g", heights(2), "--json", ok=False)
    assert [code for code, _ in faults(done)] == ["E-SWEEP-009"]


def test_a_dry_run_shows_the_variants_and_writes_nothing(lab: tuple[Lab, Any]) -> None:
    made, fake = lab
    shown = json.loads(sweep(made, "-g", "height=1..900", "--random", "3", "--seed", "7", "--dry-run").stdout)
    again = json.loads(sweep(made, "-g", "height=1..900", "--random", "3", "--seed", "7", "--dry-run").stdout)
    assert shown["variants"] == again["variants"]
    assert len(shown["variants"]) == 3
    assert "#SBATCH --array=0-2%4\n" in shown["script"]
    assert (made.runs(), fake.calls("sbatch")) == ([], [])


def test_a_later_piece_that_slurm_refuses_is_told_and_retry_submits_what_is_missing(lab: tuple[Lab, Any]) -> None:
    made, fake = lab
    fake.faults("sbatch#2 fail limits")
    done = sweep(made, "-g", heights(15), ok=False)
    (error,) = json.loads(done.stdout)["errors"]
    assert (error["code"], error["message"][:49]) == (
        "E-SWEEP-010",
        "1 of 2 parts of the array are submitted; then: E-",
    )
    (run,) = made.runs()
    fake.faults("")
    job = fake.jobs()[-1]
    fake.start(job["id"])
    fake.finish(job["id"], "COMPLETED", 0, 0)
    for index in range(10):
        (run / f"array/{index}/attempts/0").mkdir(parents=True)
        (run / f"array/{index}/attempts/0/end.json").write_text('{"class": "done", "requeue": false, "message": ""}')
        if index not in (3, 4):
            (run / f"array/{index}/report.json").write_text("{}")
    made.tp("job", "retry", run.name, "--json")
    tasks = [
        json.loads(p.read_text())["array"] for p in sorted(run.glob("submissions/*.json"), key=lambda p: int(p.stem))
    ]
    assert tasks[1:] == [{"offset": 0, "tasks": "3-4%2"}, {"offset": 10, "tasks": "0-4%2"}]


def test_a_sites_template_without_the_offset_is_refused(lab: tuple[Lab, Any]) -> None:
    made, _ = lab
    shipped = Path(__file__).parents[2] / "sbatch_templates/custom.sbatch.j2"
    (made.storage / "site/sbatch_templates").mkdir(exist_ok=True)
    own = made.storage / "site/sbatch_templates/custom.sbatch.j2"
    own.write_text(
        shipped.read_text().replace("$((SLURM_ARRAY_TASK_ID + ${TP_ARRAY_OFFSET:-0}))", "$SLURM_ARRAY_TASK_ID")
    )
    (error,) = json.loads(sweep(made, "-g", heights(15), ok=False).stdout)["errors"]
    assert (error["code"], error["field"], made.runs()) == ("E-SUBMIT-024", str(own), [])


class TestMetric:
    """A number that no run has would be seen at the first rung only, by every element."""

    SFT = Path(__file__).parents[2] / "recipes/deepspeed/sft"

    @pytest.fixture
    def experiment(self, tmp_path: Path) -> Path:
        shutil.copytree(self.SFT / "template", tmp_path / "exp")
        return tmp_path / "exp"

    def refusals(self, metric: str, experiment: Path, folder: Path = SFT) -> tuple[list[Refusal], list[str]]:
        table = Sweep(({"a": 1}, {"a": 2}), Stopping(metric, "min", (5,), 2)).as_json()
        return metric_refusals(table, load_recipe(folder), "", experiment)

    @pytest.mark.parametrize(
        ("metric", "meant"),
        [("validaton_loss", "validation_loss"), ("eval/loss", "validation_loss"), ("Loss", "loss"), ("zebra", "")],
    )
    def test_a_number_that_the_recipe_does_not_write_is_refused_before_the_queue(
        self, metric: str, meant: str, experiment: Path
    ) -> None:
        (fault,), notes = self.refusals(metric, experiment)
        assert (fault.code, fault.field, fault.found, notes) == ("E-SWEEP-005", "early_stopping.metric", metric, [])
        assert fault.allowed == "elapsed_s, grad_norm, loss, lr, mfu, tokens, tokens_per_s, validation_loss"
        assert fault.hint == (f"Did you mean {meant}?" if meant else fault.kind.mend)

    @pytest.mark.parametrize(
        ("rungs", "steps", "found"),
        [
            ((5, 39), {}, ""),
            ((5, 40, 50), {}, "40, 50"),
            ((5, 50), {"max_steps": 60}, ""),
            ((50,), {"max_steps": 0}, ""),
        ],
    )
    def test_a_rung_that_no_variant_comes_to_is_refused(
        self, rungs: tuple[int, ...], steps: dict[str, int], found: str
    ) -> None:
        first = dict.fromkeys(steps, 30)
        variants = ({"learning_rate": 0.001, **first}, {"learning_rate": 0.002, **steps})
        table = Sweep(variants, Stopping("loss", "min", rungs, 2)).as_json()
        given = {"max_steps": 40, "save_steps": 10}
        _, faults = begin(table, load_recipe(self.SFT), "", given)
        assert [(f.code, f.field, f.found) for f in faults] == (
            [("E-SWEEP-005", "early_stopping.rungs", found)] if found else []
        )

    def test_what_it_writes_is_taken_and_names_that_are_not_known_before_by_their_pattern(
        self, experiment: Path
    ) -> None:
        assert self.refusals("validation_loss", experiment) == ([], [])
        grpo = self.SFT.parent / "grpo"
        assert self.refusals("reward_mine", grpo / "template", grpo) == ([], [])
        assert metric_refusals({}, load_recipe(self.SFT), "", experiment) == ([], [])

    def test_an_edited_program_may_write_numbers_of_its_own(self, experiment: Path) -> None:
        with open(experiment / "train.py", "a") as stream:
            stream.write("# mine\n")
        faults, (note,) = self.refusals("mine", experiment)
        assert (faults, note.startswith("deepspeed/sft writes no 'mine';")) == ([], True)

    def test_a_recipe_that_declares_nothing_cannot_be_asked(self, experiment: Path) -> None:
        shutil.copytree(CURVE, experiment.parent / "curve")
        assert self.refusals("height", experiment, experiment.parent / "curve") == ([], [])


def test_a_variant_that_stands_again_names_the_first_one() -> None:
    sweep = Sweep(({"a": 1}, {"a": 2}, {"a": 1}, {"a": True}, {"a": 1.0}, {"a": 2}))
    custom = load_recipe(Path(__file__).parents[2] / "recipes/custom/custom")
    assert [(f.code, f.field, f.message) for f in variant_refusals(sweep, custom, "", {})] == [
        ("E-SWEEP-002", "variants.2", "variant 2 is variant 0 again"),
        ("E-SWEEP-002", "variants.5", "variant 5 is variant 1 again"),
    ]
