"""Ground floor of both rooms: canonical JSON, digests, file lists, event chains, atomic files. Standard library only."""
