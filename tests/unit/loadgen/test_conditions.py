from loadgen.conditions import differing_conditions, out_of_bounds, too_many
from loadgen.manifest import Change, Kind


def test_equal_conditions_are_not_named(made):
    assert differing_conditions(made.manifest, made.manifest | {"salt": "two"}) == []


def test_another_card_or_model_size_is_another_system(made):
    a = made.manifest | {"premises": {"card": {"value": "910B3"}, "size": {"value": "8B"}}}
    b = made.manifest | {"salt": "two", "premises": {"card": {"value": "910B4"}, "size": {"value": "32B"}}}
    assert differing_conditions(a, b) == ["card differs: 910B3 and 910B4", "model size differs: 8B and 32B"]
    unknown = made.manifest | {"salt": "two"}
    assert differing_conditions(a, unknown) == []


def test_two_changed_parameters_void_the_run_before():
    one = Change("cap", "32", "64", Kind.LOAD)
    two = Change("engine.max_num_seqs", "64", "128", Kind.LOAD)
    follows = Change("engine.num_gpu_blocks", "9", "8", Kind.LOAD, counts=False)
    assert too_many([one, follows]) is None
    assert "2 parameters changed (cap: 32 → 64; engine.max_num_seqs: 64 → 128)" in too_many([one, two])


def test_a_parameter_of_the_model_is_out_of_bounds():
    quantised = Change("premise.quantisation", None, "w8a8", Kind.MODEL)
    (said,) = out_of_bounds([quantised, Change("cap", "1", "2", Kind.LOAD)])
    assert "not set → w8a8" in said
    assert "accuracy regression" in said


def test_one_share_of_a_plan_is_no_match_for_the_whole_of_it(made):
    """A run of an earlier version says nothing of shares, and is whole."""
    whole, share = made.manifest | {"salt": "two", "share": "0/1"}, made.manifest | {"salt": "three", "share": "1/2"}
    assert differing_conditions(made.manifest, whole) == []
    assert differing_conditions(whole, share) == ["share of the plan differs: 0/1 and 1/2"]
