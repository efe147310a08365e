"""An explanation as lines for a terminal."""

from collections.abc import Iterator, Mapping
from typing import Any


def lines(told: Mapping[str, Any]) -> Iterator[str]:
    """Yield one line per decision, in the order in which they were made.

    Args:
        told: what `proxy.explain` or `proxy.explain_dry` returned.
    """
    yield _head(told)
    yield f"estimate   {_estimate(told['estimate'])}"
    yield f"lane       {told['lane']['name'] or 'none'}: {told['lane']['why']}"
    if told["tenant"] is not None or told["priority"]:
        yield f"sender     tenant {told['tenant'] or '-'}, priority {told['priority']}"
    yield f"output     {_output(told['output'])}"
    yield f"deadline   {_deadline(told['deadline'])}"
    yield f"wait       {_seconds(told['wait_s'])}"
    yield f"backend    {_backend(told['backend'])}"
    for one in told["backend"]["stood"]:
        yield f"           {_stood(one)}"
    if told["parts"]:
        yield f"parts      {told['parts']} before its own request"
    if told.get("attempts", 0) > 1 or told["retries"]:
        yield f"attempts   {told['attempts']}, {told['retries']} of them retries"
    if told["duplicate"]:
        yield f"duplicate  {told['duplicate']}"
    if told["would"] is not None:
        yield f"on paper   {_would(told['would'])}"
    times = {name: value for name, value in told["times_s"].items() if value is not None}
    if times:
        yield "times      " + ", ".join(f"{name.replace('_', ' ')} {_seconds(value)}" for name, value in times.items())
    yield f"ended      {_ending(told)}"


def _head(told: Mapping[str, Any]) -> str:
    parts = [f"request {told['request_id']}", told["endpoint"], f"model {told['model'] or '-'}"]
    parts += [f"mode {told['mode']}", f"configuration {told['config'] or '-'}"]
    if told["arrived"] is not None:
        parts.insert(1, str(told["arrived"]))
    return ", ".join(parts)


def _estimate(told: Mapping[str, Any]) -> str:
    if told["tokens"] is None:
        return "none: the body was not read"
    kind = "tokens, exact: it came as token ids" if told["exact"] else "tokens"
    text = f"{told['tokens']} {kind}"
    if told["by_class"]:
        text += " (" + ", ".join(f"{name} {tokens}" for name, tokens in told["by_class"].items()) + ")"
    if told.get("counted") is not None:
        text += f"; counted by the engine's /tokenize: {told['counted']}"
    if told.get("actual") is not None:
        text += f"; the engine counted {told['actual']}"
        if told["tokens"]:
            text += f" ({told['actual'] / told['tokens'] - 1:+.0%})"
    if told.get("cached"):
        text += f", {told['cached']} from its cache"
    return text


def _output(told: Mapping[str, Any]) -> str:
    asked = "no limit asked for" if told["asked"] is None else f"{told['asked']} asked for"
    sent = "left as it is" if told["rule"] is None else f"{told['sent']} sent (rule: {told['rule']})"
    made = "" if told["made"] is None else f"; {told['made']} made"
    return f"{asked}, {sent}{made}"


def _deadline(told: Mapping[str, Any]) -> str:
    if told["first_token_s"] is None:
        return str(told.get("why", "none"))
    return f"first token {told['first_token_s']:g} s after arrival, given up at {told['dropped_s']:g} s"


def _backend(told: Mapping[str, Any]) -> str:
    if told["name"] is None and told["why"] is None:
        return "none"
    name = "" if told["name"] is None else f"{told['name']}: "
    text = f"{name}{told['why']}"
    if told.get("in_flight") is not None:
        text += f"; {told['in_flight']} of {told['cap']} ran"
        text += f", {told['prefill_tokens']} of {_limit(told['prefill_budget'])} prefill tokens were out"
    elif told.get("cap") is not None:
        text += f"; {told['cap']} may run there at the start, {_limit(told['prefill_budget'])} prefill tokens be out"
    return text


def _stood(told: Mapping[str, Any]) -> str:
    state = "" if told["up"] else ", down"
    return f"{told['name']}: {told['in_flight']}/{told['cap']} ran, work {_seconds(told['work_s'])}{state}"


def _would(told: Mapping[str, Any]) -> str:
    text = str(told["decision"])
    if told["reason"]:
        text += f" ({told['reason']})"
    if told["wait_s"] is not None:
        text += f" after {_seconds(told['wait_s'])}"
    return text if told["cap"] is None else f"{text}; output {told['cap']} (rule: {told['cap_rule'] or 'recorded'})"


def _ending(told: Mapping[str, Any]) -> str:
    if told["outcome"] is None:
        return "it would ask to run"
    words = [told["outcome"], *(told[key] for key in ("reason", "phase") if told[key])]
    status = "" if told["status"] is None else f", status {told['status']}"
    return " ".join(dict.fromkeys(words)) + status + (f": {told['detail']}" if told["detail"] else "")


def _limit(tokens: int | None) -> str:
    return "any number of" if tokens is None else str(tokens)


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value * 1000:.0f} ms" if value < 1 else f"{value:.2f} s"
