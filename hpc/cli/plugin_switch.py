"""`tp plugin enable`, `disable` and `recommend`: what new references may mean. Locks made earlier are not touched."""

from __future__ import annotations

from typing import Any

import click
from tuneplane.record.times import utc_now

from hpc.cli.context import json_option, print_json, storage_root

_SITE = click.option(
    "--site", "everybody", is_flag=True, help="For the whole site (admins), also where the package is yours."
)
_GENERATION = click.option("--generation", type=int, default=None, help="Only if this is still the present generation.")


@click.command()
@click.argument("ref")
@_SITE
@_GENERATION
@json_option
def enable(ref: str, everybody: bool, generation: int | None, as_json: bool) -> None:
    """Allow new references to REF: a whole package, or OWNER/NAME@VERSION for one version."""
    _say(ref, "enabled", everybody, generation, as_json)


@click.command()
@click.argument("ref")
@_SITE
@_GENERATION
@json_option
def disable(ref: str, everybody: bool, generation: int | None, as_json: bool) -> None:
    """Refuse new references to REF. Experiments that are locked to it keep running; a family's switch outlasts new versions."""
    _say(ref, "disabled", everybody, generation, as_json)


def _say(text: str, word: str, everybody: bool, generation: int | None, as_json: bool) -> None:
    from hpc.registry.shelf import parse_ref
    from hpc.registry.switches import ADMIN, set_family, set_version

    ref = parse_ref(text, "REF")
    who = _caller() | {"side": ADMIN if everybody else "", "expected": generation}
    shelf = who.pop("shelf")
    words = (ref.owner, ref.name, ref.version, word) if ref.version else (ref.owner, ref.name, word)
    number = (set_version if ref.version else set_family)(shelf, *words, **who)
    _report(str(ref), word, number, as_json)


@click.command()
@click.argument("ref")
@click.option("--none", "nothing", is_flag=True, help="Recommend no version: the newest enabled one is meant again.")
@_GENERATION
@json_option
def recommend(ref: str, nothing: bool, generation: int | None, as_json: bool) -> None:
    """Make OWNER/NAME@VERSION what a reference without a version means (admins)."""
    from hpc.registry.shelf import parse_ref
    from hpc.registry.switches import recommend as choose

    parsed = parse_ref(ref, "REF")
    if bool(parsed.version) == nothing:
        raise click.UsageError("say OWNER/NAME@VERSION, or OWNER/NAME with --none")
    who = _caller()
    number = choose(who.pop("shelf"), parsed.owner, parsed.name, parsed.version, expected=generation, **who)
    _report(parsed.id, f"recommends {parsed.version or 'no version'}", number, as_json)


def _caller() -> dict[str, Any]:
    from hpc.plugins.kind import PLUGIN
    from hpc.registry.shelf import Shelf
    from hpc.site.sitefile import load_site
    from hpc.site.users import real_user

    root = storage_root()
    site = load_site(root)
    return {"shelf": Shelf(root, PLUGIN, site=site), "user": real_user(), "site": site, "now": utc_now()}


def _report(ref: str, word: str, generation: int, as_json: bool) -> None:
    if as_json:
        print_json({"ref": ref, "word": word, "generation": generation})
    else:
        click.echo(f"{ref}: {word} (generation {generation})")
