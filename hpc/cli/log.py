"""`tp log`: the witnessed log of records' digests. Cron of the service user adds; everybody verifies; another uid or host witnesses."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from tuneplane.contract import exits
from tuneplane.record.times import utc_now

from hpc.cli.context import GivenPath, json_option, print_json, storage_root
from hpc.errors import Refusal

if TYPE_CHECKING:
    from tuneplane.contract.layout import StorageRoot

    from hpc.evidence.log import Head
    from hpc.evidence.note import VerifierKey

SHOWN = 20


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
def log() -> None:
    """The witnessed log: init, add, prove, verify, witness."""


key_option = click.option(
    "--key", "key_text", default="", metavar="VKEY", help="The log's public key, in place of site/log.vkey."
)


def _head(root: StorageRoot, key_text: str) -> tuple[Head, VerifierKey]:
    from hpc.evidence.log import read_head, trusted_key
    from hpc.site.sitefile import load_site

    key = trusted_key(root, load_site(root), key_text)
    return read_head(root, key), key


@contextmanager
def _alone(lock: Path, purpose: str) -> Iterator[None]:
    """One writer at a time. Raises Refusal E-EVID-005."""
    from hpc.store.locks import held

    try:
        with held(lock, purpose=purpose):
            yield
    except Refusal as exc:
        if exc.code == "E-STORE-001":
            raise Refusal("E-EVID-005", exc.message, field=str(lock), found=exc.found) from exc
        raise


@log.command()
@click.option(
    "--origin", default="", metavar="NAME", help="The log's name in its signatures. Default: <site name>/tp-log."
)
@json_option
def init(origin: str, as_json: bool) -> None:
    """Make the log's key and the empty log (service user), and print the public key for site/log.vkey. Again is safe."""
    from hpc.evidence.log import init_log
    from hpc.evidence.note import NoteError, check_name
    from hpc.site.sitefile import load_site

    root = storage_root()
    try:
        name = check_name(origin or f"{load_site(root).name}/tp-log")
    except NoteError as exc:
        raise click.UsageError(f"--origin: {exc}") from exc
    key = init_log(root, name, uid=os.getuid())
    if as_json:
        print_json({"origin": key.name, "key": str(key)})
    else:
        click.echo(str(key))


@log.command()
@click.option("--all", "everything", is_flag=True, help="Read every record again and compare it with what was logged.")
@click.option("--if-idle", is_flag=True, help="Exit 0 without a word while another command writes the log.")
@json_option
def add(everything: bool, if_idle: bool, as_json: bool) -> int:
    """Log what is new: run records, heads of ended runs' chains, registry records (service user, cron). Exit 2 if one contradicts the log."""
    root = storage_root()
    try:
        found, head, added = _add(root, everything=everything)
    except Refusal as exc:
        if exc.code == "E-EVID-005" and if_idle:
            return exits.DONE
        raise
    if as_json:
        print_json(
            {
                "added": added, "size": head.checkpoint.size, "runs": found.runs, "looked_at": found.looked_at,
                "conflicts": [c.as_json() for c in found.conflicts], "unread": found.unread, "gone": found.gone,
            }
        )  # fmt: skip
    else:
        click.echo(f"{added} added, {head.checkpoint.size} in all; {found.looked_at} of {found.runs} runs were read")
        for conflict in found.conflicts[:SHOWN]:
            fact = conflict.entry.fact
            click.echo(f"tp: entry {conflict.entry.index}: {fact.subject} {fact.path} {conflict.message}", err=True)
        # The frequent round of cron must not repeat itself; the nightly one tells.
        for path, why in sorted(found.unread.items())[:SHOWN] if everything else ():
            click.echo(f"tp: note: {path} cannot be read: {why}", err=True)
    return exits.TAMPERED if found.conflicts else exits.DONE


def _add(root: StorageRoot, *, everything: bool) -> tuple[Any, Head, int]:
    from hpc.evidence.entries import encode_entry
    from hpc.evidence.gather import gather
    from hpc.evidence.log import LOCK, append, read_entries, read_head, require_service, signer_key

    uid = os.getuid()
    require_service(root, uid)
    key = signer_key(root, uid)
    with _alone(root.log / LOCK, "log add"):
        head = read_head(root, key.verifier)
        found = gather(root, read_entries(root, head), everything=everything)
        now = utc_now()
        after = append(root, [encode_entry(f, now) for f in found.fresh], key, head)
    return found, after, len(found.fresh)


