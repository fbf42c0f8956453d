"""How the attempts of a run went on, and whether the warning leaves time for a save: what the ranks recorded, for people and audits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tuneplane.contract.continuity import text_of
from tuneplane.contract.layout import RunPaths
from tuneplane.contract.leads import lead_advice, save_seconds
from tuneplane.contract.schemas import CONTINUITY
from tuneplane.record.files import read_json

from hpc.runs.records import numbers
from hpc.spec.text import escaped

if TYPE_CHECKING:
    from hpc.runs.evidence import Case


def certificates(run: RunPaths) -> list[dict[str, Any]]:
    """The certificates of all attempts that went on from another one, oldest first, each with its `text`; what is damaged is left out."""
    out = []
    for number in numbers(run.attempts):
        try:
            value = read_json(run.attempt(number).continuity)
            if value["schema"] == CONTINUITY and value["attempt"] == number:
                out.append(value | {"text": escaped(text_of(value))})
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue
    return out


def advice(run: RunPaths) -> str:
    """What to change where the run's warning comes too late for a save; else nothing."""
    try:
        lead = float(read_json(run.launch)["policies"]["lead_s"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""
    return lead_advice(save_seconds(run), lead)


def rows(found: list[dict[str, Any]], told: str) -> list[tuple[str, str]]:
    """Rows of a run's paragraph: the newest certificate, those that do not verify, and the advice."""
    out = [("continues", c["text"]) for c in found if c is found[-1] or not c["verified"]]
    return out + ([("warning", told)] if told else [])


def check(case: Case, part: RunPaths, endings: dict[int, dict[str, Any]]) -> None:
    """Certificates against the digests that the attempts' closing events keep."""
    for number, details in sorted(endings.items()):
        wanted, path = details.get("continuity_sha256"), part.attempt(number).continuity
        if wanted is None:
            continue
        try:
            same = case.file_digest(path) == wanted
        except FileNotFoundError:
            case.gone("continuity", path, "is gone; the attempt's closing event names it")
        except OSError as exc:
            case.failed("continuity", path, exc)
        else:
            if not same:
                case.tampered("continuity", path, "was changed after the attempt ended")
