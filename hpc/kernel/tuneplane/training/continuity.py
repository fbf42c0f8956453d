"""The loss-continuity certificate: what a resumed attempt holds, compared with what the earlier attempt recorded when it saved.

Digests are of the tensors and generators in memory, not of files: a file that was read whole and put in the wrong place is noticed.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tuneplane.contract.continuity import WORDS, text_of
from tuneplane.contract.schemas import CONTINUITY
from tuneplane.record.digest import digest_json
from tuneplane.record.files import replace_json

KINDS = ("parameters", "optimiser", "random")
"""Compared rank by rank. With another number of ranks only the samples are the same thing on both sides."""
FILE = "continuity.json"


@dataclass(frozen=True)
class Certificate:
    """How an attempt goes on. `compared` names what was compared, `differs` what of it is another: `optimiser of rank 1`."""

    attempt: int
    run_id: str
    from_run: str
    from_attempt: int
    step: int
    checkpoint: str
    ranks_then: int
    ranks_now: int
    compared: tuple[str, ...]
    differs: tuple[str, ...]
    digests: dict[str, str]

    @property
    def verified(self) -> bool:
        return bool(self.compared) and not self.differs

    def as_json(self) -> dict[str, Any]:
        return {
            "schema": CONTINUITY,
            "run_id": self.run_id,
            "attempt": self.attempt,
            "continues": {
                "run_id": self.from_run,
                "attempt": self.from_attempt,
                "step": self.step,
                "checkpoint": self.checkpoint,
            },
            "ranks": {"then": self.ranks_then, "now": self.ranks_now},
            "verified": self.verified,
            "compared": list(self.compared),
            "differs": list(self.differs),
            "digests": self.digests,
        }

    def text(self) -> str:
        """`attempt 3 continues attempt 2 at step 1240, verified: …`."""
        return text_of(self.as_json())


def differences(then: dict[str, Any], now: dict[str, str], rank: int) -> list[str]:
    """What this rank holds and did not save. Kinds that were not recorded are not compared."""
    return [f"{WORDS.get(k, k)} of rank {rank}" for k in KINDS if k in then and then[k] != now[k]]


def write(certificate: Certificate, out: Path) -> None:
    """Record it for people and audits: `continuity.json` in the attempt's out folder."""
    out.mkdir(parents=True, exist_ok=True)
    replace_json(out / FILE, certificate.as_json())


def joined(ranks: list[dict[str, str]]) -> dict[str, str]:
    """One digest a kind over all ranks, in order of rank. Pure."""
    return {kind: digest_json([rank[kind] for rank in ranks]) for kind in KINDS}


def samples(state: dict[str, Any]) -> str:
    """Digest of the next 100 sample ids, where the method's state has one; else of the whole state. Pure."""
    return str(state.get("next_samples_sha256") or digest_json(state))