@log.command()
@click.argument("digest")
@click.option("-o", "output", type=GivenPath(), metavar="FILE", help="Write the proof there.")
@key_option
@json_option
def prove(digest: str, output: Path | None, key_text: str, as_json: bool) -> None:
    """Prove that a digest is in the log: of a record's file, or the head of a chain. Prints a C2SP tlog-proof that stands alone."""
    from tuneplane.record.digest import is_digest

    from hpc.evidence.verify import prove as proofs
    from hpc.store.faults import refusal

    wanted = digest if digest.startswith("sha256:") else f"sha256:{digest}"
    if not is_digest(wanted):
        raise click.UsageError("DIGEST is 64 hexadecimal digits, with or without sha256: before them")
    root = storage_root()
    head, _ = _head(root, key_text)
    found = proofs(root, head, wanted)
    if not found:
        raise Refusal("E-EVID-007", f"{head.checkpoint.size} entries, none has it", field=wanted)
    entry, text = found[0]
    if output is not None:
        try:
            output.write_bytes(text)
        except OSError as exc:
            raise refusal(exc, output, "write the proof") from exc
    if as_json:
        print_json({"digest": wanted, "size": head.checkpoint.size, "proofs": [_proof_json(e, t) for e, t in found]})
    elif output is None:
        click.echo(text.decode(), nl=False)
    else:
        click.echo(f"entry {entry.index} of {head.checkpoint.size}, logged {entry.logged_at}: {output}")


def _proof_json(entry: Any, text: bytes) -> dict[str, Any]:
    fact = entry.fact
    return {
        "index": entry.index, "logged_at": entry.logged_at, "kind": fact.kind, "subject": fact.subject, "path": fact.path,
        "proof": text.decode(),
    }  # fmt: skip


@log.command()
@click.option(
    "--witness",
    type=GivenPath(),
    metavar="FILE",
    help="A checkpoint that a witness kept; compare with it.",
)
@click.option("--records", is_flag=True, help="Read every record again and compare it with what was logged.")
@key_option
@json_option
def verify(witness: Path | None, records: bool, key_text: str, as_json: bool) -> int:
    """Recompute the log from its files: signature, tiles, entries, a witness's last checkpoint. Exit 2 names the first disagreement."""
    from hpc.evidence.note import MAX_NOTE
    from hpc.evidence.verify import check_log
    from hpc.store.faults import refusal

    root = storage_root()
    head, key = _head(root, key_text)
    seen = None
    if witness is not None:
        try:
            with open(witness, "rb") as stream:
                seen = stream.read(MAX_NOTE + 1)
        except OSError as exc:
            raise refusal(exc, witness, "read the witness's checkpoint") from exc
    found = check_log(root, head, key, witness=seen, records=records)
    if as_json:
        print_json(found.as_json())
    else:
        click.echo(f"{found.origin}: {found.size} entries, {'tampered' if found.faults else 'verified'}")
        _list(found.faults, found.notes)
    return exits.TAMPERED if found.faults else exits.DONE


def _list(faults: tuple[str, ...], notes: tuple[str, ...]) -> None:
    from hpc.spec.text import escaped

    for fault in faults[:SHOWN]:
        click.echo(f"tp: {escaped(fault)}", err=True)
    if len(faults) > SHOWN:
        click.echo(f"tp: and {len(faults) - SHOWN} more", err=True)
    for note in notes:
        click.echo(f"tp: note: {escaped(note)}", err=True)


@log.command()
@click.option(
    "--state",
    required=True,
    type=GivenPath(),
    metavar="DIR",
    help="Where this witness keeps what it saw.",
)
@click.option(
    "--make-key", default="", metavar="NAME", help="Make a key of that name, with which this witness signs what it saw."
)
@click.option("--if-idle", is_flag=True, help="Exit 0 without a word while another visit of this witness goes on.")
@key_option
@json_option
def witness(state: Path, make_key: str, if_idle: bool, key_text: str, as_json: bool) -> int:
    """Visit as a witness (another uid or host, cron): the log must extend what was seen last. Exit 2 if it does not."""
    from hpc.evidence.witness import new_cosigner, require_own, visit

    root, uid = storage_root(), os.getuid()
    require_own(state, uid)
    if make_key:
        click.echo(f"{new_cosigner(state, make_key, uid)}", err=as_json)
    head, key = _head(root, key_text)
    try:
        with _alone(state / "visit.lock", "log witness"):
            found = visit(root, head, key, state, uid=uid, now=datetime.now(timezone.utc))
    except Refusal as exc:
        if exc.code == "E-EVID-005" and if_idle:
            return exits.DONE
        raise
    if as_json:
        print_json(found.as_json())
    else:
        verb = "does not extend" if found.faults else "extends"
        before = (
            f"{verb} the {found.before_size} entries seen at {found.before_at}" if found.before_at else "first visit"
        )
        click.echo(f"{found.origin}: {found.size} entries, {before}{', cosigned' if found.cosigned else ''}")
        click.echo(f"  watched since {found.first_at}, from {found.first_size} entries on")
        for line in found.blind:
            click.echo(f"  blind for: {line}")
        _list(found.faults, ())
    return exits.TAMPERED if found.faults else exits.DONE
