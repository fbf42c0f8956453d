"""Become another Unix user for one call: by a forked child that changes its uid for good, or by su."""

from __future__ import annotations

import os
import pickle
import subprocess
from collections.abc import Callable
from typing import Any

from hpc.site.users import User


def as_user(user: User, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call `function` in a forked child that has become `user` for good; its result, or its exception, comes back."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(reader)
            os.initgroups(user.name, user.gid)
            os.setresgid(user.gid, user.gid, user.gid)
            os.setresuid(user.uid, user.uid, user.uid)
            os.umask(0o022)
            try:
                answer = (True, function(*args, **kwargs))
            except Exception as exc:
                answer = (False, exc.__dict__ | {"args": exc.args, "kind": type(exc).__name__})
            os.write(writer, pickle.dumps(answer))
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as stream:
        good, value = pickle.loads(stream.read())
    os.waitpid(pid, 0)
    if good:
        return value
    raise AsUserError(value)


class AsUserError(Exception):
    """What the child's call raised: `code` for a refusal, `kind` for the exception's name."""

    def __init__(self, facts: dict[str, Any]) -> None:
        super().__init__(facts)
        self.code, self.kind = facts.get("code", ""), facts["kind"]
        self.message = str(facts.get("message", facts["args"]))


def su(user: User, script: str) -> subprocess.CompletedProcess[str]:
    """Run a shell script as `user`, through su."""
    return subprocess.run(
        ["su", "-s", "/bin/bash", user.name, "-c", script], capture_output=True, text=True, check=False, cwd="/"
    )
