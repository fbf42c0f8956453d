"""What a rank starts, with and without algorithm plugins."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from tuneplane.launch.node import entry_argv
from tuneplane.plugins.locked import LockedPlugin


def plugin(capability: str) -> LockedPlugin:
    facts = {"manifest": {"name": "x", "version": "1", "capability": capability}}
    return LockedPlugin("alice/x", "1", "sha256:" + "0" * 64, "x", Path("/nowhere"), facts)


def launch(*argv: str) -> dict[str, Any]:
    return {"entry": {"argv": list(argv)}}


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (("$PYTHON", "-u", "train.py"), [sys.executable, "-u", "-m", "tuneplane.plugins.rank", "train.py"]),
        (
            ("$PYTHON", "-u", "-m", "pkg.train"),
            [sys.executable, "-u", "-m", "tuneplane.plugins.rank", "-m", "pkg.train"],
        ),
        (("$PYTHON", "train.py"), [sys.executable, "-m", "tuneplane.plugins.rank", "train.py"]),
    ],
)
@pytest.mark.parametrize("capability", ["algorithm", "environment"])
def test_plugins_that_it_imports_come_before_the_program_in_its_interpreter(
    capability: str, argv: tuple[str, ...], expected: list[str]
) -> None:
    assert entry_argv(launch(*argv), [plugin(capability)]) == expected


def test_other_plugins_change_no_command() -> None:
    plain = [sys.executable, "-u", "train.py"]
    assert entry_argv(launch("$PYTHON", "-u", "train.py"), []) == plain
    assert entry_argv(launch("$PYTHON", "-u", "train.py"), [plugin("data-prep")]) == plain
    assert entry_argv(launch("/bin/bash", "train.sh"), [plugin("algorithm")]) == ["/bin/bash", "train.sh"]
