"""Locked plugins in the job: found in the package, checked, put on the path, applied."""
