"""A rank: plugins first, in this interpreter, then the training program as if it had been started alone."""

from __future__ import annotations

from typing import Any

import pytest
from tuneplane.contract import exits
from tuneplane.plugins import install_deferred
from tuneplane.plugins.fault import PluginFault

SAY = """import sys
print("program", __name__, sys.argv[1:], __file__ == sys.argv[0], sys.path[0], flush=True)
"""


def program(work: Any, text: str = SAY) -> Any:
    exp = work.root / "experiments" / "e"
    exp.mkdir(parents=True, exist_ok=True)
    (exp / "train_it.py").write_text(text)
    return exp


def test_an_eager_plugin_is_applied_before_the_training_module_is_imported(work: Any) -> None:
    patch = (
        "import sys, json\ndef install(*a, **k):\n    assert 'train_it' not in sys.modules\n    json.patched = (a, k)\n"
    )
    work.add("alice/opsd-patch@1.2.0", {"patch.py": patch}, entrypoint="patch:install", load="eager")
    exp = program(work, "import json, sys\nprint('sees', json.patched, sys.argv[1:])\n")
    work.lock(hyperparams={"lr": 0.5, "layers": [1, 2]})
    done = work.rank("-m", "train_it", "--x", "1")
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        "plugin  : alice/opsd-patch@1.2.0 applied in entrypoint process",
        "sees (({'lr': 0.5, 'layers': [1, 2]},), {}) ['--x', '1']",
    ]
    assert done.returncode == 0
    assert not (exp / "__pycache__").exists()


@pytest.mark.parametrize(
    "words", [("-m", "train_it", "a", "-m"), ("train_it.py", "a", "-m"), ("./train_it.py", "a", "-m")]
)
def test_the_program_runs_as_main_with_its_own_argv_and_path(work: Any, words: tuple[str, ...]) -> None:
    exp = program(work)
    work.lock()
    done = work.rank(*words)
    assert done.stdout == f"program __main__ ['a', '-m'] True {exp}\n", done.stderr


def test_a_script_elsewhere_has_its_own_folder_in_front(work: Any, tmp_path: Any) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "go.py").write_text("import beside, sys; print(sys.path[0])")
    (tmp_path / "elsewhere" / "beside.py").write_text("")
    work.lock()
    done = work.rank(str(tmp_path / "elsewhere" / "go.py"))
    assert done.stdout == f"{tmp_path / 'elsewhere'}\n", done.stderr


def test_a_deferred_plugin_is_registered_and_called_by_the_training_code(work: Any) -> None:
    late = "def go(hyperparams, **ctx):\n    print('called', hyperparams, ctx)\n    return 'ignored'\n"
    work.add("alice/late@2", {"late_mod.py": late}, entrypoint="late_mod:go", load="deferred")
    program(work, "from tuneplane.plugins import install_deferred\nprint(install_deferred('late', model=1))\n")
    work.lock()
    done = work.rank("-m", "train_it")
    assert done.stdout.splitlines() == [
        "plugin  : alice/late@2 registered in entrypoint process (deferred)",
        "called {'lr': 0.1} {'model': 1}",
        "None",
    ], done.stderr


def test_plugins_are_applied_in_the_specs_order_each_with_a_dict_of_its_own(work: Any) -> None:
    text = "def go(h):\n    print(sorted(h)); h.clear(); h['mine'] = 1\n"
    work.add("b/second", {"s_mod.py": text}, entrypoint="s_mod:go")
    work.add("a/first", {"f_mod.py": text}, entrypoint="f_mod:go")
    program(work, "")
    work.lock()
    assert work.rank("-m", "train_it").stdout.splitlines() == [
        "['lr']", "plugin  : b/second@1.0.0 applied in entrypoint process",
        "['lr']", "plugin  : a/first@1.0.0 applied in entrypoint process",
    ]  # fmt: skip


def test_an_unknown_deferred_plugin_is_a_plain_fault() -> None:
    with pytest.raises(PluginFault) as caught:
        install_deferred("nobody", model=1)
    assert caught.value.code == "E-JOB-038"
    assert "'nobody'" in caught.value.message


