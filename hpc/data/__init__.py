"""Data sets and volumes: what their kinds are, what a reference means for a job, what a job produced, and how good rows are."""
