"""The transform runner: `python -m tuneplane.transforms`."""
