"""`python3 verify.py` of an unpacked bundle, and `tp verify`: one command line for both. Standard library only."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from hpc.evidence.judge import Pins, judge
from hpc.evidence.note import MAX_NOTE

USAGE: Final = """\
usage: python3 verify.py [--log-key VKEY] [--admission-key HEX] [--witness FILE] [--json]

Judges the unpacked evidence bundle around this file: verified (exit 0), incomplete (1) or tampered (2), and says what it could not check.
Keys that you have from elsewhere make it more than the bundle's own word. Artifacts put at their place in runs/ are checked, too.
"""
SCRIPT: Final = '''\
"""Verifies the evidence bundle around this file. Needs Python 3.10 or newer and nothing else; reads only. See README.txt."""

import sys
from pathlib import Path

sys.dont_write_bytecode = True
here = Path(__file__).resolve().parent
sys.path.insert(0, str(here / "verifier"))

from hpc.evidence.offline import main

sys.exit(main(sys.argv[1:], here))
'''
README: Final = """\
Evidence of the run {run}.

    python3 -I verify.py            recomputes everything that can be recomputed from these files alone
    python3 -I verify.py --help     how to name keys that you have from elsewhere

Exit 0: verified. Exit 1: incomplete, nothing contradicts. Exit 2: tampered, with the file named.
Whoever made the bundle could have changed the verifier in it, too. `tp verify FILE.tar` uses an installed one; or compare the sources in
verifier/ with those of a tuneplane-hpc that you trust.
"""


def main(argv: Sequence[str], folder: Path) -> int:
    """Judge `folder` and print the judgement; the exit code. 64 for a command line that cannot be read."""
    words, options = list(argv), dict.fromkeys(("--log-key", "--admission-key", "--witness"), "")
    as_json = False
    while words:
        word = words.pop(0)
        if word in ("-h", "--help"):
            sys.stdout.write(USAGE)
            return 0
        if word == "--json":
            as_json = True
        elif word in options and words:
            options[word] = words.pop(0)
        else:
            sys.stderr.write(USAGE)
            return 64
    witness = None
    if options["--witness"]:
        try:
            with open(options["--witness"], "rb") as stream:
                witness = stream.read(MAX_NOTE + 1)
        except OSError as exc:
            sys.stderr.write(f"verify.py: {options['--witness']}: {exc.strerror}\n")
            return 64
    found = judge(Path(os.path.abspath(folder)), Pins(options["--log-key"], options["--admission-key"], witness))
    text = (
        json.dumps(found.as_json(), indent=2, sort_keys=True, ensure_ascii=False)
        if as_json
        else "\n".join(found.lines())
    )
    sys.stdout.buffer.write(text.encode("utf-8", "backslashreplace") + b"\n")
    return found.exit
