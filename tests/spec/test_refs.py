"""References: hubs, owned names, volumes, outputs of earlier runs."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpc.errors import Refusal
from hpc.spec import refs
from hpc.spec.refs import HubRef, InitFrom, OwnedRef


@pytest.mark.parametrize(
    ("text", "ref", "canonical"),
    [
        ("Qwen/Qwen2.5-1.5B", HubRef("tp", "Qwen", "Qwen2.5-1.5B"), "Qwen/Qwen2.5-1.5B"),
        ("tp:a/m@v2", HubRef("tp", "a", "m", "v2"), "a/m@v2"),
        ("tuneplane:a/m", HubRef("tp", "a", "m"), "a/m"),
        ("sf:a/m", HubRef("tp", "a", "m"), "a/m"),
        ("hf:gpt2", HubRef("hf", "", "gpt2"), "hf:gpt2"),
        ("huggingface:org/m@refs/pr/1", HubRef("hf", "org", "m", "refs/pr/1"), "hf:org/m@refs/pr/1"),
        ("modelscope:org/m", HubRef("ms", "org", "m"), "ms:org/m"),
        ("hub://hf/org/m", HubRef("hf", "org", "m"), "hf:org/m"),
        ("hub://hf:org/m@main", HubRef("hf", "org", "m", "main"), "hf:org/m@main"),
        ("hub://org/m", HubRef("tp", "org", "m"), "org/m"),
    ],
)
def test_hub_references(text: str, ref: HubRef, canonical: str) -> None:
    assert refs.parse_hub_ref(text) == ref
    assert str(ref) == canonical
    assert refs.parse_hub_ref(canonical) == ref


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("gpt2", "write hf:gpt2 if Hugging Face is meant"),
        ("hg:org/x", "use one of tp, tuneplane, sf, hf, huggingface, ms, modelscope"),
        ("hf:org/x:main", "write hf:org/x@main"),
        ("org/x:v1", "write org/x@v1"),
    ],
)
def test_a_wrong_reference_is_answered_with_the_right_spelling(text: str, hint: str) -> None:
    with pytest.raises(Refusal) as caught:
        refs.parse_hub_ref(text)
    assert (caught.value.code, caught.value.hint) == ("E-SPEC-026", hint)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a/b/c",
        "a/",
        "/a",
        "hf:",
        "hf:a/b@",
        "a/b@x/y",
        "hf:a/b@../x",
        "hf:a/b@x//y",
        "hf:a/b@x/",
        "a/b c",
        "a/b\n",
        "ms:single",
        "a/..",
    ],
)
def test_other_texts_are_no_references(text: str) -> None:
    with pytest.raises(Refusal):
        refs.parse_hub_ref(text)


def test_a_data_set_has_a_namespace_on_every_hub() -> None:
    with pytest.raises(Refusal):
        refs.dataset_ref("hf:gsm8k")
    assert refs.dataset_ref("huggingface:org/gsm8k@main") == "hf:org/gsm8k@main"


def test_only_a_version_here_or_a_full_commit_is_pinned() -> None:
    assert refs.parse_hub_ref("a/m@v1").pinned
    assert not refs.parse_hub_ref("a/m").pinned
    assert refs.parse_hub_ref("hf:a/m@" + "0a" * 20).pinned
    assert not refs.parse_hub_ref("hf:a/m@main").pinned
    assert not refs.parse_hub_ref("hf:a/m@" + "0a" * 19).pinned


@pytest.mark.parametrize("text", ["/models/x", "~/x", "./x", "../x", "C:\\x", "a\\b", "${oc.env:M}", "pre/${X}/y"])
def test_paths_and_interpolations_pass_through_as_model_base(text: str) -> None:
    assert refs.model_base(text) == text


@pytest.mark.parametrize(
    ("text", "version", "ref"),
    [
        ("a/x@v1", "required", OwnedRef("a", "x", "v1")),
        ("a/x", "optional", OwnedRef("a", "x")),
        ("a/x@v1", "optional", OwnedRef("a", "x", "v1")),
        ("a/x", "forbidden", OwnedRef("a", "x")),
    ],
)
def test_owned_names(text: str, version: str, ref: OwnedRef) -> None:
    assert refs.parse_owned(text, version=version) == ref  # type: ignore[arg-type]
    assert str(ref) == text


@pytest.mark.parametrize(
    ("text", "version", "field"),
    [
        ("a/x", "required", "f"),
        ("a/x@v1", "forbidden", "f"),
        ("a/x@../v", "optional", "f.version"),
        ("a/x@", "required", "f.version"),
        ("x", "optional", "f"),
        ("tp:a/x@v1", "required", "f"),
        ("a/b/c@1", "required", "f"),
    ],
)
def test_what_is_no_owned_name(text: str, version: str, field: str) -> None:
    with pytest.raises(Refusal) as caught:
        refs.parse_owned(text, "f", version=version)  # type: ignore[arg-type]
    assert (caught.value.code, caught.value.field) == ("E-SPEC-028", field)


@pytest.mark.parametrize(
    "text", ["/mnt/x", "~/x", "./x", "../x/y", "a\\b", "${X}/y", "acme/x@v1", "x", "a/b/c", "tp:a/x"]
)
def test_a_path_or_a_version_is_no_volume(text: str) -> None:
    with pytest.raises(Refusal) as caught:
        refs.volume_ref(text, "spec.data.volumes[0]")
    assert caught.value.code == "E-SPEC-027"


@pytest.mark.parametrize(
    ("text", "output"),
    [
        ("run/r1/checkpoint", InitFrom("r1")),
        ("run/r1/checkpoint@step=500", InitFrom("r1", step=500)),
        ("run/r1/checkpoint@step=2,attempt=1", InitFrom("r1", step=2, attempt=1)),
        ("run/r1/checkpoint@attempt=1,step=2", InitFrom("r1", step=2, attempt=1)),
        ("run/run-4f2a91/export@attempt=0", InitFrom("run-4f2a91", "export", attempt=0)),
    ],
)
def test_outputs_of_runs(text: str, output: InitFrom) -> None:
    assert refs.parse_init_from(text) == output
    assert refs.parse_init_from(str(output)) == output


@pytest.mark.parametrize(
    "text",
    [
        "",
        "run/r1",
        "run/r1/",
        "run//checkpoint",
        "run/r1/a/b",
        "run/../checkpoint",
        "r1/checkpoint",
        "run/r1/checkpoint@",
        "run/r1/checkpoint@step",
        "run/r1/checkpoint@step=x",
        "run/r1/checkpoint@step=-1",
        "run/r1/checkpoint@step=01",
        "run/r1/checkpoint@step=1,step=2",
        "run/r1/checkpoint@epoch=1",
        "run/r1/checkpoint@step=1\n",
    ],
)
def test_what_is_no_output_of_a_run(text: str) -> None:
    with pytest.raises(Refusal) as caught:
        refs.parse_init_from(text)
    assert caught.value.code == "E-SPEC-029"


@pytest.mark.parametrize(
    "value",
    [
        {"run_id": "r1", "stepp": 1},
        {"kind": "checkpoint"},
        {"run_id": 1},
        {"run_id": "r1", "step": "5"},
        {"run_id": "r1", "step": True},
        {"run_id": "../r"},
    ],
)
def test_an_object_without_a_text_form_is_refused(value: dict[str, object]) -> None:
    with pytest.raises(Refusal) as caught:
        refs.init_from_text(value)
    assert caught.value.code == "E-SPEC-029"


SEGMENTS = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,8}", fullmatch=True)


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(["tp", "hf", "ms"]), SEGMENTS, SEGMENTS, SEGMENTS | st.just(""))
def test_a_built_reference_reads_as_built(hub: str, namespace: str, name: str, revision: str) -> None:
    ref = HubRef(hub, namespace, name, "" if ".." in revision else revision)
    assert refs.parse_hub_ref(str(ref)) == ref


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet="ahf:/@.~-0", max_size=14))
def test_a_reading_survives_its_canonical_form(text: str) -> None:
    try:
        ref = refs.parse_hub_ref(text)
    except Refusal:
        return
    assert refs.parse_hub_ref(str(ref)) == ref
