"""P05: whatever sbatch, the queue or the caller do at any point, one intent gives at most one job, and settling tells the truth."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from hpc.errors import Refusal
from hpc.slurm.commands import Completed, Slurm
from hpc.submit.intents import Intent, IntentBook, Submitter, find_job, parse_job_id, settle_open

TIMEOUT = "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation"
REFUSED = "sbatch: error: Batch job submission failed: Invalid account or account/partition combination specified"


class World:
    """A controller of values: accepts jobs, answers by name, and does each scripted fault once."""

    def __init__(self) -> None:
        self.jobs: list[tuple[str, str, str]] = []  # id, name, comment
        self.away = False
        self.faults: list[str] = []
        self.sbatch_calls = 0

    def accept(self, intent: Intent) -> str:
        self.jobs.append((str(100 + len(self.jobs)), intent.job_name, intent.comment))
        return self.jobs[-1][0]

    def sbatch(self, intent: Intent) -> Completed:
        self.sbatch_calls += 1
        fault = self.faults.pop(0) if self.faults else "ok"
        if fault == "crash before":
            raise KeyboardInterrupt
        if fault == "refused":
            return Completed(1, "", REFUSED, False, "sbatch")
        if fault == "timeout before" or self.away:
            return Completed(1, "", TIMEOUT, False, "sbatch")
        job_id = self.accept(intent)
        if fault == "crash after":
            raise KeyboardInterrupt
        if fault == "timeout after":
            return Completed(1, "", TIMEOUT, False, "sbatch")
        if fault == "killed after":
            return Completed(-9, "", "", True, "sbatch")
        if fault == "banner":
            return Completed(0, f"Welcome to the cluster 12 34\n{job_id}\nHave a nice day\n", "motd", False, "sbatch")
        if fault == "garbage":
            return Completed(0, "no id here\n", "", False, "sbatch")
        return Completed(0, f"{job_id};lab\n", "", False, "sbatch")

    def run(self, tool: str, args: list[str]) -> Completed:
        if self.away:
            return Completed(
                1, "", "slurm_load_jobs error: Unable to contact slurm controller (connect failure)", False, tool
            )
        name = next(a.split("=", 1)[1] for a in args if a.startswith("--name="))
        rows = [f"{i:<32}{c:<256}" for i, n, c in self.jobs if n == name]
        return Completed(0, "\n".join(rows) if tool == "squeue" else "", "", False, tool)


FAULTS = st.sampled_from(
    [
        "ok",
        "banner",
        "garbage",
        "timeout before",
        "timeout after",
        "killed after",
        "refused",
        "crash before",
        "crash after",
    ]
)


class ExactlyOnce(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.world, self.count, self.ids = World(), 0, {}
        self.book = IntentBook(self.folder / "intents")
        self.intents: dict[str, Intent] = {}

    def slurm(self) -> Slurm:
        return self.world  # type: ignore[return-value]

    @rule(faults=st.lists(FAULTS, max_size=5))
    def submit(self, faults: list[str]) -> None:
        self.count += 1
        intent = Intent(
            f"run-{self.count:04x}",
            0,
            "exp",
            f"exp.run-{self.count:04x}.0",
            "n" * 16,
            f"tp:run-{self.count:04x}:{'n' * 16}",
            Path("s"),
            "2026",
        )
        self.intents[intent.run_id] = intent
        self.world.faults = list(faults)
        submitter = Submitter(self.slurm(), self.book, "alice", sleep=lambda s: None)
        try:
            self.ids[intent.run_id] = submitter.submit(intent, lambda: self.world.sbatch(intent))
        except (Refusal, KeyboardInterrupt):
            pass
        self.world.faults = []

    def teardown(self) -> None:
        shutil.rmtree(self.folder)

    @rule()
    def controller_goes(self) -> None:
        self.world.away = True

    @rule()
    def controller_returns(self) -> None:
        self.world.away = False

    @rule(age=st.sampled_from([5.0, 500.0]))
    def settle(self, age: float) -> None:
        def look(intent: Intent) -> dict[str, str] | None:
            job_id = find_job(self.slurm(), intent, "alice")
            return None if job_id is None else {"job_id": job_id}

        def adopt(intent: Intent, facts: dict[str, str]) -> None:
            self.ids[intent.run_id] = facts["job_id"]

        settle_open(self.book, look, adopt=adopt, age_s=lambda i: age)

    @invariant()
    def one_job_at_most(self) -> None:
        names = [name for _, name, _ in self.world.jobs]
        assert len(names) == len(set(names)), names

    @invariant()
    def what_we_say_is_there(self) -> None:
        for run_id, job_id in self.ids.items():
            assert (job_id, self.intents[run_id].job_name) in {(i, n) for i, n, _ in self.world.jobs}

    @precondition(lambda self: not self.world.away)
    @rule()
    def after_settling_nothing_is_unknown(self) -> None:
        self.settle(500.0)
        assert self.book.unsettled() == []
        assert set(self.ids) == {r for r, i in self.intents.items() if i.job_name in {n for _, n, _ in self.world.jobs}}


ExactlyOnce.TestCase.settings = settings(max_examples=60, stateful_step_count=12, deadline=None)
TestExactlyOnce = ExactlyOnce.TestCase


def intent(tmp_path: Path) -> Intent:
    script = tmp_path / "0.sh"
    script.write_text("#!/bin/bash\n#SBATCH --job-name=e.run-1.0\n#SBATCH --comment=tp:run-1:abcd\ntrue\n")
    return Intent("run-1", 0, "e", "e.run-1.0", "abcd", "tp:run-1:abcd", script, "2026-01-01T00:00:00.000000Z")


def run(fake, tmp_path: Path) -> str:
    import getpass

    slurm = Slurm(bin_dir=str(fake.bin), conf=fake.conf, deadline_s=5)
    one = intent(tmp_path)
    submitter = Submitter(slurm, IntentBook(tmp_path / "intents"), getpass.getuser(), sleep=lambda s: None)
    return submitter.submit(one, lambda: slurm.run("sbatch", ["--parsable", str(one.script)]))


def test_p05_adopts_after_a_timeout_that_was_accepted(fake_slurm, tmp_path: Path) -> None:
    fake_slurm.faults("sbatch accept-then timeout")
    job_id = run(fake_slurm, tmp_path)
    assert len(fake_slurm.calls("sbatch")) == 1
    assert [str(j["id"]) for j in fake_slurm.jobs()] == [job_id]


def test_p06_a_timeout_that_was_not_accepted_is_tried_again(fake_slurm, tmp_path: Path) -> None:
    fake_slurm.faults("sbatch#1-2 fail timeout")
    job_id = run(fake_slurm, tmp_path)
    assert len(fake_slurm.calls("sbatch")) == 3
    assert [str(j["id"]) for j in fake_slurm.jobs()] == [job_id]


def test_p06_a_refusal_is_never_tried_again(fake_slurm, tmp_path: Path) -> None:
    fake_slurm.faults("sbatch fail account")
    with pytest.raises(Refusal):
        run(fake_slurm, tmp_path)
    assert len(fake_slurm.calls("sbatch")) == 1
    assert fake_slurm.jobs() == []


def test_a_banner_in_sbatchs_output_is_not_an_id(fake_slurm, tmp_path: Path) -> None:
    fake_slurm.faults("sbatch banner Welcome to node 42, 17 users")
    assert run(fake_slurm, tmp_path) == str(fake_slurm.jobs()[0]["id"])


def test_an_answer_without_an_id_is_adopted(fake_slurm, tmp_path: Path) -> None:
    fake_slurm.faults("sbatch accept-then-hang 60")
    job_id = run_with_deadline(fake_slurm, tmp_path)
    assert job_id == str(fake_slurm.jobs()[0]["id"])
    assert len(fake_slurm.calls("sbatch")) == 1


def run_with_deadline(fake, tmp_path: Path) -> str:
    import getpass

    slurm = Slurm(bin_dir=str(fake.bin), conf=fake.conf, deadline_s=1)
    one = intent(tmp_path)
    submitter = Submitter(slurm, IntentBook(tmp_path / "intents"), getpass.getuser(), sleep=lambda s: None)
    return submitter.submit(one, lambda: slurm.run("sbatch", ["--parsable", str(one.script)], deadline_s=1))


def test_not_knowing_is_not_a_no(fake_slurm, tmp_path: Path) -> None:
    fake_slurm.faults("sbatch accept-then timeout\nsqueue fail timeout")
    with pytest.raises(Refusal) as caught:
        run(fake_slurm, tmp_path)
    assert (caught.value.code, caught.value.exit) == ("E-SUBMIT-050", 75)
    assert len(fake_slurm.calls("sbatch")) == 1
    assert [i.run_id for i in IntentBook(tmp_path / "intents").unsettled()] == ["run-1"]


def test_p16_a_foreign_job_with_our_name_is_not_adopted(fake_slurm, tmp_path: Path) -> None:
    import getpass

    fake_slurm.add(name="e.run-1.0", comment="tp:run-1:other", user=getpass.getuser())
    slurm = Slurm(bin_dir=str(fake_slurm.bin), conf=fake_slurm.conf, deadline_s=5)
    fake_slurm.faults("sacct fail database")
    assert find_job(slurm, intent(tmp_path), getpass.getuser()) is None


@pytest.mark.parametrize(
    ("text", "job_id"),
    [
        ("123\n", "123"),
        ("123;lab", "123"),
        ("Submitted batch job 7", None),
        ("", None),
        ("motd 9\n12;c\nbye", "12"),
        ("-5", None),
    ],
)
def test_the_id_comes_from_parsable_alone(text: str, job_id: str | None) -> None:
    assert parse_job_id(text) == job_id


def test_a_settled_intent_is_out_of_the_way_and_not_opened_again(tmp_path: Path) -> None:
    book, mine = IntentBook(tmp_path / "intents"), intent(tmp_path)
    book.open(mine)
    assert (book.unsettled(), book.outcome("run-1", 0)) == ([mine], None)
    book.settle(mine, "submitted", "7")
    assert [p.name for p in (tmp_path / "intents").iterdir()] == ["settled"]
    assert (book.unsettled(), book.outcome("run-1", 0)) == ([], "submitted")
    with pytest.raises(Refusal) as no:
        book.open(mine)
    assert no.value.code == "E-SUBMIT-053"


def test_a_kill_between_settling_and_moving_leaves_it_settled(tmp_path: Path) -> None:
    book, mine = IntentBook(tmp_path / "intents"), intent(tmp_path)
    book.open(mine)
    (tmp_path / "intents" / mine.file_name).write_text(json.dumps(mine.as_json("refused")))
    assert (book.unsettled(), book.outcome("run-1", 0)) == ([], "refused")


def test_a_record_that_another_command_adopted_first_is_left_and_another_submissions_is_refused(tmp_path: Path) -> None:
    from tuneplane.contract.layout import RunPaths

    from hpc.submit.dispatch import _record

    run = RunPaths(tmp_path / "run-0001")
    run.submissions.mkdir(parents=True)
    assert _record(run, 0, {"nonce": "a", "job_id": "7"})
    assert not _record(run, 0, {"nonce": "a", "job_id": "7", "adopted": True})
    assert "adopted" not in json.loads((run.submissions / "0.json").read_text())
    with pytest.raises(Refusal) as refused:
        _record(run, 0, {"nonce": "b"})
    assert refused.value.code == "E-SUBMIT-053"


def test_a_local_job_that_could_not_be_started_is_settled_as_refused(tmp_path: Path) -> None:
    from types import SimpleNamespace

    from tuneplane.contract.layout import RunPaths

    from hpc.submit.dispatch import _to_local

    run, book = RunPaths(tmp_path / "run-0001"), IntentBook(tmp_path / "intents")
    intent = Intent("run-0001", 0, "e", "e.run-0001.0", "n", "c", run.batch / "0.sh", "2026-01-01T00:00:00Z", "local")
    prepared = SimpleNamespace(run=run, records={"launch.json": {"policies": {"lead_s": 1}}}, after={})
    run.root.mkdir()
    run.batch.write_text("a file where a folder belongs")
    with pytest.raises(Refusal) as refused:
        _to_local(prepared, intent, SimpleNamespace(time_s=60), book)  # type: ignore[arg-type]
    assert refused.value.code.startswith("E-STORE-0")
    assert book.outcome("run-0001", 0) == "refused"
