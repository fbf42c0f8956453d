"""`tp job` and `tp runs` as they are typed."""

from __future__ import annotations

import json
import os
import pwd
import subprocess
import sys

from builder import RunMaker
from conftest import ME
from runcommands import START, Tp
from tuneplane.record.files import write_json_new


def test_ls_is_a_calm_table(tp: Tp) -> None:
    tp.make("run-aa01").done()
    tp.live("run-bb01", "eval", reason="QOSMaxJobsPerUserLimit")
    done = tp("job", "ls")
    lines = done.out.splitlines()
    assert (done.code, done.err) == (0, "")
    assert lines[0].split() == ["RUN", "EXPERIMENT", "STATE", "ATTEMPT", "JOB", "SUBMITTED", "TIME", "NOTE"]
    assert {line.split()[0] for line in lines[1:]} == {"run-aa01", "run-bb01"}
    assert next(line for line in lines if "run-bb01" in line).split()[2] == "queued"
    assert "QOSMaxJobsPerUserLimit" in done.out
    assert "\x1b" not in done.out


def test_ls_json_and_filters(tp: Tp) -> None:
    for n in range(4):
        tp.make(f"run-aa0{n}").done()
    tp.live("run-bb01", "eval")
    assert len(tp("job", "ls", "--json").json()["runs"]) == 5
    assert [r["state"] for r in tp("job", "ls", "--json", "--state", "queued").json()["runs"]] == ["queued"]
    assert [r["exp"] for r in tp("job", "ls", "--json", "--exp", "eval").json()["runs"]] == ["eval"]
    limited = tp("job", "ls", "-n", "2")
    assert len(limited.out.splitlines()) == 3
    assert "2 of 5 runs" in limited.err
    assert tp("job", "ls", "--exp", "nope").out == "none of 5 runs fits\n"


def test_ls_without_runs(tp: Tp) -> None:
    assert tp("job", "ls").out == "no runs\n"
    assert tp("job", "ls", "--json").json() == {"runs": [], "total": 0}


def test_status_of_one_run(tp: Tp) -> None:
    maker = tp.live()
    tp.fake.start(maker.job_id, "f[1-2]")
    maker.start()
    (maker.run.attempt(0).out / "metrics.jsonl").write_text(
        '{"step": 39}\n{"step": 40, "total_steps": 120, "loss": 1.25}\n{"step": 41'
    )
    done = tp("job", "status", "sft")
    assert done.out.splitlines()[0] == "run-0a1b2c3d  sft  running"
    assert f"  job          {maker.job_id} (slurm, slurm) on f[1-2]" in done.out
    assert "  progress     step 40 of 120, loss 1.25" in done.out
    assert "tp job logs -f run-0a1b2c3d" in done.out
    value = tp("job", "status", "run-0a", "--json").json()["runs"][0]
    assert (value["state"], value["evidence"], value["metrics"]["step"]) == ("running", "squeue", 40)


def test_status_of_everything_counts(tp: Tp) -> None:
    tp.make("run-aa01").done()
    tp.live("run-bb01", "eval")
    out = tp("job", "status").out
    assert out.startswith("1 done, 1 queued\n")
    assert "run-bb01" in out
    assert "run-aa01" not in out
    assert tp("job", "status", "--json").json()["counts"] == {"done": 1, "queued": 1}


def test_p19_slurm_away_is_said_with_the_age_of_what_is_shown(tp: Tp) -> None:
    maker = tp.live()
    tp("job", "status")
    cache = tp.root.user_state(ME) / f"slurm-slurm-{ME}.json"
    value = json.loads(cache.read_text())
    cache.write_text(json.dumps({**value, "polled_at": value["polled_at"] - 600, "tried_at": value["tried_at"] - 600}))
    tp.fake.faults("squeue fail timeout")
    done = tp("job", "status", maker.run_id)
    assert done.code == 0
    assert "E-SLURM-002" in done.err
    assert "its last answer is 10:0" in done.err


def test_an_ambiguous_word_lists_candidates_and_exits_1(tp: Tp) -> None:
    tp.make("run-aa01").done()
    tp.make("run-aa02", "eval").done()
    done = tp("job", "status", "run-a")
    assert done.code == 1
    assert "E-RUNS-002" in done.err
    assert "allowed: run-aa02 (eval), run-aa01 (sft)" in done.err
    refused = tp("job", "status", "run-a", "--json")
    assert refused.json()["errors"][0]["code"] == "E-RUNS-002"


