"""Finding the prompt in a body, dialect by dialect: its text in order, its token ids, its turns and media."""

import hashlib
from collections.abc import Callable, Mapping
from typing import Final

from proxy.wire.census import add, take_census
from proxy.wire.facts import Endpoint, TextCensus
from proxy.wire.values import as_str, as_text

Document = Mapping[str, object]

MARKED_IDS: Final = 262_144
"""Token ids of a prompt that go into its blocks, from the first on: a million of them would hold the event loop."""
MARKED_CHARS: Final = 2**20
"""Longest string of a part that is no text (an image in base64) that marks it whole; of a longer one its beginning,
its end and its length do."""

_MAX_DEPTH: Final = 8
_TEXT_KEYS: Final = ("text", "refusal", "thinking", "reasoning")


class Prompt:
    """What was found of the prompt so far.

    Attributes:
        prompts: how many separate prompts there are.
        token_ids: their length together when all came as token ids.
        media: parts whose bytes are not tokens.
        messages: turns.
        hidden: part of the prompt is not in the body as text (embeddings, an earlier response, a stored prompt).
        blocks: the text in the order of a usual chat template, with role names; only filled when wanted.
    """

    __slots__ = ("_repeated", "_texts", "_wanted", "blocks", "hidden", "media", "messages", "prompts", "token_ids")

    def __init__(self, *, want_blocks: bool) -> None:
        self.prompts = 1
        self.token_ids: int | None = None
        self.media = 0
        self.messages = 0
        self.hidden = False
        self.blocks: list[str] = []
        self._texts: list[str] = []
        self._repeated: tuple[str, int] | None = None
        self._wanted = want_blocks

    def say(self, text: str) -> None:
        """Add text that is tokenised."""
        if text:
            self._texts.append(text)
            self.mark(text)

    def mark(self, text: str) -> None:
        """Add to the blocks alone, for what makes prompts differ without being text: a role, an image."""
        if self._wanted and text:
            self.blocks.append(text)

    def mark_ids(self, ids: list[object]) -> None:
        """Add token ids to the blocks, joined by commas."""
        if self._wanted:
            self.blocks.append(_joined(ids[:MARKED_IDS]))

    def see(self, part: object) -> None:
        """Add a part whose bytes are not tokens."""
        self.media += 1
        if self._wanted:
            text = as_text(_abridged(part)).encode("utf-8", "surrogatepass")
            self.mark(hashlib.blake2b(text, digest_size=16).hexdigest())

    def repeat(self, text: str, times: int) -> None:
        """Add a text that the engine reads `times` times: the query beside each document."""
        self._repeated = (text, times)

    def census(self) -> TextCensus:
        """Count all the text that was found."""
        texts = self._texts
        census = take_census(
            texts[0] if len(texts) == 1 else "\n".join(texts), media_parts=self.media, messages=self.messages
        )
        if len(texts) > 1:
            census = census._replace(latin=census.latin - (len(texts) - 1))  # what joins them is no text
        if self._repeated is None:
            return census
        text, times = self._repeated
        return add(census, take_census(text), times)


def _joined(ids: list[object]) -> str:
    if all(kind is int for kind in set(map(type, ids))):
        return str(ids)[1:-1].replace(" ", "")  # six times as fast as joining them one by one
    return ",".join(str(item) for item in ids if isinstance(item, int))


def _abridged(value: object, depth: int = 0) -> object:
    if isinstance(value, str | list) and len(value) > MARKED_CHARS:
        half = MARKED_CHARS // 2
        return [value[:half], value[-half:], len(value)]
    if isinstance(value, dict) and depth < _MAX_DEPTH:
        return {key: _abridged(inner, depth + 1) for key, inner in value.items()}
    if isinstance(value, list) and depth < _MAX_DEPTH:
        return [_abridged(inner, depth + 1) for inner in value]
    return value


def read_prompt(endpoint: Endpoint, document: Document, *, want_blocks: bool) -> Prompt:
    """Find the prompt of a body.

    Args:
        endpoint: whose dialect; a body with `messages` is read as a chat also on the pooling endpoints.
        document: the decoded body, with any values whatever.
        want_blocks: whether to fill `blocks`.
    """
    prompt = Prompt(want_blocks=want_blocks)
    _READERS[endpoint](prompt, document)
    return prompt


_BESIDE_MESSAGES: Final = frozenset(
    ("tools", "functions", "documents", "response_format", "structured_outputs", "system")
)
"""What a chat template puts into the prompt beside the messages."""


def _chat(prompt: Prompt, document: Document) -> None:
    if not _BESIDE_MESSAGES.isdisjoint(document):
        _say_json(prompt, document, "tools", "functions", "documents", "response_format", "structured_outputs")
        _system(prompt, document.get("system"))
    messages = document.get("messages")
    if not isinstance(messages, list):
        return
    conversations = [item for item in messages if isinstance(item, list)]
    if conversations:  # the batch endpoint: one prompt each
        prompt.prompts = len(messages)
        messages = [message for conversation in conversations for message in conversation]
    for message in messages:
        _message(prompt, message)


def _system(prompt: Prompt, system: object) -> None:
    if system:
        prompt.messages += 1
        prompt.mark("system")
        _content(prompt, system)


def _message(prompt: Prompt, message: object) -> None:
    prompt.messages += 1
    if not isinstance(message, dict):
        return
    content = message.get("content")
    prompt.mark(as_str(message.get("role")) or "")
    if len(message) == 2 and isinstance(content, str) and "role" in message:  # as most are
        prompt.say(content)
        return
    for key in ("reasoning", "reasoning_content"):
        if thought := as_str(message.get(key)):
            prompt.say(thought)
            break
    _content(prompt, content)
    _say_json(prompt, message, "tool_calls", "function_call")


