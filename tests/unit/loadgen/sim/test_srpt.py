"""The perfect-knowledge engine."""

import pytest

from loadgen.sim.engine import EngineProfile, EngineRequest
from loadgen.sim.srpt import SrptEngine

PROFILE = EngineProfile("test", a=0.02, b=3e-5, c=9e-5, d=1.2e-7, e=5e-9, kv_blocks=400)


def finished(engine):
    order = []
    while (step := engine.step(0.0)) is not None:
        order += step.finished
    return order


def test_the_shortest_remaining_prompt_goes_first_even_past_one_that_runs():
    engine = SrptEngine(PROFILE)
    engine.submit(0.0, EngineRequest("long", 20_000, 1))
    engine.step(0.0)
    engine.submit(0.0, EngineRequest("short", 300, 1))
    engine.submit(0.0, EngineRequest("middle", 3000, 1))
    assert finished(engine) == ["short", "middle", "long"]


@pytest.mark.parametrize("decodes", [1, 40])
def test_steps_stay_under_the_limit_by_the_size_of_their_chunks(decodes):
    engine = SrptEngine(PROFILE, step_limit_s=0.08)
    for number in range(decodes):
        engine.submit(0.0, EngineRequest(number, 50, 400))
    engine.submit(0.0, EngineRequest("long", 24_000, 1))
    durations = []
    while (step := engine.step(0.0)) is not None:
        durations.append(step.duration_s)
        assert step.prefill_tokens or step.decodes
    assert max(durations) <= 0.08
    assert sorted(durations)[-20] > 0.07


def test_a_prompt_goes_on_even_when_the_decodes_alone_last_longer():
    engine = SrptEngine(PROFILE, step_limit_s=0.01)
    engine.submit(0.0, EngineRequest("slow", 1000, 1))
    assert finished(engine) == ["slow"]


def test_out_of_kv_it_preempts_and_still_finishes_everything():
    engine = SrptEngine(EngineProfile("tight", 0.02, 3e-5, 9e-5, 0.0, 0.0, kv_blocks=3))
    for number in range(3):
        engine.submit(0.0, EngineRequest(number, 120, 40))
    assert sorted(finished(engine)) == [0, 1, 2]
    assert engine.counters.preemptions > 0
    assert engine.kv.free == 3
