"""From one report to another: what changed example by example, and by how much each metric moved, paired by id.

The second report is the newer one: a positive difference is a rise. Only examples that both have are compared; how many only one has is said.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from tuneplane.contract.evaluation import INPUTS, PREDICTIONS
from tuneplane.contract.intervals import Interval, mean_interval

from hpc.errors import Refusal
from hpc.evaluate.reports import OPERATIONAL, Report, Scored, lines_of, read_scores

SCHEMA: Final = "tuneplane-hpc/eval-comparison/v1"
FEWEST: Final = 20
"""Examples below which no interval proves anything."""
MAX_TEXT: Final = 400
Change = Literal["fixed", "broken"]


@dataclass(frozen=True)
class Delta:
    """A metric's means over the `n` shared examples that have it, and the paired interval of the difference."""

    before: float
    after: float
    difference: float
    low: float | None
    high: float | None
    n: int
    direction: str

    @property
    def verdict(self) -> str:
        """`better` or `worse` where the interval leaves zero on one side, else `unclear`; `equal` where nothing differs."""
        if self.low is None or self.high is None:
            return ""
        if self.low == self.high == 0:
            return "equal"
        if self.low <= 0 <= self.high or self.direction == "neutral" or self.n < FEWEST:
            return "unclear"
        return "better" if (self.low > 0) == (self.direction == "higher") else "worse"

    def as_json(self) -> dict[str, Any]:
        return {
            "before": self.before,
            "after": self.after,
            "difference": self.difference,
            "low": self.low,
            "high": self.high,
            "n": self.n,
            "direction": self.direction,
            "verdict": self.verdict,
        }


@dataclass(frozen=True)
class Example:
    """An example that changed; texts are cut at MAX_TEXT characters and None where the reports' files do not give them."""

    id: str
    change: Change
    line: int | None
    question: str | None
    before: str | None
    after: str | None

    def as_json(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "change": self.change,
            "line": self.line,
            "question": self.question,
            "before": self.before,
            "after": self.after,
        }


@dataclass(frozen=True)
class Comparison:
    """Counts of changes over all shared examples; `examples` are the first of each kind."""

    by: str
    shared: int
    only_before: int
    only_after: int
    fixed: int
    broken: int
    passed_both: int
    failed_both: int
    metrics: Mapping[str, Delta]
    examples: tuple[Example, ...]
    notes: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        counts = ("by", "shared", "only_before", "only_after", "fixed", "broken", "passed_both", "failed_both")
        return {
            "schema": SCHEMA,
            **{name: getattr(self, name) for name in counts},
            "same": self.passed_both + self.failed_both,
            "metrics": {key: delta.as_json() for key, delta in self.metrics.items()},
            "examples": [e.as_json() for e in self.examples],
            "notes": list(self.notes),
        }


def compare(before: Report, after: Report, *, by: str = "", examples: int = 10, seed: int = 0) -> Comparison:
    """Compare two reports. `by` names the metric whose 1.0 passes an example (default: the one that both decide by).

    Raises Refusal E-EVAL-040, 041, 045 for files, E-EVAL-042 where they decide by two metrics, E-EVAL-043 where no example is shared.
    """
    if not by and before.decides != after.decides:
        found = f"{before.decides} and {after.decides}"
        raise Refusal(
            "E-EVAL-042", "the reports decide by two metrics", field="--by", found=found, allowed="a metric of both"
        )
    one, other = read_scores(before), read_scores(after)
    shared = [ident for ident in one if ident in other]
    if not shared:
        found = f"{len(one)} and {len(other)} examples"
        raise Refusal("E-EVAL-043", "no question stands in both reports", field="REPORT", found=found)
    passed = [(_passed(one[i], by), _passed(other[i], by)) for i in shared]
    moved: dict[str, Change] = {
        ident: "fixed" if now else "broken" for ident, (then, now) in zip(shared, passed, strict=True) if then != now
    }
    return Comparison(
        by or before.decides,
        len(shared),
        len(one) - len(shared),
        len(other) - len(shared),
        passed.count((False, True)),
        passed.count((True, False)),
        passed.count((True, True)),
        passed.count((False, False)),
        _deltas(before, after, [(one[i], other[i]) for i in shared], seed),
        _examples(before, after, moved, examples),
        tuple(_notes(before, after)),
    )


