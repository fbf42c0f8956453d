"""What both sides of the door agree on: paths, schema names, exit codes, variables. Standard library only."""
