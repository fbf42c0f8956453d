"""The error catalogue and the exceptions that carry its codes."""

from hpc.errors.core import ErrorKind, Refusal, Refusals, table

__all__ = ["ErrorKind", "Refusal", "Refusals", "table"]
