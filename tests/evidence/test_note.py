"""Signed notes and checkpoints: what Go's sumdb/note and the C2SP pages give as examples, golden files of ours, and every way to be none."""

from __future__ import annotations

import pytest
from evidencelab import cosigned_at
from hypothesis import given
from hypothesis import strategies as st

from hpc.evidence.note import (
    LOG,
    WITNESS,
    Checkpoint,
    NoteError,
    SignerKey,
    VerifierKey,
    cosign,
    open_checkpoint,
    parse_checkpoint,
    parse_note,
    parse_signer,
    parse_verifier,
    sign_checkpoint,
)

# The example key and note of golang.org/x/mod/sumdb/note.
GO_VKEY = "PeterNeumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW"
GO_SKEY = "PRIVATE+KEY+PeterNeumann+c74f20a3+AYEKFALVFGyNhPJEMzD1QIDr+Y7hfZx09iUvxdXHKDFz"
GO_NOTE = (
    "If you think cryptography is the answer to your problem,\n"
    "then you don't know what your problem is.\n"
    "\n"
    "— PeterNeumann x08go/ZJkuBS9UG/SffcvIAQxVBtiFupLLr8pAcElZInNIuGUgYN1FFYC2pZSNXgKvqfqdngotpRZb6KE6RyyBwJnAM=\n"
).encode()

KEY = SignerKey("lab/tp-log", bytes(range(32)))
OTHER = SignerKey("lab/tp-log", bytes(32))
EYE = SignerKey("eye.example/w1", bytes(range(1, 33)), WITNESS)
HEAD = Checkpoint("lab/tp-log", 42, bytes(range(32)))
GOLDEN_VKEY = "lab/tp-log+f5576103+AQOhB7/zzhC+HXDdGOdLwJln5NYwm6UNXx3chmQSVTG4"


def test_the_example_of_go() -> None:
    key = parse_verifier(GO_VKEY)
    note = parse_note(GO_NOTE)
    signer = parse_signer(GO_SKEY)
    assert (str(key), str(signer.verifier), signer.text()) == (GO_VKEY, GO_VKEY, GO_SKEY)
    assert note.signatures == (("PeterNeumann", key.key_id, signer.sign(note.text.encode())),)


def test_the_golden_key_and_checkpoint(golden: str) -> None:
    assert str(KEY.verifier) == GOLDEN_VKEY
    assert sign_checkpoint(HEAD, KEY).decode() == golden


@pytest.fixture
def golden() -> str:
    return (
        "lab/tp-log\n42\nAAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=\n\n"
        "— lab/tp-log 9VdhA1ZZNGSF7D7xa/Ko28MTgaQzRa7Llb5ZotdmGghd67Q+rKZRz26Yw+4E0m3UZZkBb1MPCo1FVCw46EXeiZz5TQE=\n"
    )


def test_a_checkpoint_comes_back_and_a_secret_does_not_show() -> None:
    assert open_checkpoint(sign_checkpoint(HEAD, KEY), KEY.verifier) == HEAD
    assert parse_signer(KEY.text()) == KEY
    assert repr(KEY) == "SignerKey('lab/tp-log')"


def test_a_cosigned_checkpoint_is_still_the_logs_and_tells_when() -> None:
    note = cosign(sign_checkpoint(HEAD, KEY), EYE, 1_800_000_000)
    assert open_checkpoint(note, KEY.verifier) == HEAD
    assert cosigned_at(note, EYE.verifier) == 1_800_000_000
    with pytest.raises(ValueError, match="is wrong"):
        cosigned_at(note.replace(b"\n42\n", b"\n43\n"), EYE.verifier)


def test_another_key_of_the_same_name_is_not_the_logs() -> None:
    with pytest.raises(NoteError, match=r"is not signed by lab/tp-log\+"):
        open_checkpoint(sign_checkpoint(HEAD, OTHER), KEY.verifier)


def test_a_key_may_not_vouch_for_another_log() -> None:
    foreign = sign_checkpoint(Checkpoint("other/log", 42, HEAD.root), KEY)
    with pytest.raises(NoteError, match="is of the log 'other/log'"):
        open_checkpoint(foreign, KEY.verifier)


@given(st.integers(0, 10_000), st.integers(1, 255))
def test_a_changed_byte_is_never_the_same_checkpoint(place: int, change: int) -> None:
    note = bytearray(sign_checkpoint(HEAD, KEY))
    note[place % len(note)] ^= change
    with pytest.raises(NoteError):
        open_checkpoint(bytes(note), KEY.verifier)


@pytest.mark.parametrize(
    "text",
    ["", "lab\n1\n", "lab\n01\nAAAA\n", "lab\n-1\nAAAA\n", "lab\n1\nAAAA\n", "lab\n1\n!!!!\n", "\n1\nAAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=\n",
     "lab\n1\nAAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=", "lab\n1\nAAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=\nmore\n",
     "lab\n1\nAAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh9=\n", "lab\n99999999999999999999\nAAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=\n"],
)  # fmt: skip
def test_what_is_no_checkpoint(text: str) -> None:
    with pytest.raises(NoteError):
        parse_checkpoint(text)


@pytest.mark.parametrize(
    "data",
    [b"", b"text\n", b"text\n\n", b"text\n\nno dash\n", "text\n\n— a \n".encode(), "text\n\n— a !!\n".encode(), "t\x01\n\n— a AAAAAAA=\n".encode(),
     "text\n\n— a AAAAAAA=".encode(), b"\xff\n\n", "text\n\n— a+b AAAAAAA=\n".encode(), b"x" * (65 << 10)],
)  # fmt: skip
def test_what_is_no_signed_note(data: bytes) -> None:
    with pytest.raises(NoteError):
        parse_note(data)


@pytest.mark.parametrize(
    "text",
    ["", "lab", "lab+f5576103", GOLDEN_VKEY.replace("f5576103", "00000000"), GOLDEN_VKEY.replace("lab", "lob"), GOLDEN_VKEY[:-4],
     GOLDEN_VKEY.replace("f5576103", "xyz"), str(EYE.verifier), KEY.text()],
)  # fmt: skip
def test_what_is_no_key_of_a_log(text: str) -> None:
    with pytest.raises(NoteError):
        parse_verifier(text)


def test_a_witnesss_key_has_a_number_of_its_own() -> None:
    twin = VerifierKey(EYE.name, EYE.verifier.public, LOG)
    assert twin.key_id != EYE.verifier.key_id
    assert parse_verifier(str(EYE.verifier), kind=WITNESS) == EYE.verifier
