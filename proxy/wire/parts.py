"""Feeding a long prompt in parts, on the wire: its token ids, the request for a part, and the usage that is told.

Nothing is decoded that need not be: ids stay JSON text, of which a part is a prefix; fields are copied as the client
wrote them; in an answer only the digits of two counts change.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from proxy.wire.facts import Endpoint
from proxy.wire.splice import Edit, Member, NotAnObjectError, apply, members
from proxy.wire.sse import EVENT_END

PARTS_PATH: Final = "/v1/completions"
TOKENIZE_PATH: Final = "/tokenize"

# What `/tokenize` takes of a body; all else leaves the prompt as it is, or the request is not split (`bodies.py`).
_TEMPLATE_KEYS: Final = {
    Endpoint.CHAT: frozenset(
        ("model", "messages", "tools", "chat_template", "chat_template_kwargs", "add_generation_prompt",
         "continue_final_message", "add_special_tokens")
    ),
    Endpoint.COMPLETIONS: frozenset(("model", "prompt", "add_special_tokens")),
}  # fmt: skip
# What makes a prefix findable (the model names an adapter, the salt is hashed into every block), and what orders it.
_COPIED_KEYS: Final = frozenset(("model", "cache_salt", "priority"))
_IDS: Final = b"0123456789, \t\r\n"
_NUMBER: Final = re.compile(rb"\d{1,18}")
_CACHED: Final = b'"cached_tokens"'
_LONGEST_USAGE_EVENT: Final = 1 << 16


class PromptIds:
    """The token ids of one prompt, as the text inside a JSON array.

    A prefix is found by counting commas, from the last one that was asked for: parts come in order, so all parts of a
    prompt together walk it once.
    """

    __slots__ = ("_end", "_text", "_tokens", "count")

    def __init__(self, text: bytes) -> None:
        self._text = text.strip()
        self.count = self._text.count(b",") + 1 if self._text else 0
        """How many there are."""
        self._tokens = 0
        self._end = -1
        """Where the comma behind the first `_tokens` ids is."""

    def __len__(self) -> int:
        """Return the bytes of the text."""
        return len(self._text)

    def prefix(self, tokens: int) -> bytes:
        """Return the text of the first `tokens` ids.

        Raises:
            ValueError: there are not so many, or fewer than one was asked for.
        """
        if not 0 < tokens <= self.count:
            raise ValueError(f"the prompt has {self.count} ids, {tokens} were asked for")
        if tokens == self.count:
            return self._text
        if tokens < self._tokens:
            self._tokens, self._end = 0, -1
        find, end = self._text.find, self._end
        for _ in range(tokens - self._tokens):
            end = find(b",", end + 1)
        self._tokens, self._end = tokens, end
        return self._text[:end]


@dataclass(frozen=True, slots=True)
class Tokenized:
    """What `/tokenize` answered."""

    ids: PromptIds
    max_model_len: int | None


def tokenize_body(endpoint: Endpoint, body: bytes) -> bytes:
    """Return the body that asks `/tokenize` for the ids of a prompt.

    Args:
        endpoint: chat or completions.
        body: the client's own, accepted by a JSON parser; its members are copied byte for byte.

    Raises:
        NotAnObjectError: the body is no JSON object.
    """
    return b"{%b}" % b",".join(_copied(body, _TEMPLATE_KEYS[endpoint]))


def read_tokenized(answer: bytes) -> Tokenized | None:
    """Read the answer of `/tokenize`; None when it is not one, or counts otherwise than it lists."""
    try:
        found = {member.key: answer[member.start : member.end] for member in members(answer)}
    except NotAnObjectError:
        return None
    ids = _ids(found.get("tokens", b""))
    if ids is None or found.get("count") != b"%d" % ids.count:
        return None
    return Tokenized(ids, _whole(found.get("max_model_len", b"")))


def own_ids(body: bytes, document: Mapping[str, object]) -> PromptIds | None:
    """Return the ids that a completions body brings itself; None when its prompt is no list of ids.

    Args:
        body: as it came.
        document: the same, decoded.
    """
    prompt = document.get("prompt")
    if not isinstance(prompt, list) or any(type(item) is not int or item < 0 for item in prompt):
        return None
    found = None
    for member in members(body):
        if member.key == "prompt":
            found = member
    return None if found is None else _ids(body[found.start : found.end])


def copied_fields(body: bytes) -> bytes:
    """Return the members of a body that every part repeats, as the client wrote them, ready to be put into an object.

    Raises:
        NotAnObjectError: the body is no JSON object.
    """
    return b"".join(b"%b," % member for member in _copied(body, _COPIED_KEYS))


def part_body(ids: PromptIds, tokens: int, copied: bytes, request_id: str) -> bytes:
    """Return the body of one part: the first `tokens` ids, and one output token that is thrown away.

    Args:
        ids: of the whole prompt.
        tokens: how many of them.
        copied: from `copied_fields`.
        request_id: what the engine calls it.
    """
    return b'{%b"prompt":[%b],"max_tokens":1,"temperature":0,"stream":false,"request_id":%b}' % (
        copied,
        ids.prefix(tokens),
        json.dumps(request_id).encode("ascii"),
    )


def part_id(request_id: str, part: int) -> str:
    """Return the id of one part, so that the engine's log tells parts from requests."""
    return f"inst-{request_id}-{part}"


