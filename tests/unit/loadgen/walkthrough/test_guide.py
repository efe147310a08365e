"""The four steps over runs that never happened: what each finds, and where it stops."""

import pytest

from loadgen.failure import Exit, StopError
from loadgen.options import ReplayOptions, SourceOptions
from loadgen.summary import Slo
from loadgen.walkthrough.guide import Guide, StepError, Walk
from loadgen.walkthrough.state import State


class Engine:
    """Answers every run: TPOT grows by `each` per request in flight."""

    def __init__(self, made, each=0.01):
        self.made, self.each = made, each
        self.asked = []
        self.single = made.ok
        self.late_tries = 0

    def send(self, options):
        self.asked.append(options)
        name = str(options.out.relative_to(self.root.parent))
        if options.closed_loop is None:
            return self.made.folder(name, [self.single(0)], complete=True)
        lag = 0.4 if self.late_tries else 0.0
        self.late_tries = max(0, self.late_tries - 1)
        results = [self.made.ok(at, tpot=self.each * options.closed_loop, lag=lag) for at in range(40)]
        closed = {"concurrency": options.closed_loop}
        return self.made.folder(name, results, complete=True, closed_loop=closed)


@pytest.fixture
def walked(made, tmp_path):
    engine = Engine(made)
    engine.root = tmp_path / "walk"

    def walk(*, yes=True, most=64, each=0.01, **more):
        engine.each = each
        options = ReplayOptions(target="http://127.0.0.1:1", out=engine.root)
        what = Walk(options=options, source=SourceOptions(workload="chat", rows=100), slo=Slo(), most=most, **more)
        said = []
        return Guide(what, State.opened(engine.root, {}), said.append, lambda: yes, engine.send).go(), said

    walk.engine = engine
    return walk


def test_all_four_steps_end_in_one_change(walked):
    steps, said = walked()
    assert list(steps) == ["shortest", "request", "knee", "change"]
    assert (steps["knee"]["last_good"], steps["knee"]["first_bad"], steps["knee"]["cap"]) == (10, 13, 9)
    assert steps["change"]["change"].startswith(
        "set `scheduling.concurrency: 9` in lanewise's configuration and nothing"
    )
    assert (walked.engine.root / steps["knee"]["fragment"]).exists()
    assert steps["change"]["situation"] == "single card"
    assert said[-1].startswith("step 4, change: situation: single card")


def test_steps_that_are_done_are_not_done_again(walked):
    walked()
    asked = len(walked.engine.asked)
    steps, said = walked()
    assert len(walked.engine.asked) == asked
    assert all("done before" in line for line in said)
    assert list(steps) == ["shortest", "request", "knee", "change"]


def test_a_request_that_fails_stops_it_with_what_the_engine_said(walked, made):
    walked.engine.single = lambda at: made.failed(
        at, "error", status=500, detail="NPU out of memory. Tried to allocate 3 GiB"
    )
    with pytest.raises(StepError, match=r"step 1 of 4 \(shortest\)") as stopped:
        walked()
    assert "NPU out of memory" in stopped.value.reason
    assert "--gpu-memory-utilization" in stopped.value.reason


@pytest.mark.parametrize(("slow", "said"), [({"ttft": 3.0}, "first token took"), ({"tpot": 0.3}, "every token took")])
def test_a_request_that_is_too_slow_alone_stops_it_before_any_load(walked, made, slow, said):
    walked.engine.single = lambda at: made.ok(at, **slow)
    with pytest.raises(StepError, match=said) as stopped:
        walked()
    assert (stopped.value.step, stopped.value.code) == ("request", Exit.GATE)
    assert all(one.closed_loop is None for one in walked.engine.asked)


def test_one_at_a_time_that_is_too_much_stops_it(walked):
    with pytest.raises(StepError, match="already one request at a time"):
        walked(each=0.2)


def test_an_engine_that_is_never_brought_to_its_limit_has_no_knee(walked):
    steps, _ = walked(each=0.0001, most=8)
    assert steps["knee"]["cap"] is None
    assert "not found" in steps["knee"]["sentence"]
    assert steps["change"]["change"].startswith("nothing yet")


def test_a_step_whose_generator_was_late_is_tried_again(walked):
    walked.engine.late_tries = 2
    steps, said = walked()
    assert steps["knee"]["cap"] == 9
    assert said[2] == "  1 in flight: 16 requests are sent"
    assert [line for line in said if "late" in line] == said[3:5]
    assert len(list(walked.engine.root.glob("3-knee/c001-client-limited-*"))) == 2


def test_a_generator_that_is_always_late_makes_it_invalid(walked):
    walked.engine.late_tries = 9
    with pytest.raises(StepError, match="could not keep up") as stopped:
        walked()
    assert stopped.value.code == Exit.INVALID


def test_no_stops_before_the_load_is_raised(walked):
    with pytest.raises(StopError, match="same --out") as stopped:
        walked(yes=False)
    assert stopped.value.code == Exit.DONE


def test_several_cards_are_named(walked):
    steps, _ = walked(cards=4)
    assert steps["change"]["preset"] == "config/presets/several-cards.yaml"
