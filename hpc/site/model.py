"""The site file's shape: every key, its type, its range and its default. No I/O.

Everything but `schema` and `name` has a default, so the smallest site file is two lines. What the keys mean for people
is in docs/site-file.md; a test compares that page with these models.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, PrivateAttr

from hpc.site import words
from hpc.spec.model import Strict, via
from hpc.spec.profiles import ProfileShape
from hpc.spec.slurm_options import SlurmOptions
from hpc.spec.text import check_plain, segment
from hpc.spec.words import time as time_limit


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


_LIST = BeforeValidator(_tuple)
Plain = Annotated[str, AfterValidator(via(check_plain))]
Name = Annotated[str, AfterValidator(via(segment, empty=True))]
Word = Annotated[str, AfterValidator(via(words.word, empty=True))]
Account = Annotated[str, AfterValidator(via(words.account, empty=True))]
Version = Annotated[str, AfterValidator(via(words.version, empty=True))]
Folder = Annotated[str, AfterValidator(via(words.folder, empty=True))]
Time = Annotated[str, AfterValidator(via(time_limit, empty=True))]
PublicKey = Annotated[str, AfterValidator(via(words.public_key, empty=True))]
Texts = Annotated[tuple[Plain, ...], _LIST]
Words = Annotated[tuple[Annotated[str, AfterValidator(via(words.word))], ...], _LIST]
Users = Annotated[dict[str, "UserQuota"], AfterValidator(via(words.keyed))]


class Fleet(Strict):
    """One way to run jobs: a Slurm, or this machine itself."""

    kind: Literal["slurm", "local"] = Field(description="slurm, or this machine itself")
    bin_dir: Folder = Field("/usr/bin", description="folder of Slurm's commands")
    conf: Folder = Field("", description="SLURM_CONF for the commands; empty: Slurm's own default")
    cluster: Word = Field("", description="name for -M on sites with several clusters")


class Profile(Strict):
    """A named shape that users ask for with --profile; with GPUs, or with CPUs only."""

    fleet: Name = Field("", description="a fleet; empty: default_fleet")
    series: Word = Field("", description="the GPU series, such as h200; empty for CPU-only profiles")
    nodes: int = Field(1, ge=1, le=100_000, description="nodes when the user names no count")
    gpus_per_node: int = Field(0, ge=0, le=64, description="GPUs of a whole node; 0: CPU-only")
    cpus: int = Field(0, ge=0, le=4096, description="CPUs a node; required without GPUs")
    memory_gb: int = Field(0, ge=0, le=1 << 20, description="memory a node in GiB; required without GPUs")
    gpu_memory_gb: int = Field(0, ge=0, le=4096, description="memory of one GPU in GiB, for `tp plan`; 0: not stated")
    ranks_per_node: int = Field(0, ge=0, le=4096, description="processes a node, CPU-only profiles; 0: 1")
    partition: Word = Field("", description="partition; empty: the user's or Slurm's default")
    gpu_dialect: Literal["gres", "gpus-per-node"] = Field("gres", description="how GPUs are asked for")
    gres_type: Word = Field("", description="type in --gres=gpu:TYPE:N; empty: --gres=gpu:N")
    cpus_per_gpu: int = Field(
        0, ge=0, le=1024, description="CPUs a GPU when the user states none; 0: cpus, else one a GPU"
    )
    env: Annotated[dict[str, str], AfterValidator(via(words.variables))] = Field(
        default_factory=dict, description="variables of the job"
    )
    overrides: Texts = Field((), description="framework settings PATH=VALUE that this hardware needs")
    pin_resource: Word = Field("", description="resource name that jobs of this profile pin")

    @property
    def cpu_only(self) -> bool:
        return self.gpus_per_node == 0


class Images(Strict):
    """Where `--image` references may come from."""

    allowed_hosts: Annotated[tuple[Annotated[str, AfterValidator(via(words.host))], ...], _LIST] = Field(
        (), description="registry hosts; an image must also be registered as a SIF"
    )


class UserQuota(Strict):
    """What one user has instead of the common quota; null: the common one."""

    gpus: int | None = Field(None, ge=0, le=1_000_000, description="GPUs queued and running at once")
    jobs: int | None = Field(None, ge=0, le=1_000_000, description="jobs queued and running at once")


class Quota(Strict):
    """What each user may have queued and running at once."""

    gpus: int = Field(16, ge=0, le=1_000_000, description="GPUs of all queued and running runs")
    jobs: int = Field(100, ge=0, le=1_000_000, description="queued and running runs")
    users: Users = Field(default_factory=dict, description="exceptions by user name")

    def of(self, user: str) -> tuple[int, int]:
        """(GPUs, jobs) that this user may have queued and running."""
        own = self.users.get(user, UserQuota(gpus=None, jobs=None))
        return (self.gpus if own.gpus is None else own.gpus, self.jobs if own.jobs is None else own.jobs)


class SlurmLimits(Strict):
    """What a submission may ask for at most, refused before sbatch is asked. Slurm's own limits hold beside them."""

    time: Time = Field("", description="longest time limit; empty: no limit here")
    nodes: int = Field(0, ge=0, le=100_000, description="most nodes of a job; 0: no limit here")
    partitions: Words = Field((), description="allowed partitions; empty: all")
    accounts: Words = Field((), description="allowed accounts; empty: all")