@dataclass(slots=True)
class ToldUsage:
    """What the client of a prompt that was fed in parts is told about the prefix cache.

    Without the parts the engine would have found what the first part found, and would have put there itself
    (`created_cache_tokens`, vLLM 0.32) what the final found beyond that. What the parts say that they put there cannot
    be added up: vLLM says it for chat alone, and parts are completions.
    """

    cached: int
    """Tokens that the first part found in the cache."""


def read_part(answer: bytes) -> int | None:
    """Read from the answer of a part how many tokens the engine found in its cache.

    None when it does not say (no `--enable-prompt-tokens-details`).
    """
    counts: dict[str, int | None] = {}
    try:
        for usage in _objects(answer, 0, "usage"):
            for details in _objects(answer, usage, "prompt_tokens_details"):
                counts |= {member.key: _whole(answer[member.start : member.end]) for member in members(answer, details)}
    except NotAnObjectError:
        return None
    return counts.get("cached_tokens")


def tell_usage(answer: bytes, told: ToldUsage, at: int = 0) -> bytes:
    """Correct the cache counts in `usage.prompt_tokens_details`, where they are; every other byte stays.

    Args:
        answer: bytes that hold a JSON object.
        told: the counts.
        at: where the object begins.

    Returns:
        The edited bytes; the very same object when there is nothing to correct.
    """
    if _CACHED not in answer:
        return answer
    try:
        return apply(answer, list(_usage_edits(answer, told, at)))
    except NotAnObjectError:
        return answer


class UsageTeller:
    """Passes a stream of chat or completions through and corrects the cache counts in its usage events.

    An event that is not whole yet is held back, since it could be one; what is too long to be one is let go.
    """

    __slots__ = ("_held", "_pass", "_told")

    def __init__(self, told: ToldUsage) -> None:
        self._told = told
        self._held = bytearray()
        self._pass = False

    @property
    def holding(self) -> bool:
        """Whether the next bytes cannot be told by themselves: something is held back."""
        return bool(self._held)

    def feed(self, data: bytes) -> bytes:
        """Take the next bytes, cut anywhere.

        Returns:
            What may go on to the client now, possibly nothing.
        """
        if not self._held and not self._pass and data.endswith(b"\n\n") and _CACHED not in data:
            return data
        held = self._held
        search_from = max(0, len(held) - 3)
        held += data
        out: list[bytes] = []
        start = 0
        while blank := EVENT_END.search(held, search_from):
            event = bytes(held[start : blank.end()])
            start = search_from = blank.end()
            out.append(event if self._pass else self._corrected(event))
            self._pass = False
        del held[:start]
        if self._pass or len(held) > _LONGEST_USAGE_EVENT:
            self._pass = True
            cut = max(0, len(held) - 3)  # enough to see a blank line that is cut
            out.append(bytes(held[:cut]))
            del held[:cut]
        return b"".join(out)

    def end(self) -> bytes:
        """Return what is still held when the stream is over."""
        rest = bytes(self._held)
        self._held.clear()
        return rest if self._pass else self._corrected(rest)

    def _corrected(self, event: bytes) -> bytes:
        opening = event.find(b"{")
        return event if opening < 0 else tell_usage(event, self._told, opening)


def _usage_edits(answer: bytes, told: ToldUsage, at: int) -> Iterator[Edit]:
    for usage in _objects(answer, at, "usage"):
        for details in _objects(answer, usage, "prompt_tokens_details"):
            found = {member.key: member for member in members(answer, details)}
            counts = {key: _whole(answer[member.start : member.end]) for key, member in found.items()}
            cached, created = counts.get("cached_tokens"), counts.get("created_cache_tokens")
            if cached is None:
                continue
            edits = [_number(found["cached_tokens"], told.cached)]
            if created is not None:
                edits.append(_number(found["created_cache_tokens"], max(0, created + cached - told.cached)))
            yield from sorted(edits, key=lambda edit: edit.start)


def _objects(answer: bytes, at: int, key: str) -> Iterator[int]:
    """Yield where the objects begin that the object at `at` holds under `key`."""
    for member in members(answer, at):
        if member.key == key and answer[member.start : member.start + 1] == b"{":
            yield member.start


def _number(member: Member, value: int) -> Edit:
    return Edit(member.start, member.end, b"%d" % value)


def _copied(body: bytes, keys: frozenset[str]) -> Iterator[bytes]:
    for member in members(body):
        if member.key in keys:
            yield b"%b:%b" % (json.dumps(member.key).encode("ascii"), body[member.start : member.end])


def _ids(array: bytes) -> PromptIds | None:
    inside = array[1:-1]
    if array[:1] != b"[" or array[-1:] != b"]" or inside.translate(None, _IDS) or not inside.strip():
        return None
    return PromptIds(inside)


def _whole(text: bytes) -> int | None:
    return int(text) if _NUMBER.fullmatch(text) else None
