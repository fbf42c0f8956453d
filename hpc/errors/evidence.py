"""Error kinds of the evidence area: the witnessed log, bundles, rendering a run again."""

from __future__ import annotations

from tuneplane.contract import exits

from hpc.errors.core import ErrorKind, table

KINDS: dict[str, ErrorKind] = table(
    ErrorKind(
        "E-EVID-001",
        "there is no log",
        "The storage root has no registry/log, or nobody began the log in it.",
        "An admin runs `tp site init ROOT`, which makes the folder; then the service user runs `tp log init`.",
    ),
    ErrorKind(
        "E-EVID-002",
        "the signing key cannot be used",
        "A key file is missing, damaged, or readable for others than its user.",
        "Restore the file with mode 0600. A log whose key is lost cannot be continued: keep its folder, and begin a new one.",
    ),
    ErrorKind(
        "E-EVID-003",
        "only the service user writes the log",
        "One writer, whose key no user can read, is what the log's word rests on.",
        "Run the command from the service user's crontab.",
    ),
    ErrorKind(
        "E-EVID-004",
        "no key of the log that can be trusted",
        "site/log.vkey is missing or is no verifier key. Without a key from elsewhere the log could vouch for itself.",
        "An admin puts the line that `tp log init` printed into site/log.vkey; or give it with --key.",
    ),
    ErrorKind(
        "E-EVID-005",
        "another command is writing the log",
        "One writer at a time; cron must not pile up.",
        "Wait for it. With --if-idle the command says nothing and exits 0.",
        exits.TRY_LATER,
    ),
    ErrorKind(
        "E-EVID-006",
        "the log is damaged",
        "Its checkpoint, a tile or an entry is missing, cut, changed, or signed by another key.",
        "Do not mend it by hand. `tp log verify` names everything that is wrong; compare with what the witnesses keep, and restore from a backup.",
        exits.TAMPERED,
    ),
    ErrorKind(
        "E-EVID-007",
        "the digest is not in the log",
        "No entry has it: the record was not there when the log was last extended, or it is not the record's digest any more.",
        "Wait for the next `tp log add`; `tp runs audit RUN` says whether the record is what it should be.",
    ),
    ErrorKind(
        "E-EVID-008",
        "the witness's state cannot be used",
        "What a witness saw last must be its own, whole, and of this log; else it would vouch for nothing.",
        "Restore the folder, or begin with an empty one: what was seen before is then forgotten, so look why first.",
    ),
    ErrorKind(
        "E-EVID-010",
        "the evidence is tampered",
        "The audit of the run found a record that is not what was recorded. Such a run is not passed on as evidence.",
        "`tp runs audit RUN` names every finding.",
    ),
    ErrorKind(
        "E-EVID-011",
        "the evidence is not whole",
        "The run has not ended well, or records are missing or may not be read: nobody could call the bundle verified.",
        "`tp runs audit RUN` says what is missing. --allow-unverified passes it on all the same, and the bundle says so.",
    ),
    ErrorKind(
        "E-EVID-012",
        "the bundle cannot be written",
        "A file of that name is there, the run changed meanwhile, or a record is larger than a bundle takes.",
        "Name another file, or try again when the run has ended.",
    ),
    ErrorKind(
        "E-EVID-013",
        "the bundle cannot be read",
        "There is no such file, or it may not be read.",
        "Check the path. What a readable file holds is judged, not refused.",
    ),
    ErrorKind(
        "E-EVID-020",
        "the run cannot be rendered again",
        "It was never submitted, or its package or its submission's record cannot be read.",
        "`tp runs audit RUN` says what is wrong with it.",
    ),
    ErrorKind(
        "E-EVID-021",
        "the script would be another one",
        "What the script is made from has changed since, or is gone; --run would not repeat the run.",
        "The differences are listed. `tp submit` makes a run from today's state; --anyway submits this package under today's site.",
    ),
)
