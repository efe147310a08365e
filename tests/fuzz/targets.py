"""What is fuzzed: readers of bytes that others send. Each takes any bytes, and raises when a promise is broken.

Imports of the product stand inside the functions: atheris counts the branches of what is imported after it.
"""

import json
import math
import re
import tempfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

_CUTS_AT_MOST = 6
_SHORT = 64
"""Bytes of a stream that is also read byte by byte."""


def _promise(holds: bool, text: str) -> None:
    assert holds, text


def body(data: bytes) -> None:
    """A request body: it is refused in words, or read, and edits of it change what they say and nothing else."""
    from proxy.accept import parse_object
    from proxy.answers import EndedError
    from proxy.wire import bodies, caps
    from proxy.wire.facts import Endpoint
    from proxy.wire.invalid import certain_refusal

    try:
        document = parse_object(data)
    except EndedError as ended:
        _promise(ended.status in range(400, 500), str(ended.status))
        return
    for endpoint in Endpoint:
        facts = bodies.read_facts(endpoint, document, len(data), want_blocks=True)
        assert facts.sequences >= 1
        assert min(facts.census) >= 0
        certain_refusal(endpoint, document)
        edited = caps.set_output_cap(data, endpoint, facts.output, 7)
        assert isinstance(parse_object(edited), dict)
    asking = caps.ask_for_usage(data)
    after = parse_object(asking)
    if asking != data:
        assert after["stream_options"]["include_usage"] is True
    assert _same(_without(after), _without(document))


def _without(document: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in document.items() if key != "stream_options"}


def _same(one: Any, two: Any) -> bool:
    if isinstance(one, float) and isinstance(two, float) and math.isnan(one):
        return math.isnan(two)
    return bool(one == two)


def sse(data: bytes) -> None:
    """A stream: cut anywhere it means the same, nothing raises, and what passes on is the stream itself."""
    from proxy.wire.facts import Endpoint
    from proxy.wire.sse import StreamScanner, UsageRemover

    cuts, stream = _cuts(data)
    for endpoint in (Endpoint.CHAT, Endpoint.COMPLETIONS, Endpoint.RESPONSES, Endpoint.MESSAGES):
        found = []
        for pieces in ([stream], _pieces(stream, cuts), _pieces(stream, _everywhere(stream))):
            scanner = StreamScanner(endpoint)
            told = sum(scanner.feed(piece) for piece in pieces)
            assert told == scanner.tokens
            scanner.end()
            error = scanner.error.message if scanner.error else None
            found.append((scanner.tokens, scanner.finish_reason, scanner.usage, error, scanner.done, scanner.unparsed))
        assert found[0] == found[1] == found[2], found
    remover = UsageRemover()
    out = b"".join(remover.feed(piece) for piece in _pieces(stream, cuts)) + remover.end()
    if remover.removed:
        assert len(out) < len(stream)
        assert _is_cut_out_of(out, stream)
    else:
        rest = stream[len(out) :]  # the last event without its blank line, when it is the one
        assert stream.startswith(out)
        assert not rest or b"usage" in rest


def _is_cut_out_of(out: bytes, stream: bytes) -> bool:
    """Whether one piece taken out of the stream gives what came out."""
    gone = len(stream) - len(out)
    at = next((at for at, (one, two) in enumerate(zip(out, stream, strict=False)) if one != two), len(out))
    return any(out == stream[:start] + stream[start + gone :] for start in range(max(0, at - gone), at + 1))


def framing(data: bytes) -> None:
    """An engine's answer: refused, or understood the same however it is cut; what is passed on is what came."""
    cuts, wire = _cuts(data)
    whole = _answer([wire])
    assert _answer(_pieces(wire, cuts)) == whole
    assert _answer(_pieces(wire, _everywhere(wire))) == whole


def _answer(pieces: list[bytes]) -> Any:
    """Return head, payload and end of one answer; what was wrong, when it is refused."""
    from proxy.upstream.framing import BadFramingError
    from proxy.upstream.head import BadHeadError, parse_head, split_head

    buffer, body, framing, head = b"", b"", None, None
    passed = b""
    try:
        for piece in pieces:
            rest = piece
            if framing is None:
                buffer += piece
                end = split_head(buffer)
                if not end:
                    continue
                head = parse_head(buffer[:end])
                framing, rest = head.framing(), buffer[end:]
            if framing.done:
                framing.excess += rest
            elif rest:
                on, payload = framing.feed(rest)
                body += payload
                passed += on
    except BadHeadError:
        return "head"
    except BadFramingError:
        return "framing"
    if framing is None or head is None:
        return "incomplete"
    assert b"".join(pieces)[end:].startswith(passed)
    return head.status, head.headers, body, framing.done, framing.complete_at_close()


