"""Runs in the environment of the client libraries: drives one library through the cases, and says what it shows.

    python drive.py LIBRARY '{"CASE": "http://127.0.0.1:PORT", …}'

prints one JSON document: for each case what a user of the library sees, with the library's own defaults. This file
imports nothing of the repository: its interpreter is another one.
"""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import PackageNotFoundError, version
from typing import Any

Shown = dict[str, Any]
PLAIN = {"plain", "refused"}
"""Cases that do not stream."""
TOOL = {
    "name": "get_weather",
    "description": "The weather of a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
KEY = "sk-client-tests"


def model_of(library: str, case: str) -> str:
    """The model's name tells the case to the engine, and library and case to the trace."""
    return f"{library}.{case}"


def said(case: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": f"case {case}"}]


def openai(case: str, url: str) -> Shown:
    from openai import OpenAI

    with OpenAI(base_url=f"{url}/v1", api_key=KEY) as client:
        return _openai_family(client, "openai", case)


def _openai_family(client: Any, library: str, case: str) -> Shown:
    asked: dict[str, Any] = {"model": model_of(library, case), "messages": said(case)}
    if case in PLAIN:
        choice = client.chat.completions.create(**asked).choices[0]
        return {"text": choice.message.content, "finish": choice.finish_reason}
    if case == "tools":
        asked["tools"] = [{"type": "function", "function": TOOL}]
    return _joined(client.chat.completions.create(**asked, stream=True))


def _joined(stream: Any) -> Shown:
    shown: Shown = {"text": "", "finish": None, "tool": "", "arguments": ""}
    for chunk in stream:
        for choice in chunk.choices:
            shown["text"] += choice.delta.content or ""
            shown["finish"] = choice.finish_reason or shown["finish"]
            for call in choice.delta.tool_calls or ():
                shown["tool"] += call.function.name or ""
                shown["arguments"] += call.function.arguments or ""
    return shown


def openai_async(case: str, url: str) -> Shown:
    from openai import AsyncOpenAI

    async def ask() -> Shown:
        shown: Shown = {"text": "", "finish": None, "tool": "", "arguments": ""}
        async with AsyncOpenAI(base_url=f"{url}/v1", api_key=KEY) as client:
            asked: dict[str, Any] = {"model": model_of("openai_async", case), "messages": said(case)}
            if case in PLAIN:
                choice = (await client.chat.completions.create(**asked)).choices[0]
                return {"text": choice.message.content, "finish": choice.finish_reason}
            if case == "tools":
                asked["tools"] = [{"type": "function", "function": TOOL}]
            async for chunk in await client.chat.completions.create(**asked, stream=True):
                for choice in chunk.choices:
                    shown["text"] += choice.delta.content or ""
                    shown["finish"] = choice.finish_reason or shown["finish"]
                    for call in choice.delta.tool_calls or ():
                        shown["tool"] += call.function.name or ""
                        shown["arguments"] += call.function.arguments or ""
        return shown

    return asyncio.run(ask())


def anthropic(case: str, url: str) -> Shown:
    from anthropic import Anthropic

    shown: Shown = {"text": "", "finish": None, "tool": "", "arguments": ""}
    with Anthropic(base_url=url, api_key=KEY) as client:
        asked: dict[str, Any] = {"model": model_of("anthropic", case), "messages": said(case), "max_tokens": 64}
        if case in PLAIN:
            answer = client.messages.create(**asked)
            return {"text": answer.content[0].text, "finish": answer.stop_reason}
        if case == "tools":
            schema = TOOL["parameters"]
            asked["tools"] = [{"name": TOOL["name"], "description": TOOL["description"], "input_schema": schema}]
        for event in client.messages.create(**asked, stream=True):
            if event.type == "content_block_start" and event.content_block.type == "tool_use":
                shown["tool"] = event.content_block.name
            elif event.type == "content_block_delta":
                shown["text"] += getattr(event.delta, "text", "")
                shown["arguments"] += getattr(event.delta, "partial_json", "")
            elif event.type == "message_delta":
                shown["finish"] = event.delta.stop_reason
    return shown


def litellm(case: str, url: str) -> Shown:
    import litellm as library

    asked: dict[str, Any] = {
        "model": f"openai/{model_of('litellm', case)}",
        "messages": said(case),
        "api_base": f"{url}/v1",
        "api_key": KEY,
    }
    if case in PLAIN:
        choice = library.completion(**asked).choices[0]
        return {"text": choice.message.content, "finish": choice.finish_reason}
    if case == "tools":
        asked["tools"] = [{"type": "function", "function": TOOL}]
    return _joined(library.completion(**asked, stream=True))


def langchain(case: str, url: str) -> Shown:
    from langchain_openai import ChatOpenAI

    model = ChatOpenAI(model=model_of("langchain", case), base_url=f"{url}/v1", api_key=KEY)
    if case in PLAIN:
        answer = model.invoke(f"case {case}")
        return {"text": answer.content, "finish": answer.response_metadata.get("finish_reason")}
    asked = model.bind_tools([{"type": "function", "function": TOOL}]) if case == "tools" else model
    whole: Any = None
    for chunk in asked.stream(f"case {case}"):
        whole = chunk if whole is None else whole + chunk
    call = whole.tool_calls[0] if whole.tool_calls else {"name": "", "args": {}}
    arguments = json.dumps(call["args"], separators=(",", ":")) if call["name"] else ""
    finish = whole.response_metadata.get("finish_reason")
    return {"text": whole.content, "finish": finish, "tool": call["name"], "arguments": arguments}


def llama_index(case: str, url: str) -> Shown:
    from llama_index.core.llms import ChatMessage
    from llama_index.llms.openai import OpenAI

    named = {"model": model_of("llama_index", case)}  # the class itself takes only models that it knows
    more = {**named, "tools": [{"type": "function", "function": TOOL}]} if case == "tools" else named
    model = OpenAI(model="gpt-4o", api_base=f"{url}/v1", api_key=KEY, additional_kwargs=more)
    messages = [ChatMessage(role="user", content=f"case {case}")]
    if case in PLAIN:
        answer = model.chat(messages)
        return {"text": answer.message.content, "finish": answer.raw.choices[0].finish_reason}
    chunks = list(model.stream_chat(messages))
    last = chunks[-1] if chunks else None
    calls = (last.message.additional_kwargs.get("tool_calls") if last else None) or []
    finishes = [choice.finish_reason for chunk in chunks for choice in chunk.raw.choices if choice.finish_reason]
    shown = {"text": (last.message.content if last else None) or "", "finish": finishes[-1] if finishes else None}
    return shown | {
        "tool": calls[0].function.name if calls else "",
        "arguments": calls[0].function.arguments if calls else "",
    }


def httpx(case: str, url: str) -> Shown:
    import httpx as library

    body = {"model": model_of("httpx", case), "messages": said(case), "stream": case not in PLAIN}
    if case == "tools":
        body["tools"] = [{"type": "function", "function": TOOL}]
    with library.Client(base_url=url) as client, client.stream("POST", "/v1/chat/completions", json=body) as answer:
        lines = list(answer.iter_lines())
        return _raw(answer.status_code, lines, dict(answer.headers))


def curl(case: str, url: str) -> Shown:
    body = {"model": model_of("curl", case), "messages": said(case), "stream": case not in PLAIN}
    if case == "tools":
        body["tools"] = [{"type": "function", "function": TOOL}]
    options = [
        "-sS",
        "-N",
        "--retry",
        "2",
        "-w",
        "\n%{http_code} %{num_retries}",
        "-H",
        "Content-Type: application/json",
    ]
    done = subprocess.run(
        ["curl", *options, "-d", json.dumps(body), f"{url}/v1/chat/completions"],
        capture_output=True,
        text=True,
        check=False,
    )
    answer, _, numbers = done.stdout.rpartition("\n")
    shown = _raw(int(numbers.split()[0]), answer.splitlines(), {})
    if done.returncode:
        shown |= {"error": f"exit {done.returncode}", "message": done.stderr.strip()[:200]}
    return shown


def _raw(status: int, lines: list[str], headers: dict[str, str]) -> Shown:
    """What somebody sees who reads the stream by hand."""
    shown: Shown = {"status": status, "text": "", "finish": None, "tool": "", "arguments": "", "comments": 0}
    shown["retry_after"] = headers.get("retry-after")
    text = "\n".join(lines)
    if text.startswith("{"):
        lines = [f"data: {json.dumps(_last_document(text))}"]
    for line in lines:
        shown["comments"] += line.startswith(":")
        if not line.startswith("data: ") or line == "data: [DONE]":
            continue
        event = json.loads(line[6:])
        if "error" in event:
            shown["said"] = event["error"].get("message")
            shown["code"] = event["error"].get("code")
        for choice in event.get("choices", ()):
            part = choice.get("delta") or choice.get("message") or {}
            shown["text"] += part.get("content") or ""
            shown["finish"] = choice.get("finish_reason") or shown["finish"]
            for call in part.get("tool_calls") or ():
                shown["tool"] += call["function"].get("name") or ""
                shown["arguments"] += call["function"].get("arguments") or ""
    return shown


def _last_document(text: str) -> Any:
    """curl prints the answer of every attempt, one behind the other: the last one counts."""
    document, at = None, 0
    while at < len(text):
        document, at = json.JSONDecoder().raw_decode(text, at)
        at += len(text[at:]) - len(text[at:].lstrip())
    return document


LIBRARIES: dict[str, tuple[Callable[[str, str], Shown], str]] = {
    "openai": (openai, "openai"),
    "openai_async": (openai_async, "openai"),
    "anthropic": (anthropic, "anthropic"),
    "litellm": (litellm, "litellm"),
    "langchain": (langchain, "langchain-openai"),
    "llama_index": (llama_index, "llama-index-llms-openai"),
    "httpx": (httpx, "httpx"),
    "curl": (curl, ""),
}
"""What drives a library, and the distribution whose version is told."""


def show(ask: Callable[[str, str], Shown], case: str, url: str) -> Shown:
    """Run one case; an exception is what the user sees then."""
    began = time.monotonic()
    try:
        shown = ask(case, url)
    except Exception as error:  # noqa: BLE001 - whatever a library raises is the observation
        shown = {
            "error": type(error).__name__,
            "status": getattr(error, "status_code", None),
            "message": str(error)[:200],
        }
    return shown | {"seconds": round(time.monotonic() - began, 2)}


def main() -> None:
    library, cases = sys.argv[1], json.loads(sys.argv[2])
    ask, distribution = LIBRARIES[library]
    try:
        found = version(distribution) if distribution else subprocess.check_output(["curl", "-V"], text=True).split()[1]
    except PackageNotFoundError:
        found = None
    with ThreadPoolExecutor(len(cases)) as pool:
        running = {case: pool.submit(show, ask, case, url) for case, url in cases.items()}
        shown = {case: one.result() for case, one in running.items()}
    print(json.dumps({"version": found, "cases": shown}))


if __name__ == "__main__":
    main()
