"""Error kinds of the spec area: the grammars of JobSpec, references, profiles, Slurm's words, and YAML."""

from __future__ import annotations

from hpc.errors.core import ErrorKind, table

KINDS: dict[str, ErrorKind] = table(
    ErrorKind(
        "E-SPEC-001",
        "the document cannot be parsed",
        "The text is not YAML or not JSON, or is not UTF-8.",
        "Look at the line that is named; mind indentation and quotes.",
    ),
    ErrorKind(
        "E-SPEC-002",
        "a YAML feature that is not allowed",
        "Anchors, aliases, tags, merge keys, several documents, keys that are not text, numbers without a JSON form.",
        "Write the value out in plain YAML.",
    ),
    ErrorKind(
        "E-SPEC-003",
        "a key stands twice",
        "One mapping names the same key twice; which one was meant cannot be known.",
        "Remove one of the two.",
    ),
    ErrorKind(
        "E-SPEC-004",
        "the document is too large",
        "More than 1 MiB, 32 levels or 50,000 values.",
        "Keep data out of configuration files.",
    ),
)
