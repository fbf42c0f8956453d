"""Error kinds of an experiment's lock of inputs, tp.lock.json. Each stops a submission before anything is queued."""

from __future__ import annotations

from hpc.errors.core import ErrorKind, table

_K = ErrorKind
KINDS: dict[str, ErrorKind] = table(
    _K("E-LOCK-001", "tp.lock.json is not understood", "It was edited by hand, merged badly, or written by a newer release.", "Take it from the last commit (`git checkout tp.lock.json`), or remove it and run `tp model prefetch EXP`."),
    _K("E-LOCK-002", "locked to another repository", "The experiment names another model or data set than its lock.", "If the change is meant, run the named command with --accept."),
    _K("E-LOCK-003", "locked to another commit", "The experiment pins, or names, another revision than its lock.", "If the change is meant, run the named command with --accept."),
    _K("E-LOCK-004", "a locked file is missing", "The cache has the commit, but not every file that the lock lists.", "Run the named prefetch command: it fetches what is missing."),
    _K("E-LOCK-005", "a locked file was changed", "The cache's file has other bytes than the lock says.", "Run the named prefetch command: it replaces a damaged file of yours, and with --accept takes what the hub has now."),
    _K("E-LOCK-006", "the locked commit is not in this cache", "The cache was moved or cleaned, or this is another site.", "Run the named prefetch command: it fetches exactly the locked commit."),
    _K("E-LOCK-007", "another image than the locked one", "The runtime's SIF was replaced since the lock was completed.", "If the new image is meant, run the named command with --accept; else ask an admin for the old one."),
    _K("E-LOCK-008", "the cache has more than the lock", "The snapshot holds files that the lock does not list; a model's folder is read as a whole, so they could change what is loaded.", "If they belong to the model, run the named command with --accept; else remove them."),
)  # fmt: skip
