"""The raw inputs of the framing cases, as recipes: what differs from a plain request stands in its recipe alone."""

import gzip
import zlib
from collections.abc import Callable

BODY = b'{"model":"m","messages":[{"role":"user","content":"hi"}],"max_tokens":8}'
LINE = b"POST /v1/chat/completions HTTP/1.1"
HOST, JSON = b"Host: t", b"Content-Type: application/json"
LENGTH = b"Content-Length: %d" % len(BODY)
CHUNKED = b"Transfer-Encoding: chunked"
CRLF = b"\r\n"
LAST = b"0\r\n\r\n"
ONE_CHUNK = b"48\r\n" + BODY + CRLF + LAST
SMUGGLED = b"GET /smuggled HTTP/1.1\r\nHost: t\r\n\r\n"
BOMB_BYTES = 200_000_000


def head(*lines: bytes) -> bytes:
    """Lines, and the empty line after them."""
    return CRLF.join([*lines, b"", b""])


def post(*fields: bytes, line: bytes = LINE, body: bytes = BODY, length: bytes = LENGTH) -> bytes:
    """A POST whose Content-Length comes last, after fields of its own."""
    return head(line, HOST, JSON, *fields, length) + body


def lengths(*fields: bytes, body: bytes = BODY) -> bytes:
    """A POST that says its length, or whatever, in its own way."""
    return head(LINE, HOST, JSON, *fields) + body


def coded(*fields: bytes, line: bytes = LINE) -> bytes:
    """A POST with one chunk, whose transfer coding is said in its own way."""
    return head(line, HOST, JSON, *fields) + ONE_CHUNK


def chunks(data: bytes) -> bytes:
    """A POST whose chunked body is exactly that."""
    return head(LINE, HOST, JSON, CHUNKED) + data


def hosted(*hosts: bytes, line: bytes = LINE) -> bytes:
    """A POST with those Host fields, or none."""
    return head(line, *hosts, JSON, LENGTH) + BODY


def target(path: bytes) -> bytes:
    """A POST for another target."""
    return post(line=b"POST " + path + b" HTTP/1.1")


def squeezed(data: bytes, coding: bytes) -> bytes:
    return post(b"Content-Encoding: " + coding, body=data, length=b"Content-Length: %d" % len(data))


def _zipped(data: bytes = BODY) -> bytes:
    return gzip.compress(data, mtime=0)


