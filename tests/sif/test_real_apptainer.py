"""The real Apptainer, on an image that `containers/build-runtimes` made."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hpc.sif.apptainer import Apptainer
from hpc.sif.glibc import image_glibc
from hpc.sif.image import check_sif, labels, sif_digest

pytestmark = pytest.mark.cluster
REPO = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def general() -> Path:
    """The general runtime, built if it is not in the build cache."""
    home = "/var/cache" if os.getuid() == 0 else os.path.expanduser("~/.cache")
    cache = os.environ.get("TP_BUILD_CACHE") or f"{home}/tuneplane-hpc"
    done = subprocess.run(
        [REPO / "containers" / "build-runtimes", cache, "general"], check=True, capture_output=True, text=True
    )
    assert done.stdout == f"general={cache}/general.sif\n"
    return Path(cache, "general.sif")


def test_the_header_the_labels_and_glibc_are_what_apptainer_says(general: Path) -> None:
    apptainer = Apptainer()
    inspected = apptainer.inspect(general)
    assert inspected["labels"] == labels(general)
    assert labels(general)["tuneplane.runtime_id"] == "general-1"
    python = apptainer.checked(["exec", "--cleanenv", "--no-home", "--pwd", "/", str(general), "python3", "-V"]).out
    assert python == f"Python {labels(general)['python.version']}\n"
    libc = apptainer.checked(["exec", "--no-home", "--pwd", "/", str(general), "getconf", "GNU_LIBC_VERSION"]).out
    assert libc == "glibc {}.{}\n".format(*(image_glibc(general) or (0, 0)))
    assert int(apptainer.version().split(".")[0]) >= 1


def test_spython_reads_the_same_labels(general: Path) -> None:
    """spython's inspect is sound as long as it agrees; in a process of its own, since it looks at the environment."""
    code = "import sys, json; from spython.main import Client; print(json.dumps(Client.inspect(sys.argv[1])['attributes']['labels']))"
    done = subprocess.run([sys.executable, "-c", code, general], check=True, capture_output=True, text=True)
    import json

    assert json.loads(done.stdout) == Apptainer().inspect(general)["labels"]


def test_a_real_build_from_a_definition_is_whole_and_its_test_section_ran(general: Path, tmp_path: Path) -> None:
    definition = tmp_path / "a.def"
    definition.write_text(
        f"Bootstrap: localimage\nFrom: {general.resolve()}\n\n%post\n    echo hello >/opt/hello\n\n%test\n    test -s /opt/hello\n",
        "utf-8",
    )
    out = tmp_path / "a.sif"
    Apptainer().build(out, definition, cache_dir=tmp_path / "c", tmp_dir=tmp_path / "t", need_bytes=1 << 20)
    assert check_sif(out).root_offset is not None
    said = Apptainer().checked(["exec", "--no-home", "--pwd", "/", str(out), "cat", "/opt/hello"]).out
    assert said == "hello\n"


def test_p59_the_same_definition_gives_another_digest_so_the_digest_is_the_identity(
    general: Path, tmp_path: Path
) -> None:
    definition = tmp_path / "a.def"
    definition.write_text(f"Bootstrap: localimage\nFrom: {general.resolve()}\n", "utf-8")
    digests = set()
    for name in ("a", "b"):
        out = tmp_path / f"{name}.sif"
        Apptainer().build(out, definition, cache_dir=tmp_path / "c", tmp_dir=tmp_path / "t", need_bytes=1 << 20)
        digests.add(sif_digest(out))
    assert len(digests) == 2


def test_p54_packages_in_a_home_folder_do_not_reach_the_images_python(general: Path, tmp_path: Path) -> None:
    minor = labels(general)["python.version"].rsplit(".", 1)[0]
    packages = tmp_path / ".local" / "lib" / f"python{minor}" / "site-packages"
    packages.mkdir(parents=True)
    (packages / "json.py").write_text("raise SystemExit('the home folder leaked in')\n", "utf-8")
    (packages / "leak.pth").write_text("import sys; sys.exit('the home folder leaked in')\n", "utf-8")
    code = "import json, site, sys; print(site.ENABLE_USER_SITE, [p for p in sys.path if '.local' in p])"
    args = ["exec", "--cleanenv", "--home", str(tmp_path), str(general), "python3", "-c", code]
    assert Apptainer().checked(args).out == "False []\n"


def test_a_failing_program_keeps_its_exit_code(general: Path) -> None:
    done = Apptainer().run(["exec", "--no-home", "--pwd", "/", str(general), "sh", "-c", "exit 37"])
    assert done.rc == 37


def test_build_runtimes_refuses_an_unknown_name_with_usage(tmp_path: Path) -> None:
    done = subprocess.run(
        [REPO / "containers" / "build-runtimes", tmp_path, "gpu"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (64, "")
    assert "unknown runtime: gpu" in done.stderr
