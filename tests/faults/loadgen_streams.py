"""Streams of the completions dialect, for the load generator's cases."""

import asyncio

from tests.faults.upstream import DONE, Connection, Script, Seen, event


def text(words: str, finish: str | None = None) -> bytes:
    """One event of a completions stream."""
    return event(
        {
            "id": "c",
            "object": "text_completion",
            "model": "m",
            "choices": [{"index": 0, "text": words, "finish_reason": finish}],
        }
    )


def usage(prompt: int, output: int) -> bytes:
    counts = {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}
    return event({"id": "c", "object": "text_completion", "model": "m", "choices": [], "usage": counts})


def stream(parts: list[bytes], gaps_s: tuple[float, ...] = (), *, ends: bool = True) -> Script:
    """Send those parts with those gaps before each."""

    async def script(seen: Seen, connection: Connection) -> None:
        await connection.head()
        for number, part in enumerate(parts):
            await asyncio.sleep(gaps_s[number] if number < len(gaps_s) else 0)
            await connection.chunk(part)
        if ends:
            await connection.send(b"0\r\n\r\n")

    return script


def every_other(first: Script, second: Script) -> Script:
    """Answer the requests in turn."""
    count = 0

    async def script(seen: Seen, connection: Connection) -> None:
        nonlocal count
        count += 1
        await (first if count % 2 else second)(seen, connection)

    return script


WHOLE = stream([text("a"), text("b"), text("c", "length"), usage(10, 3), DONE])
