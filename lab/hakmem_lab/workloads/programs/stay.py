"""As stay.h, in Python: a program that stays up after its work."""

import socket
from collections.abc import Callable


def work_asked(port: int, work: Callable[[], str]) -> None:
    with socket.create_server(("127.0.0.1", port)) as listener:
        while True:
            client, _ = listener.accept()
            with client:
                # Whoever only looks whether the port is open says nothing.
                if client.recv(1):
                    client.sendall(f"{work()}\n".encode())
