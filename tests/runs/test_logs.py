"""Logs from shared files: tails, the merged view, and a follow that survives new attempts and ranks (P78)."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from builder import RunMaker, at

from hpc.errors import Refusal
from hpc.runs.logs import Follower, Line, follow, last_lines, need, plain, sources, split_line, tail

Make = Callable[..., RunMaker]


def texts(lines: list[Line]) -> list[str]:
    return [f"{line.source.attempt}/{line.source.number} {line.text}" for line in lines]


@pytest.fixture
def maker(make_run: Make) -> RunMaker:
    return make_run().package().admit().submit().start()


def test_ranks_are_merged_by_time(maker: RunMaker) -> None:
    maker.log(0, 0, "a").log(0, 1, "b").log(0, 0, "c", "d").log(0, 1, "e")
    found = sources(maker.run)
    assert texts(last_lines(found, 0)) == ["0/0 a", "0/1 b", "0/0 c", "0/0 d", "0/1 e"]
    assert texts(last_lines(found, 2)) == ["0/0 d", "0/1 e"]


def test_one_rank_one_attempt_one_node(maker: RunMaker) -> None:
    maker.log(0, 0, "a").log(0, 1, "b").log(0, 0, "node", kind="node")
    maker.end(0, "preempted", requeue=True).start(1).log(1, 0, "c")
    assert texts(last_lines(sources(maker.run, number=0), 0)) == ["0/0 a", "1/0 c"]
    assert texts(last_lines(sources(maker.run, attempt=1), 0)) == ["1/0 c"]
    assert texts(last_lines(sources(maker.run, kind="node"), 0)) == ["0/0 node"]
    (maker.run.batch / "0.log").write_text("slurmstepd: error\n")
    assert texts(last_lines(sources(maker.run, kind="batch"), 0)) == ["0/0 slurmstepd: error"]


def test_attempts_follow_each_other_whatever_the_clocks_say(maker: RunMaker) -> None:
    maker.log(0, 0, "late")
    maker.end(0, "preempted", requeue=True)
    maker.clock = 0
    maker.start(1).log(1, 0, "early")
    assert texts(last_lines(sources(maker.run), 0)) == ["0/0 late", "1/0 early"]


def test_lines_without_a_time_stay_with_the_line_before(maker: RunMaker) -> None:
    path = maker.run.attempt(0).rank_log(0)
    path.write_text(f"{at(10)} Traceback\n  File x\nValueError: y\n{at(12)} after\n")
    maker.run.attempt(0).rank_log(1).write_text(f"{at(11)} other\n")
    assert texts(last_lines(sources(maker.run), 0)) == [
        "0/0 Traceback",
        "0/0   File x",
        "0/0 ValueError: y",
        "0/1 other",
        "0/0 after",
    ]


@pytest.mark.parametrize("count", [1, 2, 7, 100])
@pytest.mark.parametrize("size", [0, 1, 5, 5000])
def test_a_tail_is_the_end_of_the_file_at_any_length(tmp_path: Path, make_run: Make, count: int, size: int) -> None:
    maker = make_run().package().admit().submit().start()
    lines = [f"{at(n)} line {n} " + "x" * (n % 97) for n in range(size)]
    maker.run.attempt(0).rank_log(0).write_text("".join(line + "\n" for line in lines))
    (source,) = sources(maker.run)
    assert [f"{line.time} {line.text}" for line in tail(source, count)] == lines[-count:]
    assert len(tail(source, 0)) == size


def test_a_last_line_without_newline_is_shown_by_a_tail(maker: RunMaker) -> None:
    maker.run.attempt(0).rank_log(0).write_text(f"{at(1)} a\n{at(2)} half")
    assert texts(last_lines(sources(maker.run), 5)) == ["0/0 a", "0/0 half"]


def test_bytes_that_are_no_text_and_endless_lines(maker: RunMaker) -> None:
    path = maker.run.attempt(0).rank_log(0)
    path.write_bytes(at(1).encode() + b" a\xffb\n" + b"y" * (3 << 20) + b"\n")
    lines = last_lines(sources(maker.run), 0)
    assert lines[0].text == "a�b"
    assert len(lines[1].text) == (1 << 20) + 1
    assert lines[1].text.endswith("…")


@pytest.mark.parametrize(
    ("raw", "expected"),
    [("2026-03-01T12:00:00.000001Z hello", "hello"), ("2026-03-01T12:00:00Z ", ""), ("no time", "no time"), ("", "")],
)
def test_times_are_split_off(raw: str, expected: str) -> None:
    assert split_line(raw, "before")[1] == expected
    assert split_line("plain", "before")[0] == "before"


@pytest.mark.parametrize(
    ("text", "expected"),
    [("\x1b[31mred\x1b[0m", "red"), ("10%\r50%\r100%", "100%"), ("a\tb", "a\tb"), ("a\x07b\x00", "ab"), ("\x1b]0;title\x07x", "x"), ("ü—漢", "ü—漢")],
)  # fmt: skip
def test_nothing_in_a_log_steers_the_terminal(text: str, expected: str) -> None:
    assert plain(text) == expected


def test_no_log_is_a_refusal_that_says_where_to_look(maker: RunMaker) -> None:
    with pytest.raises(Refusal) as caught:
        need(sources(maker.run, number=7), maker.run, "rank 7")
    assert caught.value.code == "E-RUNS-020"
    assert "--batch" in caught.value.hint


# Follow


class Steps:
    """Runs one prepared step at each look, and says that the run is over after the last."""

    def __init__(self, *steps: Callable[[], object]) -> None:
        self._steps = list(steps)

    def over(self) -> bool:
        if not self._steps:
            return True
        self._steps.pop(0)()
        return False


def test_a_follow_sees_new_ranks_new_attempts_and_the_last_words(maker: RunMaker) -> None:
    run = maker.run
    maker.log(0, 0, "before")
    follower = Follower(lambda: sources(run), skip=True)
    steps = Steps(
        lambda: maker.log(0, 0, "one"),
        lambda: maker.log(0, 1, "new rank"),
        lambda: maker.end(0, "preempted", requeue=True).start(1).log(1, 0, "new attempt"),
        lambda: maker.log(1, 0, "two"),
    )
    lines = list(follow(follower, over=steps.over, sleep=lambda _: None))
    assert texts(lines) == ["0/0 one", "0/1 new rank", "1/0 new attempt", "1/0 two"]


def test_what_was_written_before_the_end_was_seen_is_read_after_it(maker: RunMaker) -> None:
    maker.log(0, 0, "a")
    seen: list[str] = []

    def over() -> bool:
        seen.append("asked")
        maker.log(0, 0, "last words")
        return True

    lines = list(follow(Follower(lambda: sources(maker.run), skip=True), over=over, sleep=lambda _: None))
    assert texts(lines) == ["0/0 last words"]


def test_a_line_that_is_being_written_waits_for_its_newline(maker: RunMaker) -> None:
    path = maker.run.attempt(0).rank_log(0)
    path.write_bytes(f"{at(1)} first\n{at(2)} hal".encode())
    follower = Follower(lambda: sources(maker.run), skip=True)
    assert texts(last_lines(sources(maker.run), 9, follower.offsets)) == ["0/0 first"]
    assert follower.more() == []
    with open(path, "ab") as stream:
        stream.write(b"f\n")
    assert texts(follower.more()) == ["0/0 half"]
    with open(path, "ab") as stream:
        stream.write(b"the end")
    assert follower.more() == []
    assert texts(follower.more(final=True)) == ["0/0 the end"]


def test_a_file_that_is_replaced_or_gone_does_not_end_a_follow(maker: RunMaker) -> None:
    path = maker.run.attempt(0).rank_log(0)
    path.write_text(f"{at(1)} a long first line\n")
    found = sources(maker.run)
    follower = Follower(lambda: found, skip=True)
    path.write_text(f"{at(2)} new\n")
    assert texts(follower.more()) == ["0/0 new"]
    os.unlink(path)
    assert follower.more() == []


def test_a_tail_and_a_follow_together_lose_and_repeat_nothing(maker: RunMaker) -> None:
    path = maker.run.attempt(0).rank_log(0)
    path.write_text("".join(f"{at(n)} {n}\n" for n in range(50)))
    follower = Follower(lambda: sources(maker.run), skip=True)
    with open(path, "a") as stream:
        stream.write("".join(f"{at(n)} {n}\n" for n in range(50, 60)))
    shown = [line.text for line in [*last_lines(sources(maker.run), 5, follower.offsets), *follower.more()]]
    assert shown == [str(n) for n in range(45, 60)]
