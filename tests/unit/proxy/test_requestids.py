from proxy.requestids import RequestIds


def test_ids_are_sixteen_hexadecimal_digits_and_none_comes_twice() -> None:
    ids = RequestIds()
    made = [ids.next() for _ in range(1000)]
    assert len(set(made)) == 1000
    assert all(len(one) == 16 and int(one, 16) >= 0 for one in made)


def test_two_sources_share_no_id() -> None:
    one, two = RequestIds(), RequestIds()
    assert not {one.next() for _ in range(300)} & {two.next() for _ in range(300)}
    assert repr(one) == f"<RequestIds {212 * 16} digits left>"
