"""tuneplane: the part of the toolkit that travels into the job.

`tuneplane.record` and `tuneplane.contract` need the standard library alone and are shared with the login node; `tuneplane.launch`
verifies a job package and starts it; `tuneplane.training` needs torch and is imported late. Nothing here imports `hpc`.
"""

__version__ = "0.4.0"
