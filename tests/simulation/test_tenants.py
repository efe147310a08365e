"""One tenant that sends most of far too much: what is left for the others."""

from dataclasses import replace

import pytest

from loadgen.tables import TABLES

pytestmark = [pytest.mark.shared, pytest.mark.slow]


def test_turns_by_tokens_keep_the_others_in_their_slo_while_one_tenant_sends_60_percent_of_1_5x(studies):
    (fair,) = (row for row in TABLES["abusive-tenant"].rows if row.name == "strict, fair")
    figures = studies("8b").run(replace(fair.trial, workload="azure", load=1.5))
    assert figures.others_goodput >= 0.80
    assert figures.abuser_goodput < figures.others_goodput - 0.1
    assert figures.preemptions == 0
