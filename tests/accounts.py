"""Unix accounts for tests: made where they do not exist, shared by all processes that work with them; who leaves last removes what was made."""

from __future__ import annotations

import fcntl
import pwd
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TextIO


@contextmanager
def accounts(names: Sequence[str], *, group: str = "", home: bool = False) -> Iterator[None]:
    """The accounts `names` for the body, as members of `group` where one is named; with `home`, each has a home folder."""
    with open(f"{tempfile.gettempdir()}/.tp-test-accounts-{names[0]}", "a+") as made:
        with _alone():
            fcntl.flock(made, fcntl.LOCK_SH)
            if group:
                subprocess.run(["groupadd", "--force", group], check=True)
            known = {entry.pw_name for entry in pwd.getpwall()}
            options = ["--create-home" if home else "--no-create-home", *(["--groups", group] if group else [])]
            for name in (n for n in names if n not in known):
                subprocess.run(["useradd", *options, "--shell", "/bin/bash", name], check=True)
                made.write(f"{name}\n")
                made.flush()
        try:
            yield
        finally:
            with _alone():
                _leave(made, group, home)


def _leave(made: TextIO, group: str, home: bool) -> None:
    try:
        fcntl.flock(made, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return  # another process works with them
    made.seek(0)
    for name in made.read().split():
        subprocess.run(["userdel", *(["--remove"] if home else []), name], check=False, capture_output=True)
    if group:
        subprocess.run(["groupdel", group], check=False, capture_output=True)
    made.truncate(0)


@contextmanager
def _alone() -> Iterator[None]:
    """One process at a time comes or goes; the user database's own lock would give up after some seconds."""
    with open(f"{tempfile.gettempdir()}/.tp-test-accounts", "a") as gate:
        fcntl.flock(gate, fcntl.LOCK_EX)
        yield
