"""Bodies of the simulated engine's endpoints, checked in vLLM's order and turned into a `Job`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import orjson

from loadgen.sim import text
from loadgen.sim.http_errors import (
    ApiError,
    about,
    malformed,
    too_many_characters,
    too_many_tokens,
    unknown_model,
)

_T = TypeVar("_T")
_CHARACTERS_PER_TOKEN = 80
"""A text over this many characters for each token of the context is refused unread (vLLM 0.32)."""
_COMPLETIONS_DEFAULT = 16
"""`max_tokens` of /v1/completions when absent."""
_INTEGERS = ("max_tokens", "max_completion_tokens", "min_tokens", "n", "seed", "priority")


@dataclass(frozen=True, slots=True)
class Served:
    """What the engine serves."""

    model: str
    context: int
    """`max_model_len`, tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """What shapes an answer: how long it gets and what ends it."""

    cap: int
    """Most output tokens of one sequence, after the context has cut it."""
    floor: int = 0
    """`min_tokens`: nothing but the cap ends the answer before."""
    forced: bool = False
    """`ignore_eos`: only the cap ends the answer."""
    ends_at_once: bool = False
    """A bias that leaves nothing but the end-of-sequence token."""
    stops: tuple[str, ...] = ()
    stop_tokens: frozenset[int] = frozenset()
    json_object: bool = False
    seed: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One request as the engine will run it."""

    chat: bool
    model: str
    prompts: tuple[Sequence[int], ...]
    """Token ids of every prompt."""
    n: int
    """Sequences for each prompt."""
    stream: bool
    usage: bool
    """Send the usage event at the end of the stream."""
    running_usage: bool
    """Put usage into every event of the stream."""
    sampling: tuple[Sampling, ...]
    """One for each prompt: the context cuts long prompts' caps."""
    priority: int = 0
    salt: str = ""
    request_id: str | None = None
    echoes: tuple[str, ...] = ()
    """Prompt texts to repeat before the answers, when asked for."""
    shows_tokens: bool = False
    """`return_token_ids`."""

    @property
    def prompt_tokens(self) -> int:
        """Return the tokens of all prompts, as `usage` counts them."""
        return sum(map(len, self.prompts))


def decode(body: bytes) -> dict[str, Any]:
    """Return the JSON object in `body`.

    Raises:
        ApiError: it is empty, not JSON, or not an object.
    """
    if not body:
        raise malformed("missing", "body", "Field required", "None")
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        context = ", 'ctx': {'error': 'Expecting value'}"
        where = f"body.{error.pos}"
        raise malformed("json_invalid", where, "JSON decode error", "<dict of 0 items>", context) from None
    if not isinstance(document, dict):
        message = "Input should be a valid dictionary or object to extract fields from"
        raise malformed("model_attributes_type", "body", message, _shown(document))
    return document


def read_chat(document: Mapping[str, Any], served: Served) -> Job:
    """Return the job of a /v1/chat/completions body.

    Raises:
        ApiError: the body breaks a rule; the message is the one that vLLM sends.
    """
    messages = _required(document, "messages", list)
    _check(document, served)
    turns = _conversation(document, messages, served)
    _check_characters(sum(len(words) for _, words in turns) + 50, served)
    ids = _templated(document, turns)
    if len(ids) > served.context:
        raise too_many_tokens(served.context, len(ids), exact=False)
    asked = _whole(document, "max_completion_tokens")
    asked = _whole(document, "max_tokens") if asked is None else asked
    return _job(document, served, chat=True, prompts=(ids,), asked=asked, default=served.context)


def read_completion(document: Mapping[str, Any], served: Served) -> Job:
    """Return the job of a /v1/completions body.

    Raises:
        ApiError: the body breaks a rule; the message is the one that vLLM sends.
    """
    _check(document, served)
    if document.get("suffix"):
        raise ApiError(400, "suffix is only supported for models with FIM completion rendering", param="suffix")
    prompts = _prompts(document.get("prompt"), served)
    asked = _whole(document, "max_tokens")
    echo = bool(document.get("echo"))
    if echo and asked == 0:
        asked = 1
    return _job(
        document,
        served,
        chat=False,
        prompts=prompts,
        asked=asked,
        default=_COMPLETIONS_DEFAULT,
        echoes=tuple(map(text.decode, prompts)) if echo else (),
    )


def read_tokenize(document: Mapping[str, Any], served: Served) -> list[int]:
    """Return the token ids that /tokenize counts: of a prompt, or of a conversation in the chat template.

    Raises:
        ApiError: the body breaks a rule.
    """
    _check_model(document, served)
    if "messages" in document:
        return _templated(document, _conversation(document, _required(document, "messages", list), served))
    return text.encode(_required(document, "prompt", str))


