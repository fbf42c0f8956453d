"""Error kinds of using plugins: installing them, locking them to an experiment, and what a job with them must satisfy."""

from __future__ import annotations

from hpc.errors.core import ErrorKind, table

KINDS: dict[str, ErrorKind] = table(
    ErrorKind(
        "E-INSTALL-001",
        "the download is not what the registry recorded",
        "Bytes were lost or changed on the way. What was installed before stays as it was.",
        "Install again; if it stays so, ask an admin for `tp registry verify` of that version.",
    ),
    ErrorKind(
        "E-INSTALL-002",
        "not a package that a job can carry",
        "Only algorithm, environment, framework-integration and data-prep packages with execution: job are locked to an experiment.",
        "Install it without --exp. A recipe pack is chosen with `tp new EXP --method OWNER/NAME`.",
    ),
    ErrorKind(
        "E-INSTALL-003",
        "two plugins with one leaf name",
        "In the job both would be unpacked into tuneplane_plugins/<leaf>/.",
        "Lock one of them, or ask its author to rename it.",
    ),
    ErrorKind(
        "E-INSTALL-004",
        "two plugins with one import name",
        "Both bring a module of that name; which one Python takes would depend on the order of the path.",
        "Lock one of them, or ask its author for a unique import root.",
    ),
    ErrorKind(
        "E-INSTALL-005",
        "the lock names other bytes than the registry",
        "plugins.lock.json and the registry's record have different digests for one version.",
        "Lock it again with `tp plugin install REF --exp EXP`, after asking its owner what happened.",
    ),
    ErrorKind(
        "E-INSTALL-006",
        "the experiment has no such plugin",
        "plugins.lock.json does not name it.",
        "See the lock; ids are OWNER/NAME.",
    ),
    ErrorKind(
        "E-INSTALL-007",
        "something else lies where the package would be installed",
        "The folder below tuneplane_plugins/ is a link, a file, or cannot be written.",
        "Move it away and install again.",
    ),
    ErrorKind(
        "E-INSTALL-010",
        "the plugin requires another tp",
        "requires.core of the plugin does not admit the version of this tp.",
        "Lock a version of the plugin for this tp, or use a tp of the range.",
    ),
    ErrorKind(
        "E-INSTALL-011",
        "the plugin is for another framework",
        "requires.frameworks does not name the job's framework, or not this version of it.",
        "Choose another version of the plugin, or another method.",
    ),
    ErrorKind(
        "E-INSTALL-012",
        "the plugin is for other methods",
        "requires.methods does not name the experiment's method.",
        "Choose a listed method, or another plugin.",
    ),
    ErrorKind(
        "E-INSTALL-013",
        "the plugin is for other backends",
        "requires.backends does not name the kind of fleet that the profile belongs to.",
        "Choose a profile on a listed kind of fleet.",
    ),
    ErrorKind(
        "E-INSTALL-014",
        "nothing in this method uses the plugin",
        "An algorithm needs a method that starts ranks of Python; a data-prep plugin needs custom/custom. Locked elsewhere it would travel and never run.",
        "Remove it from this experiment with `tp plugin remove ID --exp EXP`.",
    ),
    ErrorKind(
        "E-INSTALL-015",
        "the recipe needs a plugin that is not locked",
        "recipe.yaml names plugins; each must be locked under that leaf name.",
        "Lock it with `tp plugin install OWNER/NAME --exp EXP`.",
    ),
    ErrorKind(
        "E-INSTALL-020",
        "a plugin in the package is not the locked one",
        "The bytes under tuneplane_plugins/ have another digest than the triple in the JobSpec.",
        "Submit again; the message carries both digests.",
    ),
    ErrorKind(
        "E-INSTALL-021",
        "plugins.json does not say what the package holds",
        "The facts of the locked plugins differ from those that their own bytes give.",
        "Submit again.",
    ),
    ErrorKind(
        "E-INSTALL-030",
        "an exact version is needed",
        "What the whole site uses is named to the version, so that nobody's new version changes it.",
        "Name it as OWNER/NAME@VERSION; `tp plugin info` lists the versions.",
    ),
    ErrorKind(
        "E-INSTALL-031",
        "not a policy package",
        "Only playbook and prompt packages are activated; other packages are locked to experiments, or chosen as a method.",
        "Name a playbook or a prompt package.",
    ),
)
