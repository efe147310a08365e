"""Another configuration for a proxy that runs: read, compare, refuse or swap, remember, and go back.

A change is made whole or not at all. What is in force is always one configuration with one hash, so a change that needs
a restart in one key is refused as a whole. One change is made at a time; the next waits.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Protocol

from proxy.control import Order, Reply
from proxy.history import BAD, VERDICTS, Entry, History, HistoryFile
from proxy.inforce import InForce
from proxy.settings import ConfigurationError, Loaded, Settings, warnings
from proxy.settings.change import Change, changes, need_restart, steering, with_secrets_of
from proxy.settings.load import load_text
from proxy.settings.show import minimal

_log = logging.getLogger("lanewise")


class Target(Protocol):
    """What follows a configuration: the proxy."""

    @property
    def busy(self) -> str | None:
        """Why no change can be made now, or None."""
        ...

    async def change_to(self, settings: Settings) -> tuple[str, ...]:
        """Put settings in force, and return what is to be said about it. Waits only before the first thing moves.

        Raises:
            ConfigurationError: a file that they name cannot be used; nothing has moved.
        """
        ...

    async def renew(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Read the files again that the settings in force name.

        Returns:
            The keys of those that hold something else now, and what is doubtful about them.

        Raises:
            ConfigurationError: one cannot be used; nothing has moved.
        """
        ...


@dataclass(slots=True)
class Report:
    """What became of an order, for people and scripts."""

    done: bool
    config: str
    """Hash of what is in force now."""
    generation: int
    changed: list[str] = field(default_factory=list)
    """What differs from before, as `key: before -> after`."""
    sentences: list[str] = field(default_factory=list)
    """What was done, or why not."""
    warnings: list[str] = field(default_factory=list)
    """What is doubtful about it."""


class Refused(Exception):  # noqa: N818 - not an error of the program
    """A change is not made; `sentences` say why."""

    def __init__(self, *sentences: str) -> None:
        super().__init__("\n".join(sentences))
        self.sentences = sentences


