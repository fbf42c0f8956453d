"""`python -m tuneplane.training.exporting`: in a job that follows a run, its artefact as folders that other programs load.

    out/export/model/     the whole model: an adapter merged into its base, or what was trained; with a model card
    out/export/adapter/   the adapter as it was trained, where there is one
    out/export/model.gguf where the runtime has a converter

The folder gets its name when all of it is written, loaded again and compared. Exit codes: 0 done, 1 refused or failed, 85 warned in between.
"""

from __future__ import annotations

import faulthandler
import math
import os
import shutil
import signal
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from tuneplane.training import warning

warning.install()  # first of all: a warning signal that meets no handler kills an import half-way

from tuneplane.contract import exits  # noqa: E402
from tuneplane.contract.followups import CANDIDATE, read_late  # noqa: E402
from tuneplane.record.digest import digest_file  # noqa: E402
from tuneplane.record.files import publish_dir, read_json, replace_json  # noqa: E402
from tuneplane.training.place import Launch, Place  # noqa: E402
from tuneplane.training.program import leave  # noqa: E402
from tuneplane.training.refusals import Refused, refuse  # noqa: E402

RESULT_SCHEMA = "tuneplane-hpc/export-result/v1"
EXPORT, MODEL, ADAPTER = "export", "model", "adapter"


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def export(place: Place, launch: Launch, late: Mapping[str, Any], env: Mapping[str, str]) -> dict[str, Any]:
    """Write `out/export` whole and return result.json's content. Raises Refused, Warned."""
    from tuneplane.training.export import _settle
    from tuneplane.training.gguf import write_gguf
    from tuneplane.training.merging import write_merged

    source, base = Path(late["path"]), launch.input_path("model", place)
    assert base is not None
    adapter = (source / "adapter_config.json").is_file()
    temp, final = place.out_dir / f".{EXPORT}.tmp", place.out_dir / EXPORT
    shutil.rmtree(temp, ignore_errors=True)
    temp.mkdir(parents=True)
    try:
        checked = write_merged(base if adapter else source, source if adapter else None, temp / MODEL, say).as_json()
        gguf = write_gguf(temp / MODEL, temp / "model.gguf", env)
    except warning.Warned:
        shutil.rmtree(temp, ignore_errors=True)  # the next attempt has a folder of its own
        raise
    say(gguf["message"])
    _describe(temp, source if adapter else None, late, checked, gguf["message"])
    _settle(temp)
    publish_dir(temp, final)
    return {
        "schema": RESULT_SCHEMA,
        "artefact": {
            "kind": "export", "path": f"{EXPORT}/{MODEL}", "merged": adapter, **checked, "files": _listed(final / MODEL),
        },
        "adapter": {"path": f"{EXPORT}/{ADAPTER}", "files": _listed(final / ADAPTER)} if adapter else None,
        "gguf": gguf,
        "of": {key: late[key] for key in ("run_id", "exp", "attempt", "artefact", "digest")},
    }  # fmt: skip


def _describe(temp: Path, adapter: Path | None, late: Mapping[str, Any], checked: Mapping[str, Any], gguf: str) -> None:
    """The model cards, and the adapter beside the model."""
    from tuneplane.training.card import model_card

    report, title = read_json(Path(late["report"])), f"{late['exp']} {late['run_id']}"
    (temp / MODEL / "README.md").write_text(model_card(title, report, checked, gguf, adapter=False), "utf-8")
    if adapter is not None:
        shutil.copytree(adapter, temp / ADAPTER, ignore=shutil.ignore_patterns("README.md"))
        (temp / ADAPTER / "README.md").write_text(model_card(title, report, checked, "", adapter=True), "utf-8")


def _listed(folder: Path) -> list[dict[str, Any]]:
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    return [
        {"path": p.relative_to(folder).as_posix(), "size": p.stat().st_size, "sha256": digest_file(p)} for p in files
    ]


def in_job(env: Mapping[str, str]) -> None:
    """The export that launch.json asks for. Raises Refused."""
    place = Place.from_env(env)
    if place.world_size != 1:
        found = f"{place.world_size} ranks"
        raise refuse("E-TRAIN-072", "more than one rank", field="launch.json: shape", found=found, allowed="1 rank")
    launch = Launch.read(place, needs=("model",))
    late = read_late(place.out_dir.parent / "late.json").get(CANDIDATE)
    if late is None:
        raise refuse(
            "E-TRAIN-072",
            "the job follows no run",
            field="launch.json: late.candidate",
            allowed="`tp model export RUN`",
        )
    from tuneplane.training.model import quiet_libraries

    quiet_libraries()
    result = export(place, launch, late, env)
    replace_json(place.out_dir / "result.json", result)
    made = result["artefact"]
    size = math.fsum(f["size"] for f in made["files"]) / 1e6
    say(f"{made['path']}: {made['parameters']} parameters in {made['dtype']}, {size:.1f} MB, loaded again and compared")


def main() -> NoReturn:
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)
    try:
        in_job(os.environ)
    except Refused as exc:
        say(f"refused\n{exc}")
        leave(exits.REFUSED)
    except warning.Warned as exc:
        say(f"warned by {exc}; the next attempt begins the export again")
        leave(exits.PREEMPTED)
    except Exception as exc:
        traceback.print_exception(exc)
        say(f"failed: {type(exc).__name__}: {exc}")
        leave(exits.REFUSED)
    say("done")
    leave(exits.DONE)


if __name__ == "__main__":
    main()
