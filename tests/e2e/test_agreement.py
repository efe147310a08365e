"""Virtual time against real processes: the study's simulator has to measure what the product does.

The check itself, three minutes at speed 1 with 450 rows, is `python -m tools.acceptance.agreement --traces DIR`.
"""

import argparse
import os

import pytest

from loadgen.sim.drive import Drive
from loadgen.sim.engine import Engine
from loadgen.sim.policies import Direct
from loadgen.sim.profile import load_profile
from tools.acceptance import agreement

ASKED = argparse.Namespace(
    traces=None,
    rows=120,
    load=1.0,
    seed=1,
    engine="8b",
    preset="strict",
    adaptive="off",
    installments="off",
    untold=False,
    speed=1.0,
    tolerance=2.0,
    out="",
)


@pytest.mark.slow
def test_real_processes_give_the_figures_of_virtual_time(acceptance, tmp_path):
    """A machine that is busy with other things is a difference at high speed; a fault of ours is one at every speed."""
    for speed in (4, 2, 1):
        options = "--rows", ASKED.rows, "--speed", speed, "--tolerance", ASKED.tolerance
        result = acceptance("agreement", *options, "--out", tmp_path / f"{speed}")
        if result["passed"]:
            break
    if not result["passed"] and os.getloadavg()[0] > 1.5 * (os.cpu_count() or 1):
        pytest.skip("other work keeps the cores busy: three processes in step with a clock would measure that")
    assert result["passed"], result["checks"]
    assert [check["name"] for check in result["checks"]] == ["goodput", "short_ttft_p50_s", "short_ttft_p99_s"]
    wall, virtual = result["wall_clock"], result["virtual_time"]
    assert wall["offered"] == virtual["offered"] > 100
    assert wall["rejected"] > 0 < virtual["rejected"]
    assert wall["completed"] == pytest.approx(virtual["completed"], abs=0.1 * wall["offered"])
    assert wall["abandoned"] == virtual["abandoned"] == 0


def test_both_sides_get_the_arrivals_that_were_cut(tmp_path):
    arrivals = agreement.cut(ASKED)
    agreement.write(tmp_path / "cut.csv", arrivals)
    read = agreement.planned(tmp_path / "cut.csv")
    assert [(one.prompt_tokens, one.output_tokens) for one in read] == [
        (one.prompt_tokens, one.output_tokens) for one in arrivals
    ]
    first = arrivals[0].at_s
    assert [one.at_s for one in read] == pytest.approx([one.at_s - first for one in arrivals], abs=2e-6)


def test_an_engine_without_lanewise_does_not_agree_with_it():
    arrivals = agreement.cut(ASKED)
    with_lanewise = agreement.virtual_time(ASKED, arrivals)
    direct = Drive([Engine(load_profile("8b"))], Direct(1), arrivals).run()
    assert agreement.judged(ASKED, arrivals, {"wall_clock": with_lanewise, "virtual_time": with_lanewise})["passed"]
    result = agreement.judged(ASKED, arrivals, {"wall_clock": direct, "virtual_time": with_lanewise})
    assert [check["passed"] for check in result["checks"]] == [False, False, False]
    assert result["judged_differently"]["good_in_virtual_time_only"] > 10
