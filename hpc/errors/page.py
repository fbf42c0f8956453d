"""`python -m hpc.errors.page [--check]`: docs/errors.md from the catalogue, so that the page and the code cannot differ."""

from __future__ import annotations

import sys
from pathlib import Path

from hpc.errors.catalogue import AREAS

PAGE = Path(__file__).parents[2] / "docs" / "errors.md"
HEAD = """# Errors

Every refusal prints its code, the field, what was found, what is allowed and how to mend it; with `--json` the same as an object. This page is made from
the same tables (`python -m hpc.errors.page`).

| exit code | meaning |
|---|---|
| 0 | done |
| 1 | refused or failed |
| 2 | tampered evidence (audits only); in a job: nothing of the user's code ran |
| 64 | wrong usage |
| 70 | our bug; the message names a file with the details |
| 75 | try again later: controller away, lock busy, audit already running |
| 85, 86, 87 | in a job: saved after a warning; the attempt belongs to another copy; a peer was lost |
"""


def page() -> str:
    """The whole page as Markdown."""
    parts = [HEAD]
    for area in AREAS:
        if not area.KINDS:
            continue
        title = next(iter(area.KINDS)).split("-")[1]
        parts.append(f"\n## {title}\n\n| code | exit | what | why | how to mend it |\n|---|---|---|---|---|\n")
        for kind in sorted(area.KINDS.values(), key=lambda k: k.code):
            cells = [kind.code, str(kind.exit), kind.title, kind.cause, kind.mend]
            parts.append("| " + " | ".join(c.replace("|", "\\|") for c in cells) + " |\n")
    return "".join(parts)


def main(argv: list[str]) -> int:
    """Write the page, or with --check say whether it is current."""
    text = page()
    if "--check" in argv:
        current = PAGE.is_file() and PAGE.read_text("utf-8") == text
        if not current:
            print(f"{PAGE} is not current: python -m hpc.errors.page", file=sys.stderr)
        return 0 if current else 1
    PAGE.write_text(text, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
