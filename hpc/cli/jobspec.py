"""`tp jobspec`: check a JobSpec, or print its JSON Schema."""

from __future__ import annotations

from typing import Any

import click

from hpc.cli.context import json_option, print_json

MAX_BYTES = 4 << 20


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def jobspec() -> None:
    """Validate a JobSpec or print its schema."""


@jobspec.command(short_help="Check a JobSpec; every fault at once.")
@click.argument("file")
@json_option
@click.pass_context
def validate(ctx: click.Context, file: str, as_json: bool) -> None:
    """Check FILE (JSON, or YAML by its name; `-` is stdin) and name every fault at once.

    Exit code 0 when it is accepted, 1 when it is refused. Recipe, site and quota are not looked at; admission does that.
    """
    from hpc.errors import Refusal, Refusals
    from hpc.spec.jobspec import parse

    errors: list[Refusal] = []
    normalised: dict[str, Any] | None = None
    digest = ""
    try:
        spec = parse(_read(file))
        normalised, digest = spec.normalised(), spec.digest()
    except Refusals as exc:
        errors = exc.items
    except Refusal as exc:
        errors = [exc]
    if as_json:
        verdict = "refuse" if errors else "accept"
        print_json({"verdict": verdict, "errors": [e.as_json() for e in errors], "normalised": normalised})
    elif errors:
        from hpc.cli.main import report

        report(errors, as_json=False)
        click.echo(f"{file}: refused, {len(errors)} {'fault' if len(errors) == 1 else 'faults'}", err=True)
    else:
        click.echo(f"{file}: accepted\ndigest  {digest}")
    ctx.exit(1 if errors else 0)


@jobspec.command(short_help="Print the JSON Schema.")
@json_option
def schema(as_json: bool) -> None:
    """Print the JSON Schema of the canonical spelling (always JSON)."""
    from hpc.spec.jobspec import json_schema

    print_json(json_schema())


def _read(file: str) -> Any:
    """The value in a file. Raises Refusal E-SPEC-001 … 005."""
    from tuneplane.record.canonical import CanonicalError, parse_json

    from hpc.errors import Refusal
    from hpc.spec.yamltext import parse_yaml

    try:
        with click.open_file(file, "rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except OSError as exc:
        message = f"cannot be read: {exc.strerror or exc}"
        raise Refusal("E-SPEC-005", message, field=file) from exc
    if len(data) > MAX_BYTES:
        raise Refusal("E-SPEC-004", "the document is too large", field=file, allowed=f"at most {MAX_BYTES} bytes")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as exc:
        raise Refusal("E-SPEC-001", f"not UTF-8: {exc}", field=file) from exc
    is_yaml = file.endswith((".yaml", ".yml")) or not (file.endswith(".json") or text.lstrip().startswith(("{", "[")))
    if is_yaml:
        return parse_yaml(text, origin="stdin" if file == "-" else file)
    try:
        return parse_json(text)
    except CanonicalError as exc:
        raise Refusal("E-SPEC-001", str(exc), field=file) from exc
