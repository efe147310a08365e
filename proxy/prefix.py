"""Prefix blocks of a prompt as salted hash chains: equal ids are equal prefixes, nothing more can be read from them.

The text is cut into blocks of a fixed number of UTF-8 bytes, so that two prompts with the same beginning are cut at the
same places whatever follows. Four bytes stand for one token: about right for English and code, and for Chinese (three
bytes a character, about 1.4 characters a token).
"""

from collections.abc import Sequence
from hashlib import blake2b

BYTES_PER_TOKEN = 4
_BETWEEN = "\x1e"
"""Keeps ["ab", "c"] apart from ["a", "bc"]."""
_ID_BYTES = 8


def prefix_chain(
    blocks: Sequence[str], *, salt: bytes, scope: tuple[str, str], block_tokens: int, token_ids: bool
) -> tuple[str, ...]:
    """Hash the prompt block by block, each hash covering everything before it.

    Args:
        blocks: the prompt's text in order, or its token ids joined by commas.
        salt: secret of the installation; another salt gives unrelated ids.
        scope: model and cache salt: prompts of different scopes never share a prefix.
        block_tokens: size of one block in tokens.
        token_ids: `blocks` are ids; they are counted instead of estimated.

    Returns:
        One id of 16 hex digits per block, the last for what is left over. Empty for an empty prompt.
    """
    link = blake2b("\x1f".join(scope).encode("utf-8", "surrogatepass"), key=blake2b(salt).digest()).digest()
    ids = []
    for piece in _cut_ids(blocks, block_tokens) if token_ids else _cut_text(blocks, block_tokens):
        link = blake2b(link + piece).digest()
        ids.append(link[:_ID_BYTES].hex())
    return tuple(ids)


def _cut_text(blocks: Sequence[str], block_tokens: int) -> list[bytes]:
    text = _BETWEEN.join(blocks).encode("utf-8", "surrogatepass")
    size = block_tokens * BYTES_PER_TOKEN
    return [text[start : start + size] for start in range(0, len(text), size)]


def _cut_ids(blocks: Sequence[str], block_tokens: int) -> list[bytes]:
    ids = ",".join(blocks).split(",") if any(blocks) else []
    return [",".join(ids[start : start + block_tokens]).encode() for start in range(0, len(ids), block_tokens)]
