"""The kernel as two deterministic archives under site/kernels/: `verifier` (verify and launch) and `training`.

The same sources give the same bytes on every machine: members are sorted, stored without compression, with one fixed time and mode. What is
packed is the list of Python sources of the installed `tuneplane`, never a folder as it is found (byte-code does not travel).

`packaging` travels as `tuneplane.vendored.packaging`, since an image need not have it: so an installation with another `packaging` makes
other archives, which an admin publishes with `tp site sync`.
"""

from __future__ import annotations

import io
import os
import zipfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import packaging
import tuneplane
from tuneplane.contract.layout import StorageRoot
from tuneplane.record.digest import digest_bytes, digest_file
from tuneplane.record.files import write_new

from hpc.errors import Refusal

PARTS = {
    "verifier": ("record", "contract", "launch", "plugins"),
    "training": ("record", "contract", "evaluation", "training", "plugins", "transforms"),
}
_VENDORED = "tuneplane/vendored"
_NOT_VENDORED = frozenset({"metadata.py", "pylock.py", "dependency_groups.py", "direct_url.py"})
"""Readers of files that no check in a job reads; `metadata` would need the tables of licences."""
_MAIN = b"import sys\nfrom tuneplane.launch.main import main\nsys.exit(main())\n"


@dataclass(frozen=True)
class KernelRef:
    """Where a job finds its kernel: absolute paths and `sha256:` digests of both archives."""

    verifier: Path
    verifier_digest: str
    training: Path
    training_digest: str

    def as_json(self) -> dict[str, str]:
        return {
            "version": tuneplane.__version__,
            "verifier": str(self.verifier),
            "verifier_sha256": self.verifier_digest,
            "training": str(self.training),
            "training_sha256": self.training_digest,
        }


def _sources(part: str) -> list[tuple[str, bytes]]:
    base = Path(tuneplane.__file__).parent
    members = [("tuneplane/__init__.py", (base / "__init__.py").read_bytes())]
    for folder in PARTS[part]:
        members += [(f"tuneplane/{folder}/{p.name}", p.read_bytes()) for p in sorted((base / folder).glob("*.py"))]
    if part == "verifier":
        members.append(("__main__.py", _MAIN))
    return sorted(members + _vendored())


def _vendored() -> list[tuple[str, bytes]]:
    """The modules of the installed `packaging`, importable below `tuneplane`: it imports itself relatively."""
    members = [(f"{_VENDORED}/__init__.py", b"")]
    modules = [m for m in sorted(Path(packaging.__file__).parent.glob("*.py")) if m.name not in _NOT_VENDORED]
    return members + [(f"{_VENDORED}/packaging/{module.name}", module.read_bytes()) for module in modules]


def archive(part: str) -> bytes:
    """The bytes of one archive for the installed version."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as out:
        for name, data in _sources(part):
            info = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            info.create_system, info.external_attr = 3, 0o100644 << 16
            out.writestr(info, data)
    return buffer.getvalue()


@cache
def _digest(part: str) -> str:
    """Digest of one archive of the installed version; packed once in a process, since preparing and admission both compare with it."""
    return digest_bytes(archive(part))


def _path(root: StorageRoot, part: str, digest: str) -> Path:
    return root.kernels / f"{part}-{tuneplane.__version__}-{digest[7:23]}.zip"


def publish_kernels(root: StorageRoot) -> KernelRef:
    """Write both archives of the installed version where they are missing (admins). Raises OSError, or Refusal for a changed one."""
    for part in PARTS:
        data = archive(part)
        try:
            write_new(_path(root, part, digest_bytes(data)), data)
        except FileExistsError:
            pass
    return find_kernels(root)


def find_kernels(root: StorageRoot) -> KernelRef:
    """The archives for the installed version. Raises Refusal E-SUBMIT-001 when the site has not published them, E-SUBMIT-002 when changed."""
    found = {}
    for part in PARTS:
        digest = _digest(part)
        path = _path(root, part, digest)
        if not os.path.isfile(path):
            raise Refusal(
                "E-SUBMIT-001", f"{path} is not there", field="site/kernels", found=f"tp {tuneplane.__version__}"
            )
        if digest_file(path) != digest:
            raise Refusal(
                "E-SUBMIT-002",
                f"{path} is not what this version of tp publishes",
                found=digest_file(path),
                allowed=digest,
            )
        found[part] = (path, digest)
    return KernelRef(*found["verifier"], *found["training"])
