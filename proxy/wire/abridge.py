"""A body with its largest attachments shortened, for reading: a JSON parser would hold the event loop over them.

An image of 20 MB in base64 is one JSON string that nobody here looks into. What goes to the engine is the body as it
came; what is read of it (lane, lengths, prefix marks) is the same without the middle of such a string.
"""

import re
from typing import Final

LONG_STRING: Final = 2**20
"""Bytes of a string from which on its middle is left out."""
_END: Final = 2**18
"""Bytes that stay at its beginning and at its end, as what makes attachments differ."""
_KEY: Final = re.compile(
    rb'"(?:url|image_url|video_url|audio_url|file_url|data|file_data)"[ \t\r\n]{0,8}:[ \t\r\n]{0,8}"$'
)
"""What stands before an attachment in the dialects that are served; the last quote opens it."""
_KEY_BYTES: Final = 64


def abridged(body: bytes) -> bytes:
    """Return a JSON document without the middle of its largest attachments.

    A string is shortened when it is the value of a key that carries attachments, is longer than `LONG_STRING` and has
    no escape in it. Its length is written where its middle was, so that two of them stay two. A document that is no
    JSON stays none: nothing outside such a string is touched. Linear, about 0.2 ms per MB.

    Returns:
        The same object when nothing was shortened.
    """
    pieces: list[bytes] = []
    kept = at = 0
    while (at := at + LONG_STRING) < len(body):
        end = body.find(b'"', at)
        if end < 0:
            break
        start = body.rfind(b'"', kept, at) + 1
        if start and _is_attachment(body, start, end):
            pieces += (body[kept : start + _END], b"%d" % (end - start))
            kept = end - _END
        at = end
    return b"".join([*pieces, body[kept:]]) if pieces else body


def _is_attachment(body: bytes, start: int, end: int) -> bool:
    return (
        end - start > LONG_STRING
        and _KEY.search(body, max(0, start - _KEY_BYTES), start) is not None
        and body.find(b"\\", start, end) < 0
    )
