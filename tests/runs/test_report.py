"""`tp runs report`: what is known of a run in one place, and its page, whatever stands in its names and records."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from builder import RunMaker
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from runcommands import Tp
from tuneplane.contract.layout import RunPaths

from hpc.cli.runpage import page
from hpc.runs.dossier import Accounting, dossier, efficiency
from hpc.runs.records import Attempt, read_facts
from hpc.slurm.query import SEPARATOR
from hpc.slurm.usage import parse_usage

EVIL = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>\x1b[2J\u202e</td></style>"
ORIGIN = {
    "slurm": {"nodes": ["n1", "n2"], "cpus_per_node": 4, "memory_mb_per_node": 1024, "gpus": 16, "time_limit_s": 3600},
    "used": {"cpu_s": 400.0, "largest_process_bytes": 512 << 20},
}


def rows(*lines: tuple[str, ...]) -> str:
    return "\n".join(SEPARATOR.join(line) for line in lines) + "\n"


class Tags(HTMLParser):
    """Every tag and attribute of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.names: set[str] = set()
        self.links: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.names |= {name for name, _ in attrs}
        self.links += [str(value) for name, value in attrs if name in ("src", "href", "action", "data", "xlink:href")]


ALLOWED = {
    "html", "head", "meta", "title", "style", "body", "main", "section", "h1", "h2", "p", "span", "dl", "dt", "dd", "div", "table", "thead",
    "tbody", "tr", "th", "td", "svg", "path", "polyline", "circle", "text", "i",
}  # fmt: skip


def assert_inert(text: str) -> None:
    found = Tags(text)
    assert found.tags <= ALLOWED
    assert not {name for name in found.names if name.startswith("on")}
    assert found.links == []
    assert "url(" not in text
    assert "@import" not in text
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "default-src 'none'" in text


class TestUsage:
    """sacct's figures, and shares of what was asked."""

    def test_figures_of_a_job_and_the_largest_of_its_steps(self) -> None:
        text = rows(
            ("41", "COMPLETED", "100", "1-02:03:04", "", "cpu=8,mem=2G,gres/gpu=2"),
            ("41.batch", "COMPLETED", "100", "00:01.500", "1234K", "cpu=8"),
            ("41.0", "COMPLETED", "90", "00:01", "2M", "cpu=8"),
            ("410", "COMPLETED", "9", "00:01", "9G", "cpu=8"),
        )
        found = parse_usage(text, "41")
        assert found is not None
        assert (found.elapsed_s, found.cpu_s, found.max_rss_bytes) == (100, 93784.0, 2 << 20)
        assert found.tres == {"cpu": "8", "mem": "2G", "gres/gpu": "2"}
        assert parse_usage(text, "42") is None

    def test_odd_rows_are_not_guessed(self) -> None:
        found = parse_usage(rows(("41", "RUNNING", "", "", "16?", "")), "41")
        assert found is not None
        assert (found.elapsed_s, found.cpu_s, found.max_rss_bytes, found.tres) == (None, None, None, {})

    def test_shares_of_what_was_asked(self) -> None:
        last = Attempt(0, start={"started_at": "2026-03-01T12:00:00Z"}, end={"ended_at": "2026-03-01T12:01:40Z"})
        found = efficiency({}, ORIGIN, last, None, {"memory": {"gpu_reserved": 5}})
        assert found["cpu"] == {"used": 400.0, "asked": 800.0, "unit": "CPU s", "share": 0.5}
        assert found["memory"]["share"] == 0.5
        assert found["time"]["share"] == round(100 / 3600, 4)
        assert (found["gpus_asked"], found["gpu_memory_bytes"], found["gpu_share"]) == (16, 5, None)

    def test_what_nobody_recorded_is_not_known(self) -> None:
        found = efficiency({}, {}, None, None, None)
        assert [found[k]["share"] for k in ("time", "cpu", "memory")] == [None] * 3
        assert found["elapsed_s"] is None


