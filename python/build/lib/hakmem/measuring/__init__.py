"""Rounds and their journals, intervals, verdicts."""
