"""Files that come with the product are found by name."""

import pytest

from loadgen.failure import Exit, UsageError
from loadgen.shipped import locate, shipped_names


def test_a_shipped_file_is_found_by_name():
    assert locate("config/sim", "8b").name == "8b.yaml"


def test_a_path_is_taken_as_it_stands(tmp_path):
    own = tmp_path / "mine.yaml"
    own.write_text("a: 1")
    assert locate("config/sim", str(own)) == own


def test_the_shipped_names_are_listed_sorted():
    assert shipped_names("config/sim") == ["14b", "8b", "910b-like", "tiny-cpu"]


@pytest.mark.parametrize("name", ["70b", "../sim/8b", "no/such.yaml"])
def test_what_is_not_there_is_said_with_the_names_that_are(name):
    with pytest.raises(UsageError, match="shipped: 14b, 8b, 910b-like, tiny-cpu") as error:
        locate("config/sim", name)
    assert error.value.code is Exit.USAGE
