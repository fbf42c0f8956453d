"""Error kinds of plugin packages. Codes below 100 are what the page calls 400: a problem of the manifest or the layout; `field` names it."""

from __future__ import annotations

from hpc.errors.core import ErrorKind, table

KINDS: dict[str, ErrorKind] = table(
    ErrorKind(
        "E-PLUGIN-001",
        "no plugin.yaml",
        "A plugin package is a folder with plugin.yaml at its root: a plain UTF-8 file of at most 1 MiB, no link.",
        "Add the file, or name the folder that holds it.",
    ),
    ErrorKind(
        "E-PLUGIN-002",
        "plugin.yaml is not a mapping of fields",
        "The file is no YAML, uses a feature of YAML that is not allowed here (anchors, tags, a key twice), or is no mapping.",
        "Correct the line that is named.",
    ),
    ErrorKind(
        "E-PLUGIN-003",
        "another manifest schema",
        "This tp speaks one schema of plugin.yaml; the file says another one or none.",
        "Write `schema: tuneplane/plugin/v1`.",
    ),
    ErrorKind(
        "E-PLUGIN-004",
        "a field of plugin.yaml is missing",
        "The field is required, for every package or for this capability.",
        "Add the field.",
    ),
    ErrorKind(
        "E-PLUGIN-005",
        "plugin.yaml has a field that nobody reads",
        "Unknown fields are errors, so that a misspelt requirement is not ignored in silence.",
        "Correct the spelling, or remove the field.",
    ),
    ErrorKind(
        "E-PLUGIN-006",
        "a field of plugin.yaml has a wrong value",
        "The value has another type or form than the field takes.",
        "Write what is allowed.",
    ),
    ErrorKind(
        "E-PLUGIN-007",
        "a field that this capability does not take",
        "Where code runs follows from the capability; only data-prep has two places, and only code has an entry point.",
        "Remove the field, or choose the capability that it belongs to.",
    ),
    ErrorKind(
        "E-PLUGIN-008",
        "wheel and provider do not stand together",
        "A wheel provider is named by both fields, and they take the place of entrypoint.",
        "Give wheel and provider without entrypoint, or entrypoint alone.",
    ),
    ErrorKind(
        "E-PLUGIN-009",
        "a character that steers the display",
        "Control characters and bidirectional overrides can make a listing show something else than is there.",
        "Remove the character; one line of plain text.",
    ),
    ErrorKind(
        "E-PLUGIN-020",
        "the entry point's module is not in the package",
        "The module path is relative to the package root and must exist as a/b.py or a/b/__init__.py.",
        "Add the module, or correct entrypoint.",
    ),
    ErrorKind(
        "E-PLUGIN-021",
        "the entry point's callable is not in its module",
        "The module was read, not run: it binds no such name at its top level, or binds it to a plain value.",
        "Define the callable at the top level of the module, or correct the name.",
    ),
    ErrorKind(
        "E-PLUGIN-022",
        "a name that belongs to somebody else",
        "A module or folder of this name at the top would take the place of the platform's, a framework's or Python's own.",
        "Rename the module or folder; give each package an import root of its own.",
    ),
    ErrorKind(
        "E-PLUGIN-023",
        "a program in a declarative pack",
        "Packs of declarations run nothing; scripts have their place under template/ at the root only.",
        "Move the file under template/, or remove it.",
    ),
    ErrorKind(
        "E-PLUGIN-024",
        "a link or special file in the package",
        "A link would bring bytes from elsewhere or lead nowhere; a package holds files and folders.",
        "Replace it by the file itself.",
    ),
    ErrorKind(
        "E-PLUGIN-025",
        "a file name that cannot be stored",
        "Names are UTF-8 without control characters, backslashes and bidirectional overrides, do not end in a dot or space, "
        "are no device names of other systems, at most 240 bytes each and 1,024 a path.",
        "Rename the file.",
    ),
    ErrorKind(
        "E-PLUGIN-026",
        "two names that are one name elsewhere",
        "They differ only in case or in how an accent is written; some file systems keep one of them.",
        "Rename one of them.",
    ),
    ErrorKind(
        "E-PLUGIN-027",
        "the package is too large",
        "A package has at most 32 MiB in 4,096 files, nested at most 32 deep.",
        "Remove what is not needed at run time; data belongs into a data set.",
    ),
    ErrorKind(
        "E-PLUGIN-028",
        "the module is not Python",
        "The entry point's module cannot be parsed, so that its callable cannot be found without running it.",
        "Correct the line that is named; if it is newer Python than this machine's, say so in requires.python.",
    ),
    ErrorKind(
        "E-PLUGIN-029",
        "a file of the package cannot be read",
        "It vanished, changed or may not be read by you while it was being looked at.",
        "Check its permissions, and validate again.",
    ),
    ErrorKind(
        "E-PLUGIN-030",
        "the icon is not in the package",
        "A path in icon names a regular file of the package, reached through no link.",
        "Include the PNG, or use a preset or an emoji.",
    ),
    ErrorKind(
        "E-PLUGIN-031",
        "the icon is not a sound PNG",
        "Artwork is shown to others, so its whole structure is checked: chunks, checksums, sizes, and that nothing follows the end.",
        "Save it again as a plain PNG of at most 512 x 512 pixels and 64 KiB.",
    ),
    ErrorKind(
        "E-PLUGIN-040",
        "the wheel is not in the package",
        "wheel names a regular file at the root of the package.",
        "Put the wheel beside plugin.yaml, or correct the name.",
    ),
    ErrorKind(
        "E-PLUGIN-041",
        "the wheel is not a sound zip archive",
        "Its directory and its members must tell the same story: nothing before, between or after them, no name twice, no link, "
        "no encryption, and every checksum right.",
        "Build it again with a standard build backend.",
    ),
    ErrorKind(
        "E-PLUGIN-042",
        "the wheel is not portable pure Python",
        "Only wheels for any platform (…-none-any) whose root is purelib and that carry no native or installation-time parts are supported.",
        "Build a pure-Python wheel; native libraries belong into the job image.",
    ),
    ErrorKind(
        "E-PLUGIN-043",
        "the wheel's metadata disagree",
        "File name, *.dist-info, METADATA and WHEEL must name one distribution, one version and the same tags.",
        "Build it again; do not rename a wheel.",
    ),
    ErrorKind(
        "E-PLUGIN-044",
        "the wheel has no such provider",
        "provider is the name of one entry point `module:callable`, without extras, in the group of the capability.",
        "Register it: [project.entry-points.\"tuneplane.transforms\"] for data-prep, tuneplane.algorithms, tuneplane.environments.",
    ),
    ErrorKind(
        "E-PLUGIN-045",
        "the wheel's RECORD is wrong",
        "A RECORD that is not empty lists every member once, with its SHA-256 (or stronger) and size.",
        "Build it again; a wheel is not edited after it was built.",
    ),
    ErrorKind(
        "E-PLUGIN-046",
        "the wheel unpacks to too much",
        "At most 128 MiB in 10,000 members, and no member may promise less than it holds.",
        "Leave data out of the wheel.",
    ),
    ErrorKind(
        "E-PLUGIN-060",
        "the package's declaration is missing",
        "recipe, benchmark, playbook, prompt and framework-integration packages declare what they are in a file of their own at the root.",
        "Add the file that is named.",
    ),
    ErrorKind(
        "E-PLUGIN-061",
        "the declaration cannot be read",
        "The file is too large, no UTF-8, not strict YAML or JSON, or no mapping.",
        "Correct the line that is named.",
    ),
    ErrorKind(
        "E-PLUGIN-062",
        "a part of the declaration is missing",
        "The key is required.",
        "Add it.",
    ),
    ErrorKind(
        "E-PLUGIN-063",
        "the declaration has a key that nobody reads",
        "Unknown keys are errors, so that a misspelt one is not ignored in silence.",
        "Correct the spelling, or remove the key.",
    ),
    ErrorKind(
        "E-PLUGIN-064",
        "a part of the declaration is wrong",
        "The value has another type, form or range than the key takes, or disagrees with plugin.yaml or another key.",
        "Write what is allowed.",
    ),
    ErrorKind(
        "E-PLUGIN-065",
        "a pattern that is not safe to run",
        "Patterns of a playbook run over log lines of others; only a small, predictable part of regular expressions is taken.",
        "Use plain text, classes, alternatives and at most two open repetitions of single characters.",
    ),
    ErrorKind(
        "E-PLUGIN-070",
        "not a review receipt",
        "A receipt is the text that a preview printed, whole. This one was cut, changed, or made on another storage root.",
        "Preview the archive again and use the new receipt.",
    ),
    ErrorKind(
        "E-PLUGIN-071",
        "the receipt has expired",
        "A receipt is short-lived, so that what is imported is what was just looked at.",
        "Preview the archive again and use the new receipt.",
    ),
    ErrorKind(
        "E-PLUGIN-072",
        "the receipt is for another user",
        "A review counts for the person who made it.",
        "Preview the archive yourself.",
    ),
    ErrorKind(
        "E-PLUGIN-073",
        "the archive is not the one that was reviewed",
        "Its bytes, or the package that comes out of it, differ from what the receipt says.",
        "Preview this archive, look at it, and use the new receipt.",
    ),
    ErrorKind(
        "E-PLUGIN-074",
        "the key for receipts is damaged",
        "The key lies in your own folder of the storage root and makes your receipts. It is not what this tp wrote.",
        "Remove the named file; the next preview makes a new key.",
    ),
)  # fmt: skip