@pytest.mark.parametrize("how", ["raise ValueError('bad lr')", "import sys; sys.exit(0)"])
def test_a_plugin_that_raises_ends_the_rank_before_training_with_one_line(work: Any, how: str) -> None:
    work.add("alice/bad@1", {"bad_mod.py": f"def go(h):\n    {how}\n"}, entrypoint="bad_mod:go")
    program(work)
    work.lock()
    done = work.rank("-m", "train_it")
    assert done.returncode == exits.LAUNCH_FAILED == 2
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("tp: E-JOB-037 plugin alice/bad@1 raised: ")
    assert how.split("; ")[-1] in line
    assert "bad_mod.py" in line


def test_tampered_content_is_refused_before_any_of_its_code_runs(work: Any) -> None:
    folder = work.add("alice/a@1", {"a_mod.py": "def go(h): pass\n"}, entrypoint="a_mod:go")
    program(work)
    work.lock()
    (folder / "a_mod.py").write_text("print('ran')\n")
    done = work.rank("-m", "train_it")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("tp: E-JOB-030 plugin alice/a@1 content digest mismatch: spec=sha256:")


@pytest.mark.parametrize(
    ("change", "code"),
    [({"requires": {"python": ">=3.99"}}, "E-JOB-033"), ({"entrypoint": "a_mod:nothing"}, "E-JOB-036")],
)
def test_other_faults_end_the_rank_with_their_own_code(work: Any, change: dict[str, Any], code: str) -> None:
    work.add("alice/a@1", {"a_mod.py": "def go(h): pass\n"}, **({"entrypoint": "a_mod:go"} | change))
    program(work)
    work.lock()
    done = work.rank("-m", "train_it")
    assert (done.returncode, done.stdout, done.stderr.split()[1]) == (2, "", code)


def test_an_environment_package_is_checked_and_not_called(work: Any) -> None:
    text = "print('imported')\ndef go(h): print('called')\n"
    folder = work.add("alice/env@1", {"env_mod.py": text}, capability="environment", entrypoint="env_mod:go")
    program(work, "import env_mod\n")
    work.lock()
    from tuneplane.plugins.locked import python_path, read_locked

    (entry,) = python_path(read_locked(work.root))
    assert entry == str(folder)
    kernel = work.rank.__globals__["KERNEL"]
    done = work.rank("-m", "train_it", env={"PYTHONPATH": f"{kernel}:{entry}"})
    assert (done.returncode, done.stdout) == (0, "imported\n"), done.stderr


def test_the_programs_own_exit_code_is_the_ranks(work: Any) -> None:
    program(work, "import sys; sys.exit(85)")
    work.lock()
    assert work.rank("-m", "train_it").returncode == 85
    program(work, "raise KeyError('mine')")
    done = work.rank("-m", "train_it")
    assert done.returncode == 1
    assert "KeyError: 'mine'" in done.stderr


def test_without_words_it_says_how_it_is_called(work: Any) -> None:
    done = work.rank()
    assert done.returncode == exits.USAGE
    assert done.stderr.startswith("usage: python -m tuneplane.plugins.rank")


def test_what_a_plugin_does_to_argv_and_folder_is_not_the_program_s(work: Any) -> None:
    code = "import os, sys\ndef install(h):\n    sys.argv[:] = []\n    sys.argv = None\n    os.chdir('/')\n"
    for name in ("one", "two"):
        work.add(f"a/{name}", {f"{name}_code.py": code}, entrypoint=f"{name}_code:install")
    exp = program(work, "import os, sys\nprint('program', os.getcwd(), sys.argv)\n")
    work.lock()
    done = work.rank("train_it.py", "--x")
    assert done.stdout.splitlines()[-1] == f"program {exp} ['train_it.py', '--x']", done.stderr


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("sys.path.clear()", "off sys.path"),
        ("raise B()", "raised: b_code.B: stop"),
        ("sys.stdout.close()", "raised: ValueError: I/O operation on closed file"),
    ],
)
def test_a_plugin_that_breaks_the_interpreter_is_named(work: Any, body: str, words: str) -> None:
    code = f"import sys\nclass B(BaseException):\n    pass\ndef install(h):\n    {body}\n".replace("B()", "B('stop')")
    work.add("a/b@1.0.0", {"b_code.py": code}, entrypoint="b_code:install")
    program(work)
    work.lock()
    done = work.rank("train_it.py")
    assert done.returncode == exits.LAUNCH_FAILED
    said = done.stderr.splitlines()[-1]
    assert said.startswith("tp: E-JOB-037 plugin a/b@1.0.0"), done.stderr
    assert words in said
