"""The site's own words on a diagnosis: what its active playbook adds to, or puts in the place of, what the toolkit says. Pure.

A playbook words and advises; it never changes which class an end has, nor the facts.
"""

from __future__ import annotations

from dataclasses import replace

from hpc.plugins.playbook import BUILTIN, KnownError, Playbook
from hpc.runs.clues import Clues
from hpc.runs.diagnosis import WHO, Diagnosis
from hpc.runs.logs import plain
from hpc.runs.state import RunState

ASKS_ADMIN = frozenset({"admin", "hopeless", "unknown", "node_fail", "vanished"})


def worded(diagnosis: Diagnosis, state: RunState, clues: Clues, playbook: Playbook) -> Diagnosis:
    """The diagnosis in the words of `playbook`."""
    if playbook is BUILTIN:
        return diagnosis
    if state.cls in ("queued", "requeued") and state.reason:
        found = _pending(diagnosis, state, playbook)
    elif diagnosis.end:
        found = _ended(diagnosis, clues, playbook)
    else:
        return diagnosis
    if playbook.contact and found.verdict in ASKS_ADMIN:
        found = replace(found, mend=[*found.mend, playbook.contact])
    return found


def _pending(diagnosis: Diagnosis, state: RunState, playbook: Playbook) -> Diagnosis:
    said = playbook.reason(state.reason)
    facts = [(name, said.meaning if name == "means" and said.meaning else text) for name, text in diagnosis.facts]
    headline = f"{state.cls}: {WHO[said.outlook]}" if said.outlook else diagnosis.headline
    verdict, mend = said.outlook or diagnosis.verdict, [*diagnosis.mend, *said.mend]
    return replace(diagnosis, headline=headline, facts=facts, verdict=verdict, mend=mend)


def _ended(diagnosis: Diagnosis, clues: Clues, playbook: Playbook) -> Diagnosis:
    said = playbook.end(diagnosis.end)
    headline, mend = said.headline or diagnosis.headline, said.lines(diagnosis.mend)
    facts = list(diagnosis.facts)
    if known := _known(clues, playbook, diagnosis.end):
        headline, mend = known.headline, [*known.mend, *mend]
        facts.append(("known here as", known.id))
    return replace(diagnosis, headline=headline, facts=facts, mend=mend)


def _known(clues: Clues, playbook: Playbook, end: str) -> KnownError | None:
    lines = [plain(clues.first_error.text)] if clues.first_error is not None else []
    found = (playbook.known_error(line, end) for line in (*lines, *clues.batch_tail))
    return next((known for known in found if known is not None), None)
