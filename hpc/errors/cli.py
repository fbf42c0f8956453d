"""Error kinds of the command line itself."""

from __future__ import annotations

from tuneplane.contract import exits

from hpc.errors.core import ErrorKind, table

KINDS: dict[str, ErrorKind] = table(
    ErrorKind(
        "E-CLI-001",
        "wrong usage",
        "An unknown command or option, a missing argument, or a value of the wrong form.",
        "Read the line that says what is wrong, or `tp COMMAND --help`.",
        exits.USAGE,
    ),
    ErrorKind(
        "E-CLI-002",
        "no storage root",
        "Neither TUNEPLANE_STORAGE_ROOT nor storage_root in ~/.config/tuneplane/config.toml names one.",
        "Ask your admin for the path, or lay one out with `tp site init ROOT`.",
        exits.USAGE,
    ),
    ErrorKind(
        "E-CLI-003",
        "the storage root is not there",
        "The named folder does not exist or has no site/site.yaml. It is never created on the way.",
        "Check the mount and the path; `tp site init ROOT` lays out a new root.",
    ),
    ErrorKind(
        "E-CLI-004",
        "config.toml cannot be read",
        "~/.config/tuneplane/config.toml is not TOML, or a key has the wrong type.",
        'Mend the file; it needs one line: storage_root = "/path".',
        exits.USAGE,
    ),
    ErrorKind(
        "E-CLI-005",
        "interrupted",
        "Ctrl-C. What was finished stays; nothing is half-written.",
        "Look with `tp job ls` before you run the command again.",
        130,
    ),
    ErrorKind(
        "E-CLI-006",
        "the mcp library is not installed here",
        "`tp mcp` speaks the Model Context Protocol through a library that the login node's installation may lack.",
        "Install tuneplane-hpc[mcp].",
    ),
    ErrorKind(
        "E-CLI-007",
        "the tool may not do this",
        "`tp mcp` only reads: it neither asks Slurm nor writes a file.",
        "Use the command that the message names.",
    ),
)