def configuration(data: bytes) -> None:
    """A configuration: read, or refused with every problem in a sentence of one line."""
    from proxy.settings.load import load_text
    from proxy.settings.yamlfile import ConfigurationError

    try:
        settings = load_text(data.decode("utf-8", "replace"), "fuzz.yaml")
    except ConfigurationError as error:
        _promise(bool(error.sentences), "no sentence")
        _promise(all(sentence and "\n" not in sentence for sentence in error.sentences), "no line")
        return
    assert len(settings.hash) >= 8


_FOLDER = tempfile.TemporaryDirectory(prefix="fuzz-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None)


def traces(data: bytes) -> None:
    """A trace file: its rows, or a sentence that names file and line; bad lines are counted where asked for."""
    from loadgen.failure import UsageError
    from loadgen.tracefile import Skipped, open_trace
    from loadgen.tracefile.detect import FORMATS

    path = Path(_FOLDER.name) / "chunk-1-trace.csv"
    name = [None, *FORMATS][data[0] % (len(FORMATS) + 1)] if data else None
    path.write_bytes(data[1:])
    for skipped in (None, Skipped()):
        try:
            for number, row in enumerate(open_trace(path, name, skipped=skipped).rows()):
                assert row.prompt_tokens >= 0
                assert row.output_tokens >= 0
                if number > 200:
                    break
        except UsageError as error:
            _promise(re.match(r"\S*chunk-1|--format", str(error)) is not None, str(error))


def _cuts(data: bytes) -> tuple[list[int], bytes]:
    """Take some places to cut at from the beginning; the rest is what is cut."""
    count = min(data[0] % (_CUTS_AT_MOST + 1), len(data) - 1) if data else 0
    rest = data[1 + count :]
    return sorted(place * (len(rest) + 1) // 256 for place in data[1 : 1 + count]), rest


def _everywhere(data: bytes) -> list[int]:
    """Return the places of one byte each in what is short; of what is long those around its line ends."""
    if len(data) <= _SHORT:
        return list(range(1, len(data)))
    ends = [at for at, byte in enumerate(data) if byte in b"\r\n"][:_SHORT]
    return sorted({place for end in ends for place in (end, end + 1)} - {0})


def _pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    return [data[start:end] for start, end in pairwise([0, *cuts, len(data)])]


TARGETS: dict[str, Callable[[bytes], None]] = {
    "body": body,
    "sse": sse,
    "framing": framing,
    "configuration": configuration,
    "traces": traces,
}


def tokens() -> dict[str, list[bytes]]:
    """Return words that each target's inputs are made of; a fuzzer puts them together."""
    keys = ["model", "messages", "content", "role", "prompt", "max_tokens", "stream", "stream_options", "n", "tools"]
    keys += ["include_usage", "max_completion_tokens", "min_tokens", "thinking", "budget_tokens", "input", "type"]
    quoted = [json.dumps(key).encode() for key in keys]
    events = [b"data: ", b"event: ", b"\n\n", b"\r\n\r\n", b"data: [DONE]", b'"usage":', b'"choices":[]', b'"delta":']
    events += [b'"finish_reason":"stop"', b'"content":"x"', b'"error":', b"message_stop", b"response.completed"]
    heads = [b"HTTP/1.1 200 OK\r\n", b"content-length: 5\r\n", b"transfer-encoding: chunked\r\n", b"\r\n\r\n"]
    heads += [b"0\r\n\r\n", b"5\r\nhello\r\n", b"connection: close\r\n", b"1;a=b\r\n", b"HTTP/1.0 ", b"304", b"204"]
    yaml = [b"backends: ", b"lanes:", b"scheduling:", b"http://127.0.0.1:1", b"&a", b"*a", b"<<: ", b"!!", b"30s"]
    rows = [b"TIMESTAMP,ContextTokens,GeneratedTokens", b'"timestamp":', b'"input_length":', b'"hash_ids":[1,2]']
    rows += [b'"schema":"lanewise.trace/1"', b'"arrived_s":', b"2023-11-16 18:15:46.6805900", b"Request tokens"]
    return {"body": quoted, "sse": events + quoted, "framing": heads, "configuration": yaml, "traces": rows}