def read_detokenize(document: Mapping[str, Any], served: Served) -> str:
    """Return the text of the `tokens` in the body.

    Raises:
        ApiError: the body breaks a rule.
    """
    _check_model(document, served)
    try:
        return text.decode(int(token) for token in _required(document, "tokens", list))
    except (TypeError, ValueError) as error:
        raise ApiError(400, str(error)) from None


def _job(
    document: Mapping[str, Any],
    served: Served,
    *,
    chat: bool,
    prompts: tuple[Sequence[int], ...],
    asked: int | None,
    default: int,
    echoes: tuple[str, ...] = (),
) -> Job:
    options = _typed(document, "stream_options", dict) or {}
    salt, request_id = document.get("cache_salt"), document.get("request_id")
    n = _whole(document, "n")
    return Job(
        chat=chat,
        model=served.model,
        prompts=prompts,
        n=1 if n is None else n,
        stream=bool(document.get("stream")),
        usage=bool(options.get("include_usage")),
        running_usage=bool(options.get("include_usage")) and bool(options.get("continuous_usage_stats")),
        sampling=tuple(_sampling(document, _cap(asked, default, len(ids), served)) for ids in prompts),
        priority=_whole(document, "priority") or 0,
        salt=salt if isinstance(salt, str) else "",
        request_id=request_id if isinstance(request_id, str) else None,
        echoes=echoes,
        shows_tokens=bool(document.get("return_token_ids")),
    )


def _check(document: Mapping[str, Any], served: Served) -> None:
    """Check what is the same for chat and completions, in vLLM's order: schema, model, sampling."""
    for key in _INTEGERS:
        _whole(document, key)
    if document.get("stream_options") and not document.get("stream"):
        message = "Stream options can only be defined when `stream=True`."
        raise about("stream_options", message, shown=False)
    _check_model(document, served)
    _check_tools(document)
    temperature = document.get("temperature")
    temperature = 1.0 if temperature is None else temperature
    if not isinstance(temperature, (int, float)):
        raise malformed("float_type", "body.temperature", "Input should be a valid number", _shown(temperature))
    if temperature < 0:
        raise about("temperature", f"temperature must be non-negative, got {float(temperature)}.", float(temperature))
    n = _whole(document, "n")
    if n is not None and n < 1:
        raise about("n", f"n must be at least 1, got {n}.", n)
    if n is not None and n > 1 and temperature == 0:
        raise ApiError(400, f"n must be 1 when using greedy sampling, got {n}.")


def _check_model(document: Mapping[str, Any], served: Served) -> None:
    model = document.get("model")
    if model is not None and model != served.model:
        raise unknown_model(model, served.model)


def _check_tools(document: Mapping[str, Any]) -> None:
    if not document.get("tools"):
        return
    choice = document.get("tool_choice", "auto")
    if choice == "auto":
        raise ApiError(400, '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set')
    if choice == "required":
        raise ApiError(400, 'tool_choice="required" requires --tool-call-parser to be set')


def _conversation(document: Mapping[str, Any], messages: list[Any], served: Served) -> list[tuple[str, str]]:
    """Return every turn that the chat template writes, tools in front."""
    turns = _turns(messages, served)
    if document.get("tools"):
        turns.insert(0, ("system", orjson.dumps(document["tools"]).decode()))
    return turns


def _templated(document: Mapping[str, Any], turns: list[tuple[str, str]]) -> list[int]:
    return text.encode_chat(turns, answer=document.get("add_generation_prompt", True) is not False)


def _turns(messages: list[Any], served: Served) -> list[tuple[str, str]]:
    if not messages:
        raise ApiError(400, "Cannot apply chat template to an empty conversation. Provide at least one message.")
    return [_turn(message, number, served) for number, message in enumerate(messages)]


def _turn(message: Any, number: int, served: Served) -> tuple[str, str]:
    if not isinstance(message, dict):
        where = f"body.messages.{number}"
        raise malformed("dict_type", where, "Input should be a valid dictionary", _shown(message))
    content = message.get("content")
    role = str(message.get("role", "user"))
    if isinstance(content, list):
        return role, "\n".join(_part(part, served) for part in content)
    return role, "" if content is None else str(content)


def _part(part: Any, served: Served) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, dict) and isinstance(part.get("text"), str):
        return str(part["text"])
    raise ApiError(400, f"{served.model} is not a multimodal model")


