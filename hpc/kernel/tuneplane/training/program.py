"""From a rank's start to its exit code: what every recipe's entry shares.

Exit codes: 0 done, 1 refused or failed, 85 saved after a warning, 87 another rank was lost. A rank that leaves early does it at once and without
ceremony, so that its sockets close and the others notice; only agreed ends meet at a barrier first.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from tuneplane.contract import exits
from tuneplane.training import warning
from tuneplane.training.place import NEEDS, Launch, Place
from tuneplane.training.refusals import Refused


@dataclass
class Job:
    """What an entry works with. `peers`, `device` and `watchdog` are there after `connect`."""

    place: Place
    launch: Launch
    device: Any = None
    peers: Any = None
    watchdog: Any = None

    def connect(self) -> None:
        """Choose the device and meet the other ranks. Imports torch. Raises Refused or PeerLost."""
        from tuneplane.training.model import choose_device, quiet_libraries
        from tuneplane.training.peers import meet, nccl_environment
        from tuneplane.training.watchdog import Watchdog

        quiet_libraries("cuda" if self.launch.gpus_per_node else "cpu")
        self.device = choose_device(self.place, self.launch.gpus_per_node)
        policies = self.launch.policies
        if self.device.type != "cpu":
            os.environ.update(nccl_environment(policies, os.environ))  # read when a group is made
        self.watchdog = Watchdog().start()
        self.watchdog.beat("meeting the other ranks", policies.rendezvous_timeout_s + policies.start_timeout_s)
        self.peers = meet(self.place, policies, self.device)
        # A wait has this bound of its own, and two follow each other without a sign.
        self.watchdog.beat("loading rows and model", 3 * policies.start_timeout_s)
        self.peers.on_move = self.watchdog.again


def leave(code: int) -> NoReturn:
    """End this process now. Interpreter teardown is not waited for: once in some hundred runs it aborts a job that was done."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            pass
    os._exit(code)


def run(train: Callable[[Job], None], needs: Sequence[str] = NEEDS) -> NoReturn:
    """Run an entry's `train` on this rank and leave with its exit code; the last line of the rank's log says how it ended.

    `needs` are the inputs without which it is refused at once.
    """
    warning.install()
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)  # a look at a rank that seems to hang; the run goes on
    job: Job | None = None
    try:
        place = Place.from_env(os.environ)
        job = Job(place, Launch.read(place, needs))
        train(job)
        _part(job)
        _last_words(job, "done")
        leave(exits.DONE)
    except Refused as exc:
        _tell(job, f"refused: {exc.reasons[0].code} {exc.reasons[0].message}")
        _last_words(job, f"refused\n{exc}")
        leave(exits.REFUSED)
    except warning.Warned as exc:
        _agreed_end(job, f"warned by {exc} before the first step; nothing was left to save")
    except KeyboardInterrupt:
        _last_words(job, "interrupted")
        leave(130)
    except BaseException as exc:
        _other_end(job, exc)


def _other_end(job: Job | None, exc: BaseException) -> NoReturn:
    from tuneplane.training.loop import Preempted, Stopped
    from tuneplane.training.peers import peer_loss

    if isinstance(exc, Stopped):
        _agreed_end(job, f"done: stopped at rung {exc.step}", exits.DONE)
    if isinstance(exc, Preempted):
        _agreed_end(job, f"preempted; step {exc.step} is saved" if exc.step else "preempted before the first step")
    if lost := peer_loss(exc):
        print(f"detail: {_first_line(exc)}", file=sys.stderr)
        doing = f", in {job.watchdog.doing}" if job and job.watchdog else ""
        said = f" ({words})" if job and job.peers and (words := job.peers.heard()) else ""
        _last_words(job, f"a peer was lost{doing}: {lost}{said}; this rank stops (exit {exits.PEER_LOST})")
        leave(exits.PEER_LOST)
    traceback.print_exception(exc)
    _tell(job, f"failed: {type(exc).__name__}: {_first_line(exc)}")
    _last_words(job, f"failed: {type(exc).__name__}: {_first_line(exc)}")
    leave(exits.REFUSED)


def _agreed_end(job: Job | None, words: str, code: int = exits.PREEMPTED) -> NoReturn:
    """Every rank comes here together; if one does not, this one still leaves with the code that all agreed on."""
    try:
        if job is not None:
            _part(job)
    except Exception as exc:
        print(f"the last meeting failed: {_first_line(exc)}", file=sys.stderr)
    _last_words(job, words)
    leave(code)


def _part(job: Job) -> None:
    if job.peers is not None:
        job.watchdog.beat("the last meeting", job.launch.policies.peer_timeout_s)
        job.peers.part()
        job.watchdog.stop()


def _tell(job: Job | None, words: str) -> None:
    if job and job.peers:
        job.peers.tell(words)


def _first_line(exc: BaseException) -> str:
    return (str(exc).strip() or type(exc).__name__).splitlines()[0]


def _last_words(job: Job | None, words: str) -> None:
    who = f"rank {job.place.rank}" if job else f"rank {os.environ.get('RANK', '?')}"
    print(f"{who}: {words}", file=sys.stderr, flush=True)
