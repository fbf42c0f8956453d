"""Decides: reports of evaluations, gates on their numbers, and what changed from one report to another."""
