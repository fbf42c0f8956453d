"""What a run's owner may plant in its files: one function a manipulation, and the place that an audit must name."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tuneplane.contract.evaluation import REPORT, SCORES
from tuneplane.evaluation.metrics import Score, Scoring, aggregate
from tuneplane.record.canonical import canonical_bytes, pretty_bytes
from tuneplane.record.digest import digest_bytes, digest_json, directory_digest_v1, scan_tree, tree_digest_v2
from tuneplane.record.events import event_hash

if TYPE_CHECKING:
    from test_second_user import Lab


def _edit(field: str, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda record: record.update({field: value})


def edit_an_event(lab: Lab) -> None:
    events = lab.events("launch-0")
    events[0]["message"] = "nothing to see"
    lab.put_events("launch-0", events)


def edit_an_event_and_chain_it_anew(lab: Lab) -> None:
    events = lab.events("launch-0")
    events[-1]["message"] = "nothing to see"
    lab.put_events("launch-0", events, anew=True)


def delete_an_event(lab: Lab) -> None:
    lab.put_events("launch-0", lab.events("launch-0")[1:])


def reorder_events(lab: Lab) -> None:
    lab.put_events("launch-0", lab.events("launch-0")[::-1])


def truncate_a_chain(lab: Lab) -> None:
    lab.put_events("launch-0", lab.events("launch-0")[:-1])


def truncate_the_last_chain(lab: Lab) -> None:
    lab.put_events("batch-0", lab.events("batch-0")[:-1])
    os.utime(lab.run.report, (0, 0))


def fork_a_chain(lab: Lab) -> None:
    events = lab.events("launch-0")
    other = {**events[-1], "message": "another end of the same chain"}
    other["hash"] = event_hash(other)
    lab.put_events("launch-0", [*events, other])


def fork_a_chain_in_its_place(lab: Lab) -> None:
    events = lab.events("submit-0")
    events[-1]["message"] = "another end of the same chain"
    lab.put_events("submit-0", events, anew=True)


def remove_a_chain(lab: Lab) -> None:
    (lab.run.events / "submit-0.jsonl").unlink()


def put_in_another_runs_chain(lab: Lab) -> None:
    events = lab.events("launch-0")
    for event in events:
        event["run_id"] = "run-ffffffff"
    lab.put_events("launch-7", events, anew=True)


def change_an_artifact(lab: Lab) -> None:
    lab.write("attempts/0/out/export/adapter.safetensors", b"Weights\n")


def remove_an_artifact(lab: Lab) -> None:
    (lab.run.attempt(0).out / "result.json").unlink()


def change_a_checkpoint(lab: Lab) -> None:
    lab.write("attempts/0/out/checkpoint-1/state.bin", b"State\n")


def better_the_report(lab: Lab) -> None:
    lab.edit("report.json", _edit("result", {"loss": 0.1}))


def better_the_result(lab: Lab, **more: object) -> None:
    """Another result, in its file and in the report alike."""
    data = b'{"loss": 0.1}\n'
    lab.write("attempts/0/out/result.json", data)

    def change(report: dict[str, Any]) -> None:
        report.update(result={"loss": 0.1}, **more)
        (row,) = (a for a in report["artifacts"] if a["path"] == "result.json")
        row.update(size=len(data), sha256=digest_bytes(data))

    lab.edit("report.json", change)


def better_the_report_and_its_event(lab: Lab) -> None:
    better_the_result(lab)
    events = lab.events("batch-0")
    events[-1]["details"]["report_sha256"] = digest_bytes(lab.run.report.read_bytes())
    lab.put_events("batch-0", events, anew=True)


def better_a_score_and_all_that_follows_from_it(lab: Lab) -> None:
    """An evaluation's wrong answer counts as right: scores, means, digests, report, its event and the chains all say so."""
    out = lab.run.attempt(0).out / "export/evaluation"
    lines = [json.loads(line) for line in (out / SCORES).read_text().splitlines()]
    lines[1] |= {"passed": True, "values": {**lines[1]["values"], "exact_match": 1.0, "token_f1": 1.0}}
    data = b"".join(canonical_bytes(line) + b"\n" for line in lines)
    scores = [Score(one["id"], one["passed"], one["values"], one["parts"]) for one in lines]
    value = json.loads((out / REPORT).read_text())
    value["metrics"] = aggregate(scores, Scoring())
    value["files"][SCORES] = digest_bytes(data)
    changed = {f"export/evaluation/{SCORES}": data, f"export/evaluation/{REPORT}": pretty_bytes(value)}
    for name, content in changed.items():
        lab.write(f"attempts/0/out/{name}", content)

    def list_anew(report: dict[str, Any]) -> None:
        for row in report["artifacts"]:
            if row["path"] in changed:
                row.update(size=len(changed[row["path"]]), sha256=digest_bytes(changed[row["path"]]))

    lab.edit("report.json", list_anew)
    batch = lab.events("batch-0")
    batch[-1]["details"]["report_sha256"] = digest_bytes(lab.run.report.read_bytes())
    lab.put_events("batch-0", batch, anew=True)


