"""The `schema` / `apiVersion` strings of everything that is written."""

from __future__ import annotations

from typing import Final

JOBSPEC: Final = "tuneplane/v1"
JOBSPEC_KIND: Final = "TrainingJob"
PROJECT: Final = "tuneplane/project/v1"
RECIPE_LOCK: Final = "tuneplane/recipe-lock/v1"
PLUGINS_LOCK: Final = "tuneplane/plugins-lock/v1"
LOCKED_PLUGINS: Final = "tuneplane-hpc/locked-plugins/v1"
ARTIFACTS: Final = "tuneplane/artifacts/v1"
SITE: Final = "tuneplane-hpc/site/v1"
RUNTIMES: Final = "tuneplane-hpc/runtimes/v1"
PACKAGE: Final = "tuneplane-hpc/package/v1"
ADMISSION: Final = "tuneplane-hpc/admission/v1"
SUBMISSION: Final = "tuneplane-hpc/submission/v1"
ATTEMPT_START: Final = "tuneplane-hpc/attempt-start/v1"
ATTEMPT_END: Final = "tuneplane-hpc/attempt-end/v1"
REQUEUE: Final = "tuneplane-hpc/requeue/v1"
REPORT: Final = "tuneplane-hpc/report/v1"
PROVENANCE: Final = "tuneplane-hpc/provenance/v1"
REGISTRY_RECORD: Final = "tuneplane-hpc/registry-record/v1"
OUTPUT: Final = "tuneplane-hpc/output-dataset/v1"
CHECKPOINT: Final = "tuneplane-hpc/checkpoint/v1"
CONTINUITY: Final = "tuneplane-hpc/continuity/v1"

SIGNED_KEYS: Final = (
    "schema", "run_id", "owner", "uid", "spec_digest", "package_digest", "verdict", "mode", "admitted_at", "kernel",
)  # fmt: skip
"""What the signature of an enforced admission covers, as canonical JSON of these keys."""
