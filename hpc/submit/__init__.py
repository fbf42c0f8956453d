"""Flags to queued: the JobSpec is built, packed, admitted, rendered and submitted exactly once."""
