"""An operating system error becomes the refusal that says what to do."""

from __future__ import annotations

import errno
import os

import pytest

from hpc.store.faults import refusal

CASES = {
    errno.ENOSPC: ("E-STORE-020", 1),
    errno.EDQUOT: ("E-STORE-020", 1),
    errno.EACCES: ("E-STORE-021", 1),
    errno.EROFS: ("E-STORE-024", 1),
    errno.ENOENT: ("E-STORE-025", 1),
    errno.ENAMETOOLONG: ("E-STORE-025", 1),
    errno.EIO: ("E-STORE-026", 1),
    errno.ESTALE: ("E-STORE-023", 75),
}


@pytest.mark.parametrize("number", list(CASES))
def test_each_error_has_its_code_and_exit(number: int) -> None:
    fault = refusal(OSError(number, "words"), "/root/x", "write")
    assert (fault.code, fault.exit) == CASES[number]
    assert fault.found == errno.errorcode[number]
    assert (fault.field, fault.message) == ("/root/x", f"cannot write: {os.strerror(number)}")


@pytest.mark.parametrize("number", [errno.EKEYEXPIRED, errno.ENOKEY, errno.EKEYREVOKED])
def test_p73_an_expired_ticket_is_a_class_of_its_own(number: int) -> None:
    fault = refusal(OSError(number, "words"), "/root/x", "read")
    assert (fault.code, fault.exit) == ("E-STORE-022", 75)


def test_p73_denied_on_a_kerberos_mount_without_a_ticket_is_told_apart() -> None:
    denied = OSError(errno.EACCES, "words")
    assert refusal(denied, "/root/x", "read", needs_ticket=True).code == "E-STORE-022"
    assert refusal(denied, "/root/x", "read").code == "E-STORE-021"