def _bomb() -> bytes:
    """200 MB of one letter in 200 kB, made without holding 200 MB."""
    squeeze = zlib.compressobj(9, wbits=31)
    part = b"a" * 1_000_000
    data = squeeze.compress(b'{"model":"m","prompt":"')
    data += b"".join(squeeze.compress(part) for _ in range(BOMB_BYTES // len(part)))
    return data + squeeze.compress(b'"}') + squeeze.flush()


def _corrupt() -> bytes:
    return _zipped()[:-6] + bytes(6)


def _many(count: int, name: bytes = b"X-H") -> list[bytes]:
    return [b"%b%d: 1" % (name, number) for number in range(count)]


def _one_byte_chunks() -> bytes:
    blanks = b"1\r\n \r\n" * 5000
    return chunks(blanks + ONE_CHUNK)


_LENGTH_VALUES = {
    "020": b"+72",
    "021": b"-72",
    "022": b"0x48",
    "023": b"7_2",
    "024": b"99999999999999999999999",
    "025": b"",
    "026": b"7 2",
    "027": "٧٢".encode(),
    "028": b"72.0",
    "029": b"72abc",
    "030": b"0072",
    "031": b" \t72 \t",
}
_CODINGS = {
    "0401": b": identity, chunked",
    "0402": b": chunked, identity",
    "0403": b": chunked, chunked",
    "0405": b": xchunked",
    "0406": b": \x0bchunked",
    "0407": b" : chunked",
    "0408": b":\tchunked",
    "0409": b":\r\n chunked",
    "0411": b': "chunked"',
    "0412": b": chunked;a=b",
    "0413": b": gzip, chunked",
    "0414": b": \0chunked",
    "0415": b": ,chunked",
}
_CHUNK_SIZES = {
    "050": b'48;name=value;q="a;b"\r\n',
    "051": b"48;\nxx\r\n",
    "052": b"48;a=" + b"x" * 65536 + CRLF,
    "053": b"+48\r\n",
    "054": b"0x48\r\n",
    "055": b"4_8\r\n",
    "056": b"1000000000000000048\r\n",
    "057": b"-1\r\n",
    "058": CRLF,
    "059": b"48\n",
    "062": b"48  \r\n",
    "063": b"000000000048\r\n",
}
_TRAILERS = {
    "064": b"X-T: 1\r\n",
    "065": b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\nHost: evil\r\nAuthorization: Bearer x\r\n",
    "066": b"".join(field + CRLF for field in _many(1000, b"X-T")),
    "067": b"GET /smuggled HTTP/1.1\r\nHost: t\r\n",
}
_TARGETS = {
    "071": b"http://t/v1/chat/completions",
    "072": b"http://169.254.169.254/latest/meta-data",
    "082": b"/v1/chat/completions?a=" + b"x" * 9000,
    "083": b"/v1/chat/completions?a=" + b"x" * 70000,
    "084": b"/v1/chat/completions%00",
    "085": b"/v1/chat/completions%0d%0aX-Injected:%201",
    "086": "/v1/聊天".encode(),
    "087": b"/v1/chat completions",
    "0900": b"//v1/chat/completions",
    "0901": b"/v1/../metrics",
    "0902": b"/v1/%2e%2e/metrics",
    "0903": b"/v1/..;/metrics",
    "0904": b"/v1/chat%2fcompletions",
    "0905": b"/v1/./chat/completions",
    "0906": b"/v1\\..\\metrics",
    "0907": b"/v1/%252e%252e/metrics",
    "0908": b"/%61dmin/reload",
    "0909": b"/v1/chat/completions/",
    "0910": b"/V1/CHAT/COMPLETIONS",
    "0911": b"/v1/chat/completions#/metrics",
}
_LINES = {
    "076": b"POST /v1/chat/completions HTTP/2.0",
    "077": b"POST /v1/chat/completions HTTP/1.2",
    "078": b"POST /v1/chat/completions http/1.1",
    "080": b"POST  /v1/chat/completions HTTP/1.1",
    "081": b"POST /v1/chat/completions\tHTTP/1.1",
    "100": b"post /v1/chat/completions HTTP/1.1",
    "101": b"FOOBAR /v1/chat/completions HTTP/1.1",
    "102": b"P@ST\x01 /v1/chat/completions HTTP/1.1",
    "103": CRLF + LINE,
    "104": b" " + LINE,
}
_FIELDS: dict[str, tuple[bytes, ...]] = {
    "0420": (b"Transfer_Encoding: chunked",),
    "120": (b"X Foo: 1",),
    "121": (b": 1",),
    "122": (b"X\0Y: 1",),
    "123": (b"X-\xe9: 1",),
    "124": (b"X-A: a\0b",),
    "125": (b"X-A: a\rb",),
    "126": (b"X-A: caf\xe9 " + "你".encode(),),
    "127": (b"X-A: a\r\n b",),
    "129": (b"garbage-line",),
    "130": (b"X-Big: " + b"a" * 9000,),
    "131": (b"X-Big: " + b"a" * 70000,),
    "132": tuple(_many(150)),
    "133": tuple(_many(5000)),
    "134": (b"User-Agent: \x1b[31mred\x1b[0m",),
    "140": (b"Connection: close, Content-Length",),
    "141": (b"Connection: Authorization", b"Authorization: Bearer t"),
    "142": (b"Connection: X-Hop", b"X-Hop: secret"),
    "143": (
        b"Keep-Alive: timeout=5",
        b"Proxy-Connection: keep-alive",
        b"TE: trailers",
        b"Proxy-Authorization: Basic eA==",
    ),
    "144": (b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: AAMAAABkAAQAAP__"),
    "150": (b"Expect: 100-continue",),
    "152": (b"Expect: 200-maybe",),
    "160": (
        b"X-Forwarded-For: 1.2.3.4",
        b"Forwarded: for=1.2.3.4;host=evil",
        b"X-Real-IP: 1.2.3.4",
        b"X-Forwarded-Host: evil",
    ),
    "161": (b"Range: bytes=0-10",),
    "173": (b"Content-Encoding: bogus",),
    "175": (b"Content-Encoding: identity",),
    "180": (b"Content-Type: text/plain",),
    "182": (b"Authorization: Bearer a", b"Authorization: Bearer b"),
}

RECIPES: dict[str, Callable[[], bytes]] = {
    "000": post,
    "001": lambda: chunks(b"14\r\n" + BODY[:20] + CRLF + b"34\r\n" + BODY[20:] + CRLF + LAST),
    "002": lambda: head(b"GET /v1/models HTTP/1.1", HOST),
    "010": lambda: lengths(b"Content-Length: 118", CHUNKED, body=ONE_CHUNK + SMUGGLED),
    "011": lambda: coded(CHUNKED, b"Content-Length: 4"),
    "012": lambda: lengths(LENGTH, LENGTH),
    "013": lambda: lengths(b"Content-Length: 3", LENGTH),
    "014": lambda: lengths(b"Content-Length: 72, 72"),
    "015": lambda: lengths(b"Content-Length: 72, 3"),
    **{key: lambda v=value: lengths(b"Content-Length: " + v) for key, value in _LENGTH_VALUES.items()},
    "032": lambda: lengths(b"Content-Length : 72"),
    "0400": lambda: coded(CHUNKED, b"Transfer-Encoding: identity"),
    "0404": lambda: coded(CHUNKED, CHUNKED),
    **{key: lambda v=value: coded(b"Transfer-Encoding" + v) for key, value in _CODINGS.items()},
    "0410": lambda: coded(b"tRANSFER-eNCODING: CHUNKED"),
    "0416": lambda: coded(b"X-Abc: \rxTransfer-Encoding: chunked"),
    "0417": lambda: coded(b"X-Abc: a\nTransfer-Encoding: chunked"),
    "0421": lambda: coded(CHUNKED, line=LINE.replace(b"1.1", b"1.0")),
    "0422": lambda: head(LINE, HOST, JSON, b"Transfer-Encoding: identity"),
    **{key: lambda v=value: chunks(v + BODY + CRLF + LAST) for key, value in _CHUNK_SIZES.items()},
    "060": lambda: chunks(b"48\r\n" + BODY + b"\n" + LAST),
    "061": lambda: chunks(b"48\r\n" + BODY + b"XX\r\n" + LAST),
    **{key: lambda v=value: chunks(b"48\r\n" + BODY + CRLF + b"0\r\n" + v + CRLF) for key, value in _TRAILERS.items()},
    "068": _one_byte_chunks,
    "069": lambda: chunks(b"48\r\n" + BODY[:10]),
    "070": lambda: post().replace(CRLF, b"\n"),
    **{key: lambda v=value: target(v) for key, value in _TARGETS.items()},
    "073": lambda: head(b"CONNECT 127.0.0.1:22 HTTP/1.1", b"Host: 127.0.0.1:22"),
    "074": lambda: head(b"OPTIONS * HTTP/1.1", HOST),
    "075": lambda: b"GET /v1/models\r\n",
    "079": lambda: b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    **{key: lambda v=value: post(line=v) for key, value in _LINES.items()},
    "105": lambda: head(b"TRACE / HTTP/1.1", HOST, b"Authorization: Bearer s3cret"),
    "110": hosted,
    "111": lambda: hosted(HOST, HOST),
    "112": lambda: hosted(HOST, b"Host: evil"),
    "113": lambda: hosted(b"Host: a:b@t"),
    "114": lambda: hosted(b"Host:"),
    "115": lambda: hosted(b"Host: t/evil"),
    "116": lambda: hosted(line=LINE.replace(b"1.1", b"1.0")),
    "128": lambda: head(LINE, b" Host: t", JSON, b"Content-Length: 0"),
    **{key: lambda v=value: post(*v) for key, value in _FIELDS.items()},
    "145": lambda: head(
        b"GET /v1/realtime HTTP/1.1",
        HOST,
        b"Connection: Upgrade",
        b"Upgrade: websocket",
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
        b"Sec-WebSocket-Version: 13",
    ),
    "151": lambda: post(b"Expect: 100-continue", body=b""),
    "170": lambda: squeezed(_zipped(), b"gzip"),
    "171": lambda: squeezed(_bomb(), b"gzip"),
    "172": lambda: squeezed(_zipped(_zipped()), b"gzip, gzip"),
    "174": lambda: squeezed(_corrupt(), b"gzip"),
    "181": lambda: head(LINE, HOST, LENGTH) + BODY,
    "190": lambda: post() * 2,
    "191": lambda: post() + SMUGGLED,
    "192": lambda: post() + b"\0\x01garbage\r\n\r\n",
    "193": lambda: head(b"GET /v1/models HTTP/1.1", HOST, b"Content-Length: %d" % len(SMUGGLED)) + SMUGGLED,
    "194": lambda: head(b"HEAD /v1/models HTTP/1.1", HOST),
    "195": lambda: post(length=b"Content-Length: 500"),
    "196": lambda: CRLF.join([LINE, HOST, b"Content-Le"]),
    "197": lambda: b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(40),
    "198": lambda: post() * 300,
    "199": lambda: head(LINE, HOST, JSON),
}
"""Number of the case → a function that makes its bytes."""