class SlurmSettings(Strict):
    """How Slurm is used here."""

    defaults: dict[str, Any] = Field(default_factory=dict, description="batch options where the user states none")
    limits: SlurmLimits = Field(default_factory=SlurmLimits, description="what a submission may ask for at most")
    poll_interval_s: int = Field(30, ge=1, le=3600, description="at most one query a user in this many seconds")
    poll_max_s: int = Field(180, ge=1, le=7200, description="the interval grows to this")
    signal_lead_s: int = Field(120, ge=10, le=7200, description="warning before the time limit")
    command_timeout_s: int = Field(30, ge=1, le=600, description="deadline of each Slurm command")
    peer_timeout_s: int = Field(300, ge=10, le=86_400, description="how long training bears a rank that is silent")
    start_timeout_s: int = Field(1800, ge=60, le=604_800, description="how long nothing may move while training starts")
    save_timeout_s: int = Field(1800, ge=60, le=604_800, description="the same in a save and in the final export")


class Network(Strict):
    """What NCCL and Gloo may use, by exact name. Empty lists leave the choice to them."""

    nccl_interfaces: Annotated[tuple[Annotated[str, AfterValidator(via(words.interface))], ...], _LIST] = Field(
        (), description="interfaces of NCCL's bootstrap and sockets"
    )
    gloo_interfaces: Annotated[tuple[Annotated[str, AfterValidator(via(words.interface))], ...], _LIST] = Field(
        (), description="interfaces of Gloo; the first that a node has is used"
    )
    hcas: Annotated[tuple[Annotated[str, AfterValidator(via(words.hca))], ...], _LIST] = Field(
        (), description="InfiniBand devices of NCCL"
    )


class Runtimes(Strict):
    """How much of a SIF is checked when a job starts."""

    verify: Literal["full", "stat"] = Field("full", description="full: SHA-256; stat: size, mtime and admin owner")


class Admission(Strict):
    """Whether verdicts are the user's own or the service user's."""

    mode: Literal["advisory", "enforced"] = Field("advisory", description="enforced needs service_user and public_key")
    public_key: PublicKey = Field("", description="Ed25519 public key of the service user, 64 hexadecimal digits")


class Packages(Strict):
    """What a job package may hold."""

    max_mb: int = Field(64, ge=1, le=65_536, description="largest package in MiB")


class Site(Strict):
    """The whole site file.

    `owner_uid` is the owner of site/ as `load_site` found it, -1 for a file that was only parsed.
    """

    schema_: Literal["tuneplane-hpc/site/v1"] = Field(
        alias="schema", description="what kind of file this is, and which version of it"
    )
    name: Annotated[str, AfterValidator(via(segment))] = Field(description="the site's name")
    admin_group: Account = Field("", description="Unix group whose members are admins; empty: owner and root only")
    service_user: Account = Field(
        "", description="account that owns seals, index, cache and admitted; empty: the admin"
    )
    tp_min: Version = Field("", description="oldest tp that may be used here")
    tp_max: Version = Field("", description="newest tp that may be used here; 0.4 means any 0.4.x")
    default_fleet: Name = Field(
        "", description="fleet of profiles that name none; may be left out where there is one fleet"
    )
    default_profile: Name = Field("", description="profile of submissions that name none")
    fleets: Annotated[dict[str, Fleet], AfterValidator(via(words.keyed))] = Field(
        default_factory=lambda: {"local": Fleet(kind="local")}, description="where jobs run"
    )
    profiles: Annotated[dict[str, Profile], AfterValidator(via(words.keyed))] = Field(
        default_factory=dict, description="shapes that users ask for with --profile"
    )
    images: Images = Field(default_factory=Images, description="where image references may come from")
    quota: Quota = Field(default_factory=Quota, description="what each user may have at once")
    slurm: SlurmSettings = Field(default_factory=SlurmSettings, description="how Slurm is used")
    network: Network = Field(default_factory=Network, description="interfaces for NCCL and Gloo")
    runtimes: Runtimes = Field(default_factory=Runtimes, description="how runtimes are checked")
    admission: Admission = Field(default_factory=Admission, description="advisory or enforced")
    packages: Packages = Field(default_factory=Packages, description="limits of a job package")
    binds: Annotated[tuple[Annotated[str, AfterValidator(via(words.bind))], ...], _LIST] = Field(
        (), description="further folders of the site that jobs see read-only"
    )
    _owner_uid: int = PrivateAttr(default=-1)

    @property
    def owner_uid(self) -> int:
        return self._owner_uid

    def fleet_of(self, profile: str = "") -> str:
        """The name of a profile's fleet ("" for none): its own, else the default."""
        return (self.profiles[profile].fleet if profile else "") or self.default_fleet

    def profile_shapes(self) -> dict[str, ProfileShape]:
        """The profiles as `--profile` places them."""
        keys = ("series", "nodes", "gpus_per_node", "cpus", "memory_gb", "ranks_per_node")
        return {name: ProfileShape(**{k: getattr(p, k) for k in keys}) for name, p in self.profiles.items()}

    def slurm_defaults(self) -> SlurmOptions:
        """`slurm.defaults` as batch options."""
        return SlurmOptions().merged(self.slurm.defaults)
