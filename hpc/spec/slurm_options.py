"""Slurm's batch words, each typed by a small alphabet, so that a value can only ever be the value of its own directive.

An empty text, 0 or null is "not stated": the site's default holds, else Slurm's own. `true` and `false` are always stated.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError

from hpc.errors import Refusal, Refusals
from hpc.spec import words
from hpc.spec.arrays import parse_array
from hpc.spec.begins import check_begin
from hpc.spec.constraints import check_constraint
from hpc.spec.dependencies import parse_dependency
from hpc.spec.hostlists import check_hostlist
from hpc.spec.model import Strict, refusals, via
from hpc.spec.signals import format_signal, parse_signal

NICE_LIMIT = 2_147_483_645


def _number_as_text(value: Any) -> Any:
    """`time: 30`, `mem: 4096`, `array: 5` mean what the same words mean on a command line."""
    return str(value) if type(value) is int and value >= 0 else value


def _list_as_text(value: Any) -> Any:
    return ",".join(value) if isinstance(value, list) and value and all(isinstance(v, str) for v in value) else value


def _signal(text: str) -> str:
    return format_signal(parse_signal(text))


def _grammar(grammar: Any) -> AfterValidator:
    return AfterValidator(via(grammar, empty=True))


Name = Annotated[str, _grammar(words.name)]
Names = Annotated[str, BeforeValidator(_list_as_text), _grammar(words.names)]
Hosts = Annotated[str, BeforeValidator(_list_as_text), _grammar(check_hostlist)]
Memory = Annotated[str, BeforeValidator(_number_as_text), _grammar(words.memory)]


class SlurmOptions(Strict):
    """What a user may say to sbatch besides the shape, which comes from the pools."""

    time: Annotated[str, BeforeValidator(_number_as_text), _grammar(words.time)] = Field(
        "", description="time limit: MM, MM:SS, HH:MM:SS, D-HH, D-HH:MM, D-HH:MM:SS or UNLIMITED"
    )
    partition: Names = Field("", description="partition, or several joined by ','")
    account: Name = Field("", description="account to charge")
    qos: Name = Field("", description="quality of service")
    constraint: Annotated[str, _grammar(check_constraint)] = Field("", description="node features, e.g. a&b, [a|b]")
    reservation: Names = Field("", description="reservation, or several joined by ','")
    exclusive: bool | None = Field(None, description="whole nodes")
    dependency: Annotated[str, _grammar(parse_dependency)] = Field("", description="e.g. afterok:123:124,singleton")
    array: Annotated[str, BeforeValidator(_number_as_text), _grammar(parse_array)] = Field(
        "", description="indices of a job array, e.g. 0-15%4"
    )
    requeue: bool | None = Field(None, description="whether Slurm may requeue after a node failure")
    signal: Annotated[str, _grammar(_signal)] = Field("", description="warning before the end, e.g. USR2@300")
    nice: int | None = Field(None, ge=-NICE_LIMIT, le=NICE_LIMIT, description="lower the priority by this much")
    mail_type: Annotated[str, BeforeValidator(_list_as_text), _grammar(words.mail_type)] = Field(
        "", description="events to mail about, e.g. END,FAIL"
    )
    mail_user: Annotated[str, _grammar(words.mail_user)] = Field("", description="who gets the mail")
    comment: Annotated[str, _grammar(words.comment)] = Field("", description="one word for Slurm's own records")
    exclude: Hosts = Field("", description="hosts to avoid")
    nodelist: Hosts = Field("", description="hosts that must be among the job's")
    mem: Memory = Field("", description="memory a node: 16G; 0 is all of it")
    mem_per_gpu: Memory = Field("", description="memory a GPU; not together with mem")
    cpus_per_task: int = Field(0, ge=0, le=1_048_576, description="CPUs a rank's task; 0 derives it from the pool")
    licenses: Annotated[str, BeforeValidator(_list_as_text), _grammar(words.licenses)] = Field(
        "", description="name[@server][:count]"
    )
    switches: Annotated[str, BeforeValidator(_number_as_text), _grammar(words.switches)] = Field(
        "", description="COUNT[@TIME]: leaf switches, and how long to wait for them"
    )
    begin: Annotated[str, _grammar(check_begin)] = Field("", description="earliest start, e.g. now+2hours")
    clusters: Names = Field("", description="clusters to choose from")
    gpu_bind: Annotated[str, _grammar(words.gpu_bind)] = Field("", description="e.g. none, closest, single:1")
    kill_on_invalid_dep: bool | None = Field(None, description="cancel when a dependency can never be met")

    def merged(self, defaults: Mapping[str, Any]) -> SlurmOptions:
        """These options, with a site's defaults where nothing is stated. Raises Refusals for a default that is wrong.

        A memory that is stated one way sets aside a default that states it the other way.
        """
        ours, theirs = self.sparse(), parse_slurm(defaults, field="slurm.defaults").sparse()
        if ours.keys() & {"mem", "mem_per_gpu"}:
            theirs = {key: value for key, value in theirs.items() if key not in ("mem", "mem_per_gpu")}
        return SlurmOptions.model_validate({**theirs, **ours})


def exclusive_words(value: Mapping[str, Any], field: str) -> list[Refusal]:
    """Refusal E-SPEC-050 when memory is stated a node and a GPU at once."""
    if value.get("mem") in ("", None) or value.get("mem_per_gpu") in ("", None):
        return []
    message, allowed = "mem and mem_per_gpu exclude each other", "one of the two"
    return [Refusal("E-SPEC-050", message, field=f"{field}.mem_per_gpu", found=value["mem_per_gpu"], allowed=allowed)]


def parse_slurm(value: Any, *, field: str = "spec.slurm") -> SlurmOptions:
    """One `slurm` block. Raises Refusals, all faults at once; `field` is where the block stands."""
    found = exclusive_words(value, field) if isinstance(value, Mapping) else []
    try:
        stated = {k: v for k, v in value.items() if v is not None} if isinstance(value, Mapping) else value
        options = SlurmOptions.model_validate(stated)
    except ValidationError as exc:
        found = refusals(exc, SlurmOptions, field) + found
    if found:
        raise Refusals(found)
    return options
