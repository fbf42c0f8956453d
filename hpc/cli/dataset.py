"""`tp dataset`: data sets on the shelf, from a folder to the job that trains on them."""

from __future__ import annotations

import click

from hpc.cli.lazy import LazyGroup, Table

COMMANDS: Table = {
    "prepare": ("hpc.cli.dataset_prepare:prepare", "Run common/data/prepare_NAME.py or an installed one; list them."),
    "push": ("hpc.cli.dataset_push:push", "Publish a folder as NAME@VERSION, for good."),
    "prefetch": (
        "hpc.cli.model_prefetch:dataset_prefetch",
        "Fetch a hub's data set into the shared cache; write the lock.",
    ),
    "ls": ("hpc.cli.dataset_show:ls", "List the data sets of the site."),
    "show": ("hpc.cli.dataset_show:show", "One version: splits, rows, columns, a sample."),
    "card": ("hpc.cli.dataset_show:card", "The README of a version."),
    "verify": ("hpc.cli.dataset_show:verify", "Hash every file of a version again."),
    "visibility": ("hpc.cli.dataset_push:visibility", "Who may read a name: public, a group, or you alone."),
    "rm": ("hpc.cli.dataset_push:rm", "Remove a version that nothing names."),
    "publish-output": ("hpc.cli.dataset_push:publish_output", "Publish what a run produced, where its job could not."),
    "quality": ("hpc.cli.dataset_quality:quality", "Duplicates, near-duplicates, overlap and group leaks."),
    "check": ("hpc.cli.dataset_quality:check", "Overlap with an evaluation set; exit 1 if there is any."),
    "fingerprint": ("hpc.cli.dataset_quality:fingerprint", "Digests of rows, to compare data without giving it away."),
}


@click.group(cls=LazyGroup, commands_at=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
def dataset() -> None:
    """Data sets: publish, look at, verify, judge. REF is OWNER/NAME@VERSION; without a version the newest is meant."""
