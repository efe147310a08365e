"""The kept inputs of the fuzz targets hold their promises; `make fuzz` looks for others."""

import importlib
from pathlib import Path

import pytest

from proxy.wire.sse import StreamScanner
from tests.fuzz.make_corpus import FOLDER, inputs
from tests.fuzz.targets import TARGETS


@pytest.mark.parametrize("target", TARGETS)
def test_every_kept_input_holds_what_its_target_promises(target):
    kept = sorted((FOLDER / target).iterdir())
    assert len(kept) >= 6
    for path in kept:
        TARGETS[target](path.read_bytes())


def test_the_kept_inputs_are_those_that_are_made_and_those_that_were_found():
    made = {target: set() for target in TARGETS}
    for target, data in inputs():
        made[target].add(data)
    for target, known in made.items():
        kept = {path.read_bytes(): path.name for path in (Path(FOLDER) / target).iterdir()}
        assert known <= set(kept)
        assert all(name.startswith("found-") for data, name in kept.items() if data not in known)


class Silent(StreamScanner):
    """Counts, and does not say so."""

    __slots__ = ()

    def feed(self, data):
        super().feed(data)
        return 0


BROKEN = {
    "body": ("proxy.wire.caps", "ask_for_usage", lambda body: b"{}"),
    "sse": ("proxy.wire.sse", "StreamScanner", Silent),
    "framing": ("proxy.upstream.head", "split_head", lambda buffer: min(len(buffer), 40)),
    "configuration": ("proxy.settings.load", "_Given", lambda document: document.nothing),
    "traces": ("loadgen.tracefile.files", "checked", lambda row: row.nothing),
}
"""What a broken part of the product is, for each target: where, its name, and what stands there instead."""


@pytest.mark.parametrize("target", TARGETS)
def test_a_target_sees_a_promise_that_is_broken(target, monkeypatch):
    module, name, instead = BROKEN[target]
    monkeypatch.setattr(importlib.import_module(module), name, instead)
    kept = [path.read_bytes() for path in sorted((FOLDER / target).iterdir())]
    with pytest.raises((AssertionError, AttributeError, KeyError)):
        list(map(TARGETS[target], kept))
