"""Real programs to run under each allocator, as scripts for the system's Python."""
