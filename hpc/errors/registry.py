"""Error kinds of the registry: versions on shelves, pointers, seals, audits."""

from __future__ import annotations

from tuneplane.contract import exits

from hpc.errors.core import ErrorKind, table

KINDS: dict[str, ErrorKind] = table(
    ErrorKind(
        "E-REG-001",
        "the version exists already (409)",
        "Versions are immutable: one of that name stands on the shelf, or stood there once and was sealed with another digest.",
        "Raise the version and publish again.",
    ),
    ErrorKind(
        "E-REG-002",
        "no such record",
        "The shelf has no package or no version of that name under that owner.",
        "List what there is with `ls`, and check owner, name and version.",
    ),
    ErrorKind(
        "E-REG-003",
        "the namespace is not yours (403)",
        "A record's owner is the account that publishes it. Other namespaces are their owners', and `tuneplane` is kept for what ships with the toolkit.",
        "Publish under your own name; an admin may name another owner with --owner.",
    ),
    ErrorKind(
        "E-REG-004",
        "the folder cannot be stored",
        "It holds a link, a special file, a name that is no plain path, or more files or bytes than the shelf takes.",
        "Put a real file in the place of the link, rename or remove what is named, and publish again.",
    ),
    ErrorKind(
        "E-REG-005",
        "what was stored is not what was checked",
        "The bytes were read back from the shelf and differ: the folder was changed meanwhile, or the storage does not keep what it is given. "
        "Nothing was published.",
        "Publish again from a folder that nobody is writing to; if it stays, tell the storage admins.",
    ),
    ErrorKind(
        "E-REG-006",
        "cannot be given to its owner",
        "Only root can write into another owner's namespace, and only where the mount lets root change owners (many network mounts do not). "
        "Nothing was left behind.",
        "Let the owner publish it, or run the command as root on a host where root is not squashed.",
    ),
    ErrorKind(
        "E-REG-007",
        "only admins may do this",
        "Policy and words that hold for the whole platform (enable, disable, recommend, activate) change what everybody sees.",
        "Ask a member of the site's admin group.",
    ),
    ErrorKind(
        "E-REG-008",
        "not a reference",
        "A record is named <owner>/<name> or <owner>/<name>@<version>.",
        "Write it in that form.",
    ),
    ErrorKind(
        "E-REG-010",
        "the version is disabled",
        "Its owner or an admin switched it or its whole family off. Locks that name it already still run; new references are refused.",
        "Choose another version, or ask for this one to be enabled.",
    ),
    ErrorKind(
        "E-REG-011",
        "no version is enabled",
        "Every version of the package is switched off, or it has none.",
        "Name a version in a lock that exists already, or ask for one to be enabled.",
    ),
    ErrorKind(
        "E-REG-012",
        "the record is damaged",
        "It is missing, cut, changed by a single bit, another record's, or not in the form that the registry writes.",
        "Do not use the version. `tp registry audit` names everything that is wrong; its owner publishes a new version.",
    ),
    ErrorKind(
        "E-REG-013",
        "the content is not the recorded one",
        "A stored file is missing, was added, or has other bytes than the record says.",
        "Do not use the version. Its owner removes it and publishes a new one.",
    ),
    ErrorKind(
        "E-REG-014",
        "the version differs from its seal",
        "The version was sealed when it was first seen, and what stands there now is something else: it was changed, or deleted and published again.",
        "Do not use it. Ask its owner for a new version, and an admin what happened.",
    ),
    ErrorKind(
        "E-REG-015",
        "owner or mode is wrong",
        "A published version is its owner's and read-only, to the bit. Something was changed by hand.",
        "Its owner or root sets it right: folders 0555, files 0444 (0555 where they are executable), all of one owner.",
    ),
    ErrorKind(
        "E-REG-016",
        "the seal cannot be believed",
        "The seal of the version is damaged, another's, or not the property of the service user.",
        "Ask an admin: `tp registry audit` names the seal.",
    ),
    ErrorKind(
        "E-REG-020",
        "the generation is stale",
        "Somebody else changed the pointer since it was read; nothing was overwritten.",
        "Look at the present state and, if the change is still wanted, repeat it.",
    ),
    ErrorKind(
        "E-REG-021",
        "the newest generation is not whole",
        "The newest file of a pointer cannot be read or believed: it is being written in this moment, or a writer died, or it was damaged. The last good one is in force.",
        "Try again in a moment. If it stays, name the present generation explicitly to go on from the last good one.",
    ),
    ErrorKind(
        "E-REG-022",
        "no generation of the pointer can be read",
        "Generations are there, and none of them is whole. Guessing could switch on what was switched off.",
        "Ask an admin: `tp registry audit` names each file. Naming the present generation explicitly starts anew.",
    ),
    ErrorKind(
        "E-REG-023",
        "the active policy cannot be disabled",
        "The version is the one that the whole platform uses; switching it off would change policy silently.",
        "First restore the built-in defaults (`tp plugin deactivate`) or activate another version.",
    ),
    ErrorKind(
        "E-REG-030",
        "another audit is running",
        "The lock of an earlier audit is held; cron must not pile up.",
        "Wait for it. With --if-idle the command says nothing and exits 0.",
        exits.TRY_LATER,
    ),
    ErrorKind(
        "E-REG-031",
        "only the service user seals",
        "Seals lie where no owner can write; the service user, or root, records what it saw first.",
        "Run `tp registry seal` from the service user's crontab.",
    ),
    ErrorKind(
        "E-REG-032",
        "no such file in the version",
        "The record lists no file of that path.",
        "List the version's files.",
    ),
)
