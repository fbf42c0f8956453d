"""What an audit counts while it goes along. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from hpc.registry.problems import Problem


@dataclass
class Tally:
    """What was looked at, and what was found. `last`: the last version whose bytes were read; `at`: the one in which the time was up."""

    packages: int = 0
    versions: int = 0
    packs: int = 0
    files: int = 0
    size: int = 0
    generations: int = 0
    seals: int = 0
    unsealed: int = 0
    hashed: int = 0
    hashed_versions: int = 0
    stopped: bool = False
    last: str = ""
    at: str = ""
    problems: list[Problem] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        for name in COUNTS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.stopped |= other.stopped
        self.problems += other.problems


COUNTS: Final = (
    "packages",
    "versions",
    "packs",
    "files",
    "size",
    "generations",
    "seals",
    "unsealed",
    "hashed",
    "hashed_versions",
)
