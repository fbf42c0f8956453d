"""In the job: verify the package, set the documented environment, start the ranks, record how it ended. Standard library only."""
