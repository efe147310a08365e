"""Asks the canaries, one by one."""

from collections.abc import Sequence
from typing import Any

import aiohttp

from loadgen.canary import Canary, Sung, judge
from loadgen.client import Target, tls_of

TIMEOUT_S = 120.0
"""An engine under the rest of a load may take long for its first token."""


async def ask_canaries(
    canaries: Sequence[Canary], target: Target, model: str, key: str | None, *, insecure: bool = False
) -> list[Sung]:
    """Ask each canary once; an answer that does not come is a wrong one."""
    if not canaries:
        return []
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
    connector = aiohttp.TCPConnector(ssl=tls_of(target, insecure=insecure) or True)
    async with aiohttp.ClientSession(headers=headers, timeout=timeout, connector=connector) as session:
        return [await _ask(session, canary, f"{target.url}{canary.path}", model) for canary in canaries]


async def _ask(session: aiohttp.ClientSession, canary: Canary, url: str, model: str) -> Sung:
    try:
        async with session.post(url, json=canary.request(model)) as answer:
            if answer.status != 200:
                return judge(canary, None, None, f"status {answer.status}: {(await answer.text())[:200]}")
            document = await answer.json(content_type=None)
    except TimeoutError:
        return judge(canary, None, None, f"no answer within {TIMEOUT_S:g} s")
    except (aiohttp.ClientError, OSError, ValueError) as error:
        return judge(canary, None, None, f"no answer: {str(error) or type(error).__name__}")
    text, finish = _said(document)
    return judge(canary, text, finish)


def _said(document: Any) -> tuple[str | None, str | None]:
    """Return text and finish reason of an answer, chat or completions; None where it is of another shape."""
    try:
        choice = document["choices"][0]
        text = choice["message"].get("content") if "message" in choice else choice["text"]
    except (KeyError, IndexError, TypeError, AttributeError):
        return None, None
    return (text if isinstance(text, str) else None), choice.get("finish_reason")
