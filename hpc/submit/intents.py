"""Exactly-once submission: say first what is about to be submitted, and after any doubt look before trying again.

An intent is written and synced before sbatch is called. Its job name is unique (experiment, run, first attempt) and its nonce stands in the job's
comment. When sbatch does not answer with a clean job id, the queue and the accounting are asked for that name: a job that is there is **adopted**;
only after two clean "not there" answers, and only for an error that may pass, is sbatch called again. What stays unknown stays an open intent,
which the next command settles. In the job, the claim file of the attempt makes a second copy end without doing anything.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tuneplane.record.files import read_json, replace_json, write_json_new

from hpc.errors import Refusal
from hpc.slurm.commands import Completed, Slurm
from hpc.slurm.verdicts import classify, refusal

JOB_ID = re.compile(r"^(\d+)(?:;([A-Za-z0-9_.-]+))?$")
MAX_TRIES = 4
LOOKS = 2
SETTLE_AFTER_S = 60


@dataclass(frozen=True)
class Intent:
    """One thing to be submitted at most once. `facts` are what its submission record will say, so that adopting it says the same."""

    run_id: str
    first_attempt: int
    exp: str
    job_name: str
    nonce: str
    comment: str
    script: Path
    created_at: str
    kind: str = "slurm"
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def file_name(self) -> str:
        return f"{self.run_id}-{self.first_attempt}.json"

    def as_json(self, settled: str | None, job_id: str | None = None) -> dict[str, Any]:
        return {
            "run_id": self.run_id,
            "first_attempt": self.first_attempt,
            "exp": self.exp,
            "job_name": self.job_name,
            "nonce": self.nonce,
            "comment": self.comment,
            "script": str(self.script),
            "created_at": self.created_at,
            "kind": self.kind,
            "facts": self.facts,
            "settled": settled,
            "job_id": job_id,
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Intent:
        return cls(
            value["run_id"],
            value["first_attempt"],
            value["exp"],
            value["job_name"],
            value["nonce"],
            value["comment"],
            Path(value["script"]),
            value["created_at"],
            value.get("kind", "slurm"),
            dict(value.get("facts") or {}),
        )


class IntentBook:
    """The user's intents in `state/<user>/intents/`, one file each; settled ones go to `settled/`, so that looking for open ones stays cheap."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._settled = folder, folder / "settled"

    def open(self, intent: Intent) -> None:
        """Record the intent durably. Raises Refusal E-SUBMIT-053 if it is there already."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            if (self._settled / intent.file_name).exists():
                raise FileExistsError(intent.file_name)
            write_json_new(self._folder / intent.file_name, intent.as_json(None), mode=0o600)
        except FileExistsError as exc:
            raise Refusal("E-SUBMIT-053", f"{intent.run_id} was already being submitted", field=intent.run_id) from exc

    def settle(self, intent: Intent, how: str, job_id: str | None = None) -> None:
        """Say how it ended. A kill between the two steps leaves a settled intent among the open ones, which is read as what it is."""
        path = self._folder / intent.file_name
        replace_json(path, intent.as_json(how, job_id), mode=0o600)
        self._settled.mkdir(mode=0o700, exist_ok=True)
        with suppress(FileNotFoundError):  # another command settled it at the same moment
            os.rename(path, self._settled / intent.file_name)

    def outcome(self, run_id: str, first_attempt: int) -> str | None:
        """`submitted`, `refused`, or None while nobody knows. Raises FileNotFoundError without such an intent, OSError, ValueError."""
        name = f"{run_id}-{first_attempt}.json"
        try:
            value = read_json(self._settled / name)
        except FileNotFoundError:
            value = read_json(self._folder / name)
        how = value.get("settled") if isinstance(value, dict) else None
        return str(how) if how is not None else None

    def unsettled(self) -> list[Intent]:
        """Intents whose outcome nobody knows yet, oldest first. Unreadable files are not intents."""
        found = []
        for path in sorted(self._folder.glob("run-*.json")) if self._folder.is_dir() else ():
            try:
                value = read_json(path)
                if value["settled"] is None:
                    found.append(Intent.from_json(value))
            except (OSError, ValueError, KeyError, TypeError):
                continue
        return sorted(found, key=lambda i: i.created_at)


def parse_job_id(output: str) -> str | None:
    """The id that `sbatch --parsable` printed: the last line that is one, whatever banner a site prints around it."""
    for line in reversed(output.splitlines()):
        if match := JOB_ID.match(line.strip()):
            return match.group(1)
    return None


def find_job(slurm: Slurm, intent: Intent, user: str) -> str | None:
    """Id of the job with the intent's name and nonce, in the queue or in the accounting; None when both clearly say no.

    Raises Refusal (exit 75) when the queue cannot be asked: not knowing is not a no.
    """
    asked = slurm.run(
        "squeue",
        ["--noheader", "--states=all", f"--user={user}", f"--name={intent.job_name}", "--Format=JobID:32,Comment:256"],
    )
    if classify(asked) != "ok":
        raise refusal(asked, "look for the job in the queue")
    for line in asked.out.splitlines():
        words = line.split()
        if (
            words
            and words[0].split("_")[0].isdigit()
            and (len(words) < 2 or words[1] == "(null)" or words[1].startswith(intent.comment))
        ):
            return words[0].split("_")[0]
    past = slurm.run(
        "sacct",
        ["-X", "-n", "-P", f"--user={user}", f"--name={intent.job_name}", "--starttime=now-1days", "--format=JobIDRaw"],
    )
    if classify(past) == "ok":
        for line in past.out.splitlines():
            if line.strip().isdigit():
                return line.strip()
    return None


@dataclass
class Submitter:
    """Calls sbatch until the outcome is known. `sleep` and `jitter` (0..1) come in by argument."""

    slurm: Slurm
    book: IntentBook
    user: str
    sleep: Callable[[float], None] = time.sleep
    jitter: Callable[[], float] = lambda: 0.5
    look_pause_s: float = 2.0

    def submit(self, intent: Intent, command: Callable[[], Completed]) -> str:
        """The job id. Opens the intent, runs `command` (sbatch), settles it.

        Raises Refusal: sbatch's own no (settled as refused), or E-SUBMIT-050 with exit 75 when nobody can say whether the job exists.
        """
        self.book.open(intent)
        for attempt in range(MAX_TRIES):
            done = command()
            verdict = classify(done)
            job_id = parse_job_id(done.out) if verdict == "ok" else None
            if job_id is None and verdict == "refuse":
                self.book.settle(intent, "refused")
                raise refusal(done, "submit the job")
            job_id = job_id or self._look(intent, done)
            if job_id is not None:
                self.book.settle(intent, "submitted", job_id)
                return job_id
            if verdict != "retry":
                self.book.settle(intent, "refused")
                raise refusal(done, "submit the job")
            self.sleep((2.0**attempt) * (0.5 + self.jitter()))
        self.book.settle(intent, "refused")
        raise refusal(done, "submit the job")

    def _look(self, intent: Intent, done: Completed) -> str | None:
        """Adopt after doubt: LOOKS clean answers without the job mean that it is not there."""
        clean = 0
        for attempt in range(LOOKS + 3):
            self.sleep(self.look_pause_s * (attempt + 0.5))
            try:
                found = find_job(self.slurm, intent, self.user)
            except Refusal as exc:
                last = exc
                continue
            if found is not None:
                return found
            clean += 1
            if clean >= LOOKS:
                return None
        raise Refusal(
            "E-SUBMIT-050",
            f"sbatch gave no clean answer and the queue cannot be asked: {last.message}",
            field=intent.run_id,
            found=(done.err or done.out).strip()[:200] or None,
        )


def settle_open(
    book: IntentBook,
    look: Callable[[Intent], dict[str, Any] | None],
    *,
    adopt: Callable[[Intent, dict[str, Any]], None],
    age_s: Callable[[Intent], float],
) -> list[Intent]:
    """Settle intents that an interrupted command left open: adopt a job that `look` finds, call the rest refused after SETTLE_AFTER_S.

    `look` gives the facts of the intent's job (`job_id` among them), None when it certainly is not there, and raises Refusal when nobody can
    tell: then the intent stays open. Returns what is still open.
    """
    still = []
    for intent in book.unsettled():
        try:
            facts = look(intent)
        except Refusal:
            still.append(intent)
            continue
        if facts is not None:
            adopt(intent, facts)
            book.settle(intent, "submitted", str(facts["job_id"]))
        elif age_s(intent) > SETTLE_AFTER_S:
            book.settle(intent, "refused")
        else:
            still.append(intent)
    return still
