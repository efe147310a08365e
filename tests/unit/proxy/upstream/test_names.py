"""Names of backends: looked up again, remembered while nobody can say, and told when they move."""

import asyncio
import socket

import pytest

from proxy.upstream.names import Names, NamesResolver, ask_system


class NameServer:
    """Knows the names that a test says."""

    def __init__(self, **known):
        self.known = {name.replace("_", "."): addresses for name, addresses in known.items()}
        self.asked = []
        self.answered = asyncio.Event()
        self.gate = asyncio.Event()
        self.gate.set()

    async def __call__(self, host):
        self.asked.append(host)
        await self.gate.wait()
        self.answered.set()
        if host not in self.known:
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        return self.known[host]


async def test_a_name_is_looked_up_once_and_then_known():
    server = NameServer(engine_test=["10.0.0.1", "10.0.0.2"])
    names = Names(server)
    for _ in range(2):
        assert await names.addresses("engine.test") == ("10.0.0.1", "10.0.0.2")
    assert server.asked == ["engine.test"]


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
async def test_an_address_is_never_looked_up(address):
    names = Names(NameServer())
    assert await names.addresses(address) == await names.look_again(address) == (address,)
    names.look_soon(address)


async def test_a_name_that_cannot_be_resolved_any_more_means_what_it_meant_last(caplog):
    server = NameServer(engine_test=["10.0.0.1"])
    names = Names(server)
    await names.addresses("engine.test")
    server.known.clear()
    for _ in range(2):
        assert await names.look_again("engine.test") == ("10.0.0.1",)
    assert caplog.text.count("engine.test cannot be resolved") == 1
    server.known["engine.test"] = []
    assert await names.look_again("engine.test") == ("10.0.0.1",), "no address at all is no news either"


async def test_a_name_that_never_could_be_resolved_is_an_error():
    names = Names(NameServer())
    with pytest.raises(OSError, match=r"engine\.test cannot be resolved"):
        await names.addresses("engine.test")


async def test_whoever_watches_hears_of_new_addresses_and_of_nothing_else():
    server, heard = NameServer(engine_test=["10.0.0.1", "10.0.0.2"]), []
    names = Names(server)
    names.watch("engine.test", heard.append)
    await names.addresses("engine.test")
    server.known["engine.test"] = ["10.0.0.2", "10.0.0.1"]
    await names.look_again("engine.test")
    assert heard == [], "another order is no move"
    server.known["engine.test"] = ["10.0.0.9"]
    await names.look_again("engine.test")
    assert heard == [("10.0.0.9",)]
    names.unwatch("engine.test", heard.append)
    names.unwatch("engine.test", print)


async def test_those_who_ask_at_the_same_time_share_one_look_up():
    server = NameServer(engine_test=["10.0.0.1"])
    server.gate.clear()
    names = Names(server)
    asking = [asyncio.ensure_future(names.look_again("engine.test")) for _ in range(5)]
    await asyncio.sleep(0)
    server.gate.set()
    assert await asyncio.gather(*asking) == [("10.0.0.1",)] * 5
    assert server.asked == ["engine.test"]


async def test_names_that_are_watched_are_looked_up_again_in_the_background():
    server, moved = NameServer(engine_test=["10.0.0.1"]), asyncio.Event()
    names = Names(server, refresh_s=0.01)
    names.watch("engine.test", lambda _addresses: moved.set())
    names.watch("127.0.0.1", lambda _addresses: None)
    names.start()
    async with asyncio.timeout(5.0):
        await server.answered.wait()
        server.known["engine.test"] = ["10.0.0.2"]
        await moved.wait()
    await names.close()
    assert set(server.asked) == {"engine.test"}
    assert await names.addresses("engine.test") == ("10.0.0.2",)


async def test_a_look_up_that_nobody_waits_for_can_be_closed():
    server = NameServer()
    server.gate.clear()
    names = Names(server)
    names.look_soon("engine.test")
    await names.close()
    assert repr(names) == "<Names {}>"


async def test_aiohttp_gets_the_addresses_of_the_family_it_asks_for():
    resolver = NamesResolver(Names(NameServer(engine_test=["10.0.0.1", "fd00::1"])))
    both = await resolver.resolve("engine.test", 8000, socket.AF_UNSPEC)
    assert [(one["host"], one["port"], one["family"]) for one in both] == [
        ("10.0.0.1", 8000, socket.AF_INET),
        ("fd00::1", 8000, socket.AF_INET6),
    ]
    assert [one["host"] for one in await resolver.resolve("engine.test", 8000)] == ["10.0.0.1"]
    await resolver.close()


async def test_the_system_knows_this_machine():
    assert "127.0.0.1" in await ask_system("localhost")
