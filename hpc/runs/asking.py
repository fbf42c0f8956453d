"""Asks the outside about a run: Slurm through the shared poll, this machine about a local process."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from tuneplane.contract.layout import StorageRoot

from hpc.runs.records import Facts, Submission
from hpc.runs.state import Look
from hpc.slurm.poll import Pace, Poll, forget, poll, read_cache
from hpc.store.owners import start_ticks

if TYPE_CHECKING:
    from hpc.site.sitefile import Site
    from hpc.slurm.commands import Slurm


class Asker:
    """Answers for one viewer's command. The site is loaded only when Slurm really has to be asked.

    `viewer` is who looks (whose state folder keeps the poll), `owner` whose jobs are meant. `wanted` gives the ids of jobs whose end matters.
    """

    def __init__(
        self,
        root: StorageRoot,
        viewer: str,
        owner: str,
        *,
        site: Callable[[], Site],
        now: Callable[[], float],
        wanted: Callable[[str], Iterable[str]] = lambda fleet: (),
        host: str = "",
    ) -> None:
        self.root, self.viewer, self.owner = root, viewer, owner
        self._site, self.now, self.wanted = site, now, wanted
        self._host = host or os.uname().nodename
        self.polls: dict[str, Poll] = {}

    def look(self, facts: Facts) -> Look:
        """What can be said from outside about the run's newest submission. Slurm's failures are in the answer's `error`."""
        submission = facts.last_submission
        if submission is None:
            return Look()
        if submission.kind == "local":
            return Look(alive=self._alive(facts, submission))
        answer = self.poll(submission.fleet)
        return Look(answer.queue, answer.history, answer.polled_at, answer.asked, answer.accounting, answer.error)

    def _alive(self, facts: Facts, submission: Submission) -> bool | None:
        attempt = facts.last_attempt
        hosts = attempt.hosts if attempt else ()
        if hosts and self._host not in hosts:
            return None
        return submission.pid is not None and start_ticks(submission.pid) == submission.pid_start

    def poll(self, fleet: str) -> Poll:
        """The shared answer of a fleet's Slurm, fetched if it is due. One look a command: later calls get the same answer."""
        if fleet not in self.polls:
            self.polls[fleet] = self._poll(fleet)
        return self.polls[fleet]

    def _poll(self, fleet: str) -> Poll:
        path = self.cache(fleet)
        if path is not None and (cached := read_cache(path)).fresh(self.now()):
            return cached
        site = self._site()
        if path is None:
            return Poll(
                error=f"there is no {self.root.user_state(self.viewer)}; an admin runs `tp site user add {self.viewer}`"
            )
        settings = site.slurm
        pace = Pace(float(settings.poll_interval_s), float(settings.poll_max_s), 2.0 * settings.command_timeout_s)
        return poll(self.slurm(fleet), self.owner, path, wanted=lambda: self.wanted(fleet), now=self.now, pace=pace)

    def slurm(self, fleet: str) -> Slurm:
        """The commands of a fleet; an unknown or empty name means the site's first Slurm."""
        from hpc.slurm.commands import Slurm

        site = self._site()
        chosen = site.fleets.get(fleet) or next((f for f in site.fleets.values() if f.kind == "slurm"), None)
        if chosen is None:
            return Slurm(bin_dir="")
        return Slurm(chosen.bin_dir, chosen.conf, float(site.slurm.command_timeout_s), chosen.cluster)

    def cache(self, fleet: str) -> Path | None:
        """Where the viewer keeps the poll of a fleet; None where the viewer has no state folder."""
        folder = self.root.user_state(self.viewer)
        return folder / f"slurm-{fleet or 'default'}-{self.owner}.json" if folder.is_dir() else None

    def forget(self, fleet: str) -> None:
        """Something was changed just now: the next command asks anew."""
        if (path := self.cache(fleet)) is not None:
            forget(path)
        self.polls.pop(fleet, None)