def _passed(scored: Scored, by: str) -> bool:
    if not by:
        return scored.passed
    if by not in scored.values:
        raise Refusal(
            "E-EVAL-042", f"not every example has {by}", field="--by", found=by, allowed=", ".join(scored.values)
        )
    return scored.values[by] == 1.0


def _deltas(before: Report, after: Report, pairs: Sequence[tuple[Scored, Scored]], seed: int) -> dict[str, Delta]:
    """Every metric that both have. `score` and `pass_rate` only where both mean the same by them."""
    out: dict[str, Delta] = {}
    known: dict[tuple[float, ...], Interval | None] = {}
    for key in before.keys:
        if key not in after.metrics or not (found := _column(key, before, after, pairs)):
            continue
        n, differences = len(found), tuple(b - a for a, b in found)
        # Examples of one batch share their time: an interval over them would be too narrow.
        if key not in OPERATIONAL and differences not in known:
            known[differences] = mean_interval(differences, seed=seed)
        around = None if key in OPERATIONAL else known[differences]
        out[key] = Delta(
            sum(a for a, _ in found) / n,
            sum(b for _, b in found) / n,
            sum(differences) / n if around is None else around.mean,
            None if around is None else around.low,
            None if around is None else around.high,
            n,
            before.metrics[key].direction,
        )
    return out


def _column(
    key: str, before: Report, after: Report, pairs: Sequence[tuple[Scored, Scored]]
) -> list[tuple[float, float]]:
    if key in ("score", "pass_rate"):
        if before.decides != after.decides:
            return []
        if key == "pass_rate":
            return [(float(a.passed), float(b.passed)) for a, b in pairs]
        key = before.decides
    return [(a.values[key], b.values[key]) for a, b in pairs if key in a.values and key in b.values]


def _examples(before: Report, after: Report, moved: Mapping[str, Change], limit: int) -> tuple[Example, ...]:
    picked = [i for kind in ("broken", "fixed") for i in [i for i, change in moved.items() if change == kind][:limit]]
    wanted = frozenset(picked)
    if not wanted:
        return ()
    asked = lines_of(before, INPUTS, wanted)
    then, now = lines_of(before, PREDICTIONS, wanted), lines_of(after, PREDICTIONS, wanted)
    return tuple(
        Example(
            ident,
            moved[ident],
            asked.get(ident, {}).get("line"),
            _question(asked.get(ident)),
            _text(then.get(ident, {}).get("text")),
            _text(now.get(ident, {}).get("text")),
        )
        for ident in picked
    )


def _question(asked: Mapping[str, Any] | None) -> str | None:
    """The prompt, or the last message of the conversation."""
    if asked is None:
        return None
    turns = asked.get("messages")
    last = turns[-1] if isinstance(turns, list) and turns else None
    return _text(last.get("content") if isinstance(last, dict) else asked.get("prompt"))


def _text(value: Any) -> str | None:
    if not isinstance(value, str):
        return None
    return value if len(value) <= MAX_TEXT else value[:MAX_TEXT] + "…"


def _notes(before: Report, after: Report) -> list[str]:
    """What else differs than the model, so that a difference may not be the model's."""
    out = []
    if before.suite != after.suite:
        out.append(f"the reports are of two suites: {before.suite} and {after.suite}")
    for key, words in (("data", "the rows"), ("settings", "the settings"), ("versions", "the releases")):
        if before.basis.get(key) != after.basis.get(key):
            out.append(f"{words} differ: {_odd(before, after, key)}")
    model = [r.basis.get("model") for r in (before, after)]
    if model[0] == model[1] and before.basis.get("adapter") == after.basis.get("adapter"):
        out.append("both reports are of the same model")
    return out


def _odd(before: Report, after: Report, key: str) -> str:
    """The parts that differ, by name, where the reports spell them out; else both digests, shortened."""
    one, other = before.value.get(key), after.value.get(key)
    if key == "versions":
        one, other = before.basis.get(key), after.basis.get(key)
    if isinstance(one, dict) and isinstance(other, dict) and key != "data":
        names = sorted(n for n in {*one, *other} if one.get(n) != other.get(n))
        return ", ".join(f"{n} {one.get(n)} and {other.get(n)}" for n in names[:6])
    return " and ".join(str(r.basis.get(key))[:19] for r in (before, after))
