"""Locked plugins in the job: read and verified from the package, checked against this interpreter, loaded. Standard library only."""

from tuneplane.plugins.deferred import install_deferred

__all__ = ["install_deferred"]
