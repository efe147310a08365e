"""The simulated engine: formulas exactly, each rule of the scheduler, and against a plain one that walks everything."""

import random
from collections import Counter
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.sim.engine import Engine, EngineProfile, EngineRequest, QueueFull, SchedulingPolicy

PROFILE = EngineProfile("test", a=0.02, b=3e-5, c=9e-5, d=1.2e-7, e=5e-9, kv_blocks=400)


@dataclass
class Ran:
    """Times of everything that happened, from a run to the end."""

    first: dict = field(default_factory=dict)
    end: dict = field(default_factory=dict)
    steps: list = field(default_factory=list)


def run(engine, now=0.0):
    ran = Ran()
    while (step := engine.step(now)) is not None:
        now += step.duration_s
        ran.steps.append(step)
        ran.first.update(dict.fromkeys(step.first, now))
        ran.end.update(dict.fromkeys(step.finished, now))
    return ran


def engine_with(*requests, **flags):
    engine = Engine(replace(PROFILE, **flags))
    for number, (prompt, output) in enumerate(requests):
        engine.submit(0.0, EngineRequest(number, prompt, output))
    return engine


# --- formulas


@pytest.mark.parametrize("prompt", [1, 100, 2048, 2049, 5000, 24_000])
def test_a_lone_prompt_has_its_first_token_after_the_formula_of_its_chunks(prompt):
    ran = run(engine_with((prompt, 2)))
    chunks = -(-prompt // 2048)
    assert ran.first[0] == pytest.approx(chunks * 0.02 + 9e-5 * prompt + 5e-9 * prompt**2 / 2)


def test_a_decode_step_takes_as_long_as_its_formula():
    engine = engine_with(*[(100, 50)] * 8)
    ran = run(engine)
    contexts = [100 + done for done in range(49)]
    expected = [0.02 + 3e-5 * 8 + 1.2e-7 * 8 * context for context in contexts]
    assert [step.duration_s for step in ran.steps[1:]] == pytest.approx(expected)


def test_each_decoder_waits_for_the_whole_step_that_it_shares_with_a_chunk():
    engine = engine_with((100, 50))
    first = engine.step(0.0)
    engine.submit(0.0, EngineRequest("long", 2000, 1))
    shared = engine.step(first.duration_s)
    assert (shared.decodes, shared.prefill_tokens) == (1, 2000)
    assert shared.duration_s == pytest.approx(0.02 + 3e-5 + 9e-5 * 2000 + 1.2e-7 * 100 + 5e-9 * 2000 * 1000)


def test_noise_changes_durations_around_the_same_mean_and_repeats_by_seed():
    noisy = replace(PROFILE, noise_sigma=0.3)

    def durations(seed):
        engine = Engine(noisy, random.Random(seed))
        engine.submit(0.0, EngineRequest("r", 10, 400))
        return [step.duration_s for step in run(engine).steps]

    quiet = [step.duration_s for step in run(engine_with((10, 400))).steps]
    assert durations(1) == durations(1)
    assert durations(1) != durations(2)
    assert sum(durations(1)) == pytest.approx(sum(quiet), rel=0.1)


def test_noise_without_a_source_of_randomness_is_refused():
    with pytest.raises(ValueError, match="random source"):
        Engine(replace(PROFILE, noise_sigma=0.1))


# --- who runs


def test_waiting_requests_share_what_running_ones_leave_of_the_budget():
    ran = run(engine_with((1500, 5), (1000, 5)))
    assert [step.prefill_tokens for step in ran.steps[:2]] == [2048, 452]
    assert ran.first[0] < ran.first[1]


def test_a_running_prompt_takes_the_whole_budget_and_newcomers_wait():
    engine = engine_with((6144, 1), (10, 1))
    ran = run(engine)
    assert ran.first[1] > ran.first[0]


def test_the_prefill_threshold_leaves_room_for_others():
    ran = run(engine_with((6144, 1), (10, 1), long_prefill_token_threshold=256))
    assert ran.first[1] == pytest.approx(ran.steps[0].duration_s)
    assert ran.steps[0].prefill_tokens == 266


def test_the_prefill_threshold_does_not_cut_a_prompt_that_is_alone():
    ran = run(engine_with((2000, 1), long_prefill_token_threshold=256))
    assert [step.prefill_tokens for step in ran.steps] == [2000]


def test_the_first_one_that_does_not_fit_holds_up_all_behind_it():
    engine = engine_with((1000, 400), (1200, 2), (10, 2), kv_blocks=12)
    engine.step(0.0)
    assert (engine.gauges.running, engine.gauges.waiting) == (1, 2)


def test_no_more_sequences_run_than_max_num_seqs():
    engine = engine_with(*[(10, 5)] * 6, max_num_seqs=4)
    engine.step(0.0)
    assert (engine.gauges.running, engine.gauges.waiting) == (4, 2)
    assert len(run(engine).end) == 6


def test_without_reserving_the_whole_prompt_a_request_starts_with_less_kv():
    flags = {"kv_blocks": 20, "max_num_batched_tokens": 512, "max_num_seqs": 4}
    waits = engine_with((1200, 600), (1600, 2), **flags)
    starts = engine_with((1200, 600), (1600, 2), reserve_full_isl=False, **flags)
    for engine in (waits, starts):
        for _ in range(4):
            engine.step(0.0)
    assert waits.gauges.running == 1
    assert starts.gauges.running == 2


def test_by_priority_the_smaller_number_goes_first():
    engine = Engine(replace(PROFILE, scheduling_policy=SchedulingPolicy.PRIORITY, max_num_seqs=1))
    for name, priority in (("batch", 5), ("chat", 0)):
        engine.submit(0.0, EngineRequest(name, 100, 3, priority=priority))
    ran = run(engine)
    assert ran.end["chat"] < ran.end["batch"]


# --- preemption


def test_out_of_kv_the_last_one_is_thrown_back_and_computed_again():
    engine = engine_with((120, 40), (120, 40), kv_blocks=3)
    ran = run(engine)
    preempted = [name for step in ran.steps for name in step.preempted]
    assert preempted == [1]
    assert engine.counters.preemptions == 1
    assert engine.counters.recomputed_tokens == 128
    assert ran.end[0] < ran.end[1]
    assert len(ran.first) == 2


def test_nobody_is_admitted_in_a_step_that_preempted():
    engine = engine_with((120, 40), (120, 40), kv_blocks=3)
    while not (step := engine.step(0.0)).preempted:
        pass
    assert step.admitted == []
    assert step.decodes == 1


def test_by_priority_the_least_important_is_preempted():
    engine = Engine(replace(PROFILE, scheduling_policy=SchedulingPolicy.PRIORITY, kv_blocks=3))
    for name, priority in (("batch", 5), ("chat", 0)):
        engine.submit(0.0, EngineRequest(name, 120, 40, priority=priority))
    preempted = [name for step in run(engine).steps for name in step.preempted]
    assert preempted == ["batch"]


# --- prefix cache


def test_a_prompt_seen_before_computes_only_what_is_not_in_whole_cached_blocks():
    engine = Engine(PROFILE)
    hashes = list(range(7))
    engine.submit(0.0, EngineRequest("first", 1000, 2, hashes))
    run(engine)
    engine.submit(0.0, EngineRequest("again", 1000, 2, hashes))
    step = engine.step(0.0)
    assert step.admitted == [("again", 896)]
    assert step.prefill_tokens == 104
    assert (engine.counters.prefix_queries, engine.counters.prefix_hits) == (2000, 896)


def test_one_token_is_always_computed():
    engine = Engine(PROFILE)
    for name in ("first", "again"):
        engine.submit(0.0, EngineRequest(name, 1024, 2, list(range(8))))
        steps = run(engine).steps
    assert steps[0].prefill_tokens == 128


def test_parts_of_a_prompt_compute_every_token_once():
    engine = Engine(PROFILE)
    hashes = list(range(24_000 // 128))
    for part in (1024, 2048, 3072, 24_000):
        engine.submit(0.0, EngineRequest(part, part, 1, hashes[: part // 128]))
        run(engine)
    assert engine.counters.prefill_tokens == 24_000


def test_prefix_caching_off_finds_nothing():
    engine = Engine(replace(PROFILE, prefix_caching=False))
    for name in ("first", "again"):
        engine.submit(0.0, EngineRequest(name, 1000, 2, list(range(7))))
        run(engine)
    assert engine.counters.prefill_tokens == 2000
    assert engine.counters.prefix_queries == 0


def test_a_reset_forgets_the_prefix_cache():
    engine = Engine(PROFILE)
    engine.submit(0.0, EngineRequest("first", 1000, 2, list(range(7))))
    run(engine)
    engine.reset_prefix_cache()
    engine.submit(0.0, EngineRequest("again", 1000, 2, list(range(7))))
    assert engine.step(0.0).prefill_tokens == 1000


# --- aborts


def test_an_abort_takes_effect_at_the_next_step_and_frees_everything():
    engine = engine_with((1000, 100), (100, 100), (5000, 10))
    engine.step(0.0)
    for name in (0, 1, 2):
        engine.abort(name)
    assert engine.has_work
    assert engine.step(0.0) is None
    assert not engine.has_work
    assert engine.counters.aborted == 3
    assert engine.kv.free == PROFILE.kv_blocks
    assert (engine.gauges.running, engine.gauges.waiting, engine.gauges.kv_usage) == (0, 0, 0.0)


def test_an_abort_of_an_unknown_or_finished_request_is_ignored():
    engine = engine_with((100, 1))
    engine.step(0.0)
    engine.abort(0)
    engine.abort("never")
    assert engine.step(0.0) is None
    assert engine.counters.aborted == 0


# --- limits and gauges


def test_an_engine_with_a_request_limit_refuses_one_more():
    engine = engine_with((100, 5), (100, 5), max_num_queued_reqs=3)
    engine.check_admission()
    with pytest.raises(QueueFull) as refused:
        engine.check_admission(sequences=2)
    assert refused.value.limit == "max_num_queued_reqs"
    assert engine.counters.rejected_requests == 1


def test_an_engine_with_a_token_limit_refuses_until_prefill_is_done():
    engine = engine_with((1500, 50), max_num_queued_tokens=1500)
    with pytest.raises(QueueFull, match="max_num_queued_tokens is 1500"):
        engine.check_admission()
    engine.step(0.0)
    engine.check_admission()


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (EngineRequest("r", 0, 5), "at least one token"),
        (EngineRequest("r", 5, 0), "at least one token"),
        (EngineRequest("r", 40_000, 5), "context length of 32768"),
        (EngineRequest("old", 5, 5), "already in the engine"),
    ],
)
def test_a_request_that_can_never_run_is_refused_in_words(request_, words):
    engine = Engine(PROFILE)
    engine.submit(0.0, EngineRequest("old", 10, 10))
    with pytest.raises(ValueError, match=words):
        engine.submit(0.0, request_)


def test_a_request_larger_than_the_whole_cache_is_refused():
    with pytest.raises(ValueError, match="whole KV cache of 1280"):
        engine_with((1200, 100), kv_blocks=10)


def test_those_who_got_a_token_are_the_decodes_the_first_and_the_finished():
    engine = engine_with((10, 1), (10, 3), (5000, 2))
    engine.step(0.0)
    assert sorted(engine.got_token()) == [0, 1]
    engine.step(0.0)
    assert sorted(engine.got_token()) == [1]


def test_gauges_show_what_runs_while_the_step_runs():
    engine = engine_with((10, 1), (1280, 5))
    engine.step(0.0)
    assert (engine.gauges.running, engine.gauges.waiting) == (2, 0)
    assert engine.gauges.kv_usage == pytest.approx(11 / 400)


# --- against a plain engine


class PlainEngine:
    """The same scheduler the slow way: every sequence walked in every step, one token at a time."""

    def __init__(self, profile):
        self.profile, self.free, self.clock = profile, profile.kv_blocks, 0
        self.waiting, self.running, self.preempted = [], [], 0

    def submit(self, name, prompt, output, priority):
        self.clock += 1
        self.waiting.append(
            {
                "name": name,
                "prompt": prompt,
                "left": output,
                "made": 0,
                "done": 0,
                "blocks": 0,
                "decodes": False,
                "rank": (priority, self.clock),
            }
        )

    def abort(self, name):
        for seq in [s for s in self.waiting + self.running if s["name"] == name]:
            (self.waiting if seq in self.waiting else self.running).remove(seq)
            self.free += seq["blocks"]

    def _cut(self, seq):
        need, limit = seq["prompt"] + seq["made"] - seq["done"], self.profile.long_prefill_token_threshold
        return limit if limit and need > limit and len(self.running) + len(self.waiting) > 1 else need

    def _allocate(self, seq, tokens, plan):
        need = -(-tokens // self.profile.block_size) - seq["blocks"]
        while need > self.free:
            by_priority = self.profile.scheduling_policy is SchedulingPolicy.PRIORITY
            victim = max(self.running, key=lambda s: s["rank"]) if by_priority else self.running[-1]
            self.running.remove(victim)
            self.free += victim["blocks"]
            victim["blocks"] = victim["done"] = 0
            victim["decodes"] = False
            self.waiting.insert(0, victim)
            plan.pop(victim["name"], None)
            self.preempted += 1
            plan["preempted"] = True
            if victim is seq:
                return False
        seq["blocks"] += max(0, need)
        self.free -= max(0, need)
        return True

    def step(self):
        if not self.waiting and not self.running:
            return None
        plan, budget = {}, self.profile.max_num_batched_tokens

        def left():
            return budget - sum(size for key, size in plan.items() if key != "preempted")

        for seq in list(self.running):
            if seq in self.running:
                size = min(self._cut(seq), left())
                if size > 0 and self._allocate(seq, seq["done"] + size, plan):
                    plan[seq["name"]] = size
        if not plan.pop("preempted", False):
            if self.profile.scheduling_policy is SchedulingPolicy.PRIORITY:
                self.waiting.sort(key=lambda s: s["rank"])
            while self.waiting and left() > 0 and len(self.running) < self.profile.max_num_seqs:
                seq = self.waiting[0]
                if -(-(seq["prompt"] + seq["made"]) // self.profile.block_size) > self.free:
                    break
                size = min(self._cut(seq), left())
                self.running.append(self.waiting.pop(0))
                assert self._allocate(seq, size, plan)
                plan[seq["name"]] = size
        return self._finish(plan)

    def _seconds(self, plan):
        """Return the step formula, summed over every sequence."""
        profile, seconds = self.profile, self.profile.a
        for seq in self.running:
            size, context = plan.get(seq["name"], 0), seq["done"]
            if size and seq["decodes"]:
                seconds += profile.b + profile.d * context
            else:
                seconds += profile.c * size + profile.e * size * (context + size / 2)
        return seconds

    def _finish(self, plan):
        tokens, finished, seconds = [], [], self._seconds(plan)
        for seq in list(self.running):
            seq["done"] += plan.get(seq["name"], 0)
            if plan.get(seq["name"]) and seq["done"] == seq["prompt"] + seq["made"]:
                seq["made"] += 1
                seq["left"] -= 1
                seq["decodes"] = True
                tokens.append(seq["name"])
                if not seq["left"]:
                    finished.append(seq["name"])
                    self.running.remove(seq)
                    self.free += seq["blocks"]
        return sorted(tokens), sorted(finished), sum(plan.values()), seconds


_REQUEST = st.tuples(st.integers(1, 90), st.integers(1, 30), st.integers(0, 12), st.integers(0, 2))
_FLAGS = st.fixed_dictionaries(
    {
        "kv_blocks": st.integers(16, 40),
        "max_num_batched_tokens": st.integers(6, 40),
        "long_prefill_token_threshold": st.sampled_from([0, 3, 8]),
        "max_num_seqs": st.integers(2, 6),
        "scheduling_policy": st.sampled_from(list(SchedulingPolicy)),
    }
)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(_REQUEST, min_size=1, max_size=14),
    _FLAGS,
    st.sets(st.tuples(st.integers(0, 13), st.integers(1, 40)), max_size=3),
)
def test_the_engine_does_step_by_step_what_a_plain_walk_over_every_sequence_does(requests, flags, aborts):
    profile = replace(PROFILE, block_size=8, **flags)
    engine, plain = Engine(profile), PlainEngine(profile)
    arriving = Counter({name: delay for name, (_, _, delay, _) in enumerate(requests)})
    for number in range(100_000):
        for name in [name for name in sorted(arriving) if arriving[name] <= number]:
            del arriving[name]
            prompt, output, _, priority = requests[name]
            engine.submit(0.0, EngineRequest(name, prompt, output, priority=priority))
            plain.submit(name, prompt, output, priority)
        for name in [name for name, at in aborts if at == number and name < len(requests) and name not in arriving]:
            engine.abort(name)
            plain.abort(name)
        step, expected = engine.step(0.0), plain.step()
        assert (step is None) == (expected is None)
        if step is None and not arriving:
            break
        if step is not None:
            got = (sorted(engine.got_token()), sorted(step.finished), step.decodes + step.prefill_tokens)
            assert got == expected[:3]
            assert step.duration_s == pytest.approx(expected[3])
            assert engine.kv.free == plain.free
            assert 0 < step.decodes + step.prefill_tokens <= profile.max_num_batched_tokens
    assert engine.counters.preemptions == plain.preempted
    assert engine.kv.free == profile.kv_blocks
    assert not engine.has_work
