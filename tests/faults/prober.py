"""A process of its own that asks proxies small questions, one after the other, until its standard input ends.

The suite's own event loop carries megabytes while this measures; a process apart is not held up by that. The question
is one that a proxy answers itself (404), so what is slow is its event loop and nothing else. Of several proxies that
are named, each is asked in turn: one that has nothing else to do shows what the machine adds.
"""

import json
import select
import socket
import sys
import time
from contextlib import ExitStack

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
    took: list[list[float]] = [[] for _ in sys.argv[1:]]
    with ExitStack() as stack:
        connections = [stack.enter_context(socket.create_connection(("127.0.0.1", int(port)))) for port in sys.argv[1:]]
        print("ready", flush=True)
        while not select.select([sys.stdin], [], [], 0.002)[0]:
            for seconds, connection in zip(took, connections, strict=True):
                seconds.append(ask(connection))
    rows = [sorted(seconds) for seconds in took]
    print(json.dumps([{"asked": len(row), "median_s": row[len(row) // 2], "worst_s": row[-1]} for row in rows]))


if __name__ == "__main__":
    main()
