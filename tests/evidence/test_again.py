"""`tp again`: the same bytes from the records, or each difference by name; --run makes the run once more."""

from __future__ import annotations

import getpass
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from evidencelab import cli
from tuneplane.contract.layout import RunPaths, StorageRoot

sys.path.append(str(Path(__file__).parents[1] / "sif"))

GIT = {f"GIT_{who}_{what}": "t@example.invalid" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
ME = getpass.getuser()


class Site:
    """A storage root, a project with one experiment, and `tp` in this process."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self.root, self._capsys = folder, StorageRoot(folder / "storage"), capsys

    def tp(self, *argv: str, code: int = 0) -> SimpleNamespace:
        with pytest.raises(SystemExit) as ended:
            cli.main(list(argv))
        said = self._capsys.readouterr()
        assert ended.value.code == code, said.out + said.err
        return SimpleNamespace(out=said.out, err=said.err, json=lambda: json.loads(said.out))

    def edit(self, old: str, new: str) -> None:
        text = self.root.site_file.read_text()
        assert old in text
        self.root.site_file.write_text(text.replace(old, new, 1))

    def submit(self, *words: str) -> RunPaths:
        return RunPaths(Path(self.tp("submit", "job", "--json", *words).json()["run_dir"]))

    def ended(self, run: RunPaths) -> None:
        for _ in range(600):
            closing = run.events / "batch-0.jsonl"
            if closing.exists() and closing.read_bytes().endswith(b"\n"):
                assert self.tp("runs", "audit", run.run_id, "--json").json()["verdict"] == "verified"
                return
            time.sleep(0.05)
        raise AssertionError(f"{run.run_id} never ended well")

    def differences(self, run: RunPaths, code: int = 1) -> tuple[dict[str, Any], dict[str, Any]]:
        """(lines, around), each by what differs."""
        found = self.tp("again", run.run_id, "--json", code=code).json()
        return tuple({d["what"]: d for d in found[key]} for key in ("differences", "around"))  # type: ignore[return-value]


@pytest.fixture(scope="module")
def pattern(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A storage root and a project, made once; nothing in them names their place."""
    folder = tmp_path_factory.mktemp("pattern")
    env = {**os.environ, **GIT, "HOME": str(folder), "TUNEPLANE_STORAGE_ROOT": str(folder / "storage")}
    for line in (
        "tp site init $HOME/storage --name lab --fleet local", "tp init $HOME/lab --name lab", "cd lab && tp new job --method custom/custom",
        "cd lab && echo 'echo \"hello from $RUN_USER\"' >experiments/job/train.sh && git add -A && git commit -qm x",
    ):  # fmt: skip
        path = f"{Path(sys.executable).parent}:{env['PATH']}"
        subprocess.run(line, shell=True, check=True, cwd=folder, env={**env, "PATH": path}, capture_output=True)
    return folder


@pytest.fixture
def site(pattern: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Site:
    for name in ("storage", "lab"):
        shutil.copytree(pattern / name, tmp_path / name, symlinks=True)
    for name, value in {**GIT, "HOME": str(tmp_path), "TUNEPLANE_STORAGE_ROOT": str(tmp_path / "storage")}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path / "lab")
    return Site(tmp_path, capsys)


@pytest.fixture
def run(site: Site) -> RunPaths:
    return site.submit()


def test_the_same_bytes_come_out_again(site: Site, run: RunPaths) -> None:
    said = site.tp("again", "job", "--json").json()
    assert (said["verdict"], said["differences"], said["around"], said["submission"]) == ("identical", [], [], 0)
    assert (
        said["rendered_sha256"]
        == said["script_sha256"]
        == json.loads((run.submissions / "0.json").read_text())["script_sha256"]
    )
    assert site.tp("again", "job", "--show").out == (run.batch / "0.sh").read_text()


def test_a_changed_template_is_named_with_its_line(site: Site, run: RunPaths) -> None:
    from hpc.submit.template import shipped_folder

    copy = site.root.templates / "local.sh.j2"
    copy.write_text((shipped_folder() / "local.sh.j2").read_text() + "# one more line\n")
    lines, around = site.differences(run)
    assert (list(lines), around) == (["template"], {})
    assert (lines["template"]["recorded"], lines["template"]["now"]) == ("", "# one more line")
    assert lines["template"]["cause"] == f"the template {copy} was changed since"


def test_a_changed_include_is_named_though_its_digest_is_not_recorded(site: Site, run: RunPaths) -> None:
    from hpc.submit.template import shipped_folder

    text = (shipped_folder() / "functions.sh.j2").read_text()
    (site.root.templates / "functions.sh.j2").write_text(text.replace("date -u", "date --utc", 1))
    lines, _ = site.differences(run)
    assert lines["template"]["cause"].startswith(
        "the template is the same: functions.sh.j2 (whose digest is not recorded)"
    )


def test_a_site_option_that_no_record_holds_is_named_as_such(site: Site, run: RunPaths) -> None:
    site.edit("{kind: local}", "{kind: local, bin_dir: /opt/slurm/bin}")
    lines, _ = site.differences(run)
    assert {w: (d["recorded"], d["now"], d["cause"]) for w, d in lines.items()} == {
        "TP_SLURM_BIN": (
            "/usr/bin",
            "/opt/slurm/bin",
            "not recorded; today's is fleets.<fleet>.bin_dir of the site file",
        )
    }


def test_a_kernel_that_is_gone_or_changed_is_named_though_the_bytes_are_the_same(site: Site, run: RunPaths) -> None:
    (path,) = site.root.kernels.glob("verifier-*.zip")
    path.rename(path.with_suffix(".away"))
    _, around = site.differences(run, code=0)
    assert (around["kernel verifier"]["now"], around["kernel of this tp"]["now"]) == ("gone", "not published")
    path.write_bytes(b"another")
    _, around = site.differences(run, code=0)
    assert around["kernel verifier"]["now"].startswith("sha256:")
    refused = site.tp("again", "job", "--run", "--json", code=1).json()["errors"][0]
    assert (refused["code"], "2 differences; kernel verifier" in refused["message"]) == ("E-EVID-021", True)


def test_a_profile_or_a_fleet_that_is_gone_cannot_be_guessed(site: Site, run: RunPaths) -> None:
    text = site.root.site_file.read_text()
    site.edit("  cpu:", "  small:")
    site.edit("default_profile: cpu", "default_profile: small")
    lines, around = site.differences(run)
    assert (lines, around["profile"]["recorded"]) == ({}, "cpu")
    assert "cannot be rendered today" in site.tp("again", "job", code=1).out
    site.root.site_file.write_text(
        text.replace("  local: {", "  here: {").replace('default_fleet: "local"', "default_fleet: here")
    )
    _, around = site.differences(run)
    assert around["fleet"]["recorded"] == "local"


def test_a_frozen_script_that_was_edited_is_tampered(site: Site, run: RunPaths) -> None:
    site.ended(run)
    path = run.batch / "0.sh"
    path.chmod(0o755)
    path.write_text(path.read_text().replace("set -u", "set -eu"))
    said = site.tp("again", "job", "--json", code=2).json()
    assert said["verdict"] == "tampered"
    assert [d["what"] for d in said["differences"]] == ["template"]
    assert site.tp("again", "job", "--run", "--anyway", "--json", code=1).json()["errors"][0]["code"] == "E-EVID-021"


def test_a_package_that_was_changed_is_refused(site: Site, run: RunPaths) -> None:
    path = run.work / "experiments/job/train.sh"
    path.chmod(0o644)
    path.write_text("echo evil\n")
    assert site.tp("again", "job", "--json", code=1).json()["errors"][0]["code"] == "E-SUBMIT-071"


@pytest.mark.parametrize("damage", ["gone", "cut", "script"])
def test_a_run_whose_submission_cannot_be_read_is_not_guessed(site: Site, run: RunPaths, damage: str) -> None:
    if damage == "script":
        (run.batch / "0.sh").unlink()
    elif damage == "cut":
        (run.submissions / "0.json").chmod(0o644)
        (run.submissions / "0.json").write_text('{"nonce": 3}')
    else:
        (run.submissions / "0.json").unlink()
    assert site.tp("again", run.run_id, "--json", code=1).json()["errors"][0]["code"] == "E-EVID-020"


def test_a_run_is_made_again_from_the_same_package(site: Site, run: RunPaths) -> None:
    site.ended(run)
    told = site.tp("again", "job", "--run", "--json").json()["submitted"]
    new = site.root.run(ME, "job", told["run_id"])
    site.ended(new)
    digests = [json.loads(r.package.read_text())["digest_v2"] for r in (run, new)]
    assert digests[0] == digests[1]
    assert f"hello from {ME}" in (new.attempt(0).logs / "rank-00000.log").read_text()
    event = json.loads((new.events / "again-0.jsonl").read_text())
    assert event["details"] == {"owner": ME, "exp": "job", "run": run.run_id}
    assert site.tp("again", new.run_id, "--json").json()["verdict"] == "identical"


def test_with_differences_only_anyway_runs_it(site: Site, run: RunPaths) -> None:
    site.ended(run)
    site.edit("{kind: local}", "{kind: local, bin_dir: /opt/slurm/bin}")
    assert site.tp("again", "job", "--run", "--json", code=1).json()["errors"][0]["code"] == "E-EVID-021"
    told = site.tp("again", "job", "--run", "--anyway", "--json").json()
    assert (told["verdict"], told["differences"][0]["what"]) == ("different", "TP_SLURM_BIN")
    site.ended(site.root.run(ME, "job", told["submitted"]["run_id"]))


def test_another_kernel_is_named_and_only_anyway_takes_it(
    site: Site, run: RunPaths, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    from hpc.submit import kernelzip

    site.ended(run)
    monkeypatch.setattr(kernelzip, "_MAIN", kernelzip._MAIN + b"# a later tp\n")
    request.addfinalizer(kernelzip._digest.cache_clear)
    kernelzip._digest.cache_clear()
    site.tp("site", "sync")
    _, around = site.differences(run, code=0)
    assert set(around) == {"kernel verifier of this tp"}
    assert site.tp("again", "job", "--run", "--json", code=1).json()["errors"][0]["code"] == "E-EVID-021"
    told = site.tp("again", "job", "--run", "--anyway", "--json").json()["submitted"]
    new = site.root.run(ME, "job", told["run_id"])
    site.ended(new)
    was, now = (json.loads(r.launch.read_text()) for r in (run, new))
    assert now["kernel"]["verifier_sha256"] == around["kernel verifier of this tp"]["now"]
    assert {k: v for k, v in now.items() if k != "kernel"} == {k: v for k, v in was.items() if k != "kernel"}


def test_a_refused_repetition_leaves_no_run(site: Site, run: RunPaths) -> None:
    site.ended(run)
    site.edit("  jobs: 100", "  jobs: 0")
    refused = site.tp("again", "job", "--run", "--json", code=1).json()["errors"][0]
    assert refused["code"] == "E-SUBMIT-073"
    assert [p.name for p in run.root.parent.iterdir()] == [run.run_id]


def test_words_that_do_not_fit_together(site: Site, run: RunPaths) -> None:
    site.tp("again", "job", "--anyway", code=64)
    site.tp("again", "job", "--show", "--json", code=64)


@pytest.mark.two_users
def test_another_user_renders_a_shared_run_to_the_same_bytes(site: Site, run: RunPaths) -> None:
    assert os.getuid() == 0, "this test needs root, to become somebody else"
    site.ended(run)
    site.tp("run", "share", run.run_id)
    for folder in (site.folder, *list(site.folder.parents)[:3]):
        folder.chmod(folder.stat().st_mode & 0o7777 | 0o055)
    argv = [str(Path(sys.executable).parent / "tp"), "again", f"job/{run.run_id}", "--owner", ME, "--json"]
    said = subprocess.run(
        argv, user=65534, group=65534, extra_groups=[], capture_output=True, text=True, check=False, cwd="/"
    )
    assert (said.returncode, json.loads(said.stdout)["verdict"]) == (0, "identical")


class TestOnSlurm:
    """The same against a Slurm with an image: directives, mounts and the image come back from the records."""

    @pytest.fixture
    def slurm(self, site: Site, make_fake_slurm: Callable[..., Any]) -> Any:
        from sifs import small_sif

        fake = make_fake_slurm()
        site.edit(
            "  local: {kind: local}",
            f'  local: {{kind: local}}\n  batch: {{kind: slurm, bin_dir: "{fake.bin}", conf: "{fake.conf}"}}',
        )
        profile = "{fleet: batch, series: h200, nodes: 1, gpus_per_node: 8, cpus_per_gpu: 2, gres_type: h200}"
        site.edit("profiles:\n  cpu:", f"profiles:\n  h200: {profile}\n  cpu:")
        small_sif(site.folder / "general.sif")
        site.tp("runtime", "add", "general-1", str(site.folder / "general.sif"), "--copy")
        return fake

    @pytest.fixture
    def run(self, site: Site, slurm: Any) -> RunPaths:
        return site.submit("--profile", "h200:8", "--time", "30", "--qos", "high")

    def test_the_same_bytes_come_out_again(self, site: Site, run: RunPaths) -> None:
        said = site.tp("again", "job", "--json").json()
        assert (said["verdict"], said["differences"], said["around"]) == ("identical", [], [])

    def test_a_profile_that_was_changed_is_named_by_its_directives(self, site: Site, run: RunPaths) -> None:
        site.edit("gres_type: h200}", "gres_type: h200, gpu_dialect: gpus-per-node, partition: gpu}")
        site.edit("cpus_per_gpu: 2", "cpus_per_gpu: 4")
        lines, around = site.differences(run)
        assert {w: (d["recorded"], d["now"]) for w, d in lines.items()} == {
            "--gres": ("gpu:h200:8", "not there"), "--gpus-per-node": ("not there", "h200:8"), "--cpus-per-task": ("16", "32"),
            "--partition": ("not there", "gpu"), "TP_CPUS": ("16", "32"), "TP_POOL_CPUS": ("16", "32"),
        }  # fmt: skip
        assert (lines["--gres"]["cause"], around) == ("the profile in the site file", {})

    def test_an_image_that_is_gone_or_another_is_named(self, site: Site, run: RunPaths) -> None:
        from sifs import small_sif

        (image,) = site.root.images.glob("*.sif")
        image.chmod(0o644)
        small_sif(image, root=b"hsqs" + bytes(8188))
        _, around = site.differences(run, code=0)
        assert set(around) == {"image"}
        image.unlink()
        site.root.runtimes_file.unlink()
        _, around = site.differences(run, code=0)
        assert {w: d["now"] for w, d in around.items()} == {"runtime": "not registered", "image": "gone"}

    def test_a_repetition_is_a_job_of_its_own(self, site: Site, run: RunPaths, slurm: Any) -> None:
        told = site.tp("again", "job", "--run", "--json").json()["submitted"]
        first, second = slurm.jobs()
        assert (second["name"], str(second["id"])) == (f"job.{told['run_id']}.0", told["job_id"])
        assert first["name"] == f"job.{run.run_id}.0"
        assert site.tp("again", told["run_id"], "--json").json()["verdict"] == "identical"