def test_logs_of_all_ranks_and_one(tp: Tp) -> None:
    maker = tp.live()
    maker.start().log(0, 0, "zero").log(0, 1, "\x1b[31mone\x1b[0m")
    assert tp("job", "logs").out == "[0] zero\n[1] one\n"
    assert tp("job", "logs", "sft", "--rank", "1").out == "one\n"
    assert tp("job", "logs", "-n", "1").out == "[1] one\n"
    assert "\x1b[31m" in tp("job", "logs", "--raw").out
    assert tp("job", "logs", "--time", "--rank", "0").out.endswith("Z zero\n")
    entries = [json.loads(line) for line in tp("job", "logs", "--json").out.splitlines()]
    assert [(e["attempt"], e["source"], e["number"], e["text"]) for e in entries] == [
        (0, "rank", 0, "zero"),
        (0, "rank", 1, "\x1b[31mone\x1b[0m"),
    ]
    missing = tp("job", "logs", "--rank", "9")
    assert (missing.code, "E-RUNS-020" in missing.err) == (1, True)
    assert tp("job", "logs", "--rank", "1", "--batch").code == 64


def test_logs_follow_to_the_end_of_a_finished_run(tp: Tp) -> None:
    tp.make().package().admit().submit().start().log(0, 0, "a", "b").nodes(0, 0, 0).end()
    done = tp("job", "logs", "-f")
    assert (done.out, done.code) == ("[0] a\n[0] b\n", 0)
    assert done.err == "tp: run-0a1b2c3d done: ended as done\n"


def test_why_of_a_pending_and_of_a_failed_run(tp: Tp) -> None:
    tp.live("run-aa01", reason="BadConstraints")
    tp.make("run-bb01", "eval").package().admit().submit().start().log(0, 0, "ValueError: bad").nodes(0, 1, 87).end(
        0, "error"
    )
    pending = tp("job", "why", "run-aa01").out
    assert "queued: it will never start as it is" in pending
    assert "mend: `tp job stop run-aa01` removes it" in pending
    failed = tp("job", "why", "eval").out
    assert "  | rank 0: ValueError: bad\n" in failed
    assert "exit code 1" in failed
    assert tp("job", "why", "eval", "--json").json()["why"]["lines"] == ["rank 0: ValueError: bad"]


def test_p26_why_shows_slurms_estimate_beside_the_band(tp: Tp) -> None:
    tp.live("run-aa01", reason="Priority", start=START + 5000)
    found = tp("job", "why", "run-aa01", "--json").json()
    assert found["start"]["slurm_estimate"] == START + 5000
    assert found["start"]["band"] is None
    assert "too few similar jobs" in found["start"]["text"]["others began"]


def test_stop_then_status(tp: Tp) -> None:
    maker = tp.live()
    done = tp("job", "stop", "sft")
    assert (done.code, done.out) == (0, f"run-0a1b2c3d: job {maker.job_id} is cancelled\n")
    assert tp.fake.job(maker.job_id)["state"] == "CANCELLED"
    assert tp("job", "status", "sft", "--json").json()["runs"][0]["state"] == "cancelled"
    tp.make("run-bb01", "eval").done()
    again = tp("job", "stop", "eval")
    assert (again.code, "E-RUNS-010" in again.err) == (1, True)


def test_stop_of_a_run_that_was_killed_cancels_what_waits_for_its_checkpoints(tp: Tp) -> None:
    """Its script could not do it any more; held, they would wait for ever."""
    trained = tp.make("run-aa01").package().admit().submit().start().nodes(0, 1, 87).end(0, "error")
    named = {"action": "checkpoints", "exp": "sft.checkpoints", "run_id": "run-bb01"}
    asked = tp.make(
        "run-bb01",
        "sft.checkpoints",
        launch={
            "follows": {"action": "checkpoints", "exp": "sft", "run_id": "run-aa01"},
            "late": {"candidate": {"steps": [10, 20]}},
        },
    )
    name = "sft.checkpoints.run-bb01.0"
    asked.job_id = str(tp.fake.add(name=name, comment=f"tp:run-bb01:{asked.nonce}", user=ME))
    asked.package().admit().submit()
    (trained.run.root / "followups").mkdir()
    write_json_new(trained.run.root / "followups" / "run-bb01.json", named)
    (trained.run.checkpoints / "step-000000010").mkdir()
    (trained.run.checkpoints / "step-000000010" / "manifest.json").write_text("{}")
    done = tp("job", "stop", "run-aa01")
    assert (done.code, done.out) == (
        0,
        "run-aa01: has ended: error\n  checkpoints run-bb01: those without a checkpoint are cancelled: step 20\n",
    )
    (call,) = tp.fake.calls("scancel")
    assert call["args"][-1] == f"{asked.job_id}_1"
    again = tp("job", "stop", "run-aa01")  # nothing of it waits any more
    assert (again.code, "E-RUNS-010" in again.err) == (1, True)


