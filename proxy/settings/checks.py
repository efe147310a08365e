"""Checks across sections. All problems are reported at once, each with the key where an operator would mend it."""

from collections import Counter
from collections.abc import Iterator
from difflib import get_close_matches
from typing import TYPE_CHECKING

from proxy.policy.limits import BudgetMode
from proxy.settings.problem import Problem
from proxy.settings.sections import Backend, Lane
from proxy.settings.security import security_problems, security_warnings
from proxy.settings.senders import sender_problems
from proxy.settings.sharing import sharing_problems, sharing_warnings
from proxy.settings.tree import leaves
from proxy.settings.units import format_duration, format_size

if TYPE_CHECKING:
    from proxy.settings.model import Settings

__all__ = ["Problem", "backend_keys", "problems", "warnings"]


_NOT_FREE = frozenset((
    "authorization", "connection", "content-encoding", "content-length", "content-type",
    "cookie", "date", "expect", "host", "keep-alive",
    "proxy-authorization", "retry-after", "server", "set-cookie", "te",
    "trailer", "transfer-encoding", "upgrade", "x-api-key",
))  # fmt: skip
"""Headers that frame or guard a message: a request id there would break answers, or show a key as an id."""


def problems(settings: "Settings") -> tuple[Problem, ...]:
    """Return what cannot work."""
    return (
        *_backends(settings),
        *_concurrency(settings),
        *_listeners(settings),
        *_lane(settings, "short", settings.lanes.short),
        *_lane(settings, "long", settings.lanes.long),
        *_short_fits(settings),
        *_recorder(settings),
        *sender_problems(settings),
        *sharing_problems(settings),
        *security_problems(settings),
        *_whys(settings),
    )


def warnings(settings: "Settings") -> tuple[Problem, ...]:
    """Return what works but is probably not meant."""
    return (
        *security_warnings(settings),
        *_patience(settings),
        *_keep_alive(settings),
        *_text(settings),
        *_installments(settings),
        *_measured(settings),
        *sharing_warnings(settings),
    )


def _backends(settings: "Settings") -> Iterator[Problem]:
    if not settings.backends:
        yield Problem("backends", "at least one engine is needed, for example http://127.0.0.1:8000")
    for key, values in (
        ("name", [backend.label for backend in settings.backends]),
        ("url", [backend.url for backend in settings.backends]),
    ):
        for value, times in Counter(values).items():
            if times > 1:
                yield Problem("backends", f'{times} backends have the {key} "{value}"; each needs its own')


def _concurrency(settings: "Settings") -> Iterator[Problem]:
    """A start out of its bounds would be moved silently."""
    adaptive = settings.scheduling.adaptive
    for index, backend in enumerate(settings.backends):
        start, most = settings.start_of(backend), backend.max_num_seqs or adaptive.ceiling
        own = f"backends[{index}].concurrency" if backend.concurrency else "scheduling.concurrency"
        if most is not None and start > most and (adaptive.enabled or backend.max_num_seqs):
            key = f"backends[{index}].max_num_seqs" if backend.max_num_seqs else "scheduling.adaptive.ceiling"
            yield Problem(key, f"{most} is below the concurrency of {backend.label} ({start})", other=own)
        if adaptive.enabled and adaptive.floor is not None and adaptive.floor > start:
            text = f"{adaptive.floor} is above the concurrency of {backend.label} ({start})"
            yield Problem("scheduling.adaptive.floor", text, other=own)


def _listeners(settings: "Settings") -> Iterator[Problem]:
    if settings.request_id_header in _NOT_FREE:
        yield Problem("request_id_header", f"{settings.request_id_header} means something else in HTTP; choose another")
    if settings.listen.port and settings.listen.port == settings.admin.port:
        text = f"port {settings.admin.port} is also the port of listen; the two need different ports"
        yield Problem("admin", text, other="listen")


def _lane(settings: "Settings", name: str, lane: Lane) -> Iterator[Problem]:
    if lane.first_byte_timeout < lane.ttft_slo:
        yield Problem(
            f"lanes.{name}.first_byte_timeout",
            f"{format_duration(lane.first_byte_timeout)} is below ttft_slo ({format_duration(lane.ttft_slo)})",
            other=f"lanes.{name}.ttft_slo",
        )
    if lane.queue.bytes < settings.limits.body:
        yield Problem(
            f"lanes.{name}.queue.bytes",
            f"{format_size(lane.queue.bytes)} is below limits.body ({format_size(settings.limits.body)})",
            other="limits.body",
        )
    if lane.output.default and lane.output.ceiling and lane.output.default > lane.output.ceiling:
        yield Problem(
            f"lanes.{name}.output.default",
            f"{lane.output.default} is above output.ceiling ({lane.output.ceiling})",
        )


