"""Renders the script of a recorded submission again and compares it with the frozen one, byte for byte.

What the records hold is taken from them: spec, shape, options, policies, inputs, mounts, image, kernel, nonce, numbers. What they do not hold comes
from the site as it is today (profiles, the fleet's Slurm, templates, this tp's interpreter and Apptainer), and a difference there is named as such
and never guessed away. Beside the bytes: whether what the script names is still there and still the same.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import tuneplane
from tuneplane.contract.layout import RunPaths, StorageRoot
from tuneplane.record.digest import digest_bytes, digest_file
from tuneplane.record.files import read_bytes, read_json

from hpc.errors import Refusal, Refusals
from hpc.submit import template
from hpc.submit.batchscript import make_script
from hpc.submit.following import waiting_for
from hpc.submit.followlist import evaluations
from hpc.submit.pieces import Piece
from hpc.submit.prepare import Prepared

if TYPE_CHECKING:
    from hpc.catalog.recipes import Recipe
    from hpc.catalog.runtimes import Runtime
    from hpc.site.sitefile import Fleet, Site

MAX_SCRIPT: Final = 1 << 20
_SETTING: Final = re.compile(r"export (TP_[A-Z0-9_]+)=(.*)")
_DIRECTIVE: Final = re.compile(r"#SBATCH --([a-z-]+)(?:=(.*))?")
UNRECORDED: Final = {
    "TP_PYTHON": "the interpreter of the tp that submits",
    "TP_APPTAINER": "where Apptainer is on the host that submits",
    "TP_SLURM_BIN": "fleets.<fleet>.bin_dir of the site file",
    "TP_CPUS": "cpus_per_gpu of the profile in the site file",
    "TP_POOL_CPUS": "cpus_per_gpu of the profile in the site file",
}
"""Settings whose value no record of the run holds but the script itself, and where today's comes from."""
_OF_PROFILE: Final = frozenset(("gres", "gpus-per-node", "cpus-per-task", "partition"))


@dataclass(frozen=True)
class Difference:
    """One thing that is not as it was: what, as recorded, as it is today, and where it comes from."""

    what: str
    recorded: str
    now: str
    cause: str = ""

    def as_json(self) -> dict[str, str]:
        return {"what": self.what, "recorded": self.recorded, "now": self.now, "cause": self.cause}


@dataclass(frozen=True)
class Capsule:
    """A script that was rendered again. `rendered` is None where nothing could be rendered; then `around` says why."""

    run: RunPaths
    first: int
    frozen_sha256: str
    recorded_sha256: str
    rendered: str | None
    lines: tuple[Difference, ...]
    around: tuple[Difference, ...]

    @property
    def tampered(self) -> bool:
        """The frozen script is not the one that was recorded as submitted."""
        return self.frozen_sha256 != self.recorded_sha256

    @property
    def identical(self) -> bool:
        return (
            self.rendered is not None
            and not self.tampered
            and digest_bytes(self.rendered.encode()) == self.frozen_sha256
        )

    @property
    def repeatable(self) -> bool:
        """The same bytes, and nothing that they name has changed."""
        return self.identical and not self.around

    def as_json(self) -> dict[str, Any]:
        verdict = "tampered" if self.tampered else "identical" if self.identical else "different"
        return {
            "schema": "tuneplane-hpc/capsule/v1", "run_id": self.run.run_id, "owner": self.run.owner, "exp": self.run.exp,
            "submission": self.first, "verdict": verdict, "script_sha256": self.frozen_sha256, "recorded_sha256": self.recorded_sha256,
            "rendered_sha256": digest_bytes(self.rendered.encode()) if self.rendered is not None else None,
            "differences": [d.as_json() for d in self.lines], "around": [d.as_json() for d in self.around],
        }  # fmt: skip


def submission_of(run: RunPaths, first: int | None) -> dict[str, Any]:
    """The record of a submission, the newest one for None. Raises Refusal E-EVID-020."""
    from hpc.submit.usage import newest_number

    number = newest_number(run, "submissions") if first is None else first
    path = run.submissions / f"{number}.json"
    try:
        if number is None:
            raise FileNotFoundError("it was never submitted")
        value = read_json(path)
        if any(not isinstance(value[k], str) for k in ("nonce", "kind", "fleet", "cluster", "script_sha256")):
            raise TypeError("a field has another shape")
        return {**value, "first_attempt": number}
    except (OSError, ValueError, KeyError, TypeError) as exc:
        raise Refusal("E-EVID-020", f"submission {number}: {exc}", field=run.run_id) from exc


