"""ShareGPT's JSON: conversations as text, in one array or one per line; no times and no token counts.

Every turn of a person that was answered is a request: all messages up to it, and an answer as long as the one recorded.
Lengths are estimated from the text (`tokens_of`); the engine's usage tells the true ones. A file has no times: the rows
have time 0 and wait for an arrival process. The array is read piece by piece, so that a file of any size fits.
"""

import codecs
import json
import re
from collections.abc import Iterator
from typing import Any, BinaryIO

import orjson

from loadgen.tracefile.row import LineError, Row
from proxy.wire.census import take_census

TIME_UNIT = "none: the file has no times"
TURN_TOKENS = 4
"""What a chat template adds for each message, about."""
CHUNK_BYTES = 1 << 20
LONGEST = 64 << 20
"""Bytes of one conversation."""
_BLANKS = re.compile(r"[\s,]*")
_ROLES = {"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "chatgpt": "assistant"}
_ROLES |= {"system": "system", "bing": "assistant", "bard": "assistant"}


def tokens_of(text: str) -> int:
    """Estimate how many tokens a text is, by script: the starting values that the proxy uses, before it has learned."""
    found = take_census(text)
    estimate = 0.24 * found.latin + 0.6 * found.digits + 0.5 * found.symbols + 0.7 * found.cjk + 0.6 * found.other
    return max(1, round(estimate + 0.6 * found.base64))


def conversations(file: BinaryIO) -> Iterator[Any]:
    """Yield the documents of a file: the elements of its array, or one object after another.

    Raises:
        LineError: what follows is no JSON, or one conversation is larger than `LONGEST`.
    """
    decoder, text = json.JSONDecoder(), _pieces(file)
    buffer, ended = _longer("", text)
    at, in_array = _past_blanks(buffer, 0), False
    if buffer.startswith("[", at):
        at, in_array = at + 1, True
    while True:
        at = _past_blanks(buffer, at)
        if in_array and buffer.startswith("]", at):
            return
        try:
            document, at = decoder.raw_decode(buffer, at)
        except (json.JSONDecodeError, RecursionError) as error:
            if not ended:
                buffer, ended = _longer(buffer[at:], text)
                at = 0
            elif at < len(buffer) or in_array:
                raise LineError(f"is not JSON: {error}") from None
            else:
                return
        else:
            yield document


def _past_blanks(buffer: str, at: int) -> int:
    found = _BLANKS.match(buffer, at)
    return found.end() if found else at


def _longer(buffer: str, text: Iterator[str]) -> tuple[str, bool]:
    if len(buffer) > LONGEST:
        raise LineError(f"is a conversation of more than {LONGEST} bytes")
    # As much again as there is: what is parsed anew stays in proportion to what is read.
    parts, wanted = [buffer], max(1, len(buffer))
    for piece in text:
        parts.append(piece)
        wanted -= len(piece)
        if wanted <= 0:
            return "".join(parts), False
    return "".join(parts), True


def _pieces(file: BinaryIO) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    try:
        while piece := file.read(CHUNK_BYTES):
            yield decoder.decode(piece)
        yield decoder.decode(b"", final=True)
    except UnicodeDecodeError as error:
        raise LineError(f"is not UTF-8 text: {error.reason}") from None


def rows(document: Any, number: int, chats: Iterator[int], *, bodies: bool) -> Iterator[Row]:
    """Yield the requests of one conversation.

    Args:
        document: the conversation.
        number: its place in the file, from 1.
        chats: numbers for its turns, none of them used before.
        bodies: whether rows carry the body of a chat request.

    Raises:
        LineError: it has no messages, or they are not as described.
    """
    messages: list[dict[str, str]] = []
    parent, total, turn = -1, 0, 0
    for message in _messages(document):
        if message["role"] == "assistant" and messages and messages[-1]["role"] == "user":
            chat = next(chats)
            body = _body(messages) if bodies else None
            answer = tokens_of(message["content"])
            turn += 1
            yield Row(number, 0, total, answer, chat=chat, parent=parent, turn=turn, body=body)
            parent = chat
        messages.append(message)
        total += tokens_of(message["content"]) + TURN_TOKENS


def _messages(document: Any) -> list[dict[str, str]]:
    said = document.get("conversations") if isinstance(document, dict) else None
    if not isinstance(said, list):
        raise LineError("has no list called conversations")
    found = []
    for message in said:
        who = message.get("from") if isinstance(message, dict) else None
        if not isinstance(who, str) or not isinstance(message.get("value"), str) or who not in _ROLES:
            raise LineError(f"has a message that is not {{from, value}} with from one of {', '.join(_ROLES)}")
        found.append({"role": _ROLES[who], "content": message["value"]})
    return found


def _body(messages: list[dict[str, str]]) -> bytes:
    """The messages alone, as a member of an object: model and answer length are the run's."""
    return b'"messages":' + orjson.dumps(messages)
