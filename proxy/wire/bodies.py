"""Request bodies of every dialect, decoded, become `Facts`."""

from collections.abc import Mapping
from hashlib import blake2b
from typing import Final

from proxy.wire.caps import CAP_KEYS
from proxy.wire.facts import Endpoint, Facts, OutputFields
from proxy.wire.invalid import MODEL_CHARS
from proxy.wire.prompts import Document, Prompt, read_prompt
from proxy.wire.values import as_bool, as_int, as_str

COMPLETIONS_DEFAULT_CAP: Final = 16
"""What engines take for a `/v1/completions` body without `max_tokens`."""

# What a body may hold and still be fed in parts: sampling fields, which the last part brings along, and the template
# fields that `/tokenize` takes as well. A field not named here could change the prompt in a way we would not see.
_SAMPLING_FIELDS: Final = frozenset((
    "model", "stream", "stream_options", "n", "max_tokens", "max_completion_tokens", "min_tokens",
    "temperature", "top_p", "top_k", "min_p", "seed", "stop", "stop_token_ids", "include_stop_str_in_output",
    "ignore_eos", "presence_penalty", "frequency_penalty", "repetition_penalty", "length_penalty", "logit_bias",
    "logprobs", "top_logprobs", "best_of", "user", "request_id", "priority", "cache_salt",
    "skip_special_tokens", "spaces_between_special_tokens", "allowed_token_ids", "bad_words",
    "logits_processors", "response_format", "structured_outputs", "guided_json", "guided_regex",
    "guided_choice", "guided_grammar", "guided_decoding_backend", "guided_whitespace_pattern",
    "thinking_token_budget", "include_reasoning", "parallel_tool_calls", "store", "metadata", "service_tier",
    "safety_identifier", "prompt_cache_key", "return_tokens_as_token_ids", "return_token_ids", "vllm_xargs",
    "echo",
))  # fmt: skip
# Members by a name of their own: every look-up in an enum class costs more than a comparison, and this runs for each
# request.
_CHAT: Final = Endpoint.CHAT
_COMPLETIONS: Final = Endpoint.COMPLETIONS
_SPLITTABLE_FIELDS: Final = {
    Endpoint.CHAT: _SAMPLING_FIELDS
    | {"messages", "tools", "tool_choice", "chat_template", "chat_template_kwargs", "add_generation_prompt",
       "continue_final_message", "add_special_tokens"},
    Endpoint.COMPLETIONS: _SAMPLING_FIELDS | {"prompt", "add_special_tokens"},
}  # fmt: skip


def read_facts(
    endpoint: Endpoint, document: Mapping[str, object], body_bytes: int, *, want_blocks: bool = False
) -> Facts:
    """Read what classify and the recorder need from a request body.

    Wrong types are tolerated, never corrected: the engine answers them. What it would coerce ("12", 1.0) counts.

    Args:
        endpoint: whose dialect.
        document: the decoded body, with any JSON values whatever.
        body_bytes: its length on the wire.
        want_blocks: whether to fill `Facts.blocks`, which the prefix hashes are made from.

    Returns:
        The facts. Never raises.
    """
    prompt = read_prompt(endpoint, document, want_blocks=want_blocks)
    get = document.get
    stream = as_bool(get("stream"))
    kv_transfer = get("kv_transfer_params") is not None
    return Facts(  # by place, in the order of its fields: names double what it costs
        endpoint,
        _kept(get("model")),
        stream,
        _stream_option(document, "include_usage"),
        stream and not kv_transfer and _may_ask_usage(endpoint, document),
        max(1, prompt.prompts),
        _n(endpoint, document),
        prompt.token_ids,
        prompt.census(),
        prompt.hidden or prompt.media > 0,
        body_bytes,
        _output(endpoint, document),
        as_int(get("truncate_prompt_tokens")),
        as_int(get("priority")),
        _kept(get("cache_salt")),
        kv_transfer,
        _splittable(endpoint, document, prompt),
        tuple(prompt.blocks) if prompt.prompts <= 1 else (),  # several prompts have no one prefix
    )


def _kept(value: object) -> str | None:
    """Return a name that is kept beyond its request; of one that is absurdly long, what tells it from others."""
    name = as_str(value)
    if name is None or len(name) <= MODEL_CHARS:
        return name
    digest = blake2b(name.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
    return f"{name[: MODEL_CHARS - len(digest)]}{digest}"


def _stream_option(document: Document, key: str) -> bool:
    options = document.get("stream_options")
    return isinstance(options, dict) and as_bool(options.get(key))


def _may_ask_usage(endpoint: Endpoint, document: Document) -> bool:
    if (endpoint is not _CHAT and endpoint is not _COMPLETIONS) or _stream_option(document, "include_usage"):
        return False
    options = document.get("stream_options")
    if options is not None and not isinstance(options, dict):
        return False
    # With it, include_usage would put usage into every event.
    return not _stream_option(document, "continuous_usage_stats")


def _n(endpoint: Endpoint, document: Document) -> int:
    if endpoint is not _CHAT and endpoint is not _COMPLETIONS:
        return 1
    asked = document.get("n")
    return 1 if asked is None else max(1, as_int(asked) or 1)


def _output(endpoint: Endpoint, document: Document) -> OutputFields:
    keys = CAP_KEYS.get(endpoint)
    if keys is None:
        return OutputFields()
    given: tuple[str, ...] = ()
    null: tuple[str, ...] = ()
    cap: int | None = None
    for key in keys:
        if key not in document:
            continue
        value = document[key]
        if value is None:
            null += (key,)  # does not win
        elif (number := as_int(value)) is not None and number >= 0:
            cap = number if not given else cap
            given += (key,)
    if endpoint is _COMPLETIONS and "max_tokens" not in document:
        cap = COMPLETIONS_DEFAULT_CAP
    return OutputFields(cap, given + null, as_int(document.get("min_tokens")), _thinking_budget(document))


def _thinking_budget(document: Document) -> int | None:
    thinking = document.get("thinking")
    if isinstance(thinking, dict) and (budget := as_int(thinking.get("budget_tokens"))) is not None:
        return budget
    return as_int(document.get("thinking_token_budget"))


def _splittable(endpoint: Endpoint, document: Document, prompt: Prompt) -> bool:
    known = _SPLITTABLE_FIELDS.get(endpoint)
    if known is None or prompt.hidden or prompt.media or prompt.prompts != 1:
        return False
    # `prompt_logprobs`, `kv_transfer_params`, `prompt_embeds` and `truncate_prompt_tokens` are not among the known.
    if not known.issuperset(document) and any(
        key not in known and value is not None for key, value in document.items()
    ):
        return False
    if as_bool(document.get("echo")) and document.get("logprobs") is not None:
        return False
    if document.get("tool_choice") == "none" and document.get("tools"):  # some engines then leave the tools out
        return False
    if endpoint is _CHAT:
        messages = document.get("messages")
        return isinstance(messages, list) and bool(messages) and not isinstance(messages[0], list)
    given = document.get("prompt")
    one_of_several = isinstance(given, list) and bool(given) and isinstance(given[0], str | list)
    return bool(given) and isinstance(given, str | list) and not one_of_several
