"""`tp model`: base models from hubs and models of one's own, from the hub or a run to the job that trains them further."""

from __future__ import annotations

import click

from hpc.cli.lazy import LazyGroup, Table

COMMANDS: Table = {
    "prefetch": ("hpc.cli.model_prefetch:prefetch", "Fetch a hub's model into the shared cache; write the lock."),
    "export": ("hpc.cli.evaluate_run:export_model", "Export what a run left: merged, with adapter and card, as a job."),
    "register": ("hpc.cli.model_register:register", "Put a run's model, or a folder, on the shelf."),
    "ls": ("hpc.cli.model_show:ls", "List the models of the shelf, or the certified ones of hubs."),
    "show": ("hpc.cli.model_show:show", "One model: facts, lineage, versions, channels."),
    "verify": ("hpc.cli.model_show:verify", "Read every byte of a version again."),
    "promote": ("hpc.cli.model_switch:promote", "Let a channel (such as production) mean a version."),
    "archive": ("hpc.cli.model_switch:archive", "Refuse new references to a version; old ones still resolve."),
    "rm": ("hpc.cli.model_switch:rm", "Remove a version that nothing references."),
}


@click.group(cls=LazyGroup, commands_at=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
def model() -> None:
    """Models: prefetch from a hub, export and register from a run, show, promote. NAME is OWNER/NAME or OWNER/NAME@VERSION."""
