"""Hash chains: equal ids are equal prefixes."""

from hashlib import blake2b

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.wire.prefix import BYTES_PER_TOKEN, prefix_chain


def chain(
    *blocks: str, salt: bytes = b"salt", scope: tuple[str, ...] = ("model", ""), size: int = 4, ids: bool = False
) -> tuple[str, ...]:
    return prefix_chain(blocks, salt=salt, scope=scope, block_tokens=size, token_ids=ids)


def shared(one: tuple[str, ...], two: tuple[str, ...]) -> int:
    return next((i for i, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), min(len(one), len(two)))


@given(st.text(max_size=200), st.text(max_size=200), st.integers(1, 8))
def test_two_texts_share_as_many_ids_as_whole_blocks(one: str, two: str, size: int) -> None:
    first, second = one.encode(), two.encode()
    step = size * BYTES_PER_TOKEN
    blocks = [[data[start : start + step] for start in range(0, len(data), step)] for data in (first, second)]
    expected = 0
    while expected < min(map(len, blocks)) and blocks[0][expected] == blocks[1][expected]:
        expected += 1
    assert shared(chain(one, size=size), chain(two, size=size)) == expected


@given(st.lists(st.integers(0, 10**6), max_size=60), st.integers(1, 8))
def test_token_ids_are_cut_exactly(tokens: list[int], size: int) -> None:
    found = chain(",".join(map(str, tokens)), size=size, ids=True)
    assert len(found) == -(-len(tokens) // size)
    whole = len(tokens) // size
    longer = chain(",".join(map(str, [*tokens, 7])), size=size, ids=True)
    assert found[:whole] == longer[:whole]


@pytest.mark.parametrize("tokens", [1, 511, 512, 1023, 1024, 3000])
def test_a_block_of_any_size_is_hashed_as_a_whole(tokens: int) -> None:
    text = "".join(chr(33 + at % 90) for at in range(tokens * BYTES_PER_TOKEN))
    start = blake2b(b"5:model0:", key=blake2b(b"salt", digest_size=64).digest(), digest_size=16).digest()
    expected = blake2b(text.encode(), key=start, digest_size=16).hexdigest()[:16]
    assert chain(text, size=tokens) == (expected,)


def test_an_id_depends_on_everything_before_its_block() -> None:
    one, two = chain("aaaa" * 4 + "same" * 4), chain("bbbb" * 4 + "same" * 4)
    assert len(one) == len(two) == 2
    assert not set(one) & set(two)


def test_a_conversation_that_goes_on_keeps_its_ids() -> None:
    first = ("system", "You are brief." * 10, "user", "hello" * 10)
    one, two = chain(*first), chain(*first, "assistant", "hi", "user", "and now?")
    assert one[:-1] == two[: len(one) - 1]
    assert len(two) > len(one)


def test_salt_model_and_cache_salt_keep_ids_apart() -> None:
    chains = [
        chain("text"),
        chain("text", salt=b"other"),
        chain("text", salt=b"a salt far longer than a hash key may be" * 9),
        chain("text", scope=("other", "")),
        chain("text", scope=("model", "cs")),
        chain("text", scope=("mode", "l")),
    ]
    assert len(set(chains)) == len(chains)


def test_ids_are_16_hexadecimal_digits_and_an_empty_prompt_has_none() -> None:
    assert all(len(bytes.fromhex(word)) == 8 for word in chain("x" * 100))
    assert chain() == ()
    assert chain("", ids=True) == ()


def test_a_block_of_no_tokens_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1 token"):
        chain("text", size=0)
