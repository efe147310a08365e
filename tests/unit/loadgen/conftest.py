"""Runs that never happened: results with known latencies."""

from types import SimpleNamespace

import pytest

from loadgen.columns import columns_of
from loadgen.journal import Journal
from loadgen.result import Result
from loadgen.summarise import summarise_columns
from loadgen.summary import Slo


def _ok(index, ttft=0.5, *, tokens=11, tpot=0.02, lane="short", lag=0.0, **more):
    """A complete stream, one token per chunk, due at its index in seconds."""
    due = float(index)
    sent = due + lag
    first = due + ttft
    last = first + tpot * (tokens - 1)
    gaps = [round(tpot * 1e6)] * (tokens - 1)
    values = {
        "started": sent,
        "sent": sent,
        "connected": sent,
        "head": first,
        "first": first,
        "first_content": first,
        "last": last,
        "end": last + 0.01,
        "tokens": tokens,
        "tokens_from": "usage",
        "chunks": tokens,
        "status": 200,
        "finish": "length",
        "usage_prompt": 100,
        "events": (round((first - sent) * 1e6), *gaps),
    } | more
    return Result(index, index + 2, lane, 100, tokens, due, "ok", **values)


def _failed(index, outcome="rejected", lane="short", after=0.01, **more):
    due = float(index)
    values = {"started": due, "sent": due, "connected": due, "end": due + after} | more
    return Result(index, index + 2, lane, 100, 11, due, outcome, **values)


MANIFEST = {
    "label": "x",
    "plan": {"hash": "abc", "requests": 1000},
    "complete": True,
    "speed": 1.0,
    "salt": "one",
    "host": {"cores": 2},
    "versions": {"lanewise": "1"},
}


@pytest.fixture
def made(tmp_path):
    """Makers: ok(index, …), failed(index, …), summary(results, …), folder(name, results, …)."""

    def summary(results, slo=None, **manifest):
        return summarise_columns(columns_of(results), MANIFEST | manifest, slo or Slo())

    def folder(name, results, **manifest):
        journal = Journal(tmp_path / name, MANIFEST | {"label": name, "salt": name} | manifest)
        for result in results:
            journal.add(result)
        return journal.close()

    return SimpleNamespace(ok=_ok, failed=_failed, summary=summary, folder=folder, manifest=MANIFEST)
