"""One process from outside: hakmem's page in it, and the kernel's."""
