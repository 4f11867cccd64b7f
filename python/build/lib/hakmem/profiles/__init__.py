"""Heap profiles: read, named, compared, written in other formats."""
