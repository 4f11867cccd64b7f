"""Starting programs, and seeing which allocator served them."""
