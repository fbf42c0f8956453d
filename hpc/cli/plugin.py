"""`tp plugin`: packages of code and declarations, from a folder to the job that runs them."""

from __future__ import annotations

import click

from hpc.cli.lazy import LazyGroup, Table

COMMANDS: Table = {
    "validate": ("hpc.cli.plugin_check:validate", "Check a package folder; nothing of it is run."),
    "digest": ("hpc.cli.plugin_check:digest", "Digests of a package folder, v1 and v2."),
    "publish": ("hpc.cli.plugin_publish:publish", "Put a package folder on the shelf, for ever."),
    "import": ("hpc.cli.plugin_publish:import_archive", "Preview a tar.gz, and store it with the preview's receipt."),
    "ls": ("hpc.cli.plugin_show:ls", "List the packages of the site."),
    "info": ("hpc.cli.plugin_show:info", "One package: versions, digests, requirements, README."),
    "install": ("hpc.cli.plugin_install:install", "Download a version; with --exp, lock it to an experiment."),
    "remove": ("hpc.cli.plugin_install:remove", "Take a plugin out of an experiment's lock."),
    "enable": ("hpc.cli.plugin_switch:enable", "Allow new references to a package or a version."),
    "disable": ("hpc.cli.plugin_switch:disable", "Refuse new references; locks made earlier still run."),
    "recommend": ("hpc.cli.plugin_switch:recommend", "Choose what a reference without a version means (admins)."),
    "files": ("hpc.cli.plugin_inspect:files", "The files of a version, or a preview of one."),
    "compare": ("hpc.cli.plugin_inspect:compare", "What differs between two versions."),
    "usage": ("hpc.cli.plugin_inspect:usage", "Runs that carried a package."),
    "activate": ("hpc.cli.plugin_policy:activate", "Make a playbook or prompt the site's (admins)."),
    "deactivate": ("hpc.cli.plugin_policy:deactivate", "Back to the built-in playbook or prompt (admins)."),
    "active": ("hpc.cli.plugin_policy:active", "Which policy is active, and which could be loaded."),
}


@click.group(cls=LazyGroup, commands_at=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
def plugin() -> None:
    """Plugin packages: validate, publish, install, manage, activate. REF is OWNER/NAME or OWNER/NAME@VERSION."""
