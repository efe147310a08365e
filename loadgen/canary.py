"""Canaries: a few prompts of the operator whose answers are known. Pure: reading the file, judging the answers.

They are asked before and after a run, one by one at temperature 0. What a canary sang wrongly before the run was wrong
already; what changed during it, the run (or what was done meanwhile) changed.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from loadgen.answers import repeats_itself
from loadgen.failure import UsageError

MOST = 50
DEFAULT_TOKENS = 64
_KEYS = ("name", "prompt", "messages", "answer", "contains", "matches", "max_tokens")


@dataclass(frozen=True, slots=True)
class Canary:
    """One prompt with what is known of its answer; without any of that only a change is seen."""

    name: str
    body: Mapping[str, Any]
    """`prompt` or `messages`."""
    max_tokens: int
    answer: str | None = None
    """The whole answer, white space at its ends aside."""
    contains: str | None = None
    matches: str | None = None
    """A regular expression that is found somewhere in the answer."""

    @property
    def path(self) -> str:
        """The endpoint that it is asked at."""
        return "/v1/chat/completions" if "messages" in self.body else "/v1/completions"

    def request(self, model: str) -> dict[str, Any]:
        """Return the body to send."""
        return {**self.body, "model": model, "temperature": 0, "max_tokens": self.max_tokens, "stream": False}


@dataclass(frozen=True, slots=True)
class Sung:
    """What one canary answered."""

    name: str
    text: str | None
    """None: no answer."""
    finish: str | None = None
    wrong: str | None = None
    """What is wrong with it; None: nothing."""

    def facts(self) -> dict[str, Any]:
        """Return what the manifest keeps."""
        return {"name": self.name, "text": self.text, "finish": self.finish, "wrong": self.wrong}


def read_canaries(path: Path) -> tuple[Canary, ...]:
    """Read a YAML (or JSON) list of canaries.

    Each has `prompt` (text) or `messages` (as chat takes them); of the answer it may tell `answer`, `contains` or
    `matches`; `name` and `max_tokens` if wanted.

    Raises:
        UsageError: the file cannot be read, or an entry is none; with its number and key.
    """
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--canaries {path}: cannot be read: {error}") from None
    except yaml.YAMLError as error:
        raise UsageError(f"--canaries {path}: is not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(document, list) or not 0 < len(document) <= MOST:
        raise UsageError(
            f"--canaries {path}: must be a list of 1 to {MOST} canaries, each with a prompt and its answer"
        )
    return tuple(
        _canary(entry, f"--canaries {path}: entry {number}", number) for number, entry in enumerate(document, 1)
    )


def _canary(entry: Any, where: str, number: int) -> Canary:
    if not isinstance(entry, dict):
        raise UsageError(f"{where}: is no mapping; write prompt and answer")
    for key in entry:
        if key not in _KEYS:
            raise UsageError(f"{where}: unknown key {key!r}; allowed are {', '.join(_KEYS)}")
    prompt, messages = entry.get("prompt"), entry.get("messages")
    if (prompt is None) == (messages is None):
        raise UsageError(f"{where}: needs prompt or messages, one of the two")
    if not (isinstance(prompt, str) and prompt if messages is None else isinstance(messages, list) and messages):
        raise UsageError(f"{where}: prompt must be text, messages a list")
    for key in ("answer", "contains", "matches", "name"):
        if key in entry and not isinstance(entry[key], str):
            raise UsageError(f"{where}: {key} must be text, got {entry[key]!r} (put it in quotes)")
    limit = entry.get("max_tokens", DEFAULT_TOKENS)
    if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
        raise UsageError(f"{where}: max_tokens must be a whole number from 1, got {limit!r}")
    try:
        re.compile(entry.get("matches", ""))
    except re.error as error:
        raise UsageError(f"{where}: matches is no regular expression: {error}") from None
    body = {"prompt": prompt} if messages is None else {"messages": messages}
    told = {key: entry.get(key) for key in ("answer", "contains", "matches")}
    return Canary(entry.get("name", f"canary {number}"), body, limit, **told)


def judge(canary: Canary, text: str | None, finish: str | None, error: str | None = None) -> Sung:
    """Judge one answer.

    Args:
        canary: what was asked.
        text: the answer; None when there is none.
        finish: its finish reason.
        error: why there is no answer.
    """
    return Sung(canary.name, text, finish, error or _wrong(canary, text))


def _wrong(canary: Canary, text: str | None) -> str | None:
    if text is None:
        return "no answer"
    if not text.strip():
        return "the answer is empty"
    if canary.answer is not None and text.strip() != canary.answer.strip():
        return f"the answer is not {canary.answer.strip()[:80]!r}"
    if canary.contains is not None and canary.contains not in text:
        return f"the answer does not contain {canary.contains[:80]!r}"
    if canary.matches is not None and re.search(canary.matches, text) is None:
        return f"the answer does not match {canary.matches[:80]!r}"
    if canary.answer is None and repeats_itself(text):
        return "the answer repeats itself"
    return None


def complaints(before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return what the canaries say of a run, one sentence each, from the facts of its manifest.

    Args:
        before: facts of `Sung` before the run.
        after: the same after it; shorter when the run was stopped.
    """
    later = {str(one["name"]): one for one in after}
    said = []
    for one in before:
        name, end = str(one["name"]), later.get(str(one["name"]))
        if one.get("wrong"):
            said.append(f"canary {name!r} was wrong before the run: {one['wrong']}")
        elif end is not None and end.get("wrong"):
            said.append(f"canary {name!r} was right before the run and wrong after it: {end['wrong']}")
        elif end is not None and end.get("text") != one.get("text"):
            said.append(f"canary {name!r} answered otherwise after the run than before it, at temperature 0")
    return said
