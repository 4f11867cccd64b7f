"""Which allocators there are, and where they lie."""