ODD = (
    st.none()
    | st.integers()
    | st.text()
    | st.lists(st.integers(), max_size=2)
    | st.dictionaries(st.text(max_size=3), st.integers(), max_size=2)
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_records_of_any_form_are_reported_and_nothing_breaks(tmp_path: Path, data: st.DataObject) -> None:
    run = RunPaths(tmp_path / "runs" / "alice" / "exp" / "run-00aa")
    keys = {
        run.report: ("origin", "result", "artifacts", "attempts"), run.launch: ("shape", "inputs", "hyperparams", "runtime"),
        run.jobspec: ("spec", "metadata", "provenance"), run.admission: ("mode",),
    }  # fmt: skip
    for path, names in keys.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        inner = {
            k: data.draw(ODD) for k in ("slurm", "used", "nodes", "labels", "recipe", "pools", "memory", "git_dirty")
        }
        path.write_text(json.dumps({name: data.draw(ODD | st.just(inner)) for name in names}))
    document = dossier(read_facts(run), Accounting())
    assert_inert(page(document, {}))


def test_a_run_without_a_report_tells_what_its_package_says(tp: Tp) -> None:
    maker = tp.make().package().admit().submit().start()
    found = dossier(read_facts(maker.run), Accounting())
    assert found["origin_is"].startswith("what the package says")
    assert found["origin"]["git"] == {"commit": None, "dirty": False, "diff_sha256": None}
    assert found["accounting"] == {"not_known": "accounting was not asked"}
    assert found["attempts"][0]["hosts"] == ["n1", "n2"]


def test_the_command_joins_accounting_and_says_when_there_is_none(tp: Tp) -> None:
    maker = tp.live()
    tp.fake.start(maker.job_id)
    run = maker.start().run
    told = tp("runs", "report", run.run_id, "--json").json()
    assert told["accounting"]["job_id"] == maker.job_id
    assert told["state"]["state"] == "running"
    assert told["audit"] == "incomplete (quick)"
    assert "not known" in tp("runs", "report", run.run_id).out
    quiet = tp("runs", "report", run.run_id, "--no-accounting", "--json").json()
    assert quiet["accounting"] == {"not_known": "accounting was not asked"}


def test_a_page_of_a_hostile_run_holds_nothing_but_text(tp: Tp, tmp_path: Path) -> None:
    maker = tp.make(spec={"apiVersion": "tuneplane/v1", "metadata": {"name": "sft", "labels": {EVIL: EVIL}}})
    maker.package().admit().submit().start().end(0, "error", message=EVIL)
    lines = [{"step": n, "loss": 1 / n, f"validation_{EVIL}": n} for n in range(1, 5)]
    (maker.run.attempt(0).out / "metrics.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
    done = tp("runs", "report", maker.run.run_id, "--html", str(tmp_path / "run.html"))
    assert done.code == 0, done.err
    text = (tmp_path / "run.html").read_text("utf-8")
    assert_inert(text)
    assert "&lt;script&gt;" in text


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.just(EVIL),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text() | st.just(EVIL), inner, max_size=4),
    max_leaves=12,
)


@given(
    st.dictionaries(st.sampled_from(["exp", "state", "verdict", "origin", "labels", "hyperparams", "efficiency"]), JSON)
)
def test_a_page_is_inert_whatever_its_document_holds(document: dict[str, Any]) -> None:
    assert_inert(page(document, {}))


@pytest.mark.parametrize("points", [[(1.0, 2.0)], [(1.0, 2.0), (1.0, 2.0)], [(float(n), -1e300) for n in range(5000)]])
def test_a_curve_of_any_points_is_drawn(points: list[tuple[float, float]]) -> None:
    text = page({}, {"loss": points})
    assert_inert(text)
    assert ("<circle" in text) == (len(points) == 1)
    assert len(text) < 40_000


def test_an_element_has_a_report_of_its_own(tp: Tp) -> None:
    maker = tp.make().package().admit().submit(array={"offset": 0, "tasks": "0-1"})
    part: RunMaker = maker.element(1)
    part.start().nodes(0, 0, 0).end()
    told = tp("runs", "report", maker.run.run_id, "--element", "1", "--json").json()
    assert (told["element"], told["attempts"][0]["class"]) == (1, "done")


def test_a_page_or_picture_that_cannot_be_written_is_the_users_matter(tp: Tp, tmp_path: Path) -> None:
    maker = tp.make().done()
    missing = tmp_path / "gone" / "x"
    done = tp("runs", "report", maker.run.run_id, "--html", str(missing), "--json")
    assert (done.code, done.json()["errors"][0]["code"], done.json()["errors"][0]["field"]) == (
        1,
        "E-STORE-025",
        str(missing),
    )
    assert tp("runs", "report", maker.run.run_id, "--element", "3").code == 64
