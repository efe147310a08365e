"""How much of the prompts repeats the beginning of a recent one."""

from proxy.policy.reuse import PrefixReuse


def test_what_begins_like_an_earlier_prompt_is_repeated_up_to_where_it_differs():
    reuse = PrefixReuse()
    reuse.note(("system", "system+a"))
    reuse.note(("system", "system+b", "system+b+more"))
    assert (reuse.repeated, reuse.new) == (1, 4)
    reuse.note(("system", "system+b"))
    assert (reuse.repeated, reuse.new) == (3, 4)


def test_an_empty_prompt_counts_nothing():
    reuse = PrefixReuse()
    reuse.note(())
    assert (reuse.repeated, reuse.new) == (0, 0)


def test_beginnings_that_many_share_outlive_the_tails():
    reuse = PrefixReuse(at_most=3)
    for tail in "abcdef":
        reuse.note(("system", f"system+{tail}", f"system+{tail}+end"))
    assert reuse.repeated == 5
    reuse.note(("system", "system+a"))
    assert (reuse.repeated, reuse.new) == (6, 14)
    assert repr(reuse) == "<PrefixReuse 6 repeated, 14 new>"
