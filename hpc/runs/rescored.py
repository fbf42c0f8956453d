"""The check of a deep audit on evaluations: every report that a run lists follows from its answers, whatever digests say.

Standard library only, but for rows in Parquet. The rows that were asked lie outside of the run; where they are gone or were changed, that is a note.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from tuneplane import __version__
from tuneplane.contract.evaluation import BEHAVIOUR, INPUTS, PREDICTIONS, REPORT, REPORT_SCHEMA, SCORES
from tuneplane.contract.layout import RunPaths
from tuneplane.record.digest import digest_bytes, is_relative
from tuneplane.record.files import read_bytes, read_object

from hpc.runs.evidence import Case

CHECK: Final = "evaluation"
MAX_BYTES: Final = 256 << 20
"""Rows and files beyond it are not read into memory; that is said."""


def check_evaluations(case: Case, part: RunPaths, report: Mapping[str, Any] | None) -> None:
    """Every evaluation among the artifacts of `report`. Nothing in an audit that is not deep. Raises Stopped."""
    if report is None or not case.deep:
        return
    launch = case.json("package", case.run.launch) or {}
    for folder in _folders(part, report):
        value = _report(folder / REPORT)
        if value is None:
            continue
        if (files := _files(case, folder, value)) is not None:
            _one(case, folder, value, files, launch)


def _folders(part: RunPaths, report: Mapping[str, Any]) -> Iterator[Path]:
    listed, attempts = report.get("artifacts"), report.get("attempts")
    try:
        out = part.attempt(int(attempts[-1]["attempt"])).out if isinstance(attempts, list) else None
    except (KeyError, IndexError, TypeError, ValueError):
        return  # the check of artifacts says so
    for row in listed if isinstance(listed, list) and out else ():
        name = str(row.get("path")) if isinstance(row, dict) else ""
        if out and is_relative(name) and Path(name).name == REPORT:
            yield (out / name).parent


def _report(path: Path) -> dict[str, Any] | None:
    """None for a file that only has the name; what is not readable, the check of artifacts says."""
    value = read_object(path)
    return value if value and value.get("schema") == REPORT_SCHEMA else None


def _files(case: Case, folder: Path, value: Mapping[str, Any]) -> dict[str, bytes] | None:
    """The report's three files; None, with a finding, where one is not what the report states."""
    out, stated = {}, value.get("files")
    for name in (INPUTS, PREDICTIONS, SCORES):
        path = folder / name
        try:
            out[name] = read_bytes(path, limit=MAX_BYTES)
        except FileNotFoundError:
            case.gone(CHECK, path, f"is gone; {REPORT} rests on it")
            return None
        except OSError as exc:
            case.failed(CHECK, path, exc)
            return None
        except ValueError:
            case.note(CHECK, path, "is too large to be scored again")
            return None
        case.went_on(len(out[name]))
        if not isinstance(stated, dict) or digest_bytes(out[name]) != stated.get(name):
            case.tampered(CHECK, path, f"is not the file that {REPORT} was made from")
            return None
    return out


def _one(
    case: Case, folder: Path, value: Mapping[str, Any], files: Mapping[str, bytes], launch: Mapping[str, Any]
) -> None:
    try:  # 50 ms that other runs need not wait
        from tuneplane.evaluation.rescore import asked_otherwise, is_behaviour, rescored
    except ModuleNotFoundError:
        case.note(
            CHECK, folder / REPORT, "is not scored again: a bundle's verifier travels without the evaluator's rules"
        )
        return
    try:
        if not is_behaviour(value) and (_by_behaviour(launch) or value.get("suite") == BEHAVIOUR):
            case.tampered(CHECK, folder / REPORT, "has no settings of its scoring")
            return
        if not is_behaviour(value):
            wrong = rescored(value, files, None, case.went_on)
        else:
            wrong = asked_otherwise(value, _asked(launch))
            with tempfile.TemporaryDirectory(prefix="tp-audit-") as scratch:
                rows = _rows(case, folder, value, launch, Path(scratch))
                wrong += rescored(value, files, rows, case.went_on)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, RecursionError) as exc:
        case.tampered(CHECK, folder / REPORT, f"is not what an evaluation leaves: {exc!r:.200}")
        return
    kernel = launch.get("kernel")
    made_by = kernel.get("version") if isinstance(kernel, dict) else None
    for one in wrong:
        if one.unknown:
            case.note(CHECK, folder / one.file, one.text)
        elif made_by in (None, __version__):
            case.tampered(CHECK, folder / one.file, one.text)
        else:  # its rules may have been others
            case.incomplete(CHECK, folder / one.file, f"{one.text} (scored by tp {made_by}, again by {__version__})")


def _by_behaviour(launch: Mapping[str, Any]) -> bool:
    """Whether the package asks the behaviour evaluator alone."""
    entry = launch.get("entry")
    argv = entry.get("argv") if isinstance(entry, dict) else None
    return isinstance(argv, list) and "tuneplane.evaluation" in argv


def _asked(launch: Mapping[str, Any]) -> Mapping[str, Any]:
    """The settings of a behaviour evaluation in the package: those of its recipe, or the section that stands beside benchmarks; {} without any."""
    given = launch.get("hyperparams")
    if _by_behaviour(launch) and isinstance(given, dict):
        return given
    config = launch.get("config")
    section = config.get(BEHAVIOUR) if isinstance(config, dict) else None
    limit = given.get("limit") if isinstance(given, dict) else None  # beside benchmarks theirs holds for the rows, too
    return {**(section if isinstance(section, dict) else {}), **({"max_rows": limit} if limit else {})}


def _rows(case: Case, folder: Path, value: Mapping[str, Any], launch: Mapping[str, Any], scratch: Path) -> Path | None:
    """A copy of the rows that were asked, exactly those; None where they are not to be had, with a note.

    A copy, because the path leads out of the run: what was compared is what is read.
    """
    inputs = launch.get("inputs")
    entry = inputs.get("validation") if isinstance(inputs, dict) else None
    if not isinstance(entry, dict):
        case.note(CHECK, folder / REPORT, "is not scored again: the package names no validation rows")
        return None
    basis = value.get("basis")
    wanted = basis.get("data") if isinstance(basis, dict) else None
    listed = [f for f in entry.get("files") or () if isinstance(f, dict)]
    recorded = listed[0].get("sha256") if len(listed) == 1 else None
    if recorded and recorded != wanted:
        case.tampered(CHECK, folder / REPORT, f"rests on rows {wanted}, the package names {recorded}")
        return None
    inside = str(listed[0].get("path") or "") if len(listed) == 1 else ""
    path = case.run.work / str(entry.get("path")) / inside
    try:
        data = read_bytes(path.resolve(), limit=MAX_BYTES)
    except (OSError, ValueError, RuntimeError) as exc:
        why = exc.strerror if isinstance(exc, OSError) else str(exc)
        case.note(CHECK, folder / REPORT, f"is not scored again: {path}: {why}")
        return None
    case.went_on(len(data))
    if digest_bytes(data) != wanted:
        case.note(CHECK, folder / REPORT, f"is not scored again: {path} was changed since")
        return None
    copy = scratch / f"rows{path.suffix}"
    copy.write_bytes(data)
    return copy
