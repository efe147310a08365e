import pytest

from loadgen.flags import duration_s


@pytest.mark.parametrize(
    ("text", "seconds"), [("30", 30), ("30s", 30), ("500ms", 0.5), ("2m", 120), ("1h", 3600), ("1.5s", 1.5)]
)
def test_a_duration_has_a_unit_or_is_seconds(text, seconds):
    assert duration_s(text) == seconds


@pytest.mark.parametrize("text", ["", "s", "soon", "3 weeks", "1h30m"])
def test_what_is_no_duration_says_how_to_write_one(text):
    with pytest.raises(ValueError, match="write 30s"):
        duration_s(text)
