"""The store of the workers of one host, on a real Unix socket."""

import asyncio

import pytest
import uvloop

from proxy.leases.bookstore import BookServer, BookStore
from proxy.leases.store import StoreError

LOOPS = {"uvloop": uvloop.new_event_loop}


@pytest.fixture
async def server(tmp_path):
    one = BookServer(tmp_path / "leases")
    await one.start()
    yield one
    await one.close()


def request(name, number, *, keep, want=0, need=None):
    row = {"l": [4], "k": [keep], "f": [keep], "w": [want], "o": 0, "a": 0}
    if need is not None:
        row["d"] = [need]
    return {"m": name, "q": number, "t": 60_000, "n": 2, "v": 0, "p": {"b/x": row}}


async def joined(server, *names):
    """Stores whose members are known, and the calm over."""
    stores = [BookStore(server.path, 5.0) for _ in names]
    for name, store in zip(names, stores, strict=True):
        await store.sync(request(name, 1, keep=0))
    server.book._calm_until = 0
    return stores


async def test_what_one_holds_the_other_does_not_get(server):
    one, other = await joined(server, "aa", "bb")
    assert (await one.sync(request("aa", 2, keep=0, want=3)))["p"]["b/x"]["h"] == [3]
    assert (await other.sync(request("bb", 2, keep=0, want=3)))["p"]["b/x"]["h"] == [1]
    await one.close()
    await other.close()


async def test_who_stands_in_line_hears_that_something_was_given_back(server):
    one, other = await joined(server, "aa", "bb")
    woken = asyncio.Event()
    listening = asyncio.ensure_future(other.listen(woken.set))
    await one.sync(request("aa", 2, keep=0, want=4))
    assert (await other.sync(request("bb", 2, keep=0, need=1)))["p"]["b/x"]["h"] == [0]
    await one.sync(request("aa", 3, keep=2))
    async with asyncio.timeout(5):
        await woken.wait()
    assert (await other.sync(request("bb", 3, keep=0, need=1)))["p"]["b/x"]["h"] == [1]
    listening.cancel()
    await one.close()
    await other.close()


async def test_a_store_that_is_gone_is_told_and_found_again(server):
    [one] = await joined(server, "aa")
    await server.close()
    server.path.unlink(missing_ok=True)
    with pytest.raises(StoreError, match="the supervisor of the workers"):
        await one.sync(request("aa", 2, keep=0))
    await server.start()
    assert (await one.sync(request("aa", 60, keep=0)))["k"] == 1
    await one.close()


async def test_a_silent_store_is_given_up(tmp_path):
    async def silent(reader, writer):
        await reader.read()
        writer.close()

    listening = await asyncio.start_unix_server(silent, tmp_path / "leases")
    store = BookStore(tmp_path / "leases", 0.01)
    with pytest.raises(StoreError, match="no answer in time"):
        await store.sync(request("aa", 1, keep=0))
    listening.close()


async def test_only_its_user_may_connect(server):
    assert server.path.stat().st_mode & 0o777 == 0o600
