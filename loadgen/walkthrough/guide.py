"""The four steps, each with what it found or why it stops. Synchronous: every replay runs its own event loop."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import orjson

from loadgen.columns import columns_of
from loadgen.diagnose.enginelog import read_message
from loadgen.diagnose.facts import facts_of
from loadgen.diagnose.nouns import Diagnosis
from loadgen.diagnose.rules import diagnose
from loadgen.failure import Exit, StopError
from loadgen.journal import RunFolder
from loadgen.knee import knee as read_knee
from loadgen.options import ReplayOptions, SourceOptions
from loadgen.plan import Lane
from loadgen.replay import replay
from loadgen.result import Result
from loadgen.source import read_source
from loadgen.steady import full
from loadgen.summarise import summarise_columns
from loadgen.summary import Slo, Summary
from loadgen.sweep import FRAGMENT, fragment, level_of
from loadgen.walkthrough.ladder import TPOT, Ladder, Rung, ladder_of, next_step, rung_of
from loadgen.walkthrough.situation import name_situation
from loadgen.walkthrough.state import State

STEPS = ("shortest", "request", "knee", "change")
SHORTEST_PROMPT, SHORTEST_OUTPUT = 8, 1
LEAST_ROWS = 16
TRIES = 3
"""Of one step, when other work on this machine made the load generator late."""
ROWS_PER_PLACE = 5
"""Requests of one step per request in flight: the first wave and the last are no steady state."""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Walk:
    """What is walked through."""

    options: ReplayOptions
    """Target and ways of asking; its folder is the walkthrough's."""
    source: SourceOptions
    """The operator's own requests."""
    slo: Slo
    most: int = 64
    """Highest concurrency to try."""
    cards: int | None = None
    """Cards of the engine, as told."""


class StepError(StopError):
    """A step that failed; the walkthrough ends with its reason."""

    def __init__(self, step: str, reason: str, code: Exit = Exit.RUNTIME) -> None:
        super().__init__(f"step {STEPS.index(step) + 1} of {len(STEPS)} ({step}) failed: {reason}", code)
        self.step = step
        self.reason = reason


