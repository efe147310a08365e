"""A virtual run is a run folder like any other; its noise follows its seed and nothing else does."""

import pytest

from loadgen.failure import UsageError
from loadgen.sim.profile import load_profile
from loadgen.sim.runs import VirtualRun, run_virtually
from loadgen.sim.trials import Trial
from loadgen.sim.virtual import LaneOptions
from loadgen.sim.workloads import Arrival
from loadgen.summarise import summarise

ARRIVALS = [Arrival(at * 0.4, 3000 if at % 9 == 8 else 200 + at, 20 + at % 7) for at in range(60)]


@pytest.fixture
def run(tmp_path):
    def made(name, policy="direct", lanes=None, **more):
        trial = Trial("mixed", 0.6, policy, lanes or LaneOptions(cap=8, adaptive=False))
        return run_virtually(
            VirtualRun(trial=trial, profile=load_profile("8b"), arrivals=ARRIVALS, out=tmp_path / name, **more)
        )

    return made


def firsts(folder):
    return [result.first for result in folder.results()]


def test_every_request_is_in_the_folder_with_its_outcome(run):
    folder = run("a")
    summary = summarise(folder)
    assert (summary.lanes["all"].sent, summary.lanes["long"].sent) == (60, 6)
    assert sum(folder.manifest()["outcomes"].values()) == 60
    assert summary.complete
    assert not summary.client_limited
    assert folder.manifest()["peaks"]["kv_usage"] > 0


def test_the_noise_follows_its_seed_and_the_plan_does_not(run):
    one, again, other = run("a"), run("b"), run("c", noise_seed=2)
    assert firsts(one) == firsts(again) != firsts(other)
    assert one.manifest()["plan"] == other.manifest()["plan"]
    assert one.manifest()["salt"] == again.manifest()["salt"] != other.manifest()["salt"]


@pytest.mark.parametrize("policy", ["lanewise", "reference", "bounded-queue", "static-lanes"])
def test_every_policy_can_be_in_front(run, policy):
    folder = run(policy, policy)
    assert sum(folder.manifest()["outcomes"].values()) == 60
    assert folder.manifest()["proxy"]["settings"]["name"] == policy


def test_nothing_in_front_is_no_proxy(run):
    assert run("a").manifest()["proxy"] is None


def test_a_folder_in_use_is_refused(run):
    run("a")
    with pytest.raises(UsageError, match="not empty"):
        run("a")