def test_stop_of_an_experiment_means_its_one_run_that_goes_on(tp: Tp) -> None:
    tp.make("run-aa01").done()
    tp.live("run-bb01")
    assert tp("job", "stop", "sft").out.startswith("run-bb01: ")
    tp.live("run-cc01")
    tp.live("run-dd01")
    assert "E-RUNS-002" in tp("job", "stop", "sft").err


def test_retry_refuses_what_runs_or_is_done(tp: Tp) -> None:
    tp.live("run-aa01")
    tp.make("run-bb01", "eval").done()
    assert "E-RUNS-011" in tp("job", "retry", "run-aa01").err
    assert "E-RUNS-012" in tp("job", "retry", "run-bb01").err
    tp.make("run-cc01", "other").package().admit().submit().start().end(0, "error")
    assert "E-RUNS-013" in tp("job", "resume", "run-cc01").err


def test_wait_returns_by_how_the_run_ended(tp: Tp) -> None:
    tp.make("run-aa01").done()
    tp.make("run-bb01").package().admit().submit().start().end(0, "error")
    tp.live("run-cc01", "eval")
    assert tp("job", "wait", "run-aa01").code == 0
    assert tp("job", "wait", "run-bb01").code == 1
    timed = tp("job", "wait", "run-cc01", "--timeout", "0")
    assert (timed.code, timed.out) == (75, "run-cc01 queued: Jobs with a higher priority come first.\n")


# Audit


def test_audit_exit_codes(tp: Tp) -> None:
    maker = tp.make("run-aa01").done()
    good = tp("runs", "audit", "run-aa01")
    assert (good.code, good.out.splitlines()[0]) == (0, "run-aa01  sft  verified")
    tp.make("run-bb01").package().admit().submit()
    assert tp("runs", "audit", "run-bb01").code == 0
    maker.run.report.write_bytes(maker.run.report.read_bytes() + b" ")
    bad = tp("runs", "audit", "run-aa01")
    assert (bad.code, "report.json" in bad.out) == (2, True)
    assert tp("runs", "audit", "run-aa01", "--json").json()["verdict"] == "tampered"


def test_a_run_below_a_folder_that_only_bears_the_owners_name_is_not_the_owners(tp: Tp) -> None:
    maker = RunMaker(tp.root, owner="daemon", exp="sft", run_id="run-dd01").done()
    done = tp("runs", "audit", "run-dd01", "--owner", "daemon", "--json")
    assert (done.code, done.json()["verdict"], len(done.json()["findings"])) == (2, "tampered", 1)
    assert "belongs to uid 0, not to daemon" in done.json()["findings"][0]["message"]
    uid = pwd.getpwnam("daemon").pw_uid
    for folder, _, names in os.walk(tp.root.owner_runs("daemon")):
        for path in (folder, *(os.path.join(folder, name) for name in names)):
            os.chown(path, uid, -1)
    assert tp("runs", "audit", maker.run_id, "--owner", "daemon").code == 0


def test_audit_of_all_for_cron(tp: Tp) -> None:
    tp.make("run-aa01").done()
    tp.make("run-bb01").package().admit().submit()
    maker = tp.make("run-cc01").done()
    assert tp("runs", "audit", "--all").code == 0
    (maker.run.attempt(0).out / "adapter.safetensors").write_bytes(b"other")
    done = tp("runs", "audit", "--all", "--json")
    assert done.code == 2
    assert done.json()["counts"] == {"verified": 1, "incomplete": 1, "tampered": 1}
    text = tp("runs", "audit", "--all").out
    assert text.splitlines()[0] == "1 verified, 1 incomplete, 1 tampered"