class Guide:
    """Walks through the steps that are not done yet.

    Args:
        walk: what is walked through.
        state: the folder, with what is done.
        say: told one line whenever something is found.
        may_load: asked once before the load is raised; False ends the walkthrough there.
        send: makes a run of it; `replay`.
    """

    def __init__(
        self,
        walk: Walk,
        state: State,
        say: Say,
        may_load: Callable[[], bool],
        send: Callable[[ReplayOptions], RunFolder] = replay,
    ) -> None:
        self._walk = walk
        self._state = state
        self._say = say
        self._may_load = may_load
        self._send = send

    def go(self) -> dict[str, Any]:
        """Walk to the end.

        Returns:
            Step → what it found.

        Raises:
            StepError: a step failed, with its reason; what was found until then is in the folder.
            StopError: interrupted, or the operator said no.
        """
        steps: dict[str, Callable[[], dict[str, Any]]] = {
            "shortest": self._shortest,
            "request": self._request,
            "knee": self._knee,
            "change": self._change,
        }
        for number, (name, work) in enumerate(steps.items(), 1):
            if name in self._state.steps:
                self._say(f"step {number}, {name}: done before: {self._state.steps[name]['sentence']}")
                continue
            found = work()
            self._state.done(name, found)
            self._say(f"step {number}, {name}: {found['sentence']}")
        return self._state.steps

    # --- the steps

    def _shortest(self) -> dict[str, Any]:
        """Does anything answer at all?"""
        trace = self._state.path / "shortest.jsonl"
        lengths = {"input_length": SHORTEST_PROMPT, "output_length": SHORTEST_OUTPUT}
        trace.write_bytes(orjson.dumps({"timestamp": 0, **lengths, "hash_ids": [1]}) + b"\n")
        result = self._single("shortest", "1-shortest", SourceOptions(traces=(trace,), format="mooncake"))
        ttft = _ttft(result)
        return {
            "ttft_s": ttft,
            "sentence": f"{SHORTEST_PROMPT} tokens in, {SHORTEST_OUTPUT} out: answered in {ttft * 1e3:.0f} ms",
        }

    def _request(self) -> dict[str, Any]:
        """One real request, alone: what it takes when nothing is in its way."""
        result = self._single("request", "2-request", replace(self._walk.source, rows=1, rate=None))
        slo, ttft = self._walk.slo, _ttft(result)
        tpot = _tpot(result)
        limit = slo.ttft_short_s if result.lane == Lane.SHORT else slo.ttft_long_s
        if ttft > limit:
            raise StepError(
                "request",
                f"alone on the engine its first token took {ttft:.2f} s, the SLO is {limit:g} s: no cap can mend that; "
                "raise the SLO, or give the model more compute",
                Exit.GATE,
            )
        if tpot is not None and tpot > slo.tpot_s:
            raise StepError(
                "request",
                f"alone on the engine every token took {tpot * 1e3:.0f} ms, the SLO is {slo.tpot_s * 1e3:.0f} ms: no "
                "cap can mend that; raise the SLO, or give the model more memory bandwidth (more cards, small weights)",
                Exit.GATE,
            )
        each = "" if tpot is None else f", {tpot * 1e3:.1f} ms a token"
        return {
            "prompt_tokens": result.prompt_tokens,
            "output_tokens": result.tokens,
            "ttft_s": ttft,
            "tpot_s": tpot,
            "sentence": (
                f"{result.prompt_tokens} tokens in, {result.tokens} out: first token after {ttft * 1e3:.0f} ms{each}"
            ),
        }

    def _knee(self) -> dict[str, Any]:
        """Raise the concurrency step by step until answers come too late."""
        if not self._may_load():
            raise StopError("stopped before the load was raised; run it again with the same --out to go on", Exit.DONE)
        rungs: list[Rung] = []
        while (concurrency := next_step(rungs, self._walk.most)) is not None:
            rungs.append(self._rung(concurrency))
            self._say(f"  {_told(rungs[-1])}")
        found = ladder_of(rungs)
        if found.last_good is None:
            raise StepError("knee", f"already one request at a time is too much: {found.reason}", Exit.GATE)
        cap, file = self._measured(rungs, found)
        found = replace(found, cap=cap)
        return {
            "fragment": file,
            "rungs": [one.facts() for one in sorted(rungs, key=lambda one: one.concurrency)],
            "last_good": found.last_good,
            "first_bad": found.first_bad,
            "cap": found.cap,
            "reason": found.reason,
            "sentence": _knee_told(found),
        }

    def _measured(self, rungs: Sequence[Rung], found: Ladder) -> tuple[int | None, str | None]:
        """Return the cap, and the file with it that lanewise reads.

        Where TPOT is what came too late, both are made as `lanewise-load knee` makes them, from the same levels.
        """
        if not found.reason.startswith(TPOT):
            return found.cap, None
        steps = sorted(one.concurrency for one in rungs)
        folders = [self._state.run_folder(_rung_name(step))[0] for step in steps]
        slo = self._walk.slo
        levels = [level_of(folder, step, slo) for folder, step in zip(folders, steps, strict=True)]
        knee = read_knee(levels, slo.tpot_s, found.reason)
        if knee.cap is None:
            return found.cap, None
        file = self._state.path / FRAGMENT
        try:
            file.write_text(fragment(knee, folders[-1].manifest()), encoding="utf-8")
        except OSError as error:
            raise StopError(f"{file}: cannot be written: {error.strerror}") from None
        return knee.cap, file.name

    def _rung(self, concurrency: int) -> Rung:
        rows = max(LEAST_ROWS, ROWS_PER_PLACE * concurrency)
        options = replace(
            self._walk.options,
            source=replace(self._walk.source, rows=rows, rate=None),
            closed_loop=concurrency,
            label=f"{concurrency} in flight",
        )
        self._say(f"  {concurrency} in flight: {rows} requests are sent")  # it may take minutes until the next line
        for left in reversed(range(TRIES)):
            folder = self._run("knee", _rung_name(concurrency), options)
            facts = facts_of(folder, self._walk.slo)
            if not facts.summary.client_limited:
                return rung_of(concurrency, self._steady(folder, concurrency), facts.tokens_per_s)
            _set_aside(folder.path)
            if left:
                self._say(f"  {concurrency} in flight: the load generator was late, so that does not count; once more")
        raise StepError(
            "knee",
            f"the load generator could not keep up with {concurrency} in flight, {TRIES} times; run it again with the "
            "same --out on a machine with a free core",
            Exit.INVALID,
        )

    def _steady(self, folder: RunFolder, concurrency: int) -> Summary:
        """Summarise the requests of a step that met as many others as were asked for."""
        columns = columns_of(folder.results())
        return summarise_columns(columns.where(full(columns, concurrency)), folder.manifest(), self._walk.slo)

    def _change(self) -> dict[str, Any]:
        """Name the situation, look at the step beyond the knee, and say what to change first."""
        knee = self._state.steps["knee"]
        looked_at = knee["first_bad"] or knee["last_good"]
        folder, _ = self._state.run_folder(_rung_name(looked_at))
        facts = facts_of(folder, self._walk.slo)
        judged = diagnose(facts)
        plan = read_source(replace(self._walk.source, rate=None)).plan
        long = sum(shot.lane is Lane.LONG for shot in plan.shots()) / len(plan)
        named = name_situation(long_share=long, concurrency=knee["last_good"], cards=self._walk.cards or facts.cards)
        step = _first_change(knee["cap"], judged, None if knee["fragment"] is None else self._state.path / FRAGMENT)
        return {
            "situation": named.situation.value,
            "why": named.why,
            "preset": named.situation.preset,
            "diagnosis": judged.to_json(),
            "change": step,
            "sentence": (
                f"situation: {named.situation} ({named.why}); preset {named.situation.preset}. Change first: {step}"
            ),
        }

    # --- what steps share

    def _single(self, step: str, name: str, source: SourceOptions) -> Result:
        """Send one request and make sure that it was answered."""
        folder = self._run(step, name, replace(self._walk.options, source=source, label=step))
        (result,) = folder.results()
        if result.outcome != "ok" or result.first is None:
            told = None if result.detail is None else read_message(result.detail)
            why = f"; {told.sentence}. Next: {told.next_step}" if told is not None else ""
            what = result.detail or result.reason or "it had no token"
            status = f" (status {result.status})" if result.status else ""
            raise StepError(step, f"the request ended as {result.outcome}{status}: {what}{why}")
        return result

    def _run(self, step: str, name: str, options: ReplayOptions) -> RunFolder:
        folder, there = self._state.run_folder(name)
        if there:
            return folder
        try:
            done = self._send(replace(options, out=folder.path))
        except StopError as error:
            raise StepError(step, str(error), error.code) from None
        if not done.manifest().get("complete"):
            raise StopError("interrupted; run it again with the same --out to go on", Exit.INTERRUPTED)
        return done


