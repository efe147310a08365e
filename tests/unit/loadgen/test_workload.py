import numpy as np
import pytest

from loadgen.failure import UsageError
from loadgen.workload import Surges, read_workload


@pytest.fixture
def workload(root):
    return lambda name: read_workload(root / "config/workloads" / f"{name}.yaml")


def lengths(rows, name):
    return np.array([getattr(row, name) for row in rows])


@pytest.mark.parametrize(
    ("name", "prompt", "output"),
    [
        ("chat", (1020, 2735, 4142), (129, 424, 601)),
        ("code", (1469, 5194, 7436), (13, 55, 252)),
    ],
)
def test_a_profile_has_the_published_quantiles(workload, name, prompt, output):
    rows = list(workload(name).rows(7, rows=15_000))
    for field, wanted in (("prompt_tokens", prompt), ("output_tokens", output)):
        found = np.percentile(lengths(rows, field), (50, 90, 99))
        assert found == pytest.approx(wanted, rel=0.12)


def test_chat_arrives_at_the_published_rate_and_burstiness(workload):
    gaps = np.diff([row.t_ns for row in workload("chat").rows(3, rows=15_000)]) / 1e9
    assert 1 / gaps.mean() == pytest.approx(5.53, rel=0.03)
    assert gaps.std() / gaps.mean() == pytest.approx(1.09, rel=0.05)


def test_code_arrives_in_bursts(workload):
    times = np.array([row.t_ns for row in workload("code").rows(3, rows=20_000)]) / 1e9
    gaps = np.diff(times)
    assert gaps.std() / gaps.mean() == pytest.approx(13.15, rel=0.15)
    assert 1 / gaps.mean() == pytest.approx(2.57, rel=0.2)


def test_mixed_is_one_tenth_long_documents_cut_at_24000(workload):
    prompts = lengths(list(workload("mixed").rows(3, rows=15_000)), "prompt_tokens")
    assert prompts.max() == 24_000
    assert (prompts > 14_050).mean() == pytest.approx(0.1 * 0.26, abs=0.006)


def test_equal_seeds_draw_equal_rows_and_a_longer_draw_starts_with_the_shorter(workload):
    mixed = workload("mixed")
    long, short, other = (list(mixed.rows(seed, rows=n)) for seed, n in ((5, 50), (5, 20), (6, 20)))
    assert long[:20] == short != other


def test_a_duration_ends_the_draw(workload):
    rows = list(workload("chat").rows(1, duration_s=30))
    assert 100 < len(rows) < 240
    assert rows[-1].t_ns < 30e9


def test_an_endless_draw_is_refused(workload):
    with pytest.raises(UsageError, match="--rows or --duration"):
        workload("chat").rows(1)


def test_surges_triple_the_rate_of_their_part_and_keep_the_mean():
    surges = Surges(every_s=150, length_s=20, factor=3)
    times = np.array([surges.warped(t) for t in np.arange(0, 1500, 0.05)])
    assert (np.diff(times) > 0).all()
    assert times[-1] == pytest.approx(1500, abs=0.1)
    inside = times % 150 >= 130
    calm_rate = (~inside).sum() / (130 * 10)
    assert inside.sum() / (20 * 10) == pytest.approx(3 * calm_rate, rel=0.01)


BAD = {
    "unknown key": ("rate: 5", "rate: 5, speed: 3"),
    "not enough": ("share: 1.0", "share: 0.5"),
    "falling quantiles": ("100: 50", "100: 2"),
    "no end": ("100: 50", "99: 50"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_wrong_profile_is_named_by_file_and_key(tmp_path, case):
    good = (
        "{name: x, description: x, source: x, arrivals: {process: gamma, rate: 5, cv: 1}, "
        "kinds: [{share: 1.0, prompt: {quantiles: {0: 10, 100: 50}}, output: {quantiles: {0: 1, 100: 9}}}]}"
    )
    path = tmp_path / "mine.yaml"
    path.write_text(good)
    assert read_workload(path).name == "x"
    path.write_text(good.replace(*BAD[case]))
    with pytest.raises(UsageError, match=r"mine\.yaml"):
        read_workload(path)


def test_a_profile_that_is_not_yaml_is_refused(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("{a: [")
    with pytest.raises(UsageError, match="not YAML"):
        read_workload(path)
    with pytest.raises(UsageError, match="No such file"):
        read_workload(tmp_path / "other.yaml")