def render_again(root: StorageRoot, site: Site, run: RunPaths, *, first: int | None = None) -> Capsule:
    """Render the submission whose first attempt is `first` (None: the newest). Reads only.

    Raises Refusal E-EVID-020 where the records say too little, Refusals E-SUBMIT-071 where the package is not what its list says.
    """
    record = submission_of(run, first)
    number = int(record["first_attempt"])
    try:
        frozen = read_bytes(run.batch / f"{number}.sh", limit=MAX_SCRIPT)
    except (OSError, ValueError) as exc:
        raise Refusal("E-EVID-020", f"batch/{number}.sh: {exc}", field=run.run_id) from exc
    around: list[Difference] = []
    prepared = _prepared(root, site, run, around)
    fleet = site.fleets.get(record["fleet"])
    if fleet is None:
        around.append(Difference("fleet", record["fleet"], "", "the site file has no such fleet any more"))
    rendered = _render(root, prepared, fleet, record, around) if prepared is not None and fleet is not None else None
    lines = _compare(frozen.decode("utf-8", "backslashreplace"), rendered, record, root) if rendered is not None else []
    return Capsule(run, number, digest_bytes(frozen), record["script_sha256"], rendered, tuple(lines), tuple(around))


def _render(
    root: StorageRoot, prepared: Prepared, fleet: Fleet, record: dict[str, Any], around: list[Difference]
) -> str | None:
    try:
        if after := record.get("after"):
            prepared = waiting_for(prepared, after)
        return make_script(
            root,
            prepared,
            fleet,
            Piece.of_record(record),
            nonce=record["nonce"],
            kind=record["kind"],
            cluster=record["cluster"],
        ).text
    except (Refusal, Refusals) as exc:
        fault = exc if isinstance(exc, Refusal) else exc.items[0]
        around.append(Difference("script", "", f"{fault.code} {fault.message}", "cannot be rendered today"))
        return None


def _prepared(root: StorageRoot, site: Site, run: RunPaths, around: list[Difference]) -> Prepared | None:
    """The submission from its records; what they name and what is not there any more goes to `around`."""
    from hpc.spec.jobspec import parse
    from hpc.submit.admission import read_package
    from hpc.submit.kernelzip import KernelRef

    document, launch, _, _ = read_package(run)
    missing = [p for p in launch["profiles"] if p not in site.profiles]
    around += [Difference("profile", p, "", "the site file has no such profile any more") for p in missing]
    try:
        spec = parse(document)
        recipe = _recipe(run, spec.spec.recipe.name, spec.spec.recipe.version)
        kernel = launch["kernel"]
        ref = KernelRef(
            Path(kernel["verifier"]), kernel["verifier_sha256"], Path(kernel["training"]), kernel["training_sha256"]
        )
        runtime = _runtime(launch["runtime"])
    except (Refusal, Refusals) as exc:
        fault = exc if isinstance(exc, Refusal) else exc.items[0]
        around.append(
            Difference("records", "", f"{fault.code} {fault.message}", "this tp does not take the recorded form")
        )
        return None
    except (KeyError, TypeError, ValueError, AttributeError) as exc:
        raise Refusal("E-EVID-020", f"launch.json lacks something: {exc!r}", field=run.run_id) from exc
    around += _standing(root, launch, ref, runtime)
    around += _catalogue(root, spec.spec.recipe.name, spec.spec.recipe.version, recipe)
    if (was := spec.provenance.core_version) != tuneplane.__version__:
        around.append(Difference("tp", was, tuneplane.__version__, "another version of tp renders"))
    if missing:
        return None
    work = root.admitted / run.run_id / "work"
    profiles = tuple(site.profiles[p] for p in launch["profiles"])
    records = {"jobspec.json": document, "recipe.json": recipe.manifest, "launch.json": launch}
    return Prepared(
        run, spec, recipe, runtime, ref, launch["fleet"], launch["options"], profiles, [], records,
        work if os.path.isdir(work) else run.work, evaluations=evaluations(run),
    )  # fmt: skip


def _recipe(run: RunPaths, name: str, version: str) -> Recipe:
    """The pack as it travelled: its manifest is all that a script is made from. `name` is `<framework or owner>/<method>`."""
    from hpc.catalog.manifest import parse_manifest
    from hpc.catalog.recipes import Recipe

    manifest = read_json(run.recipe)
    typed, first = parse_manifest(manifest), name.split("/", 1)[0]
    owner = "" if first == typed.framework else first
    return Recipe(run.work, manifest, typed, owner, version if owner else "")


