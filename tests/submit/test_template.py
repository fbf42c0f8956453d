"""Templates: what an admin edits, what lint refuses, and that every rendered script is clean bash."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jinja2 import DictLoader, Environment, StrictUndefined
from tuneplane.contract.layout import StorageRoot

from hpc.errors import Refusal, Refusals
from hpc.submit.template import NAMES, fill, find, render, settings_text

DIRECTIVES = "#SBATCH --job-name=e.run-1.0\n#SBATCH --nodes=2"
SETTINGS = {"TP_RUN_DIR": "/st/runs/a/e/run-1", "TP_MOUNTS": "type=bind,src=/a,dst=/a,ro\ntype=bind,src=/b,dst=/b"}
SCRIPTS = ("train.sbatch.j2", "custom.sbatch.j2", "local.sh.j2")


def make(root: StorageRoot | None = None, name: str = "train.sbatch.j2", directives: str = DIRECTIVES) -> str:
    return render(
        root, name, directives=directives if name != "local.sh.j2" else "", about="e, run-1", settings=SETTINGS
    )


@pytest.fixture
def site(tmp_path: Path) -> StorageRoot:
    root = StorageRoot(tmp_path)
    root.templates.mkdir(parents=True)
    return root


def edit(site: StorageRoot, before: str, after: str, name: str = "train.sbatch.j2") -> StorageRoot:
    text = find(None, name).text()
    assert before in text
    (site.templates / name).write_text(text.replace(before, after))
    return site


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_rendered_script_passes_shellcheck(name: str, shellcheck: str) -> None:
    done = subprocess.run(
        [shellcheck, "-s", "bash", "-S", "warning", "-"],
        input=make(name=name),
        text=True,
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "")


def test_an_admins_copy_wins(site: StorageRoot) -> None:
    edit(site, "{{ directives }}", "{{ directives }}\n#SBATCH --exclusive")
    assert "#SBATCH --exclusive\n" in make(site)
    assert "#SBATCH --exclusive\n" not in make(None)


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("set -u\n", "set -u\n#SBATCH --exclusive\n", "below the first command"),
        ("{{ directives }}", "{{ directives }}\n#SBATCH --nodes=3", "--nodes stands twice"),
        ("{{ directives }}", "{{ directives }}\n#SBATCH --exclusiv", "does not know --exclusiv"),
        ("{{ directives }}", "{{ directives }}\n#SBATCH --comment='a b'", "a blank in a directive"),
        ("{{ directives }}", '{{ directives }}\n#SBATCH --comment="x"', "a quote"),
        ("{{ directives }}", "{{ directives }}\n#SBATCH -N 2", "the long form"),
        ("{{ directives }}", "{{ directives }}\n#SBATCH --wrap=true", "tp's own business"),
        ("{{ directives }}", "{{ directives }}\n#SBATCH --comment=" + "x" * 1000, "a directive of 1018 characters"),
        ("tp_check\n", "tp_check\necho $SLURM_PROCID\n", "$SLURM_PROCID is expanded once"),
        ("tp_begin\ntp_check\n", "tp_check\n", "never calls tp_begin"),
        ("#!/bin/bash", "#!/bin/zsh", "names no bash"),
    ],
)
def test_p08_p41_a_bad_edit_is_refused_naming_the_line(
    site: StorageRoot, before: str, after: str, message: str
) -> None:
    edit(site, before, after)
    with pytest.raises(Refusals) as caught:
        make(site)
    fault = next(i for i in caught.value.items if message in i.message)
    assert fault.code == "E-SUBMIT-024"
    place, line = fault.field.rsplit(":", 1)
    assert place == str(site.templates / "train.sbatch.j2")
    assert int(line) >= 1


def test_an_unknown_hole_is_refused_with_the_known_ones(site: StorageRoot) -> None:
    edit(site, "set -u\n", "set -u\n{{ gpu_count }}\n")
    with pytest.raises(Refusal) as caught:
        make(site)
    assert caught.value.code == "E-SUBMIT-022"
    assert "directives, about, settings" in caught.value.allowed


def test_a_broken_template_names_its_line(site: StorageRoot) -> None:
    edit(site, "set -u\n", "set -u\n{% if %}\n")
    with pytest.raises(Refusal) as caught:
        make(site)
    assert caught.value.field.startswith(f"{site.templates / 'train.sbatch.j2'}:")


def test_a_template_cannot_reach_outside_its_holes(site: StorageRoot) -> None:
    edit(site, "set -u\n", "set -u\n# {{ about.__class__.__mro__ }}\n")
    with pytest.raises(Refusal):
        make(site)


def test_p01_a_control_character_in_a_setting_is_refused() -> None:
    for bad in ("a\x00b", "a\x1bb", "a\x7fb", "a\u2028b", "a\x85b", "a\rb"):
        with pytest.raises(Refusal):
            settings_text({"TP_X": bad})


def test_settings_are_exact_bytes_for_bash() -> None:
    value = 'it\'s $HOME `id` "q" \\ * ü\nsecond'
    done = subprocess.run(
        ["bash", "-c", settings_text({"TP_X": value}) + '\nprintf %s "$TP_X"'], capture_output=True, check=True
    )
    assert done.stdout.decode() == value


def test_every_name_is_shipped() -> None:
    for name in NAMES:
        assert find(None, name).path.is_file()
    with pytest.raises(Refusal):
        find(None, "../site.yaml")


PIECES = [
    "a", "\n", " ", "{", "}", "{{", "}}", "{%", "%}", "{#", "#}", "{{ directives }}", "{{settings}}", "{{\nabout\n}}", "{{ other }}", "-",
    "{{- about -}}", "{{ about|upper }}", '{% include "functions.sh.j2" %}', '{% include "none.j2" %}', "{% if about %}", "{% endif %}",
    "{% raw %}", "{% endraw %}", "${#a}", "\r\n", "é",
]  # fmt: skip


@given(st.lists(st.sampled_from(PIECES), max_size=8), st.lists(st.sampled_from(PIECES), max_size=3))
@settings(max_examples=300, deadline=None)
def test_holes_are_filled_as_jinja_fills_them(pieces: list[str], included: list[str]) -> None:
    values = {"directives": "#SBATCH --nodes=2", "about": "e, {{ about }}", "settings": "export A='b\n'"}
    texts = {"functions.sh.j2": "".join(included)}
    filled = fill("".join(pieces), values, texts.get)
    if filled is not None:
        jinja = Environment(
            loader=DictLoader(texts), undefined=StrictUndefined, keep_trailing_newline=True, autoescape=False
        )
        assert filled == jinja.from_string("".join(pieces)).render(values)


@pytest.mark.parametrize("name", SCRIPTS)
def test_shipped_templates_need_no_jinja(name: str) -> None:
    values = {"directives": "d", "about": "a", "settings": "s"}
    filled = fill(find(None, name).text(), values, lambda wanted: find(None, wanted).text())
    assert "tp_say() {" in (filled or "")


def test_a_copy_that_others_could_write_is_refused(site: StorageRoot) -> None:
    edit(site, "{{ directives }}", "{{ directives }}")
    copy = site.templates / "train.sbatch.j2"
    copy.chmod(0o666)
    with pytest.raises(Refusal) as caught:
        make(site)
    assert (caught.value.code, caught.value.field) == ("E-SITE-011", str(copy))
    copy.unlink()
    copy.symlink_to("nowhere")
    with pytest.raises(Refusal) as caught:
        make(site)
    assert caught.value.code == "E-SITE-013"


@pytest.mark.parametrize("name", ["train.sbatch.j2", "custom.sbatch.j2"])
def test_p47_p57_p60_one_step_a_job_one_exec_a_node_and_no_step_inside_another(name: str) -> None:
    text = make(name=name)
    commands = [line for line in text.split("\n") if not line.lstrip().startswith("#")]
    assert len([line for line in commands if "/srun" in line]) == 1
    assert len([line for line in commands if '"$TP_APPTAINER"' in line]) == 1
    assert not [line for line in commands if "instance start" in line]
    # The helper that decides the end runs in the batch step itself: it waits for no step's resources.
    decide = text[text.index("tp_decide() {") : text.index("\n}\n", text.index("tp_decide() {"))]
    assert "srun" not in decide