def _short_fits(settings: "Settings") -> Iterator[Problem]:
    short, longest = settings.lanes.short, settings.limits.prompt_tokens
    if short.queue.tokens < short.max_prompt_tokens:
        yield Problem(
            "lanes.short.queue.tokens",
            f"{short.queue.tokens} is below max_prompt_tokens ({short.max_prompt_tokens})",
            other="lanes.short.max_prompt_tokens",
        )
    if longest is not None and longest <= short.max_prompt_tokens:
        yield Problem(
            "limits.prompt_tokens",
            f"{longest} is not above lanes.short.max_prompt_tokens ({short.max_prompt_tokens})",
            other="lanes.short.max_prompt_tokens",
        )
    if longest is not None and settings.lanes.long.queue.tokens < longest:
        yield Problem(
            "lanes.long.queue.tokens",
            f"{settings.lanes.long.queue.tokens} is below limits.prompt_tokens ({longest})",
            other="limits.prompt_tokens",
        )


def _recorder(settings: "Settings") -> Iterator[Problem]:
    recorder = settings.recorder
    if recorder.keep_size < recorder.rotate_size:
        yield Problem(
            "recorder.keep_size",
            f"{format_size(recorder.keep_size)} is below rotate_size ({format_size(recorder.rotate_size)})",
            other="recorder.rotate_size",
        )


def _whys(settings: "Settings") -> Iterator[Problem]:
    known = (*leaves(type(settings)), *backend_keys(settings))
    for key in settings.why:
        if key not in known:
            close = get_close_matches(key, known, n=1, cutoff=0.6)
            yield Problem("why", f'"{key}" is no key' + (f'; did you mean "{close[0]}"?' if close else ""))


def backend_keys(settings: "Settings") -> tuple[str, ...]:
    """Return the keys of backends as `why` names them: `backends[].weight` for all, `backends[NAME].weight` for one."""
    named = ("", *(backend.label for backend in settings.backends))
    return tuple(f"backends[{name}].{key}" for name in named for key in Backend.model_fields)


def _patience(settings: "Settings") -> Iterator[Problem]:
    factor = settings.scheduling.drop_factor
    for name, lane, patience in (("short", settings.lanes.short, 30.0), ("long", settings.lanes.long, 60.0)):
        if factor is not None and (wait := factor * lane.ttft_slo) > patience:
            limit, clients = format_duration(wait), format_duration(patience)
            yield Problem(
                "scheduling.drop_factor",
                f"{factor:g} x lanes.{name}.ttft_slo is {limit}; most clients give up after {clients}",
                other=f"lanes.{name}.ttft_slo",
            )


def _keep_alive(settings: "Settings") -> Iterator[Problem]:
    kept = settings.timeouts.idle_connection
    if kept >= 5:
        text = f"{format_duration(kept)} is not below 5s, when vLLM closes idle connections"
        yield Problem("timeouts.idle_connection", text)


def _installments(settings: "Settings") -> Iterator[Problem]:
    if settings.installments.mode == "on" and settings.scheduling.budget_mode is BudgetMode.SEPARATE:
        text = "on, beside budget_mode separate: an engine that cuts long prefills itself is better without parts"
        yield Problem("installments.mode", text, other="scheduling.budget_mode")


def _text(settings: "Settings") -> Iterator[Problem]:
    if settings.recorder.enabled and settings.recorder.text:
        yield Problem("recorder.text", "request bodies are written to the trace in plain text")


def _measured(settings: "Settings") -> Iterator[Problem]:
    """What was measured is not what is in force."""
    measured, slo = settings.measured, min(settings.lanes.short.tpot_slo, settings.lanes.long.tpot_slo)
    if measured.date is None and measured.concurrency is not None:
        yield Problem(
            "measured", "date is missing: nobody can know when the measurement is over", "measured.concurrency"
        )
    if measured.tpot_slo is not None and slo < measured.tpot_slo:
        asked, had = format_duration(slo), format_duration(measured.tpot_slo)
        text = f"measured for a tpot_slo of {had}, the lanes have {asked} now: measure again with lanewise-load knee"
        yield Problem("measured.tpot_slo", text, other="lanes.short.tpot_slo")
