from hypothesis import given
from hypothesis import strategies as st

from proxy.wire.marks import MARK_CHARS, MARKS_AT_MOST, prefix_marks

LONG = "".join(f"word{n} " for n in range(3000))


def test_prompts_that_begin_alike_share_marks_as_far_as_they_do():
    system = LONG[: 3 * MARK_CHARS + 10]
    one, other = prefix_marks([system, "a" * 3000], ["m"]), prefix_marks([system, "b" * 3000], ["m"])
    assert len(one) == len(other) == 5
    assert one[:3] == other[:3]
    assert one[3] != other[3]


def test_another_model_shares_nothing():
    assert set(prefix_marks([LONG], ["m"])).isdisjoint(prefix_marks([LONG], ["n"]))


def test_a_short_prompt_has_no_marks_and_a_long_one_a_bounded_number():
    assert prefix_marks(["x" * (MARK_CHARS - 1)], ["m"]) == ()
    assert len(prefix_marks(["x" * MARK_CHARS], ["m"])) == 1
    assert len(prefix_marks(["x" * 10**7], ["m"])) == MARKS_AT_MOST
    assert len(prefix_marks(["x"] * 10**5, ["m"])) == MARKS_AT_MOST
    assert prefix_marks([], ["m"]) == ()


@given(st.lists(st.text(max_size=3000), max_size=6), st.lists(st.text(max_size=3000), max_size=3))
def test_what_is_added_at_the_end_changes_no_mark_before(blocks, more):
    marks = prefix_marks(blocks, ["m"])
    longer = prefix_marks([*blocks, *more], ["m"])
    assert longer[: len(marks)] == marks
