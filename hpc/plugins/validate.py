"""The verdict on a package folder, from its bytes alone: nothing of it is imported, run or compiled.

`verdict` is about manifest and layout. What a pack declares (recipe.yaml, benchmark.yaml, …) has faults of its own; with one of them the package
is accepted as a package but is not `publishable`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpc.errors import Refusal, Refusals
from hpc.plugins.artwork import check_icon
from hpc.plugins.declarations import check_declaration
from hpc.plugins.layout import README, check_layout, import_roots
from hpc.plugins.manifest import MANIFEST_NAME, Manifest, read_manifest
from hpc.plugins.tree import Tree, survey
from hpc.plugins.wheels import check_wheel
from hpc.spec.yamltext import MAX_BYTES


@dataclass
class Report:
    """Everything that validation found. `digest`, `digest_v2` are "" where the folder has none or was not looked at."""

    manifest: Manifest | None = None
    errors: list[Refusal] = field(default_factory=list)
    declarations: list[Refusal] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    digest: str = ""
    digest_v2: str = ""
    facts: dict[str, Any] = field(default_factory=dict)
    whole: bool = True
    """False where the manifest alone was looked at."""

    @property
    def verdict(self) -> str:
        return "refuse" if self.errors else "accept"

    @property
    def publishable(self) -> bool | None:
        """None where it was not decided."""
        return not (self.errors or self.declarations) if self.whole or self.errors else None

    @property
    def good(self) -> bool:
        """True where nothing that was looked at is at fault."""
        return not (self.errors or self.declarations)

    def as_json(self) -> dict[str, Any]:
        return {
            "verdict": self.verdict,
            "publishable": self.publishable,
            "errors": [e.as_json() for e in self.errors],
            "declarations": [e.as_json() for e in self.declarations],
            "warnings": self.warnings,
            "digest": self.digest,
            "digest_v2": self.digest_v2,
            "manifest": self.manifest.as_json() if self.manifest else None,
        }

    def require(self) -> Manifest:
        """The manifest of a publishable package. Raises Refusals with every fault."""
        if self.errors or self.declarations or self.manifest is None:
            raise Refusals([*self.errors, *self.declarations])
        return self.manifest


def validate(folder: Path, *, manifest_only: bool = False, digests: bool = True) -> Report:
    """Look at a package folder and say everything that is wrong with it at once. Raises Refusal E-PLUGIN-001 where there is no folder.

    Without `digests` they stay "", for a caller that computes them itself.

    Does not promise that the code works, or that the folder stays as it is: publishing reads the stored copy again.
    """
    report = Report(whole=not manifest_only)
    if (data := _manifest_bytes(folder, report)) is not None:
        report.manifest, faults, remarks = read_manifest(data)
        report.errors += faults
        report.warnings += remarks
    if manifest_only:
        return report
    tree = survey(folder)
    report.errors += tree.faults
    if report.manifest is not None and not any(fault.code == "E-PLUGIN-027" for fault in tree.faults):
        _check_content(tree, report.manifest, report)
    if tree.whole and digests:
        _take_digests(tree, report)
    return report


def _manifest_bytes(folder: Path, report: Report) -> bytes | None:
    if not folder.is_dir():
        raise Refusal("E-PLUGIN-001", "is no folder that can be read", field=str(folder))
    path = folder / MANIFEST_NAME
    try:
        return Tree(folder).read(MANIFEST_NAME, MAX_BYTES)
    except Refusal as exc:
        message = "is a link" if path.is_symlink() else exc.message if path.exists() else "is not in the folder"
    report.errors.append(Refusal("E-PLUGIN-001", message, field=MANIFEST_NAME, found=str(folder)))
    return None


def _check_content(tree: Tree, manifest: Manifest, report: Report) -> None:
    report.facts = {
        "manifest": manifest.as_json(),
        "readme": README in tree.files,
        "icon_digest": "",
        "import_roots": [],
    }
    faults, remarks = check_layout(tree, manifest)
    report.errors += faults
    report.warnings += remarks
    if manifest.icon_is_path:
        report.facts["icon_digest"], faults = check_icon(tree, manifest.icon)
        report.errors += faults
    if manifest.wheel:
        wheel = check_wheel(tree, manifest)
        report.errors += wheel.faults
        report.warnings += wheel.remarks
        report.facts |= {"wheel": wheel.facts, "import_roots": wheel.import_roots}
    elif manifest.is_code:
        report.facts["import_roots"] = import_roots(tree.files)
    found = check_declaration(tree, manifest)
    report.errors += found.layout
    report.declarations += found.faults
    report.warnings += found.remarks


def _take_digests(tree: Tree, report: Report) -> None:
    try:
        report.digest, report.digest_v2 = tree.digests()
    except Refusal as exc:
        if str(exc) not in map(str, report.errors):
            report.errors.append(exc)
