"""Every shared vector of the transform runner."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tuneplane.record.digest import directory_digest_v1

VECTORS = json.loads((Path(__file__).parents[1] / "data/vectors/transform_cases.json").read_text())
REFUSED = ("t20", "t23", "t25", "t27", "t29", "t30", "t33")


@pytest.mark.parametrize("case", VECTORS["cases"], ids=lambda c: c["id"])
def test_vector(place: Any, case: dict[str, Any]) -> None:
    place.provider(VECTORS["provider_source"], locked="alice/other" if case["id"] == "t33" else "alice/probe")
    for name, text in VECTORS["input_file"].items():
        (place.base / name).write_text(text)
    place.within = case["id"] == "t32"
    if case["id"] == "t30":
        place.output.mkdir()
    done = place.run(case["request"])
    assert done.returncode == case["exit"], done.stderr
    assert place.stages() == case["stage_left"]
    report = place.report()
    if case["published"]:
        assert place.entries() == case["output_entries"]
        wanted = json.loads(
            json.dumps(case["report"]).replace("<digest of the plugin>", directory_digest_v1(place.folder))
        )
        assert wanted.items() <= report.items()
        assert json.loads(done.stdout) == report
        assert (report["status"], report["reason"]) == ("succeeded", None)
    else:
        assert not place.output.exists() or place.entries() == case.get("output_entries")
        assert done.stdout == ""
        last = json.loads(done.stderr.splitlines()[-1])
        assert last["reason"] == report["reason"]
        assert report["status"] == last["status"] == ("refused" if case["id"] in REFUSED else "failed")
        assert report["reason"]["code"].startswith("E-JOB-0")
