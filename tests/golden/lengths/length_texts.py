"""Texts of one kind, composed by seed from the pieces in counts.json."""

import base64
import random

LAST = 50
"""Index of the text that is judged; those before it are learned from."""


def text_of(pieces, kind: str, index: int) -> str:
    """Compose one text: of 2 to 20 KB, the last one of 20 KB."""
    rng = random.Random(f"{kind} {index}")
    size = 20_000 if index == LAST else rng.randint(2_000, 20_000)
    if kind == "base64":
        return base64.b64encode(rng.randbytes(size * 3 // 4)).decode()
    parts: list[str] = []
    while size > 0:
        parts.append(rng.choice(pieces))
        size -= len(parts[-1].encode())
    return "\n".join(parts) if kind == "code" else "".join(parts)
