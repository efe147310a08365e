import socket

import pytest

from proxy.upstream.names import LastGoodNames


class Resolver:
    """Knows the names that a test says."""

    def __init__(self):
        self.known = {}
        self.closed = False

    async def resolve(self, host, port, family):
        if host not in self.known:
            raise OSError(socket.EAI_AGAIN, "Temporary failure in name resolution")
        return [{"hostname": host, "host": self.known[host], "port": port, "family": family, "proto": 0, "flags": 0}]

    async def close(self):
        self.closed = True


async def address(names, host):
    return (await names.resolve(host, 8000, socket.AF_INET))[0]["host"]


async def test_a_name_that_cannot_be_resolved_any_more_means_what_it_meant_last():
    system = Resolver()
    names = LastGoodNames(system)
    with pytest.raises(OSError, match="Temporary failure"):
        await address(names, "engine")
    system.known["engine"] = "10.0.0.1"
    assert await address(names, "engine") == "10.0.0.1"
    system.known["engine"] = "10.0.0.2"
    assert await address(names, "engine") == "10.0.0.2"
    system.known.clear()
    assert await address(names, "engine") == "10.0.0.2"
    with pytest.raises(OSError, match="Temporary failure"):
        await address(names, "other")
    await names.close()
    assert system.closed
