import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.spool import Spool


@pytest.mark.parametrize("in_memory", [0, 10, 1 << 20])
@given(items=st.lists(st.binary(max_size=12), max_size=40), data=st.data())
def test_items_come_back_whether_they_are_in_memory_or_in_a_file(in_memory, items, data):
    spool = Spool(in_memory)
    for item in items:
        spool.append(item)
    assert len(spool) == len(items)
    assert spool.size == sum(map(len, items))
    for index in data.draw(st.permutations(range(len(items)))):
        assert spool[index] == items[index]


def test_one_can_read_between_writes():
    spool = Spool(4)
    for number in range(100):
        spool.append(b"%d" % number)
        assert spool[number // 2] == b"%d" % (number // 2)
