class SymbolicError(Exception):
    """A file cannot be read as an object."""
