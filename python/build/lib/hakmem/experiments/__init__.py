"""One kind of experiment each: what runs, what is made of it."""
