"""What the commands about runs share: who looks at whose runs, through which root, with which clock."""

from __future__ import annotations

import os
import time
from functools import cached_property
from typing import TYPE_CHECKING

import click
from tuneplane.contract.layout import RunPaths, StorageRoot
from tuneplane.record.times import utc_now

from hpc.cli import context
from hpc.runs.asking import Asker
from hpc.runs.overview import Overview, state_of, survey
from hpc.runs.records import Facts
from hpc.runs.state import RunState

if TYPE_CHECKING:
    from hpc.runs.actions import Actor
    from hpc.site.sitefile import Site


class Desk:
    """One command's surroundings. The site is read when something asks for it."""

    def __init__(self, owner: str = "") -> None:
        self.root: StorageRoot = context.storage_root()
        self.user = context.current_user()
        self.owner = owner or self.user
        self.asker = self.new_asker(self.owner)

    def new_asker(self, owner: str) -> Asker:
        return Asker(self.root, self.user, owner, site=lambda: self.site, now=time.time)

    @cached_property
    def site(self) -> Site:
        from hpc.site.sitefile import load_site

        return load_site(self.root)

    @property
    def actor(self) -> Actor:
        from hpc.runs.actions import Actor

        return Actor(self.user, os.getuid(), utc_now)

    def settle(self) -> bool:
        """Adopt or close what an interrupted submission left open; whether there may be news."""
        if self.owner != self.user or not self.root.user_state(self.user).is_dir():
            return False
        from hpc.submit.dispatch import settle

        settle(self.root, self.site, self.user, utc_now)
        return True

    def survey(self) -> Overview:
        """All runs of the owner. A run without a submission may be one that an interrupted command left."""
        found = survey(self.root, self.owner, self.asker)
        if any(s.evidence == "nothing" and not s.job_id for s in found.open_runs.values()) and self.settle():
            found = survey(self.root, self.owner, self.asker)
        return found

    def state(self, run: RunPaths) -> tuple[Facts, RunState]:
        facts, state = state_of(run, self.asker)
        if facts.last_submission is None and self.settle():
            facts, state = state_of(run, self.asker)
        return facts, state

    def age_s(self, state: RunState) -> float | None:
        """How old Slurm's answer is that a state may rest on."""
        answer = self.asker.polls.get(state.fleet) if state.kind == "slurm" else None
        return answer.age_s(time.time()) if answer and answer.polled_at else None

    def complain(self) -> None:
        """Say on stderr when Slurm did not answer and how old what is shown then is."""
        for fleet, answer in self.asker.polls.items():
            if answer.error:
                from hpc.cli.runview import span

                old = (
                    f"its last answer is {span(answer.age_s(time.time()))} old"
                    if answer.polled_at
                    else "it has not answered yet"
                )
                click.echo(f"tp: {fleet or 'Slurm'}: {answer.error}; {old}", err=True)
