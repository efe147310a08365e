"""The virtual-time loop: when things happen, and that each request ends once."""

import pytest

from loadgen.sim.clients import Clients
from loadgen.sim.drive import Delays, Drive
from loadgen.sim.engine import Engine, EngineProfile
from loadgen.sim.front import Lost, Send
from loadgen.sim.policies import Direct
from loadgen.sim.workloads import Arrival

PROFILE = EngineProfile("test", a=0.02, b=3e-5, c=9e-5, d=1.2e-7, e=5e-9, kv_blocks=400)


class InParts(Direct):
    """Sends every prompt in two parts and whole, as a proxy with installments does."""

    def __init__(self):
        super().__init__(1)
        self.parts = []

    def arrive(self, now, index, prompt_tokens, output_tokens):
        self.prompt = prompt_tokens
        self._where[index] = (0, 1)
        return (Send(index, 0, 1024, final=False),)

    def part_ended(self, now, index, cached_tokens):
        self.parts.append((now, cached_tokens))
        upto = 2048 if len(self.parts) == 1 else self.prompt
        return (Send(index, 0, upto, final=upto == self.prompt),)


class Refusing(Direct):
    def arrive(self, now, index, prompt_tokens, output_tokens):
        return (Lost(index, "rejected", "queue_full"),)


def drive(front, *arrivals, **more):
    engine = Engine(PROFILE)
    run = Drive([engine], front, [Arrival(*arrival) for arrival in arrivals], **more)
    return run.run(), engine


def test_a_lone_request_takes_the_dispatch_and_the_formula():
    driven, _ = drive(Direct(1), (5.0, 1000, 3))
    served = driven.served[0]
    assert served.outcome == "ok"
    assert served.ttft_s == pytest.approx(0.002 + 0.02 + 9e-5 * 1000 + 5e-9 * 1000**2 / 2)
    assert served.tpot_s == pytest.approx(0.02 + 3e-5 + 1.2e-7 * 1000.5)


def test_a_single_token_has_no_time_between_tokens():
    driven, _ = drive(Direct(1), (0.0, 100, 1))
    assert driven.served[0].tpot_s == 0.0


def test_a_client_without_a_first_token_leaves_and_frees_the_engine():
    delays = Delays(patience_short_s=0.05, patience_long_s=0.05)
    driven, engine = drive(Direct(1), (0.0, 20_000, 10), (0.01, 100, 10), delays=delays)
    assert [served.outcome for served in driven.served] == ["client_gone", "client_gone"]
    assert driven.served[0].end_s == pytest.approx(0.05)
    assert engine.counters.aborted == 2
    assert engine.kv.free == PROFILE.kv_blocks


def test_a_client_with_a_first_token_stays():
    driven, _ = drive(Direct(1), (0.0, 100, 500), delays=Delays(patience_short_s=0.05))
    assert driven.served[0].outcome == "ok"


def test_a_refused_request_never_reaches_the_engine():
    driven, engine = drive(Refusing(1), (0.0, 100, 10))
    assert (driven.served[0].outcome, driven.served[0].reason) == ("rejected", "queue_full")
    assert engine.counters.steps == 0


def test_parts_are_seen_after_2_ms_sent_in_2_ms_and_computed_once():
    front = InParts()
    driven, engine = drive(front, (0.0, 4096, 2), hashed=True)
    assert driven.served[0].outcome == "ok"
    assert [cached for _, cached in front.parts] == [0, 1024]
    assert engine.counters.prefill_tokens == 4096
    assert driven.recomputed_tokens == 0
    first_part = 0.02 + 9e-5 * 1024 + 5e-9 * 1024**2 / 2
    assert front.parts[0][0] == pytest.approx(0.002 + first_part + 0.002)
    assert driven.served[0].ttft_s == pytest.approx(3 * 0.004 - 0.002 + 3 * 0.02 + 9e-5 * 4096 + 5e-9 * 4096**2 / 2)


def test_parts_that_are_not_found_again_count_as_computed_twice():
    driven, engine = drive(InParts(), (0.0, 4096, 2), hashed=False)
    assert driven.recomputed_tokens == 1024 + 2048
    assert engine.counters.prefill_tokens == 1024 + 2048 + 4096


def test_a_client_that_leaves_between_parts_ends_its_request():
    front = InParts()
    driven, engine = drive(front, (0.0, 24_000, 2), hashed=True, delays=Delays(patience_long_s=0.1))
    assert driven.served[0].outcome == "client_gone"
    assert not engine.has_work


def test_two_backends_work_side_by_side():
    engines = [Engine(PROFILE), Engine(PROFILE)]
    driven = Drive(engines, Direct(2), [Arrival(0.0, 2000, 5), Arrival(0.0, 2000, 5)]).run()
    assert driven.served[0].ttft_s == pytest.approx(driven.served[1].ttft_s)
    assert [engine.counters.finished for engine in engines] == [1, 1]


def test_a_refused_client_asks_again_after_its_pause_as_often_as_it_may():
    class Twice(Direct):
        seen = 0

        def arrive(self, now, index, prompt_tokens, output_tokens):
            self.seen += 1
            if self.seen <= 2:
                return (Lost(index, "rejected", "queue_full"),)
            return super().arrive(now, index, prompt_tokens, output_tokens)

    driven, _ = drive(Twice(1), (5.0, 1000, 3), clients=Clients(retries=3))
    served = driven.served[0]
    assert (served.outcome, served.attempts, served.asked_s) == ("ok", 3, 9.0)
    assert served.ttft_s == pytest.approx(0.002 + 0.02 + 9e-5 * 1000 + 5e-9 * 1000**2 / 2)
    lost, _ = drive(Refusing(1), (5.0, 1000, 3), clients=Clients(retries=3))
    assert (lost.served[0].outcome, lost.served[0].attempts, lost.ended_s) == ("rejected", 4, 11.0)


def test_patience_begins_anew_with_every_attempt():
    class Never(Direct):
        def arrive(self, now, index, prompt_tokens, output_tokens):
            return ()

        def gone(self, now, index):
            return ()

    delays = Delays(patience_short_s=10.0)
    driven, _ = drive(Never(1), (0.0, 1000, 3), delays=delays, clients=Clients(retries=1, retry_after_s=4.0))
    assert (driven.served[0].outcome, driven.served[0].end_s, driven.served[0].attempts) == ("client_gone", 24.0, 2)