def _content(prompt: Prompt, content: object, depth: int = 0) -> None:
    if isinstance(content, str):
        prompt.say(content)
    elif isinstance(content, list):
        for part in content:
            _part(prompt, part, depth)
    elif isinstance(content, dict):
        _part(prompt, content, depth)


def _part(prompt: Prompt, part: object, depth: int) -> None:
    if isinstance(part, str):
        prompt.say(part)
    if not isinstance(part, dict):
        return
    kind = part.get("type")
    if kind == "tool_use":
        prompt.say(as_str(part.get("name")) or "")
        _say_json(prompt, part, "input")
    elif kind == "tool_result":
        if depth < _MAX_DEPTH:
            _content(prompt, part.get("content"), depth + 1)
        else:
            prompt.hidden = True
    elif text := next((text for key in _TEXT_KEYS if isinstance(text := part.get(key), str)), None):
        prompt.say(text)
    elif not any(key in part for key in _TEXT_KEYS):
        prompt.see(part)


def _completions(prompt: Prompt, document: Document) -> None:
    _say_json(prompt, document, "response_format", "structured_outputs")
    embeds = document.get("prompt_embeds")
    given = document.get("prompt")
    _inputs(prompt, given)
    if embeds is not None:
        prompt.hidden = True
        count = len(embeds) if isinstance(embeds, list) else 1
        prompt.prompts = max(1, count + (prompt.prompts if given else 0))


def _inputs(prompt: Prompt, given: object) -> None:
    """Read a string, a list of strings, token ids, or a list of token id lists."""
    if not isinstance(given, list) or not given:
        _content(prompt, given)
    elif isinstance(given[0], int):
        prompt.token_ids = len(given)
        prompt.mark_ids(given)
    else:
        prompt.prompts = len(given)
        ids = [item for item in given if isinstance(item, list)]
        if len(ids) == len(given):
            prompt.token_ids = sum(map(len, ids))
            prompt.mark_ids(ids[0])
        else:
            prompt.hidden = bool(ids)
            _content(prompt, given)


def _responses(prompt: Prompt, document: Document) -> None:
    prompt.hidden = any(document.get(key) for key in ("previous_response_id", "conversation", "prompt"))
    _say_json(prompt, document, "tools")
    form = document.get("text")
    if isinstance(form, dict):
        _say_json(prompt, form, "format")
    _system(prompt, document.get("instructions"))
    given = document.get("input")
    if isinstance(given, list):
        for item in given:
            _item(prompt, item)
    else:
        _message(prompt, {"role": "user", "content": given})


def _item(prompt: Prompt, item: object) -> None:
    if not isinstance(item, dict) or "content" in item or "role" in item:
        _message(prompt, item)
        return
    prompt.messages += 1
    kind = item.get("type")
    if kind == "function_call":
        prompt.say(as_str(item.get("name")) or "")
        _say_json(prompt, item, "arguments")
    elif kind == "function_call_output":
        _content(prompt, item.get("output"))
    elif kind == "reasoning":
        _content(prompt, item.get("summary"))
    elif kind == "item_reference":
        prompt.hidden = True
    else:
        prompt.say(as_text(item))


def _pooling(prompt: Prompt, document: Document) -> None:
    if "messages" in document:
        _chat(prompt, document)
        return
    one = next((key for key in _QUERIES if key in document), None)
    two = next((key for key in _DOCUMENTS if key in document), None)
    if one is not None or two is not None:
        _pairs(prompt, document.get(one or ""), document.get(two or ""))
        return
    for key in ("input", "inputs", "texts", "prompt"):
        if key in document:
            _inputs(prompt, document[key])
            break
    images = document.get("images")
    for image in images if isinstance(images, list) else ():
        prompt.see(image)


_QUERIES: Final = ("text_1", "data_1", "queries", "query")
_DOCUMENTS: Final = ("text_2", "data_2", "documents", "items")


def _pairs(prompt: Prompt, one: object, two: object) -> None:
    """Read query and documents: the engine runs one prompt per pair, so a single query is read with each document."""
    ones = one if isinstance(one, list) else [one]
    twos = two if isinstance(two, list) else [two]
    prompt.prompts = max(1, len(ones), len(twos))
    if len(ones) == 1 and isinstance(ones[0], str):
        prompt.repeat(ones[0], prompt.prompts)
        prompt.mark(ones[0])
    else:
        _documents(prompt, ones)
    _documents(prompt, twos)


def _documents(prompt: Prompt, documents: list[object]) -> None:
    for document in documents:
        if isinstance(document, dict) and "content" in document:
            _content(prompt, document["content"])
        else:
            _content(prompt, document)


def _say_json(prompt: Prompt, fields: Document, *keys: str) -> None:
    for key in keys:
        if value := fields.get(key):
            prompt.say(as_text(value))


def _nothing(_prompt: Prompt, _document: Document) -> None:
    """Read nothing: utility requests have no prompt to run."""


_READERS: Final[dict[Endpoint, Callable[[Prompt, Document], None]]] = {
    Endpoint.CHAT: _chat,
    Endpoint.COMPLETIONS: _completions,
    Endpoint.RESPONSES: _responses,
    Endpoint.MESSAGES: _chat,
    Endpoint.EMBEDDINGS: _pooling,
    Endpoint.POOLING: _pooling,
    Endpoint.UTILITY: _nothing,
}
