"""The command line: one JSON line on stdout when the output was published, one on stderr when it was not."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import NoReturn

from tuneplane.contract import exits
from tuneplane.contract.transforms import API
from tuneplane.transforms.limits import DEFAULT_TIMEOUT_S
from tuneplane.transforms.runner import Arguments, Runner


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(exits.USAGE, f"{self.prog}: {message}\n")


def _arguments(words: list[str] | None) -> Arguments:
    parser = _Parser(
        prog="python -m tuneplane.transforms",
        description="Run one locked data-prep provider and publish its output folder whole, or not at all.",
        epilog="Exit codes: 0 published, 1 not (the report says why), 64 wrong usage.",
        allow_abbrev=False,
    )
    parser.add_argument("--plugin", required=True, metavar="OWNER/NAME", help="a data-prep plugin locked to this job")
    parser.add_argument("--request", required=True, type=Path, metavar="FILE", help="JSON: api, inputs, config")
    parser.add_argument("--output", required=True, type=Path, metavar="DIR", help="a new folder")
    parser.add_argument("--report", type=Path, metavar="FILE", help="written in every case, with status and reason")
    parser.add_argument(
        "--timeout", default=f"{DEFAULT_TIMEOUT_S:g}", metavar="SECONDS", help="for the provider (default %(default)s)"
    )
    parser.add_argument(
        "--work-dir",
        type=Path,
        default=os.environ.get("TUNEPLANE_WORK_DIR") or None,
        metavar="DIR",
        help="the job package (default $TUNEPLANE_WORK_DIR)",
    )
    return Arguments(**vars(parser.parse_args(words)))


def main(words: list[str] | None = None) -> int:
    report, stop = Runner(_arguments(words), os.environ).run()
    if stop is None:
        print(json.dumps(report, sort_keys=True), flush=True)
        return exits.DONE
    line = {
        "api": API,
        "status": stop.status,
        "error": str(stop),
        "reason": {"code": stop.code, "message": stop.message},
    }
    print(json.dumps(line, sort_keys=True), file=sys.stderr, flush=True)
    return exits.REFUSED


if __name__ == "__main__":
    sys.exit(main())
