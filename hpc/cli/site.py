"""`tp site`: lay out a storage root, its users, its checks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from tuneplane.record.times import utc_now

from hpc.cli.context import GivenPath, json_option, print_json, storage_root, table

if TYPE_CHECKING:
    from tuneplane.contract.layout import StorageRoot

    from hpc.site.findings import Finding


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def site() -> None:
    """Lay out and check a storage root (admins)."""


def print_findings(findings: list[Finding], *, all_lines: bool = True) -> None:
    """Findings for people: what failed first, each with what to do; `ok` lines last and only if asked for."""
    from hpc.site.findings import ORDER

    for finding in sorted(findings, key=lambda f: ORDER.index(f.status)):
        if finding.status == "ok" and not all_lines:
            continue
        click.echo(f"{finding.status:<5} {finding.name:<20} {finding.message}")
        for label, text in (("found", finding.found), ("expect", finding.expect), ("mend", finding.mend)):
            if text and finding.status != "ok":
                click.echo(f"{'':<26} {label}: {text}")


def _publish(root: StorageRoot) -> list[str]:
    """Shipped recipes and plugins, kernels, and the policy that jobs read; one line each for what was done."""
    from hpc.catalog.shelf import publish_shipped
    from hpc.plugins.shipped_packages import publish_shipped_plugins
    from hpc.site.sitefile import load_site
    from hpc.site.users import real_user
    from hpc.submit.enforce import publish_policy
    from hpc.submit.kernelzip import publish_kernels

    lines = [f"recipe {p.id} {p.version}: {p.action}" for p in publish_shipped(root)]
    site = load_site(root)
    plugins = publish_shipped_plugins(root, site, real_user(), now=utc_now())
    lines += [f"plugin {p.id} {p.version}: {p.action}" for p in plugins]
    kernel = publish_kernels(root)
    lines += [f"kernel {kernel.verifier.name}", f"kernel {kernel.training.name}"]
    publish_policy(root, site)
    return [*lines, "policy site/policy.json"]


@site.command()
@click.argument("root", type=GivenPath())
@click.option("--name", default="", help="The site's name (default: the folder's).")
@click.option("--admin-user", default="", help="Account that owns what admins write (default: you).")
@click.option("--admin-group", default="", help="Unix group of the admins.")
@click.option("--users-group", default="", help="Unix group whose members may enrol themselves (default: nobody may).")
@click.option("--service-user", default="", help="Account that owns seals, index, cache and admitted packages.")
@click.option("--fleet", type=click.Choice(["local", "slurm"]), default="local", help="Where jobs run at first.")
@click.option("--bin-dir", default="/usr/bin", help="Folder of Slurm's commands.")
@click.option("--slurm-conf", default="", help="SLURM_CONF for the commands (default: Slurm's own).")
@json_option
def init(
    root: Path,
    name: str,
    admin_user: str,
    admin_group: str,
    users_group: str,
    service_user: str,
    fleet: str,
    bin_dir: str,
    slurm_conf: str,
    as_json: bool,
) -> int:
    """Lay out a storage root, or mend one.

    Folders with their owners and modes, the site file, recipes, kernels. Run again it changes no content. Ends with 1
    if the file system lacks something that is needed.
    """
    from hpc.site.layout import init_root
    from hpc.store.probe import probe

    laid = init_root(
        root,
        name=name,
        admin_user=admin_user,
        admin_group=admin_group,
        users_group=users_group,
        service_user=service_user,
        fleet=fleet,
        bin_dir=bin_dir,
        conf=slurm_conf,
    )
    published = _publish(laid.root)
    found = probe(laid.root.state)
    if as_json:
        print_json(
            {
                "root": str(laid.root.path),
                "admin": laid.admin,
                "new_folders": list(laid.new_folders),
                "new_site_file": laid.new_site_file,
                "published": published,
                "file_system": found.as_json(),
            }
        )
        return 1 if found.missing else 0
    click.echo(f"{laid.root.path}: {len(laid.new_folders)} new folders, admin {laid.admin}")
    click.echo(f"site file {'written' if laid.new_site_file else 'kept'}: {laid.root.site_file}")
    for line in published:
        click.echo(line)
    _say_file_system(found)
    if not found.missing:
        click.echo(f"\nNext: edit {laid.root.site_file}, then")
        click.echo(f"  export TUNEPLANE_STORAGE_ROOT={laid.root.path}\n  tp site check && tp doctor")
    return 1 if found.missing else 0


def _say_file_system(found: Any) -> None:
    where = f"{found.mount.fstype} at {found.mount.point}"
    if found.missing:
        click.echo(f"file system ({where}): NOT fit for a storage root")
        for name in found.missing:
            click.echo(f"  {name}: {found.outcomes[name].verdict}, {found.outcomes[name].detail}")
        return
    scope = " (tried with two processes of this host only)" if found.mount.network else ""
    click.echo(f"file system ({where}): sound, locks {', '.join(found.sound_locks)}{scope}; tp uses strict_soft")


@site.command()
@click.option(
    "--file",
    "candidate",
    type=GivenPath(),
    help="Check this site file alone, before it is put in place.",
)
@json_option
def check(candidate: Path | None, as_json: bool) -> int:
    """Check site file, folders, owners, modes, ACLs.

    Ends with 1 if anything must be mended.
    """
    from hpc.site.findings import failed, summary

    if candidate is not None:
        from hpc.site.check import check_candidate

        findings: list[Finding] = check_candidate(candidate)
    else:
        from hpc.site.check import check_root

        findings = check_root(storage_root())
    if as_json:
        print_json(summary(findings))
    else:
        print_findings(findings)
    return 1 if failed(findings) else 0


@site.command()
@json_option
def show(as_json: bool) -> None:
    """Show the site file with all defaults."""
    from hpc.site.sitefile import load_site

    root = storage_root()
    value = load_site(root).model_dump(mode="json", by_alias=True)
    if as_json:
        print_json({"root": str(root.path), "site": value})
        return
    click.echo(f"# {root.site_file}")
    import yaml

    click.echo(yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=100), nl=False)


@site.command()
@json_option
def sync(as_json: bool) -> None:
    """Publish recipes, kernels and policy.

    Needed after an upgrade of tp and after an edit of site.yaml.
    """
    from hpc.errors.core import Refusal
    from hpc.site.sitefile import load_site
    from hpc.site.users import is_admin, real_user

    root, caller = storage_root(), real_user()
    if not is_admin(caller, load_site(root)):
        raise Refusal("E-SITE-036", f"{caller.name} is no admin here", found=caller.name)
    lines = _publish(root)
    if as_json:
        print_json({"root": str(root.path), "published": lines})
        return
    for line in lines:
        click.echo(line)


@site.command()
@json_option
def key(as_json: bool) -> None:
    """Make the signing key (service user).

    Prints the public key for admission.public_key in site.yaml. Made once.
    """
    from hpc.errors.core import Refusal
    from hpc.site.sitefile import load_site
    from hpc.site.users import real_user
    from hpc.submit.enforce import make_key

    root, caller = storage_root(), real_user()
    wanted = load_site(root).service_user
    if not wanted or caller.name != wanted:
        raise Refusal(
            "E-SITE-037",
            f"{caller.name} is not the service user",
            field="site.yaml: service_user",
            found=caller.name,
            allowed=wanted or "a service_user in site.yaml",
        )
    public = make_key(root)
    if as_json:
        print_json({"public_key": public})
    else:
        click.echo(public)


@site.command()
@click.argument("lock", type=GivenPath())
@click.option("--force", is_flag=True, help="Remove every claim. Only if you know that nobody is inside.")
@json_option
def unlock(lock: Path, force: bool, as_json: bool) -> int:
    """Show who holds a lock, free a dead one.

    Removes the claims of owners that are proved gone; ends with 1 if others are left.
    """
    from hpc.store.locks import break_claims, claims

    standing = claims(lock)
    gone = [c for c in standing if c.gone or force]
    break_claims(lock, [c.name for c in gone])
    left = [c for c in standing if c not in gone]
    if as_json:
        rows = [{"claim": c.name, "owner": str(c), "gone": c.gone, "removed": c in gone} for c in standing]
        print_json({"lock": str(lock), "claims": rows, "free": not left})
    elif not standing:
        click.echo(f"{lock} is free")
    else:
        for claim in standing:
            click.echo(f"{'removed' if claim in gone else 'held'}: {claim}")
    return 1 if left else 0


@site.group()
def user() -> None:
    """Users of the storage root: add, retire, transfer, ls."""


@user.command()
@click.argument("name")
@click.option("--group", default="", help="The project's group for the user's runs (default: their primary group).")
@json_option
def add(name: str, group: str, as_json: bool) -> None:
    """Make a user's folders, or take one back.

    As root for anybody; for yourself where the site lets users enrol.
    """
    from hpc.site.layout import add_user

    made = add_user(storage_root(), name, group=group)
    if as_json:
        print_json({"user": name, "new_folders": [str(p) for p in made]})
        return
    for path in made:
        click.echo(f"new: {path}")
    click.echo(f"{name} can submit" if made else f"{name} had all folders; modes are right")


@user.command()
@click.argument("name")
@json_option
def retire(name: str, as_json: bool) -> None:
    """Refuse new records of a user.

    What is there stays readable.
    """
    from hpc.site.layout import retire_user

    member = retire_user(storage_root(), name)
    if as_json:
        print_json(member.as_json())
    else:
        click.echo(f"{name} is retired; records stay readable, new ones are refused")


@user.command()
@click.argument("name")
@click.argument("to")
@json_option
def transfer(name: str, to: str, as_json: bool) -> int:
    """Give a retired user's folders to another.

    Needs root. The folders keep their name.
    """
    from hpc.site.layout import transfer_user

    done = transfer_user(storage_root(), name, to)
    if as_json:
        print_json({"user": name, "to": to, "changed": done.changed, "left": done.left})
    else:
        click.echo(f"{done.changed} files and folders of {name} belong to {to} now")
        for path in done.left:
            click.echo(f"left, another owner: {path}")
    return 1 if done.left else 0


@user.command()
@json_option
def ls(as_json: bool) -> None:
    """List who has folders here."""
    from hpc.site.members import list_members

    members = list_members(storage_root())
    if as_json:
        print_json([m.as_json() for m in members])
        return
    rows = [[m.name, str(m.uid), m.state, m.transferred_to] for m in members]
    click.echo(table(rows, ["USER", "UID", "STATE", "TRANSFERRED TO"]))
