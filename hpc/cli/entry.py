"""Where the console script begins: Ctrl-C means the same in the tenth of a second in which the command is loaded."""

from __future__ import annotations

import os
from typing import NoReturn


def main() -> NoReturn:
    """Run `tp`; never returns."""
    try:
        from hpc.cli.main import main as run

        run()
    except KeyboardInterrupt:  # `run` has words of its own for one that comes later
        os.write(2, b"tp: E-CLI-005 interrupted\n")
    os._exit(130)
