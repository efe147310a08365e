"""Make the kept inputs anew: `python -m tests.fuzz.make_corpus`. They are ours: small, one per way through a reader."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.fuzz.targets import TARGETS

FOLDER = Path(__file__).resolve().parent / "corpus"
_ROOT = FOLDER.parents[2]
_SSE_BYTES = 420
"""Of each recorded stream its end is kept: finish, usage, terminal marker."""
_PART = {"type": "image_url", "image_url": {"url": "data:image/png;base64,QUJD"}}
_TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
BODIES: tuple[object, ...] = (
    {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 9, "stream": True},
    {"model": "m", "messages": [{"role": "user", "content": [{"type": "text", "text": "队列 😀"}, _PART]}], "n": 2},
    {"prompt": ["a", "b"], "max_tokens": None, "stream_options": {"include_usage": False}},
    {"prompt": [[1, 2], [3]], "min_tokens": 8, "max_tokens": 20, "stream_options": None},
    {"input": [{"role": "user", "content": [{"type": "input_text", "text": "x"}]}], "max_output_tokens": 30},
    {"system": "s", "messages": [], "max_tokens": 40, "thinking": {"type": "enabled", "budget_tokens": 39}},
    {"query": "q", "documents": ["d", {"text": "e"}], "truncate_prompt_tokens": -1, "tools": [_TOOL]},
    {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}]},
)
ODD_BODIES = (b"", b"[]", b"null", b"{", b'{"a":NaN}', b"\xef\xbb\xbf{}", b'{"\\u006dax_tokens":5,"max_tokens":1e400}')
HEADS = (
    b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello",
    b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5;a=b\r\nhello\r\n0\r\nx: y\r\n\r\nmore",
    b"HTTP/1.0 200 OK\r\nconnection: close\r\n\r\nuntil the end",
    b"HTTP/1.1 204 No Content\r\n\r\n",
    b"HTTP/1.1 304 Not Modified\r\ncontent-length: 3\r\n\r\n",
    b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nhello!",
    b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nset-cookie: a\r\nset-cookie: b\r\n\r\n",
    b"nonsense",
)
CONFIGURATIONS = (
    "backends: [http://127.0.0.1:8000]\n",
    "backends:\n  - {url: http://a:1, name: x, max_num_seqs: 8}\nlanes: {short: {max_prompt_tokens: 2048}}\n",
    "backends: http://a:1,http://b:2\nmode: observe\nscheduling: {concurrency: 9}\nwhy: {mode: because}\n",
    "backends: []\nlanes: {short: {queue: {requests: -1}}}\nunknown: 1\n",
    "a: &a [1]\nb: *a\n",
    "backends: [http://127.0.0.1:8000]\nlimits: {body: 1GiB}\ntimeouts: {header: 20s, body: 1h}\n",
)
TRACES = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,374,44\n2023-11-16 18:17:04.0,10,1\n",
    '{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [1, 2]}\n',
    (
        '{"schema":"lanewise.trace/1","arrived_s":1790000000.5,"request_id":"a","endpoint":"chat","outcome":"ok",'
        '"prompt_tokens":9,"output_tokens":3}\n'
    ),
    (
        '{"chat_id": 1, "parent_chat_id": -1, "timestamp": 61.1, "input_length": 9, "output_length": 3, '
        '"type": "text", "turn": 1, "hash_ids": [1]}\n'
    ),
    "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,ChatGPT,472,18,490,Conversation log\n",
    '[{"id":"a","conversations":[{"from":"human","value":"hi"},{"from":"gpt","value":"hello"}]}]',
    "0,1.5,2.0,Gamma,1.0,2.0\n",
)


def inputs() -> Iterator[tuple[str, bytes]]:
    """Yield target and bytes of each kept input."""
    for document in BODIES:
        yield "body", json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()
    for data in ODD_BODIES:
        yield "body", data
    for path in sorted((_ROOT / "tests/golden/sse").glob("*.sse")):
        yield "sse", b"\x03\x40\x80\xc0" + path.read_bytes()[-_SSE_BYTES:]
    for data in HEADS:
        yield "framing", b"\x02\x50\xa0" + data
    for text in CONFIGURATIONS:
        yield "configuration", text.encode()
    for number, text in enumerate(TRACES):
        yield "traces", b"\0" + text.encode()
        yield "traces", bytes([number + 1]) + text.encode()


def main() -> None:
    for target in TARGETS:
        (FOLDER / target).mkdir(parents=True, exist_ok=True)
    counts: dict[str, int] = {}
    for target, data in inputs():
        number = counts[target] = counts.get(target, 0) + 1
        (FOLDER / target / f"{number:03}").write_bytes(data)
    print(counts, file=sys.stderr)


if __name__ == "__main__":
    main()
