"""P02: each directive's value has a small alphabet that sbatch's tokeniser and bash read alike."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpc.errors import Refusal
from hpc.spec import words

GRAMMARS: dict[str, Callable[..., str]] = {
    "name": words.name,
    "names": words.names,
    "comment": words.comment,
    "mail_user": words.mail_user,
    "mail_type": words.mail_type,
    "licenses": words.licenses,
    "gpu_bind": words.gpu_bind,
    "switches": words.switches,
    "time": words.time,
    "memory": words.memory,
}


@pytest.mark.parametrize(
    ("grammar", "text", "canonical"),
    [
        ("name", "proj_7.a-b", "proj_7.a-b"),
        ("names", "gpu,long", "gpu,long"),
        ("comment", "run-4f2a91:nonce=ab/7", "run-4f2a91:nonce=ab/7"),
        ("mail_user", "alice", "alice"),
        ("mail_user", "alice.b+hpc@mail.example.org", "alice.b+hpc@mail.example.org"),
        ("mail_type", "end,fail", "END,FAIL"),
        ("mail_type", "END,END,TIME_LIMIT_80", "END,TIME_LIMIT_80"),
        ("licenses", "matlab:2,ansys@lic1:3", "matlab:2,ansys@lic1:3"),
        ("licenses", "a|b:2", "a|b:2"),
        ("gpu_bind", "verbose,map_gpu:0,1*2", "verbose,map_gpu:0,1*2"),
        ("gpu_bind", "mask_gpu:0x3,0xC", "mask_gpu:0x3,0xC"),
        ("gpu_bind", "none", "none"),
        ("switches", "1@60", "1@01:00:00"),
        ("switches", "2", "2"),
        ("time", "90", "01:30:00"),
        ("time", "infinite", "UNLIMITED"),
        ("memory", "4096", "4G"),
    ],
)
def test_accepted_and_canonical(grammar: str, text: str, canonical: str) -> None:
    assert GRAMMARS[grammar](text) == canonical
    assert GRAMMARS[grammar](canonical) == canonical


@pytest.mark.parametrize(
    ("grammar", "text"),
    [
        ("name", "a,b"),
        ("names", "a,,b"),
        ("names", "-p"),
        ("comment", "two words"),
        ("comment", "x" * 201),
        ("mail_user", "Alice <alice@example.org>"),
        ("mail_user", "a@b@c"),
        ("mail_type", "SOMETIMES"),
        ("mail_type", "END,"),
        ("licenses", "a,b|c"),
        ("licenses", "a:0"),
        ("gpu_bind", "map_gpu:"),
        ("gpu_bind", "closest,verbose"),
        ("switches", "0"),
        ("switches", "1@soon"),
        ("time", "0"),
    ],
)
def test_refused(grammar: str, text: str) -> None:
    with pytest.raises(Refusal) as caught:
        GRAMMARS[grammar](text, "spec.slurm.x")
    assert caught.value.field == "spec.slurm.x"
    assert caught.value.allowed


@pytest.mark.parametrize("grammar", GRAMMARS)
@settings(max_examples=200, deadline=None)
@given(text=st.text(max_size=12))
def test_p02_what_passes_is_one_word_for_sbatch_and_bash(grammar: str, text: str) -> None:
    try:
        word = GRAMMARS[grammar](text)
    except Refusal:
        return
    assert word.isascii()
    assert word.isprintable()
    assert not set(word) & set(" '\"\\#$%`;<>(){}[]!~^?&")
