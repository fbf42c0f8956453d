"""One place that says what an operating system error means to the person who meets it. Pure."""

from __future__ import annotations

import errno
import os

from hpc.errors.core import Refusal

# A missing or outdated Kerberos ticket shows as one of these, on NFS with sec=krb5* and on AFS.
_NO_TICKET = frozenset({errno.ENOKEY, errno.EKEYEXPIRED, errno.EKEYREVOKED, errno.EKEYREJECTED})
_CODES: dict[int, str] = {
    errno.ENOSPC: "E-STORE-020",
    errno.EDQUOT: "E-STORE-020",
    errno.EFBIG: "E-STORE-020",
    errno.EACCES: "E-STORE-021",
    errno.EPERM: "E-STORE-021",
    errno.ESTALE: "E-STORE-023",
    errno.ETIMEDOUT: "E-STORE-023",
    errno.EHOSTDOWN: "E-STORE-023",
    errno.EHOSTUNREACH: "E-STORE-023",
    errno.ENOTCONN: "E-STORE-023",
    errno.EROFS: "E-STORE-024",
    errno.ENOENT: "E-STORE-025",
    errno.ENAMETOOLONG: "E-STORE-025",
    errno.ELOOP: "E-STORE-010",
    errno.ENOTDIR: "E-STORE-010",
    errno.ENOLCK: "E-STORE-002",
    errno.ENOSYS: "E-STORE-002",
} | dict.fromkeys(_NO_TICKET, "E-STORE-022")


_UNMAPPED = frozenset({errno.EIO, errno.EMFILE, errno.ENFILE, errno.EISDIR, errno.ENOMEM})


def is_machines(exc: OSError) -> bool:
    """True for an error that a correct program meets on a machine that is full, shut, away or laid out in another way."""
    return exc.errno in _UNMAPPED or (exc.errno in _CODES and exc.errno != errno.ENOENT)


def refusal(exc: OSError, path: str | os.PathLike[str], doing: str, *, needs_ticket: bool = False) -> Refusal:
    """The refusal for `exc`, met while `doing` something ("create", "read", …) with `path`.

    `needs_ticket`: the path lies on a mount with Kerberos and there is no ticket, so that "access denied" is told
    apart from "no ticket". An error without a rule of its own is E-STORE-026 and names the kernel's words.
    """
    number = exc.errno or 0
    code = _CODES.get(number, "E-STORE-026")
    if needs_ticket and code == "E-STORE-021":
        code = "E-STORE-022"
    words = os.strerror(number) if number else str(exc)
    return Refusal(code, f"cannot {doing}: {words}", field=os.fspath(path), found=errno.errorcode.get(number, ""))
