"""`python -m tuneplane.transforms`: run one locked data-prep provider in a process of its own and publish its output whole or not at all."""