def _runtime(recorded: dict[str, Any]) -> Runtime | None:
    from hpc.catalog.runtimes import Runtime

    if not recorded.get("container"):
        return None
    return Runtime(
        recorded["runtime_id"], Path(recorded["sif"]), recorded["sha256"], int(recorded["size"]), int(recorded["mtime_ns"]),
        int(recorded["owner_uid"]), str(recorded.get("source", "")), "", "", "", "", "", "",
    )  # fmt: skip


def _standing(root: StorageRoot, launch: dict[str, Any], kernel: Any, runtime: Runtime | None) -> Iterator[Difference]:
    """Whether the archives and the image that the script names are there, and are the recorded ones."""
    from hpc.catalog.runtimes import Runtimes
    from hpc.submit.kernelzip import find_kernels

    for name, path, digest in (
        ("verifier", kernel.verifier, kernel.verifier_digest),
        ("training", kernel.training, kernel.training_digest),
    ):
        if (found := _digest(path)) != digest:
            yield Difference(f"kernel {name}", digest, found or "gone", str(path))
    try:
        today = find_kernels(root).as_json()
    except Refusal as exc:
        yield Difference("kernel of this tp", str(launch["kernel"].get("version", "")), "not published", exc.message)
    else:
        for part in ("verifier", "training"):
            was, now = launch["kernel"][f"{part}_sha256"], today[f"{part}_sha256"]
            if was != now:
                yield Difference(f"kernel {part} of this tp", was, now, "a new submission takes this one")
    if runtime is None:
        return
    try:
        registered = Runtimes.load(root).get(runtime.id).sha256
    except (Refusal, Refusals):
        registered = "not registered"
    if registered != runtime.sha256:
        yield Difference("runtime", runtime.sha256, registered, runtime.id)
    try:
        size = os.stat(runtime.sif).st_size
    except OSError:
        size = -1
    if size != runtime.size:
        yield Difference("image", f"{runtime.size} bytes", f"{size} bytes" if size >= 0 else "gone", str(runtime.sif))


def _digest(path: Path) -> str:
    try:
        return digest_file(path)
    except OSError:
        return ""


def _catalogue(root: StorageRoot, name: str, version: str, recipe: Recipe) -> Iterator[Difference]:
    from hpc.catalog.shelf import Catalogue

    try:
        now = Catalogue.load(root).get(name, version).digest
    except (Refusal, Refusals) as exc:
        now = exc.code if isinstance(exc, Refusal) else exc.items[0].code
    if now != recipe.digest:
        yield Difference("recipe", recipe.digest, now, f"{name} {version} in the catalogue")


def _compare(frozen: str, rendered: str, record: dict[str, Any], root: StorageRoot) -> list[Difference]:
    """Each line that differs, with what it says and where today's comes from. Pure, but for a look at the template."""
    if frozen == rendered:
        return []
    out: list[Difference] = []
    template_cause = _template_cause(record, root)
    old, new = frozen.splitlines(), rendered.splitlines()
    for tag, a, b, c, d in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if tag != "equal":
            out += _lines(old[a:b], new[c:d], template_cause)
    return out or [Difference("line ends", "", "", "the same lines with other ends")]


def _template_cause(record: dict[str, Any], root: StorageRoot) -> str:
    name = os.path.basename(str(record.get("template", "")))
    try:
        source = template.find(root, name)
        now = digest_bytes(source.text().encode())
    except (Refusal, Refusals):
        return f"the template {name} is gone"
    if now != record.get("template_sha256"):
        return f"the template {source.path} was changed since"
    return "the template is the same: functions.sh.j2 (whose digest is not recorded) or tp itself changed"


def _lines(old: list[str], new: list[str], template_cause: str) -> Iterator[Difference]:
    """Differences of one stretch: settings and directives by name, the rest as lines of the template."""
    was, now = ({_name(line): line for line in lines if _name(line)} for lines in (old, new))
    for name in dict.fromkeys((*was, *now)):
        yield Difference(name, _value(was.get(name)), _value(now.get(name)), _cause(name))
    rest = ["\n".join(line for line in lines if not _name(line)) for lines in (old, new)]
    if rest[0] != rest[1]:
        yield Difference("template", rest[0], rest[1], template_cause)


def _name(line: str) -> str:
    if match := _SETTING.match(line):
        return match[1]
    return f"--{match[1]}" if (match := _DIRECTIVE.match(line)) else ""


def _value(line: str | None) -> str:
    if line is None:
        return "not there"
    match = _SETTING.match(line) or _DIRECTIVE.match(line)
    return (match[2] or "set") if match else line


def _cause(name: str) -> str:
    if name in UNRECORDED:
        return f"not recorded; today's is {UNRECORDED[name]}"
    if name.removeprefix("--") in _OF_PROFILE:
        return "the profile in the site file"
    return "rules of this tp, or the site file"