def test_audit_of_what_was_submitted_since(tp: Tp) -> None:
    tp.make("run-aa01").done()
    RunMaker(tp.root, owner=ME, exp="sft", run_id="run-bb01").done()  # on 2026-03-01
    for since, count in (("2026-03-01", 2), ("2026-03-02", 1), ("now-1day", 1), ("2100-01-01", 0)):
        found = tp("runs", "audit", "--since", since, "--json").json()
        assert found["counts"] == {"verified": count, "incomplete": 0, "tampered": 0}, since
    assert tp("runs", "audit", "sft", "--since", "2026-03-01").code == 64
    assert "E-SPEC-049" in tp("runs", "audit", "--since", "7d").err


def test_p24_a_second_audit_gives_way_at_once(tp: Tp) -> None:
    from hpc.store.locks import held

    tp.make("run-aa01").done()
    with held(tp.root.user_state(ME) / "audit-runs.lock"):
        busy = tp("runs", "audit", "--all")
        assert (busy.code, "E-RUNS-030" in busy.err) == (75, True)
        silent = tp("runs", "audit", "--all", "--if-idle")
        assert (silent.code, silent.out, silent.err) == (0, "", "")


def test_p24_audit_works_with_an_empty_environment(tp: Tp) -> None:
    tp.make("run-aa01").done()
    program = "import sys; from hpc.cli.main import main; main(sys.argv[1:])"
    env = {"TUNEPLANE_STORAGE_ROOT": str(tp.root.path), "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run(
        [sys.executable, "-c", program, "runs", "audit", "--all"],
        env=env,
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "1 verified, 0 incomplete, 0 tampered\n"), done.stderr


def test_one_bad_record_does_not_stop_the_audit_of_the_others(tp: Tp) -> None:
    tp.make("run-aa01").done()
    bad = tp.make("run-bb01").done()
    (bad.run.events / "batch-0.jsonl").write_bytes(b"\xff\xfe{\n")
    (bad.run.submissions / "0.json").write_bytes(b"[" * 100_000)
    done = tp("runs", "audit", "--all", "--json")
    assert done.json()["counts"] == {"verified": 1, "incomplete": 0, "tampered": 1}


def test_runs_ls_asks_nobody(tp: Tp) -> None:
    tp.live("run-aa01")
    out = tp("runs", "ls").out
    assert out.splitlines()[1].split()[:3] == ["run-aa01", "sft", "queued"]
    assert tp.fake.calls() == []


def test_share_and_undo(tp: Tp) -> None:
    maker = tp.make("run-aa01").done()
    assert "tp runs audit sft/run-aa01 --owner" in tp("run", "share", "run-aa01").out
    assert maker.run.root.stat().st_mode & 0o055 == 0o055
    assert tp("run", "share", "run-aa01", "--undo").out == "run-aa01 is closed to others\n"
    assert maker.run.root.stat().st_mode & 0o007 == 0


def test_every_command_has_help_and_json(tp: Tp) -> None:
    for group, names in (("job", "ls status logs wait stop retry resume why"), ("runs", "ls audit"), ("run", "share")):
        for name in names.split():
            for flag in ("-h", "--help"):
                done = tp(group, name, flag)
                assert done.code == 0
                assert "--json" in done.out


# P19, at full width


def test_p19_fifty_parallel_status_commands_make_one_call(tp: Tp) -> None:
    tp.live()
    tp.fake.faults("squeue slow 0.3")
    program = (
        "import os, sys\n"
        "from hpc.cli import main as cli, job, desk, runview\n"
        "import hpc.site.sitefile, hpc.store.locks, filelock, click\n"
        "children = []\n"
        "for n in range(50):\n"
        "    pid = os.fork()\n"
        "    if pid == 0:\n"
        "        sys.stdout = open(os.devnull, 'w')\n"
        "        try:\n"
        "            cli.main(['job', 'status', 'sft'])\n"
        "        except SystemExit as exc:\n"
        "            os._exit(exc.code)\n"
        "    children.append(pid)\n"
        "print([os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children])\n"
    )
    env = {
        "TUNEPLANE_STORAGE_ROOT": str(tp.root.path),
        "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
        "PATH": "/usr/bin:/bin",
    }
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=False)
    assert done.stdout == f"{[0] * 50}\n", done.stderr[-2000:]
    assert [c["tool"] for c in tp.fake.calls()] == ["squeue"]
