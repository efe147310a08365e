"""Answers in vLLM 0.32's shapes: events of a stream, byte for byte in its key order, and whole documents."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from loadgen.sim.http_requests import Job

FINGERPRINT = "lanewise-sim"
"""`system_fingerprint` of every answer: nobody shall take it for a real engine."""
DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True)
class Label:
    """What every event and document of one answer repeats."""

    id: str
    created: int
    """Unix seconds."""
    model: str
    chat: bool

    def opening(self) -> str:
        """Return the start of every event, up to the choices."""
        kind = "chat.completion.chunk" if self.chat else "text_completion"
        named = f'"id":{_json(self.id)},"object":"{kind}","created":{self.created},"model":{_json(self.model)}'
        return f"data: {{{named},"


@dataclass(slots=True)
class Count:
    """Tokens of one answer, as `usage` reports them."""

    prompt: int
    completion: int = 0
    cached: int = 0
    """Prompt tokens found in the prefix cache."""
    created: int = 0
    """Prompt tokens newly put there."""
    detailed: bool = False
    """Whether the details are told (`--enable-prompt-tokens-details`)."""

    def document(self) -> dict[str, Any]:
        """Return the `usage` object of a whole answer."""
        details = {**self._details(), "multimodal_tokens": None} if self.detailed else None
        return {**self._totals(), "prompt_tokens_details": details, "completion_tokens_details": None}

    def event(self) -> dict[str, Any]:
        """Return the `usage` object of the last event of a stream."""
        return {**self._totals(), **({"prompt_tokens_details": self._details()} if self.detailed else {})}

    def _totals(self) -> dict[str, int]:
        total = self.prompt + self.completion
        return {"prompt_tokens": self.prompt, "total_tokens": total, "completion_tokens": self.completion}

    def _details(self) -> dict[str, int]:
        return {"cached_tokens": self.cached, "created_cache_tokens": self.created}


@dataclass(frozen=True, slots=True)
class Finish:
    """How a sequence ended."""

    reason: str
    stop: str | int | None


class EventWriter:
    """The events of one stream. Every method returns the bytes of the events that the token causes."""

    def __init__(self, job: Job, label: Label, count: Count) -> None:
        self._job = job
        self._count = count
        opening = label.opening()
        self._opening = opening
        text = '"delta":{"content":"' if label.chat else '"text":"'
        self._heads = tuple(f'{opening}"choices":[{{"index":{index},{text}' for index in range(_sequences(job)))
        rest = "" if label.chat else '"stop_reason":null,"prompt_token_ids":null,'
        self._tail = f'"{"}" if label.chat else ""},"logprobs":null,"finish_reason":null,{rest}"token_ids":'
        self._chat = label.chat
        self._spoken = [0] * len(self._heads)
        self._plain = not job.running_usage and not job.shows_tokens
        self._plain_heads = tuple(head.encode() for head in self._heads)
        self._plain_tail = f"{self._tail}null}}]}}\n\n".encode()

    def plain(self, index: int, word: str) -> bytes | None:
        """Return the event of one token in the middle of an answer; None when it is not one of the plain ones.

        Nearly every token of a run comes by here: no JSON is made, only bytes are put together.
        """
        if not self._plain or not self._spoken[index]:
            return None
        self._spoken[index] += 1
        return self._plain_heads[index] + word.encode() + self._plain_tail

    def token(self, index: int, words: str, ids: Sequence[int], finish: Finish | None) -> list[bytes]:
        """Return the events of newly made tokens of one sequence, several when the reader was slow.

        Args:
            index: which sequence.
            words: the text of the tokens.
            ids: the tokens.
            finish: given with the last token.
        """
        first = not self._spoken[index]
        self._spoken[index] += len(ids)
        events = []
        if first and self._chat:
            events.append(self._role(index))
        if first and self._job.echoes:
            words = _json(self._job.echoes[index // self._job.n] + words)[1:-1]
        shown = _ids(ids) if self._job.shows_tokens else "null"
        tail = self._tail if finish is None else self._last(finish)
        usage = self._running(index) if self._job.running_usage else ""
        mark = f',"system_fingerprint":"{FINGERPRINT}"' if finish is not None and not self._job.usage else ""
        events.append(f"{self._heads[index]}{words}{tail}{shown}}}]{usage}{mark}}}\n\n".encode())
        return events

    def end(self) -> list[bytes]:
        """Return what comes behind the last token: usage when it was asked for, and the end mark."""
        if not self._job.usage:
            return [DONE]
        usage = orjson.dumps(self._count.event()).decode()
        event = f'{self._opening}"choices":[],"usage":{usage},"system_fingerprint":"{FINGERPRINT}"}}\n\n'
        return [event.encode(), DONE]

    def _role(self, index: int) -> bytes:
        delta = '"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null'
        usage = self._running(index, completion=0) if self._job.running_usage else ""
        prompt = _ids(self._job.prompts[index // self._job.n]) if self._job.shows_tokens else "null"
        rest = f'"prompt_token_ids":{prompt},"prompt_text":null'
        return f'{self._opening}"choices":[{{"index":{index},{delta}}}]{usage},{rest}}}\n\n'.encode()

    def _last(self, finish: Finish) -> str:
        stop = "null" if finish.stop is None else orjson.dumps(finish.stop).decode()
        close = '"}' if self._chat else '"'
        rest = "" if self._chat else '"prompt_token_ids":null,'
        return f'{close},"logprobs":null,"finish_reason":"{finish.reason}","stop_reason":{stop},{rest}"token_ids":'

    def _running(self, index: int, completion: int | None = None) -> str:
        completion = self._spoken[index] if completion is None else completion
        prompt = self._count.prompt
        return (
            f',"usage":{{"prompt_tokens":{prompt},"total_tokens":{prompt + completion},'
            f'"completion_tokens":{completion},"completion_tokens_details":null}}'
        )


@dataclass(slots=True)
class Said:
    """What one sequence has said so far."""

    words: list[str] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    finish: Finish | None = None


def whole(job: Job, label: Label, count: Count, said: Sequence[Said]) -> bytes:
    """Return the document of an answer that is not streamed."""
    choices = [_choice(job, index, one) for index, one in enumerate(said)]
    document: dict[str, Any] = {
        "id": label.id,
        "object": "chat.completion" if label.chat else "text_completion",
        "created": label.created,
        "model": label.model,
        "choices": choices,
        "service_tier": None,
        "system_fingerprint": FINGERPRINT,
        "usage": count.document(),
    }
    if label.chat:
        ids = job.prompts[0] if job.shows_tokens else None
        document |= {"prompt_logprobs": None, "prompt_token_ids": ids, "prompt_text": None}
    return orjson.dumps(document | {"kv_transfer_params": None, "ec_transfer_params": None, "metrics": None})


def _choice(job: Job, index: int, said: Said) -> dict[str, Any]:
    finish = said.finish or Finish("abort", None)
    words = "".join(said.words)
    ids = said.ids if job.shows_tokens else None
    ending = {"logprobs": None, "finish_reason": finish.reason, "stop_reason": finish.stop, "token_ids": ids}
    if job.chat:
        return {"index": index, "message": _message(words), **ending, "routed_experts": None}
    prompt = job.prompts[index // job.n] if job.shows_tokens else None
    echo = job.echoes[index // job.n] if job.echoes else ""
    more = {"prompt_logprobs": None, "prompt_token_ids": prompt, "routed_experts": None}
    return {"index": index, "text": echo + words, **ending, **more}


def _message(words: str) -> dict[str, Any]:
    nothing = dict.fromkeys(("refusal", "annotations", "audio", "function_call", "reasoning"))
    return {"role": "assistant", "content": words, **nothing}


def _sequences(job: Job) -> int:
    return len(job.prompts) * job.n


def _json(text: str) -> str:
    return orjson.dumps(text).decode()


def _ids(ids: Sequence[int]) -> str:
    return orjson.dumps(list(ids)).decode()
