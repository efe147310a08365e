"""A process of its own that asks a proxy small questions, one after the other, until its standard input ends.

The suite's own event loop carries megabytes while this measures; a process apart is not held up by that. The question
is one that the proxy answers itself (404), so what is slow is the proxy's event loop and nothing else.
"""

import json
import select
import socket
import sys
import time

QUESTION = b"GET /nothing-here HTTP/1.1\r\nHost: t\r\n\r\n"


def ask(connection: socket.socket) -> float:
    """Return the seconds to the first byte of one answer."""
    began = time.perf_counter()
    connection.sendall(QUESTION)
    data = connection.recv(65536)
    took = time.perf_counter() - began
    head, _, body = data.partition(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
    while len(body) < length:
        body += connection.recv(65536)
    return took


def main() -> None:
    took: list[float] = []
    with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as connection:
        print("ready", flush=True)
        while not select.select([sys.stdin], [], [], 0.002)[0]:
            took.append(ask(connection))
    took.sort()
    print(json.dumps({"asked": len(took), "median_s": took[len(took) // 2], "worst_s": took[-1]}))


if __name__ == "__main__":
    main()