class Reloader:
    """Carries orders out, one after the other.

    Args:
        target: what follows.
        in_force: what is in force; written here alone.
        read: reads the configuration again, from the sources that the process was started with. None: there are none
            to read again.
    """

    def __init__(self, target: Target, in_force: InForce, read: Callable[[], Loaded] | None) -> None:
        self._target = target
        self._in_force = in_force
        self._read = read
        self._file: HistoryFile | None = None
        self._history = History()
        self._lock = asyncio.Lock()

    async def begin(self, loaded: Loaded, file: HistoryFile | None) -> None:
        """Remember what the process was started with; say when that was judged bad before.

        Args:
            loaded: the configuration.
            file: where the history is kept; None: in memory.
        """
        self._file = file
        if self._file is not None:
            try:
                self._history = await asyncio.to_thread(_remembered, self._file)
            except (OSError, ValueError, KeyError, TypeError) as error:
                _log.warning("the history in %s cannot be read (%s); a new one begins", self._file.path, error)
        self._history.enter(loaded.settings.hash, minimal(loaded), self._in_force.since)
        self._take_verdict()
        for sentence in self._judged_bad(loaded.settings.hash):
            _log.warning(sentence)
        await self._remember()

    async def obey(self, order: Order) -> Reply:
        """Carry out an order of `proxy.control`."""
        verb, reason = order.get("do"), str(order.get("reason") or "")
        if verb == "reload":
            report = await self.reload()
        elif verb == "rollback":
            report = await self.rollback(reason)
        elif verb == "verdict" and order.get("verdict") in VERDICTS:
            report = await self.judge(str(order["verdict"]), reason)
        else:
            report = self._report(done=False, sentences=["this proxy does not know that order"])
        return asdict(report)

    async def reload(self) -> Report:
        """Read the configuration again, and put it in force if nothing stands against it."""
        async with self._lock:
            try:
                loaded = await self._load()
                return await self._reload(loaded)
            except Refused as refused:
                return self._refuse("configuration not changed", refused)
            except ConfigurationError as error:
                return self._refuse("configuration not changed", Refused(*error.sentences))

    async def rollback(self, reason: str) -> Report:
        """Judge the configuration in force bad, and return to the latest before it that is not."""
        async with self._lock:
            try:
                return await self._roll_back(reason)
            except Refused as refused:
                return self._refuse("not rolled back", refused)
            except ConfigurationError as error:
                return self._refuse("not rolled back", Refused(*error.sentences))

    async def judge(self, verdict: str, reason: str) -> Report:
        """Write down what is thought of the configuration in force."""
        async with self._lock:
            self._history.judge(verdict, reason)
            self._take_verdict()
            await self._remember()
            told = f"configuration {self._in_force.sha} is judged {verdict}{f': {reason}' if reason else ''}"
            _log.info(told)
            return self._report(done=True, sentences=[told])

    # ------------------------------------------------------------------ reload

    async def _load(self) -> Loaded:
        if self._read is None:
            raise Refused("there is nothing to read again: the proxy was not started from a configuration")
        try:
            return await asyncio.to_thread(self._read)
        except ConfigurationError as error:
            raise Refused(*error.sentences) from None

    async def _reload(self, loaded: Loaded) -> Report:
        old, new = self._in_force.settings, loaded.settings
        found = self._compare(new)
        if not found:
            self._in_force.settings = new  # its reasons may be others
            self._in_force.tried_at, self._in_force.tried_well, self._in_force.said = time.time(), True, ()
            self._history.enter(new.hash, minimal(loaded), self._in_force.since)
            await self._remember()
            return await self._renew(new)
        doubts = self._doubts(found, old, new)
        if doubts and "strict" in {old.one_change, new.one_change}:
            raise Refused(*doubts, "one_change: strict refuses it; nothing was changed")
        return await self._swap(new, minimal(loaded), found, doubts)

    async def _renew(self, new: Settings) -> Report:
        """Take what files hold now that the configuration names, which is the same as before."""
        renewed, doubts = await self._target.renew()
        told = f"nothing differs from configuration {new.hash}"
        if renewed:
            told += f"; read anew: {', '.join(renewed)}"
            _log.info(told)
        for doubt in doubts:
            _log.warning(doubt)
        return self._report(done=True, sentences=[told], warnings=list(doubts))

    def _compare(self, new: Settings) -> tuple[Change, ...]:
        found = changes(self._in_force.settings, new)
        fixed = need_restart(found)
        if fixed:
            raise Refused(*(f"{change}: needs a restart; nothing was changed" for change in fixed))
        return found

    def _doubts(self, found: tuple[Change, ...], old: Settings, new: Settings) -> list[str]:
        """Return what makes the effect of a change hard to judge."""
        doubts = []
        steered = steering(found, old, new)
        if len(steered) > 1:
            doubts.append(
                f"{len(steered)} scheduling parameters change at once ({', '.join(steered)}): an effect cannot be put "
                "down to one of them. Change one, measure, then the next"
            )
        here, there = self._history.in_force, self._history.find(new.hash)
        if here is not None and here.verdict == BAD and there is None:
            doubts.append(
                f"this goes on from configuration {here.sha}, which was judged bad{_because(here)}: return with "
                "`lanewise rollback` first, or say `lanewise verdict keep`"
            )
        return [*doubts, *self._judged_bad(new.hash)]

    def _judged_bad(self, sha: str) -> list[str]:
        entry = self._history.find(sha)
        if entry is None or entry.verdict != BAD:
            return []
        return [f"configuration {sha} was judged bad{_because(entry)}"]

    # ------------------------------------------------------------------ rollback

    async def _roll_back(self, reason: str) -> Report:
        entry = self._history.earlier_good()
        if entry is None:
            told = "no configuration is known that was in force before this one and was not judged bad"
            _log.warning("not rolled back: %s", told)  # nothing was tried: no change counts as failed
            return self._report(done=False, sentences=[told])
        self._check_busy()
        new = self._restore(entry)
        found = self._compare(new)
        left = self._in_force.sha
        reason = reason or self._known_reason() or "rolled back"
        self._history.judge(BAD, reason)
        report = await self._swap(new, None, found, [])
        told = f"configuration {left} is judged bad: {reason}"
        again = "the configuration file still says the one that was left: mend it before the next reload or restart"
        if self._file is not None:
            again += f" (what is in force is in {self._file.in_force})"
        return replace(report, sentences=[*report.sentences, told, again])

    def _known_reason(self) -> str:
        entry = self._history.in_force
        return entry.reason if entry is not None and entry.verdict == BAD else ""

    def _restore(self, entry: Entry) -> Settings:
        """Read a remembered configuration; secrets are those in force."""
        try:
            settings = load_text(entry.text, f"configuration {entry.sha}")
        except ConfigurationError as error:
            raise Refused(*error.sentences) from None
        return with_secrets_of(settings, self._in_force.settings)

    # ------------------------------------------------------------------ both

    async def _swap(self, new: Settings, text: str | None, found: tuple[Change, ...], doubts: list[str]) -> Report:
        """Put `new` in force; `text` is None for one that is remembered."""
        self._check_busy()
        doubts = [*doubts, *(f"{one.key}: {one.text}" for one in warnings(new)), *await self._target.change_to(new)]
        self._in_force.take(new, tuple(doubts))
        if text is None:
            self._history.return_to(new.hash, self._in_force.since)
        else:
            self._history.enter(new.hash, text, self._in_force.since)
        self._take_verdict()
        await self._remember()
        report = self._report(done=True, changed=list(map(str, found)), warnings=doubts)
        report.sentences.append(f"configuration {report.config} is in force, generation {report.generation}")
        _log.info("%s: %s", report.sentences[0], "; ".join(report.changed))
        for doubt in doubts:
            _log.warning(doubt)
        return report

    def _check_busy(self) -> None:
        busy = self._target.busy
        if busy is not None:
            raise Refused(f"{busy}; nothing was changed")

    def _take_verdict(self) -> None:
        entry = self._history.in_force
        self._in_force.verdict = None if entry is None else entry.verdict

    async def _remember(self) -> None:
        if self._file is None:
            return
        try:
            await asyncio.to_thread(self._file.write, self._history)
        except OSError as error:
            why = error.strerror or error
            _log.warning("the history cannot be written to %s (%s): kept in memory", self._file.path, why)

    def _refuse(self, what: str, refused: Refused) -> Report:
        self._in_force.fail(refused.sentences)
        for sentence in refused.sentences:
            _log.error("%s: %s", what, sentence)
        return self._report(done=False, sentences=list(refused.sentences))

    def _report(self, *, done: bool, **more: Any) -> Report:
        return Report(done, self._in_force.sha, self._in_force.generation, **more)


def _remembered(file: HistoryFile) -> History:
    """Read a history that another version may have written: what a text means, and its hash, is what it is today."""
    history = file.read()
    known: dict[str, Entry] = {}
    for entry in history.entries:
        try:
            entry.sha = load_text(entry.text, entry.sha).hash
        except ConfigurationError as error:
            _log.warning("configuration %s can be returned to no more: %s", entry.sha, error.sentences[0])
        else:
            known.pop(entry.sha, None)
            known[entry.sha] = entry
    return History(list(known.values()))


def _because(entry: Entry) -> str:
    return f" ({entry.reason})" if entry.reason else ""