def _rung_name(concurrency: int) -> str:
    return f"3-knee/c{concurrency:03}"


def _set_aside(path: Path) -> None:
    """Keep a run that says nothing of the server, out of the way of the next try."""
    number = 1
    while (moved := path.with_name(f"{path.name}-client-limited-{number}")).exists():
        number += 1
    path.rename(moved)


def _ttft(result: Result) -> float:
    return (result.first or 0.0) - (result.sent or 0.0)


def _tpot(result: Result) -> float | None:
    if result.first is None or result.last is None or result.tokens is None or result.tokens < 2:
        return None
    return (result.last - result.first) / (result.tokens - 1)


def _told(rung: Rung) -> str:
    tpot = "-" if rung.tpot_p95_s is None else f"{rung.tpot_p95_s * 1e3:.1f} ms"
    ttft = "-" if rung.ttft_p95_s is None else f"{rung.ttft_p95_s * 1e3:.0f} ms"
    rate = "-" if rung.tokens_per_s is None else f"{rung.tokens_per_s:.0f}"
    verdict = "inside the SLO" if rung.bad is None else rung.bad
    return f"{rung.concurrency} in flight: {rate} tokens/s, TTFT p95 {ttft}, TPOT p95 {tpot}: {verdict}"


def _knee_told(found: Ladder) -> str:
    if found.first_bad is None:
        return f"not found: {found.reason}; try more with --most"
    return f"between {found.last_good} and {found.first_bad} in flight: {found.reason}. Cap before it: {found.cap}"


def _first_change(cap: int | None, judged: Diagnosis, file: Path | None) -> str:
    """Memory and what tuning cannot mend come first; else the cap before the knee is the first thing to set."""
    first = judged.findings[0] if judged.findings else None
    if first is not None and (not first.tuning_helps or first.layer in {"memory", "parallel"}):
        return first.next_step
    if cap is not None:
        given = "" if file is None else f"; `lanewise serve --config FILE --config {file}` does it"
        return f"set `scheduling.concurrency: {cap}` in lanewise's configuration and nothing else{given}"
    return "nothing yet: the engine was not brought to its limit"
