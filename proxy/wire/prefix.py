"""Prefix blocks of a prompt as salted hash chains, so that a trace shows shared prefixes and no text."""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Final

BYTES_PER_TOKEN: Final = 4
"""UTF-8 bytes taken for one token when text is cut into blocks. Fixed, not learned, so that a prefix is cut at the same
places in every record. About right for English and code; Chinese has 4 to 5 bytes a token."""
ID_HEX_CHARS: Final = 16

_SEPARATOR: Final = "\x1e"
_DIGEST_BYTES: Final = 16
_AT_ONCE: Final = 2047
"""Bytes. For one more, hashlib lets go of the interpreter, which a busy event loop gives back after 5 ms: at each
block of a long prompt, so that the writer of the trace falls behind."""


def prefix_chain(
    blocks: Sequence[str], *, salt: bytes, scope: Sequence[str], block_tokens: int, token_ids: bool
) -> tuple[str, ...]:
    """Hash a prompt block by block, each id covering everything up to the end of its block.

    Two prompts of one scope share their first k ids exactly when they share their first k blocks (but for a chance of
    one in 2^64 for each pair of blocks).

    Args:
        blocks: prompt text in order, or token ids joined by commas (`Facts.blocks`).
        salt: secret of the installation, of any length; ids of different salts cannot be compared.
        scope: what keeps engine caches apart: model and `cache_salt`.
        block_tokens: size of one block, in tokens, at least 1.
        token_ids: whether `blocks` are ids, which are cut exactly, or text, which is cut by `BYTES_PER_TOKEN`.

    Returns:
        One id of 16 hexadecimal digits per block, the last block being what is left; none for an empty prompt.

    Raises:
        ValueError: `block_tokens` is below 1.
    """
    if block_tokens < 1:
        raise ValueError(f"block_tokens is {block_tokens}; a prefix block holds at least 1 token")
    start = "".join(f"{len(part)}:{part}" for part in scope)
    link = blake2b(_bytes(start), key=_key(salt), digest_size=_DIGEST_BYTES).digest()
    ids: list[str] = []
    for piece in _id_pieces(blocks, block_tokens) if token_ids else _text_pieces(blocks, block_tokens):
        digest = blake2b(piece[:_AT_ONCE], key=link, digest_size=_DIGEST_BYTES)
        for at in range(_AT_ONCE, len(piece), _AT_ONCE):
            digest.update(piece[at : at + _AT_ONCE])
        link = digest.digest()
        ids.append(link.hex()[:ID_HEX_CHARS])
    return tuple(ids)


@lru_cache(maxsize=4)
def _key(salt: bytes) -> bytes:
    return blake2b(salt, digest_size=64).digest()


def _text_pieces(blocks: Sequence[str], block_tokens: int) -> Iterator[bytes]:
    text = _bytes(_SEPARATOR.join(blocks))
    size = block_tokens * BYTES_PER_TOKEN
    for start in range(0, len(text), size):
        yield text[start : start + size]


def _id_pieces(blocks: Sequence[str], block_tokens: int) -> Iterator[bytes]:
    ids = [token for block in blocks if block for token in block.split(",")]
    for start in range(0, len(ids), block_tokens):
        yield ",".join(ids[start : start + block_tokens]).encode()


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
