"""The light client libraries through a real proxy; `make test-clients` drives the heavy ones too."""

import asyncio
import sys
from pathlib import Path

import pytest

from tests.clients.engine import CASES
from tests.clients.environment import Environment
from tests.clients.matrix import Row, run

LIGHT = ("openai", "openai_async", "httpx", "curl")
QUICK = tuple(case for case in CASES if case not in {"slow", "full"})
"""Without those in which a client waits for many seconds."""


@pytest.fixture(scope="module")
def rows():
    where = Environment(Path(sys.executable), None)
    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        return {(row.client, row.case): row for row in runner.run(run(where, LIGHT, QUICK))}


@pytest.mark.parametrize("case", QUICK)
@pytest.mark.parametrize("library", LIGHT)
def test_what_the_users_of_light_clients_see_is_what_is_documented(rows, library, case):
    row = rows[library, case]
    assert row.unmet == [], row.got


def test_a_client_that_shows_something_else_is_told():
    row = Row("openai", "2", "cut", {"error": {"matches": "."}}, {"text": "Hello", "attempts": 1})
    assert row.as_json()["passed"] is False
    assert row.unmet == ["got.error was not observed"]
