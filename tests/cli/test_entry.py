"""The console script before its first line of work."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

REPO = Path(__file__).parents[2]
INTERRUPTED_WHILE_LOADING = """\
import sys
import hpc.cli.entry

class Interrupting:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "hpc.cli.main":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupting)
hpc.cli.entry.main()
"""


def test_ctrl_c_while_the_command_is_loaded_is_no_traceback() -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_WHILE_LOADING], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "tp: E-CLI-005 interrupted\n")


def test_the_entry_runs_the_command() -> None:
    code = "import sys, hpc.cli.entry; sys.argv = ['tp', '--version']; hpc.cli.entry.main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert done.stdout.startswith("tp 0.")


def test_the_console_script_is_the_entry() -> None:
    assert 'tp = "hpc.cli.entry:main"\n' in (REPO / "pyproject.toml").read_text("utf-8")
