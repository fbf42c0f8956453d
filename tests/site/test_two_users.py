"""Two real Unix users on one root, by su: neither writes, squats unnoticed, overwrites or impersonates the other."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tuneplane.contract.layout import StorageRoot

from hpc.errors import Refusal
from hpc.site.check import check_root
from hpc.site.layout import add_user, init_root
from hpc.site.members import ensure_owner
from hpc.site.sitefile import load_site
from hpc.site.trust import require_owner_folder
from hpc.site.users import User
from tests.site.people import AsUserError, as_user, su

pytestmark = pytest.mark.two_users


@pytest.fixture(scope="module")
def shared(people: tuple[User, User], users_group: str) -> Iterator[StorageRoot]:
    """A root with both people enrolled; the first has a run, a plugin and a state file. No attack changes it."""
    scratch = Path(tempfile.mkdtemp(prefix="tp-two-users-"))
    scratch.chmod(0o755)
    root = init_root(scratch / "root", name="lab", admin_group="root", users_group=users_group).root
    one, other = people
    add_user(root, one.name)
    add_user(root, other.name)
    done = su(
        one,
        f"""set -e; umask 022; cd {root.path}
        mkdir -p runs/{one.name}/exp/run-0001 registry/plugins/{one.name}/patch
        echo mine > runs/{one.name}/exp/run-0001/report.json
        echo mine > registry/plugins/{one.name}/patch/plugin.json
        echo mine > state/{one.name}/intent.json""",
    )
    assert done.returncode == 0, done.stderr
    yield root
    shutil.rmtree(scratch)


ATTACKS = {
    "overwrite a report": "echo forged > runs/{one}/exp/run-0001/report.json",
    "read a run": "cat runs/{one}/exp/run-0001/report.json",
    "read the state": "cat state/{one}/intent.json",
    "add a run": "mkdir runs/{one}/exp/run-0002",
    "add an experiment": "mkdir runs/{one}/exp2",
    "remove the runs": "rm -rf runs/{one} && ! test -e runs/{one}",
    "rename the owner folder": "mv runs/{one} runs/taken",
    "put another in its place": "mv runs/{other} runs/{one}",
    "exchange the shelf": "mv registry/plugins/{one} registry/plugins/old",
    "change a plugin": "echo forged > registry/plugins/{one}/patch/plugin.json",
    "open a mode": "chmod 777 runs/{one}",
    "edit the site file": "echo 'name: mine' >> site/site.yaml",
    "replace the site file": "mv site/site.yaml site/old.yaml",
    "add a template": "echo x > site/sbatch_templates/train.sbatch.j2",
    "add a recipe": "mkdir registry/recipes/mine",
    "add a seal": "echo x > registry/seals/x",
    "fill the cache": "echo x > cache/hf/x",
    "write a record about oneself": "echo x > site/users/{other}.json",
    "move the site": "mv site site2",
    "add to the root": "mkdir extra",
    "hard-link a secret into the own folder": "ln state/{one}/intent.json state/{other}/stolen",
}


@pytest.mark.parametrize("attack", list(ATTACKS))
def test_neither_user_can_touch_what_is_not_theirs(shared: StorageRoot, people: tuple[User, User], attack: str) -> None:
    one, other = people
    before = sorted(str(p) for p in shared.path.rglob("*"))
    script = ATTACKS[attack].format(one=one.name, other=other.name)
    done = su(other, f"cd {shared.path} && {script}")
    assert done.returncode != 0, done.stdout
    assert sorted(str(p) for p in shared.path.rglob("*")) == before
    assert (shared.owner_runs(one.name) / "exp/run-0001/report.json").read_text() == "mine\n"
    assert [f.message for f in check_root(shared) if f.status == "fail"] == []


@pytest.mark.parametrize("make", ["mkdir", "ln -s /tmp", "touch"])
def test_a_squatted_folder_is_reported_and_never_used(
    scratch: Path, people: tuple[User, User], users_group: str, make: str
) -> None:
    one, other = people
    root = init_root(scratch / "root", name="lab", admin_group="root", users_group=users_group).root
    for parent in (root.runs, root.shelf("models")):
        assert su(other, f"{make} {parent}/{one.name}").returncode == 0
    with pytest.raises(AsUserError) as at_use:
        as_user(one, ensure_owner, root, one)
    assert at_use.value.code in ("E-SITE-020", "E-SITE-013")
    with pytest.raises(Refusal) as by_admin:
        add_user(root, one.name)
    assert by_admin.value.code in ("E-SITE-020", "E-SITE-013")
    found = [f for f in check_root(root) if f.status == "fail"]
    assert {f.name for f in found} == {"layout.owners"}
    assert {f.message.split()[1].rstrip(":") for f in found} == {
        str(root.runs / one.name),
        str(root.shelf("models") / one.name),
    }
    assert os.path.lexists(root.runs / one.name)  # found, named, and left for the admin
    assert (root.runs / one.name).lstat().st_uid == other.uid


def test_a_folder_for_a_name_without_an_account_is_reported(shared: StorageRoot, people: tuple[User, User]) -> None:
    assert su(people[1], f"mkdir {shared.runs}/future-user").returncode == 0
    (found,) = [f for f in check_root(shared) if f.status == "fail"]
    (shared.runs / "future-user").rmdir()
    assert found.message == f"E-SITE-030 {shared.runs}/future-user: there is no user future-user"


def test_nobody_becomes_another_by_variables(shared: StorageRoot, people: tuple[User, User]) -> None:
    one, other = people
    with pytest.raises(AsUserError) as caught:
        as_user(other, _claim, shared, one)
    assert caught.value.code == "E-SITE-020"


def _claim(root: StorageRoot, victim: User) -> None:
    """Say that one is `victim`, in every way that a program could be told, and use the folders."""
    os.environ.update(USER=victim.name, LOGNAME=victim.name, SUDO_USER=victim.name, HOME=f"/home/{victim.name}")
    require_owner_folder(root.owner_runs(victim.name), os.getuid())


def test_a_site_file_on_an_own_root_does_not_pass_for_the_shared_one(
    shared: StorageRoot, people: tuple[User, User]
) -> None:
    """A user who owns a copy of site/ cannot link the shared root's parts into it and be believed."""
    other = people[1]
    fake = StorageRoot(shared.user_state(other.name) / "fake")
    script = f"mkdir {fake.path} && ln -s {shared.site} {fake.site} && ln -s {shared.runs} {fake.runs}"
    assert su(other, script).returncode == 0
    with pytest.raises(AsUserError) as caught:
        as_user(other, load_site, fake)
    assert caught.value.code == "E-SITE-013"
