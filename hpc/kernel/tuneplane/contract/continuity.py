"""The loss-continuity certificate as a record: where it lies and how it reads. The job writes it, the login node shows it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SAMPLES = "samples"
WORDS = {"random": "random numbers", SAMPLES: f"next {SAMPLES}"}


def text_of(certificate: Mapping[str, Any]) -> str:
    """`attempt 3 continues attempt 2 at step 1240, verified: …`, or what differs. Raises KeyError, TypeError for another shape."""
    before, ranks = certificate["continues"], certificate["ranks"]
    other = "" if before["run_id"] == certificate["run_id"] else f"{before['run_id']} "
    head = f"attempt {certificate['attempt']} continues {other}attempt {before['attempt']} at step {before['step']}"
    if ranks["then"] != ranks["now"]:
        head += f", {ranks['then']} ranks became {ranks['now']}"
    if certificate["differs"]:
        return f"{head}, and differs from what was saved: {', '.join(certificate['differs'])}"
    if not certificate["compared"]:
        return f"{head}; what it held was not recorded when it was saved"
    return f"{head}, verified: {', '.join(WORDS.get(kind, kind) for kind in certificate['compared'])}"
