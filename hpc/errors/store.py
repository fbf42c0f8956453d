"""Error kinds of the store area: folders, files and locks on the shared file system."""

from __future__ import annotations

from tuneplane.contract import exits

from hpc.errors.core import ErrorKind, table

KINDS: dict[str, ErrorKind] = table(
    ErrorKind(
        "E-STORE-001",
        "the lock is busy",
        "Another process holds it. Locks guard moments, not hours.",
        "Try again in a moment. If the named owner is surely gone, `tp site unlock FILE` says what is known about it.",
        exits.TRY_LATER,
    ),
    ErrorKind(
        "E-STORE-002",
        "locks do not work here",
        "The file system refuses hard links, so the only lock that is sound between hosts cannot be taken. "
        "Nothing weaker is used instead.",
        "Move the storage root to a file system with hard links; `tp doctor` shows what the present one can do.",
    ),
    ErrorKind(
        "E-STORE-003",
        "the lock's own files are not understood",
        "Something stands at the lock's path that is not a lock of ours, or a claim is damaged. "
        "Guessing could let two owners in.",
        "Look at the named path; `tp site unlock FILE` lists the claims. Remove by hand what does not belong there.",
    ),
    ErrorKind(
        "E-STORE-010",
        "not a real folder",
        "A link, a file or nothing stands where a folder is expected. Links are never followed below the storage root.",
        "Remove or rename what stands there, then run the command again.",
    ),
    ErrorKind(
        "E-STORE-011",
        "not a plain file",
        "A link, a special file, or a file with more than one name (hard link) stands where a record is expected.",
        "Copy the content into a new file of its own and remove the old one.",
    ),
    ErrorKind(
        "E-STORE-012",
        "the folder belongs to somebody else",
        "A folder that exists already has another owner than the one it is meant for.",
        "Ask its owner or an admin to remove it; `tp site check` lists every misplaced folder.",
    ),
    ErrorKind(
        "E-STORE-013",
        "the mode could not be set",
        "The file system or the kernel did not keep the mode, owner or group that was asked for "
        "(setgid is dropped where the caller is not in the group).",
        "Run as the owner, as a member of the group, or as root; check the mount's options.",
    ),
    ErrorKind(
        "E-STORE-020",
        "no space",
        "The disk or a quota is full. Nothing half-written was left.",
        "Free some space or ask for more quota, then run the command again.",
    ),
    ErrorKind(
        "E-STORE-021",
        "access denied",
        "The kernel refused access to the path for this user.",
        "Check owner and mode with `ls -ld`; `tp site check` shows what they should be.",
    ),
    ErrorKind(
        "E-STORE-022",
        "no ticket",
        "The file system needs a Kerberos ticket and this session has none that is valid.",
        "Run `kinit`, or give cron and jobs a keytab, then try again.",
        exits.TRY_LATER,
    ),
    ErrorKind(
        "E-STORE-023",
        "the file system is away for the moment",
        "A stale handle, a timeout or a host that is down: the server did not answer as usual.",
        "Try again in a minute; ask the storage admins if it stays.",
        exits.TRY_LATER,
    ),
    ErrorKind(
        "E-STORE-024",
        "read-only file system",
        "The file system is mounted read-only here.",
        "Use a host where the storage root is mounted for writing.",
    ),
    ErrorKind(
        "E-STORE-025",
        "not there",
        "A file or folder that should exist does not.",
        "Check the path and the mount.",
    ),
    ErrorKind(
        "E-STORE-026",
        "input or output error",
        "The kernel reported an error of the device or the server.",
        "Ask the storage admins; do not trust what was being written.",
    ),
)
