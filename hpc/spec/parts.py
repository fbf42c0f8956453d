"""The parts of a JobSpec, as pydantic models in the canonical spelling. `hpc.spec.jobspec` is the door; `hpc.spec.rules`
holds what no single field can know."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field
from pydantic_core import PydanticCustomError

from hpc.errors import Refusal
from hpc.spec import refs, text
from hpc.spec.model import Strict, via
from hpc.spec.slurm_options import SlurmOptions

MAX_NODES, MAX_GPUS, MAX_AMOUNT = 65_536, 1_024, 1_048_576
RequeueClass = Literal["preempted", "node_fail", "timeout", "error"]
DEFAULT_REQUEUE_ON: tuple[RequeueClass, ...] = ("preempted", "node_fail", "timeout")


def _whole(value: Any) -> Any:
    """`16`, `16.0` and `"16"` are one whole number; anything else stays and is refused by its type."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 10:
        return int(value)
    return value


def _number(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise PydanticCustomError("float_type", "must be a number")
    return value


def _or_none(value: Strict | None) -> Strict | None:
    """None for an object that states nothing, so that leaving it out and leaving it empty are one value."""
    return value if value is not None and value.sparse() else None


def _method_id(value: str) -> str:
    parts = value.split("/")
    if len(parts) != 2 or not all(text.SEGMENT.fullmatch(part) and len(part) <= text.MAX_SEGMENT for part in parts):
        found, allowed = text.visible(value), "<framework>/<method>"
        raise Refusal("E-SPEC-017", "not a method's name", found=found, allowed=allowed, hint="`tp methods` lists them")
    return value


def _plugin_digest(value: str) -> str:
    if not value.startswith("sha256:"):
        raise Refusal("E-SPEC-035", "not a plugin's digest", found=text.visible(value), allowed="sha256:…")
    return value


def _interface(value: str) -> str:
    if len(value) > 15 or not set(value) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-"):
        allowed = "up to 15 letters, digits, '_', '.' and '-'"
        raise Refusal("E-SPEC-017", "not a network interface", found=text.visible(value), allowed=allowed)
    return value


def _published(value: str) -> str:
    return str(refs.parse_owned(value, version="required"))


def _environment(value: str) -> str:
    return str(refs.parse_owned(value))


def _taskset(value: str) -> str:
    ref = refs.parse_owned(value, version="required")
    if ref.version == "latest":
        raise Refusal("E-SPEC-028", "latest is not a version", found=value, allowed="<owner>/<name>@<version>")
    return str(ref)


def _plugin_id(value: str) -> str:
    return str(refs.parse_owned(value, version="forbidden"))


Segment = Annotated[str, AfterValidator(via(text.segment))]
OptionalSegment = Annotated[str, AfterValidator(via(text.segment, empty=True))]
Filled = Annotated[str, AfterValidator(via(text.filled))]
Segments = Annotated[tuple[Segment, ...], Field(strict=False)]
Amount = Annotated[int, BeforeValidator(_whole), Field(ge=0, le=MAX_AMOUNT)]
Ratio = Annotated[float, Field(ge=0, le=1)]


class Metadata(Strict):
    name: Segment
    project: Annotated[str, AfterValidator(via(text.project_name, empty=True))] = ""
    owner: str = Field("", description="ignored on input; admission stamps the uid's own name")
    display_name: str = ""
    labels: dict[str, str] = Field({}, description="values of other scalar types are read as their text")


class RecipeRef(Strict):
    name: Annotated[str, AfterValidator(via(_method_id))]
    version: Filled
    digest: Filled
    plugins: Segments = ()


class SourceRef(Strict):
    exp: Annotated[str, AfterValidator(via(text.experiment_path))]
    entrypoint: str = Field("", description="must be empty: the recipe owns it")


class Framework(Strict):
    kind: Segment
    version: Filled
    runtime_id: OptionalSegment = ""
    image: str = ""
    observability_url: str = ""


class Pool(Strict):
    """One homogeneous group of machines: `nodes` × `gpus_per_node`, or CPU-only."""

    always: ClassVar[frozenset[str]] = frozenset({"nodes", "gpus_per_node"})
    name: Segment
    series: OptionalSegment = ""
    nodes: int = Field(1, ge=1, le=MAX_NODES)
    gpus_per_node: int = Field(1, ge=0, le=MAX_GPUS, description="0 is a CPU-only pool")
    cpus: Amount = Field(0, description="a node; 0 is unstated")
    memory_gb: Amount = Field(0, description="a node; 0 is unstated")
    scratch_gb: Amount = Field(0, description="node-local, a node; 0 is unstated")
    ranks_per_node: int = Field(0, ge=0, le=MAX_GPUS, description="CPU-only pools: ranks a node; 0 is one")

    @property
    def ranks(self) -> int:
        """Ranks a node: one a GPU, or what a CPU-only pool states, or one."""
        return self.gpus_per_node or self.ranks_per_node or 1

    @property
    def gpus(self) -> int:
        return self.nodes * self.gpus_per_node


class Lease(Strict):
    """Seats of a licensed tool."""

    always: ClassVar[frozenset[str]] = frozenset({"seats"})
    tool: Segment
    seats: int = Field(1, ge=1, le=MAX_AMOUNT)


class Network(Strict):
    always: ClassVar[frozenset[str]] = frozenset({"transport", "interface", "isolation"})
    transport: Literal["tcp", "rdma"] = "tcp"
    interface: Annotated[str, AfterValidator(via(_interface, empty=True))] = ""
    isolation: Literal["fleet", "job"] = "fleet"


class Resources(Strict):
    pools: Annotated[tuple[Pool, ...], Field(strict=False)]
    roles: dict[str, str] = Field({}, description="role to pool")
    leases: Annotated[tuple[Lease, ...], Field(strict=False)] = ()
    network: Network | None = None


class Peft(Strict):
    kind: Segment
    dim: int | None = Field(None, ge=1, le=MAX_AMOUNT)
    alpha: Annotated[Any, AfterValidator(_number), Field(gt=0, json_schema_extra={"type": "number"})] = None


class Model(Strict):
    base: Annotated[str, AfterValidator(via(refs.model_base, empty=True))] = Field(
        "", description="hub reference, path or ${…}"
    )
    peft: Peft | None = None
    init_from: Annotated[str, AfterValidator(via(refs.parse_init_from, empty=True))] = Field(
        "", description="run/<run_id>/<kind>[@step=N][,attempt=A]; the object {run_id, kind, step} is read, too"
    )


class DataSource(Strict):
    """A data set, a file inside one, or a path."""

    dataset: Annotated[str, AfterValidator(via(refs.dataset_ref, empty=True))] = ""
    split: str = ""
    path: str = ""


class Quality(Strict):
    max_duplicate_ratio: Ratio | None = None
    overlap_with: Annotated[str, AfterValidator(via(refs.dataset_ref, empty=True))] = ""
    max_overlap_ratio: Ratio | None = None
    group_key: str = ""
    max_group_leak_ratio: Ratio | None = None


class Data(Strict):
    train: Annotated[DataSource | None, AfterValidator(_or_none)] = None
    validation: Annotated[DataSource | None, AfterValidator(_or_none)] = None
    volumes: Annotated[tuple[Annotated[str, AfterValidator(via(refs.volume_ref))], ...], Field(strict=False)] = ()
    output_dataset: Annotated[str, AfterValidator(via(_published, empty=True))] = ""
    environment: Annotated[str, AfterValidator(via(_environment, empty=True))] = ""
    taskset: Annotated[str, AfterValidator(via(_taskset, empty=True))] = ""
    quality: Quality = Quality()


class Lifecycle(Strict):
    on_success: Segments = ()
    requeue_on: Annotated[tuple[RequeueClass, ...], Field(strict=False)] = DEFAULT_REQUEUE_ON
    max_attempts: int = Field(5, ge=1, le=100)


class Gate(Strict):
    metric: str = Field(description="<benchmark>/<metric key>; the benchmark may be left out when there is one suite")
    min: float | None = None
    max: float | None = None
    max_regression: float | None = Field(None, ge=0)


class OnCheckpoint(Strict):
    every_steps: int = Field(ge=1)
    suites: Segments = Field((), description="none: those of evaluation")
    limit: int | None = Field(None, ge=1)
    repetitions: int = Field(1, ge=1)
    warmup_steps: int = Field(0, ge=0)
    fleet: OptionalSegment = ""


class Evaluation(Strict):
    suites: Segments = ()
    runner: str = ""
    baseline: str = ""
    limit: int | None = Field(None, ge=1)
    gates: Annotated[tuple[Gate, ...], Field(strict=False)] = ()
    on_checkpoint: OnCheckpoint | None = None


class Plugin(Strict):
    id: Annotated[str, AfterValidator(via(_plugin_id))]
    version: Filled
    digest: Annotated[str, AfterValidator(via(_plugin_digest))]


class Body(Strict):
    """The object under `spec`."""

    recipe: RecipeRef
    source: SourceRef
    framework: Framework
    resources: Resources
    model: Model = Model()
    data: Data = Data()
    hyperparams: dict[str, Any] = Field({}, description="checked against the recipe at admission")
    lifecycle: Lifecycle = Lifecycle()
    evaluation: Evaluation = Evaluation()
    plugins: Annotated[tuple[Plugin, ...], Field(strict=False)] = ()
    slurm: Annotated[SlurmOptions | None, AfterValidator(_or_none)] = None


class Provenance(Strict):
    core_version: Filled
    git_commit: str = ""
    git_dirty: bool = False
    config_sha: str = Field("", description="first 12 hex digits of the SHA-256 of config.yaml, or none")
    model_name: str = ""
