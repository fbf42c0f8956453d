from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

KERNEL = Path(__file__).resolve().parents[2] / "hpc" / "kernel"
ENTRY = Path(__file__).resolve().parents[2] / "recipes" / "deepspeed" / "sft" / "template" / "train.py"

WAITER = """
import os, signal, sys, time
from tuneplane.training import warning
warning.install()
print("ready", flush=True)
while warning.given() is None:
    time.sleep(0.01)
first = warning.given()
os.kill(os.getpid(), signal.SIGTERM)
time.sleep(0.05)
assert warning.given() is first, "only the first warning counts"
try:
    warning.check()
except warning.Warned as exc:
    print(exc)
"""


def run_python(code: str, *flags: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *flags, "-c", code],
        env={"PYTHONPATH": str(KERNEL)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("number", [signal.SIGUSR2, signal.SIGTERM])
def test_p27_both_warning_signals_are_remembered_and_do_not_kill(number: signal.Signals) -> None:
    process = run_python(WAITER)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (0, f"{number.name}\n")
    assert f"warning {number.name} received" in err


def test_the_handler_needs_the_standard_library_alone() -> None:
    code = "import sys; import tuneplane.training.warning; print(*{m.partition('.')[0] for m in sys.modules})"
    out, err = run_python(code, "-S").communicate(timeout=30)
    assert set(out.split()) - sys.stdlib_module_names == {"tuneplane", "__main__"}, err


def test_an_entry_installs_the_handler_before_anything_heavy_is_imported() -> None:
    code = f"import runpy, sys; runpy.run_path({str(ENTRY)!r}); print('torch' in sys.modules, 'numpy' in sys.modules)"
    out, err = run_python(code).communicate(timeout=30)
    assert out == "False False\n", err
    lines = ENTRY.read_text().splitlines()
    first = [line for line in lines if line.startswith(("import", "from", "warning"))][:2]
    assert first == [
        "from tuneplane.training import warning",
        "warning.install()  # first of all: a warning signal that meets no handler kills a rank in mid-import",
    ]
    assert len(lines) <= 150, "three screens"
