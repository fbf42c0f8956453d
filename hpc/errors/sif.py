"""Error kinds of the sif area: Apptainer and the SIF files themselves."""

from __future__ import annotations

from tuneplane.contract import exits

from hpc.errors.core import ErrorKind, table

KINDS: dict[str, ErrorKind] = table(
    ErrorKind(
        "E-SIF-001",
        "Apptainer is not here",
        "No program of that name is on the path of system folders, or it cannot be started.",
        "Install Apptainer (containers/sif-runtime install does it on Debian), or say where it is.",
    ),
    ErrorKind(
        "E-SIF-002",
        "Apptainer did not finish in time",
        "The command ran past its deadline and was ended, with everything it had started.",
        "Look at the machine's load and disk, then try again.",
        exits.TRY_LATER,
    ),
    ErrorKind(
        "E-SIF-003",
        "an Apptainer command failed",
        "Apptainer ended with an error; its last lines are in the message.",
        "Mend what Apptainer names.",
    ),
    ErrorKind(
        "E-SIF-004",
        "not a SIF file",
        "The file has no SIF header, or is no regular file.",
        "Build a SIF first: apptainer build FILE.sif …",
    ),
    ErrorKind(
        "E-SIF-005",
        "the SIF is cut short",
        "Its header promises more bytes than the file has: a copy or a build that did not end.",
        "Copy or build it again.",
    ),
    ErrorKind(
        "E-SIF-006",
        "the SIF is for another kind of machine",
        "The header names another processor architecture than this machine's, or an unknown SIF version.",
        "Build the image for this architecture.",
    ),
    ErrorKind(
        "E-SIF-007",
        "the definition cannot be used",
        "An Apptainer definition needs `Bootstrap:` and `From:` (or `MirrorURL:`) lines at its head.",
        "Mend the head of the .def file.",
    ),
    ErrorKind(
        "E-SIF-008",
        "too little space for the build",
        "The folder for Apptainer's temporary files has less free space than a build takes.",
        "Name another folder with --tmp-dir, or make room there.",
    ),
)
