"""Error kinds of archives that come from outside. Nothing of a refused archive is left on disk."""

from __future__ import annotations

from hpc.errors.core import ErrorKind, table

_AGAIN = "Make it again: tar czf PACKAGE.tgz -C FOLDER ."

KINDS: dict[str, ErrorKind] = table(
    ErrorKind("E-ARCHIVE-001", "the archive cannot be read", "It is not there, is a link or no regular file, or may not be read by you.", "Check the path."),
    ErrorKind("E-ARCHIVE-002", "the archive is too large", "An archive has at most 32 MiB as it is sent.", "Leave out what is not needed; data belongs into a data set."),
    ErrorKind("E-ARCHIVE-003", "not a sound gzip stream", "The file is no gzip, is cut short, or its checksum or length is wrong.", _AGAIN),
    ErrorKind("E-ARCHIVE-004", "something follows the gzip stream", "A second member or other bytes after the end are read by some programs and not by others.", _AGAIN),
    ErrorKind("E-ARCHIVE-005", "the archive unpacks to too much", "At most 64 MiB come out, and at most 200 times what went in.", "Leave out what is not needed."),
    ErrorKind("E-ARCHIVE-006", "too many entries", "An archive has at most 10,000 entries, nested at most 32 deep.", "Leave out what is not needed; check for caches."),
    ErrorKind("E-ARCHIVE-007", "a header is damaged", "A checksum or a field of a tar header is wrong, or bytes hide behind the end of a name.", _AGAIN),
    ErrorKind("E-ARCHIVE-008", "not a tar format that is taken", "POSIX (ustar, pax) and GNU are taken, one of them in one archive; older and mixed ones are read differently by different programs.", _AGAIN),
    ErrorKind("E-ARCHIVE-009", "the archive is cut short", "A member or the end marker is missing.", "Fetch or make it again."),
    ErrorKind("E-ARCHIVE-010", "data where none belongs", "Bytes after the end marker, a lone end block, or bytes in the padding behind a member.", _AGAIN),
    ErrorKind("E-ARCHIVE-011", "a path that leaves the package", "Absolute, with `..`, an empty or `.` part, a drive letter or a backslash: the normal form must be the given form.", _AGAIN),
    ErrorKind("E-ARCHIVE-012", "a path that is too long", "At most 240 bytes a part and 1,024 in all.", "Rename the file or folder."),
    ErrorKind("E-ARCHIVE-013", "a link", "Symbolic and hard links are never taken: they lead out of the package or write through to elsewhere.", "Replace it by the file itself (tar --dereference --hard-dereference)."),
    ErrorKind("E-ARCHIVE-014", "neither file nor folder", "Devices, pipes, sparse and contiguous files, and types of single programs are not taken.", "Archive plain files and folders only."),
    ErrorKind("E-ARCHIVE-015", "a path stands twice", "Which of the two counts depends on the program that reads it.", _AGAIN),
    ErrorKind("E-ARCHIVE-016", "a file where a folder is needed", "One entry is a file, and another lies below it.", _AGAIN),
    ErrorKind("E-ARCHIVE-017", "two names that are one name elsewhere", "They differ only in case or in how an accent is written.", "Rename one of them."),
    ErrorKind("E-ARCHIVE-018", "a global header", "It would change every later entry; `git archive` writes one.", _AGAIN),
    ErrorKind("E-ARCHIVE-019", "an extended header that is not taken", "A pax record is malformed, stands twice, or changes a size, a link, the character set or how data are stored.", _AGAIN),
    ErrorKind("E-ARCHIVE-020", "two headers for one name", "A long name does not fit its entry, stands beside another extension, or belongs to no entry.", _AGAIN),
    ErrorKind("E-ARCHIVE-021", "an absurd size", "A size is negative, not octal, or larger than any package.", _AGAIN),
    ErrorKind("E-ARCHIVE-022", "a name that cannot be stored", "Not UTF-8, a control character, a mark that changes the direction of text, a dot or space at the end, or a device's name elsewhere.", "Rename the file."),
    ErrorKind("E-ARCHIVE-023", "the archive is empty", "It holds no file.", _AGAIN),
)  # fmt: skip
