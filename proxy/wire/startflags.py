"""The flags that a vLLM server was started with, as far as scheduling cares: from its command line or `/server_info`.

Names and defaults are those of vLLM 0.9 to 0.33 and vLLM-Ascend; flags that are not known are passed over.
"""

import json
import math
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final

DEAD: Final = frozenset({"max_num_partial_prefills", "max_long_partial_prefills"})
"""Often recommended; the V1 engine refuses any value but the default, and newer ones do not know them."""
_UNITS: Final = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}
_COUNT: Final = re.compile(r"(-?\d{1,18}(?:\.\d{1,9})?)([kKmMgG]?)", re.ASCII)
_SHORT: Final = {
    "dp": "data_parallel_size",
    "tp": "tensor_parallel_size",
    "asc": "api_server_count",
    "q": "quantization",
}
_OTHER_NAMES: Final = {"scheduling_policy": "policy"}
_COUNTS: Final = frozenset(
    {
        "max_num_seqs",
        "max_num_batched_tokens",
        "long_prefill_token_threshold",
        "max_num_queued_reqs",
        "max_num_queued_tokens",
        "max_num_active_seqs",
        "max_model_len",
        "data_parallel_size",
        "api_server_count",
    }
)
_SWITCHES: Final = frozenset({"enable_prefix_caching", "enable_chunked_prefill", "enable_prompt_tokens_details"})


@dataclass(frozen=True, slots=True)
class StartFlags:
    """What an engine was started with. None: not known, which is not the default."""

    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    long_prefill_token_threshold: int | None = None
    """0: no threshold."""
    policy: str | None = None
    """`fcfs` or `priority`."""
    max_num_queued_reqs: int | None = None
    """Unfinished requests above which the engine answers 503."""
    max_num_queued_tokens: int | None = None
    max_num_active_seqs: int | None = None
    max_model_len: int | None = None
    data_parallel_size: int | None = None
    api_server_count: int | None = None
    enable_prefix_caching: bool | None = None
    enable_chunked_prefill: bool | None = None
    enable_prompt_tokens_details: bool | None = None
    short_request_first: bool | None = None
    """vLLM-Ascend's ShortRequestFirst."""
    keep_alive_s: float | None = None
    """`VLLM_HTTP_TIMEOUT_KEEP_ALIVE`, where it is told."""
    dead: tuple[str, ...] = ()
    """Flags that do nothing."""
    unreadable: tuple[str, ...] = ()
    """Flags whose value could not be understood."""

    @property
    def known(self) -> bool:
        """Whether anything is known at all."""
        return any(getattr(self, one.name) not in (None, ()) for one in fields(self))

    def over(self, other: "StartFlags") -> "StartFlags":
        """Return what either says; where both do, this one."""
        return replace(
            other,
            **{one.name: value for one in fields(self) if (value := getattr(self, one.name)) not in (None, ())},
        )


@dataclass(slots=True)
class _Read:
    values: dict[str, Any] = field(default_factory=dict)
    dead: list[str] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)


def parse_flags(text: str) -> StartFlags:
    """Read a start command, or the flags of one.

    A flag that is left out of a command that is given has its default where that default is the same in every version:
    no threshold, `fcfs`, no queue limits, no prompt-tokens details. What an engine decides by its own memory
    (`max_num_seqs`) stays unknown.

    Args:
        text: as in a shell: `vllm serve MODEL --max-num-seqs 128 --no-enable-prefix-caching`. Empty: nothing is known.

    Returns:
        What was found. Never raises.
    """
    try:
        words = shlex.split(text, comments=True)
    except ValueError:
        words = text.split()
    if not words:
        return StartFlags()
    read = _Read()
    for name, value in _pairs(words):
        _take(read, name, value)
    plain: dict[str, Any] = {
        "policy": "fcfs",
        "long_prefill_token_threshold": 0,
        "enable_prompt_tokens_details": False,
        "data_parallel_size": 1,
        "short_request_first": False,
    }
    return StartFlags(**(plain | read.values), dead=tuple(read.dead), unreadable=tuple(read.unreadable))


def parse_server_info(document: object) -> StartFlags:
    """Read an answer of `/server_info?config_format=json` (engines in development mode).

    Returns:
        What was found; nothing known for any other document. Never raises.
    """
    config = _within(document, "vllm_config")
    scheduler, cache = _within(config, "scheduler_config"), _within(config, "cache_config")
    if not isinstance(scheduler, Mapping):
        return StartFlags()
    read = _Read()
    for source in (scheduler, cache, _within(config, "parallel_config"), _within(config, "model_config")):
        if isinstance(source, Mapping):
            for name, value in source.items():
                if name in _COUNTS and _is_number(value):
                    read.values[name] = int(value)
                elif name in _SWITCHES and isinstance(value, bool):
                    read.values[name] = value
    if isinstance(scheduler.get("policy"), str):
        read.values["policy"] = scheduler["policy"]
    read.values["short_request_first"] = _short_request_first(_within(config, "additional_config"))
    keep_alive = _within(_within(document, "vllm_env"), "VLLM_HTTP_TIMEOUT_KEEP_ALIVE")
    if _is_number(keep_alive):
        read.values["keep_alive_s"] = float(keep_alive)  # type: ignore[arg-type]
    return StartFlags(**read.values)


def _pairs(words: list[str]) -> Iterator[tuple[str, str | None]]:
    """Yield each flag with its value; None for a switch."""
    place = 0
    while place < len(words):
        word = words[place]
        place += 1
        if name := _environment(word):
            yield name
            continue
        if not word.startswith("-") or _COUNT.fullmatch(word):
            continue
        flag, equals, value = word.lstrip("-").partition("=")
        flag = flag.replace("-", "_")
        flag = _SHORT.get(flag, flag)
        if equals:
            yield flag, value
        elif place < len(words) and not words[place].startswith("-"):
            yield flag, words[place]
            place += 1
        else:
            yield flag, None


def _environment(word: str) -> tuple[str, str] | None:
    name, equals, value = word.partition("=")
    return ("keep_alive_s", value) if equals and name == "VLLM_HTTP_TIMEOUT_KEEP_ALIVE" else None


def _take(read: _Read, name: str, value: str | None) -> None:
    if name in DEAD:
        read.dead.append(name)
        return
    name = _OTHER_NAMES.get(name, name)
    known: Any = None
    if name in _SWITCHES or name.removeprefix("no_") in _SWITCHES:
        on = not name.startswith("no_")
        wanted = value is None or value.lower() not in {"false", "0"}
        read.values[name.removeprefix("no_")] = wanted if on else not wanted
        return
    if name in _COUNTS:
        known = _count(value or "")
    elif name == "policy":
        known = value
    elif name == "keep_alive_s":
        count = _count(value or "")
        known = None if count is None else float(count)
    elif name == "additional_config":
        read.values["short_request_first"] = _short_request_first(_json(value or ""))
        return
    elif name.startswith("additional_config.") and name.endswith("short_request_first_config.enabled"):
        name, known = "short_request_first", (value or "").lower() in {"true", "1"}
    else:
        return
    if known is None:
        read.unreadable.append(name)
    else:
        read.values[name] = known


def _short_request_first(config: object) -> bool:
    chosen = _within(_within(config, "scheduler_config"), "short_request_first_config")
    return _within(chosen, "enabled") is True


def _within(document: object, key: str) -> object:
    return document.get(key) if isinstance(document, Mapping) else None


def _json(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _count(text: str) -> int | None:
    matched = _COUNT.fullmatch(text.strip())
    return None if matched is None else int(float(matched.group(1)) * _UNITS[matched.group(2)])


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
