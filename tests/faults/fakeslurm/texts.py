"""Slurm's own words for what goes wrong, as its releases print them. Fixtures, with the exit code of each."""

from __future__ import annotations

SUBMIT = "{tool}: error: Batch job submission failed: "

# name: (what follows the prefix, exit code). A text with "{tool}" in it is complete.
ERRORS: dict[str, tuple[str, int]] = {
    "timeout": ("Socket timed out on send/recv operation", 1),
    "refused": ("Unable to contact slurm controller (connect failure)", 1),
    "busy": ("Slurm temporarily unable to accept job, sleeping and retrying", 1),
    "rate": ("{tool}: error: RPC rate limit exceeded 17 times with 1 seconds remaining, try again later", 1),
    "standby": ("Slurm backup controller in standby mode", 1),
    "database": ("{tool}: error: failed to open persistent connection to host:db:6819: Connection refused", 1),
    "partition": ("Invalid partition name specified", 1),
    "account": ("Invalid account or account/partition combination specified", 1),
    "qos": ("Invalid qos specification", 1),
    "limits": ("Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)", 1),
    "time": ("Requested time limit is invalid (missing or exceeds some limit)", 1),
    "nodes": ("Requested node configuration is not available", 1),
    "feature": ("Invalid feature specification", 1),
    "dependency": ("Job dependency problem", 1),
    "array": ("Invalid job array specification", 1),
    "reservation": ("Requested reservation is invalid", 1),
    "jobid": ("Invalid job id specified", 1),
    "denied": ("Access/permission denied", 1),
    "internal": ("Slurm internal error, contact system administrator", 1),
    "gibberish": ("{tool}: error: site-plugin: kobold 7 has no quota token", 1),
    "no-accounting": ("Slurm accounting storage is disabled", 1),
}  # fmt: skip


def words(name: str, tool: str) -> tuple[str, int]:
    """What `tool` prints on stderr for an error, and its exit code. An unknown name is the text itself."""
    text, code = ERRORS.get(name, ("{tool}: error: " + name, 1))
    if "{tool}" in text:
        return text.replace("{tool}", tool), code
    if tool == "sbatch":
        return SUBMIT.replace("{tool}", tool) + text, code
    if tool in ("squeue", "scontrol"):
        return f"slurm_load_jobs error: {text}", code
    if tool == "scancel":
        return f"scancel: error: Kill job error on job id: {text}", code
    return text if tool == "sacct" else f"{tool}: error: {text}", code
