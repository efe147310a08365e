"""Which of several backends gets a request: what each has computed before weighs in."""

import pytest
from clients import chat
from conftest import until
from engines import Engine, healthy

SYSTEM = "".join(f"rule {n}: be brief. " for n in range(300))
OFF = {"installments": "off"}


async def ask_one_after_the_other(proxy, texts):
    """Ask for each text once, with the same long instructions before it."""
    for text in texts:
        messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": text}]
        got = await (await proxy.client()).post(chat() | {"messages": messages})
        assert got.status == 200
        await until(lambda: proxy.held() == (0, 0, 0))


def asked(engine: Engine):
    return [request.json["messages"][-1]["content"] for request in engine.requests]


async def test_requests_with_the_same_long_beginning_go_where_it_was_computed(start):
    first, second, proxy = await start(healthy, healthy, **OFF)
    proxy.app.admission.dispatcher.set_drained(0.0, "engine0", True)
    await ask_one_after_the_other(proxy, ["one"])
    proxy.app.admission.dispatcher.set_drained(0.0, "engine0", False)
    await ask_one_after_the_other(proxy, ["two", "three"])
    assert (asked(first), asked(second)) == ([], ["one", "two", "three"])
    assert proxy.finished[-1].facts.blocks == (), "the text is not kept as long as the request runs"


@pytest.mark.parametrize("backends", [1, 2])
async def test_where_there_is_no_choice_or_it_is_switched_off_nothing_is_computed(start, backends):
    switched_off = {"prefixes": {"enabled": False}} if backends == 2 else {}
    *_, proxy = await start(*[healthy] * backends, **OFF, **switched_off)
    await ask_one_after_the_other(proxy, ["one"])
    assert proxy.finished[0].ticket.prefix is None


async def test_a_model_with_one_backend_among_several_has_no_choice(start):
    first, second, proxy = await start(healthy, healthy, **OFF)
    second.models = ("other",)
    proxy.app.backends._watched["engine1"].models_at = None
    await proxy.app.backends.probe("engine1")
    await ask_one_after_the_other(proxy, ["one"])
    assert (len(first.requests), proxy.finished[0].ticket.prefix) == (1, None)
    assert asked(second) == []