def change_a_package_file(lab: Lab) -> None:
    lab.write("work/experiments/job/train.sh", b"echo other\n")


def add_a_package_file(lab: Lab) -> None:
    lab.write("work/experiments/job/extra.sh", b"echo other\n")


def change_a_package_file_and_list_it_anew(lab: Lab) -> None:
    change_a_package_file(lab)
    relist(lab)


def relist(lab: Lab) -> str:
    """package.json for what is there; the package's new digest."""
    listing = json.loads(lab.run.package.read_text())
    entries = [e for e in scan_tree(lab.run.work) if e.path != ".tuneplane/package.json"]
    listing |= {"files": [e.as_json() for e in entries], "digest_v2": tree_digest_v2(entries)}
    listing["digest_v1"] = directory_digest_v1(lab.run.work, [e.path for e in entries])
    lab.write("work/.tuneplane/package.json", pretty_bytes(listing))
    return str(listing["digest_v2"])


def change_the_admission(lab: Lab) -> None:
    lab.edit("admission.json", _edit("owner", lab.bob.name))


def change_package_list_and_admission(lab: Lab) -> None:
    change_a_package_file(lab)
    lab.edit("admission.json", _edit("package_digest", relist(lab)))


def change_the_script(lab: Lab) -> None:
    lab.write("batch/0.sh", (lab.run.batch / "0.sh").read_bytes().replace(b"set -u", b"set +u", 1))


def change_script_and_submission(lab: Lab) -> None:
    change_the_script(lab)
    lab.edit("submissions/0.json", _edit("script_sha256", digest_bytes((lab.run.batch / "0.sh").read_bytes())))


def change_the_submission(lab: Lab) -> None:
    lab.edit("submissions/0.json", _edit("job_id", "4711"))


def change_the_end(lab: Lab) -> None:
    lab.edit("attempts/0/end.json", _edit("exit_code", 1))


def change_the_start(lab: Lab) -> None:
    lab.edit("attempts/0/start.json", _edit("hosts", ["elsewhere"]))


def change_the_claim(lab: Lab) -> None:
    lab.write("attempts/0/claim", b"4711 0 0000000000000000\n")


def plant_a_strangers_record(lab: Lab) -> None:
    os.chown(lab.run.report, lab.bob.uid, lab.bob.gid)


def rewrite_the_run_consistently(lab: Lab) -> None:
    """A better run under the same name: every record, every chain and every digest fits every other one."""
    change_script_and_submission(lab)
    script = digest_bytes((lab.run.batch / "0.sh").read_bytes())
    better_the_result(lab, script_sha256=script)
    submit = lab.events("submit-0")
    submit[0]["details"]["script_sha256"] = script
    lab.put_events("submit-0", submit, anew=True)
    batch = lab.events("batch-0")
    details = batch[-1]["details"]
    details["report_sha256"] = digest_bytes(lab.run.report.read_bytes())
    details["end_sha256"] = digest_json(json.loads(lab.run.attempt(0).end.read_text()))
    for writer in details["heads"]:
        chain = lab.events(writer)
        details["heads"][writer] = {"hash": chain[-1]["hash"], "count": len(chain)}
    lab.put_events("batch-0", batch, anew=True)


BY_AUDIT: dict[Callable[[Lab], None], str] = {
    edit_an_event: "events/launch-0.jsonl", edit_an_event_and_chain_it_anew: "events/launch-0.jsonl",
    delete_an_event: "events/launch-0.jsonl", reorder_events: "events/launch-0.jsonl", truncate_a_chain: "events/launch-0.jsonl",
    truncate_the_last_chain: "report.json", fork_a_chain: "events/launch-0.jsonl", fork_a_chain_in_its_place: "events/submit-0.jsonl",
    remove_a_chain: "events/submit-0.jsonl", put_in_another_runs_chain: "events/launch-7.jsonl",
    change_an_artifact: "attempts/0/out/export/adapter.safetensors", remove_an_artifact: "attempts/0/out/result.json",
    better_a_score_and_all_that_follows_from_it: "attempts/0/out/export/evaluation/scores.jsonl",
    change_a_checkpoint: "attempts/0/out/checkpoint-1/state.bin", better_the_report: "report.json",
    change_a_package_file: "work/experiments/job/train.sh", add_a_package_file: "work/experiments/job/extra.sh",
    change_a_package_file_and_list_it_anew: "admission.json", change_the_admission: "admission.json",
    change_package_list_and_admission: "attempts/0/start.json", change_the_script: "batch/0.sh",
    change_script_and_submission: "submissions/0.json", change_the_submission: "submissions/0.json", change_the_end: "attempts/0/end.json",
    change_the_start: "attempts/0/start.json", change_the_claim: "attempts/0/claim", plant_a_strangers_record: "report.json",
}  # fmt: skip
