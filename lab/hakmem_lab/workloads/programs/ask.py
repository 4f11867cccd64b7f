"""Asks a program of stay.h or stay.py for its work, and prints the result: ask.py PORT."""

import socket
import sys

with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as server:
    server.sendall(b"!")
    result = server.makefile().read()
if not result:
    raise SystemExit("the program told no result")
print(result, end="")
