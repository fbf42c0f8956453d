"""What a check found, in one shape for `tp site check` and `tp doctor`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

from hpc.errors.core import Refusal

Status = Literal["ok", "warn", "fail", "info"]
ORDER: Final = ("fail", "warn", "info", "ok")


@dataclass(frozen=True)
class Finding:
    """One check: its name (`slurm.accounting`), how it came out, what was found, what to expect, how to mend it."""

    name: str
    status: Status
    message: str
    found: str = ""
    expect: str = ""
    mend: str = ""

    def as_json(self) -> dict[str, str]:
        return asdict(self)


def from_refusal(name: str, fault: Refusal, *, status: Status = "fail") -> Finding:
    """A refusal as a finding; the message starts with its code."""
    found = "" if fault.found is None else str(fault.found)
    return Finding(name, status, str(fault), found, fault.allowed, fault.hint)


def failed(findings: Iterable[Finding]) -> bool:
    """True if something must be mended before the site can be used."""
    return any(f.status == "fail" for f in findings)


def summary(findings: Iterable[Finding]) -> dict[str, Any]:
    """Verdict and counts for --json."""
    listed = list(findings)
    counts = {status: sum(f.status == status for f in listed) for status in ORDER}
    return {"verdict": "fail" if counts["fail"] else "ok", "counts": counts, "checks": [f.as_json() for f in listed]}
