"""Checks across sections. All problems are reported at once, each with the key where an operator would mend it."""

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from proxy.settings.sections import Lane
from proxy.settings.units import format_duration, format_size

if TYPE_CHECKING:
    from proxy.settings.model import Settings

Problem = tuple[str, str]
"""Key path in dots, and what is wrong there."""


def problems(settings: "Settings") -> tuple[Problem, ...]:
    """Return what cannot work, as (key, sentence)."""
    return (
        *_backends(settings),
        *_listeners(settings),
        *_lane(settings, "short", settings.lanes.short),
        *_lane(settings, "long", settings.lanes.long),
        *_short_fits(settings),
        *_recorder(settings),
    )


def warnings(settings: "Settings") -> tuple[Problem, ...]:
    """Return what works but is probably not meant, as (key, sentence)."""
    return (*_open_admin(settings), *_patience(settings), *_keep_alive(settings), *_text(settings))


def _backends(settings: "Settings") -> Iterator[Problem]:
    if not settings.backends:
        yield "backends", "at least one engine is needed, for example http://127.0.0.1:8000"
    for key, values in (
        ("name", [backend.label for backend in settings.backends]),
        ("url", [backend.url for backend in settings.backends]),
    ):
        for value, times in Counter(values).items():
            if times > 1:
                yield "backends", f'{times} backends have the {key} "{value}"; each needs its own'


def _listeners(settings: "Settings") -> Iterator[Problem]:
    if settings.listen.port and settings.listen.port == settings.admin.port:
        yield "admin", f"port {settings.admin.port} is also the port of listen; the two need different ports"


def _lane(settings: "Settings", name: str, lane: Lane) -> Iterator[Problem]:
    if lane.first_byte_timeout < lane.ttft_slo:
        yield (
            f"lanes.{name}.first_byte_timeout",
            f"{format_duration(lane.first_byte_timeout)} is below ttft_slo ({format_duration(lane.ttft_slo)})",
        )
    if lane.queue.bytes < settings.limits.body:
        yield (
            f"lanes.{name}.queue.bytes",
            f"{format_size(lane.queue.bytes)} is below limits.body ({format_size(settings.limits.body)})",
        )
    if lane.output.default and lane.output.ceiling and lane.output.default > lane.output.ceiling:
        yield (
            f"lanes.{name}.output.default",
            f"{lane.output.default} is above output.ceiling ({lane.output.ceiling})",
        )


def _short_fits(settings: "Settings") -> Iterator[Problem]:
    short, longest = settings.lanes.short, settings.limits.prompt_tokens
    if short.queue.tokens < short.max_prompt_tokens:
        yield (
            "lanes.short.queue.tokens",
            f"{short.queue.tokens} is below max_prompt_tokens ({short.max_prompt_tokens})",
        )
    if longest is not None and longest <= short.max_prompt_tokens:
        yield (
            "limits.prompt_tokens",
            f"{longest} is not above lanes.short.max_prompt_tokens ({short.max_prompt_tokens})",
        )
    if longest is not None and settings.lanes.long.queue.tokens < longest:
        yield (
            "lanes.long.queue.tokens",
            f"{settings.lanes.long.queue.tokens} is below limits.prompt_tokens ({longest})",
        )


def _recorder(settings: "Settings") -> Iterator[Problem]:
    recorder = settings.recorder
    if recorder.keep_size < recorder.rotate_size:
        yield (
            "recorder.keep_size",
            f"{format_size(recorder.keep_size)} is below rotate_size ({format_size(recorder.rotate_size)})",
        )


def _open_admin(settings: "Settings") -> Iterator[Problem]:
    if not settings.admin.is_loopback:
        yield "admin", f"{settings.admin} can be reached from the network, and the admin listener has no password"


def _patience(settings: "Settings") -> Iterator[Problem]:
    factor = settings.scheduling.drop_factor
    for name, lane, patience in (("short", settings.lanes.short, 30.0), ("long", settings.lanes.long, 60.0)):
        if factor is not None and (wait := factor * lane.ttft_slo) > patience:
            limit, clients = format_duration(wait), format_duration(patience)
            yield (
                "scheduling.drop_factor",
                f"{factor:g} x lanes.{name}.ttft_slo is {limit}; most clients give up after {clients}",
            )


def _keep_alive(settings: "Settings") -> Iterator[Problem]:
    kept = settings.timeouts.idle_connection
    if kept >= 5:
        yield "timeouts.idle_connection", f"{format_duration(kept)} is not below 5s, when vLLM closes idle connections"


def _text(settings: "Settings") -> Iterator[Problem]:
    if settings.recorder.enabled and settings.recorder.text:
        yield "recorder.text", "request bodies are written to the trace in plain text"
