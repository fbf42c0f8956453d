"""Slurm's job states in our words."""

from __future__ import annotations

from typing import Final, Literal

StateClass = Literal[
    "pending", "running", "requeued", "done", "preempted", "timeout", "node_fail", "cancelled", "error", "unknown"
]

ACTIVE: Final = frozenset({"pending", "running", "requeued"})
"""The job may still do something."""

_CLASSES: Final[dict[str, StateClass]] = {
    "PENDING": "pending",
    "CONFIGURING": "pending",
    "RESV_DEL_HOLD": "pending",
    "REQUEUE_FED": "pending",
    "REQUEUE_HOLD": "requeued",
    "REQUEUED": "requeued",
    "SPECIAL_EXIT": "requeued",
    "RUNNING": "running",
    "COMPLETING": "running",
    "STAGE_OUT": "running",
    "SIGNALING": "running",
    "RESIZING": "running",
    "SUSPENDED": "running",
    "STOPPED": "running",
    "COMPLETED": "done",
    "PREEMPTED": "preempted",
    "TIMEOUT": "timeout",
    "DEADLINE": "timeout",
    "NODE_FAIL": "node_fail",
    "BOOT_FAIL": "node_fail",
    "LAUNCH_FAILED": "node_fail",
    "RECONFIG_FAIL": "node_fail",
    "CANCELLED": "cancelled",
    "REVOKED": "cancelled",
    "FAILED": "error",
    "OUT_OF_MEMORY": "error",
}
_SHORT: Final = {
    "PD": "PENDING", "CF": "CONFIGURING", "RD": "RESV_DEL_HOLD", "RF": "REQUEUE_FED", "RH": "REQUEUE_HOLD", "RQ": "REQUEUED",
    "SE": "SPECIAL_EXIT", "R": "RUNNING", "CG": "COMPLETING", "SO": "STAGE_OUT", "SI": "SIGNALING", "RS": "RESIZING",
    "S": "SUSPENDED", "ST": "STOPPED", "CD": "COMPLETED", "PR": "PREEMPTED", "TO": "TIMEOUT", "DL": "DEADLINE", "NF": "NODE_FAIL",
    "BF": "BOOT_FAIL", "CA": "CANCELLED", "RV": "REVOKED", "F": "FAILED", "OOM": "OUT_OF_MEMORY",
}  # fmt: skip


def canonical(text: str) -> str:
    """The long name of a state: `CANCELLED by 1000`, `CANCELLED+`, `R`, `completing` are all understood. Unknown words stay."""
    word = text.split()[0].rstrip("+*").upper() if text.split() else ""
    return _SHORT.get(word, word)


def state_class(text: str) -> StateClass:
    """The class of a state as squeue or sacct print it. What is not known is `unknown`, never a guess."""
    return _CLASSES.get(canonical(text), "unknown")