def _prompts(given: Any, served: Served) -> tuple[Sequence[int], ...]:
    """Return the token ids of every prompt: one text, texts, one list of ids, or lists of ids."""
    if not given:
        message = "Either prompt or prompt_embeds must be provided and non-empty."
        raise about("prompt", message, shown=False)
    if isinstance(given, str):
        return (_from_text(given, served),)
    if isinstance(given, list):
        if all(type(item) is int for item in given):
            return (_from_ids(given, served),)
        return tuple(_one_prompt(item, served) for item in given)
    raise malformed("string_type", "body.prompt", "Input should be a valid string", _shown(given))


def _one_prompt(item: Any, served: Served) -> Sequence[int]:
    if isinstance(item, str) and item:
        return _from_text(item, served)
    if isinstance(item, list) and item and all(type(token) is int for token in item):
        return _from_ids(item, served)
    raise malformed("string_type", "body.prompt", "Input should be a valid string", _shown(item))


def _from_text(prompt: str, served: Served) -> Sequence[int]:
    _check_characters(len(prompt), served)
    ids = text.encode(prompt)
    if len(ids) > served.context:
        raise too_many_tokens(served.context, len(ids), exact=False)
    return ids


def _from_ids(ids: list[int], served: Served) -> Sequence[int]:
    if len(ids) > served.context:
        raise too_many_tokens(served.context, len(ids), exact=True)
    if min(ids) < 0 or max(ids) >= text.VOCABULARY:
        stranger = next(token for token in ids if not 0 <= token < text.VOCABULARY)
        raise ApiError(400, f"Token id {stranger} is out of vocabulary")
    return ids


def _check_characters(characters: int, served: Served) -> None:
    limit = served.context * _CHARACTERS_PER_TOKEN
    if characters > limit:
        raise too_many_characters(served.context, characters, limit)


def _cap(asked: int | None, default: int, prompt_tokens: int, served: Served) -> int:
    if asked is not None and asked > served.context:
        message = (
            f"max_tokens={asked} cannot be greater than max_model_len={served.context}. "
            "Please request fewer output tokens."
        )
        raise about("max_tokens", message, asked)
    cap = min(default if asked is None else asked, served.context - prompt_tokens)
    if cap < 1:
        raise about("max_tokens", f"max_tokens must be at least 1, got {cap}.", cap)
    return cap


def _sampling(document: Mapping[str, Any], cap: int) -> Sampling:
    stop = _typed(document, "stop", str, list) or ()
    tokens = _typed(document, "stop_token_ids", list) or ()
    bias = _typed(document, "logit_bias", dict) or {}
    shape = _typed(document, "response_format", dict) or {}
    return Sampling(
        cap=cap,
        floor=min(_whole(document, "min_tokens") or 0, cap),
        forced=bool(document.get("ignore_eos")),
        ends_at_once=_number(bias.get(str(text.EOS))) >= 100,
        stops=(stop,) if isinstance(stop, str) else tuple(word for word in stop if isinstance(word, str) and word),
        stop_tokens=frozenset(token for token in tokens if isinstance(token, int)),
        json_object=shape.get("type") == "json_object",
        seed=_whole(document, "seed"),
    )


def _number(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) else 0.0


def _whole(document: Mapping[str, Any], key: str) -> int | None:
    """Return an integer field; a whole float and a string of digits count as one, as they do for vLLM."""
    value = document.get(key)
    if value is None or type(value) is int:
        return value
    where = f"body.{key}"
    if isinstance(value, float):
        if value.is_integer():
            return int(value)
        message = "Input should be a valid integer, got a number with a fractional part"
        raise malformed("int_from_float", where, message, str(value))
    if isinstance(value, str):
        try:
            return int(value)
        except ValueError:
            message = "Input should be a valid integer, unable to parse string as an integer"
            raise malformed("int_parsing", where, message, value) from None
    raise malformed("int_type", where, "Input should be a valid integer", _shown(value))


def _typed(document: Mapping[str, Any], key: str, *kinds: type) -> Any:
    """Return an optional field of one of these types, or None."""
    value = document.get(key)
    if value is None or isinstance(value, kinds):
        return value
    names = " or ".join(kind.__name__ for kind in kinds)
    raise malformed(f"{kinds[0].__name__}_type", f"body.{key}", f"Input should be a valid {names}", _shown(value))


def _required(document: Mapping[str, Any], key: str, kind: type[_T]) -> _T:
    if key not in document:
        raise malformed("missing", f"body.{key}", "Field required", _shown(document))
    value = document[key]
    if not isinstance(value, kind):
        message = f"Input should be a valid {kind.__name__}"
        raise malformed(f"{kind.__name__}_type", f"body.{key}", message, _shown(value))
    return value


def _shown(value: Any) -> str:
    if isinstance(value, (dict, list)):
        return f"<{type(value).__name__} of {len(value)} items>"
    return str(value)[:100]
