import numpy as np
import pytest

from loadgen.arrivals import arrivals_of
from loadgen.failure import UsageError
from loadgen.options import Process
from loadgen.trace.synth import drawn, lengths_of


@pytest.mark.parametrize(
    ("text", "median", "low", "high"),
    [
        ("512", 512, 512, 512),
        ("uniform:10..20", 15, 10, 20),
        ("lognormal:800,1.2", 800, 1, 100_000_000),
        ("quantiles:0=10,50=800,100=9000", 800, 10, 9000),
    ],
)
def test_lengths_follow_their_distribution(text, median, low, high):
    at = lengths_of("--prompt", text)
    assert at(0.5) == pytest.approx(median, abs=1)
    values = [at(share) for share in np.linspace(0, 1, 200)]
    assert values == sorted(values)
    assert low <= values[0]
    assert values[-1] <= high


@pytest.mark.parametrize(
    "text", ["", "0", "x", "uniform:5", "uniform:9..1", "lognormal:0,1", "normal:1,2", "quantiles:0=1"]
)
def test_what_is_no_distribution_is_refused(text):
    with pytest.raises(UsageError, match=r"--output .* allowed: 512, uniform"):
        lengths_of("--output", text)


def test_a_longer_trace_begins_with_the_shorter_one():
    arrivals = arrivals_of(Process.GAMMA, rate=2.0, rates=None, cv=2.0)
    prompt, output = lengths_of("--prompt", "lognormal:80,1"), lengths_of("--output", "uniform:1..9")
    short, long = (list(drawn(arrivals, prompt, output, rows=rows, seed=3)) for rows in (20, 50))
    assert long[:20] == short
