"""What the service manager is told, read from a real datagram socket."""

import asyncio
import os
import socket
import time
from unittest.mock import Mock

import pytest

from proxy.notify import ServiceManager

PATIENCE_S = 5.0


@pytest.fixture
def manager_socket(tmp_path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(tmp_path / "notify"))
        sock.settimeout(PATIENCE_S)
        yield sock


def read(sock):
    return dict(line.split("=", 1) for line in sock.recv(4096).decode().splitlines())


def test_ready_comes_with_one_line_for_people(manager_socket):
    ServiceManager(manager_socket.getsockname()).ready("enforce on 127.0.0.1:8080")
    assert read(manager_socket) == {"READY": "1", "STATUS": "enforce on 127.0.0.1:8080"}


def test_a_reload_carries_the_time_on_the_clock_that_systemd_compares_with(manager_socket):
    before = time.monotonic_ns() // 1000
    ServiceManager(manager_socket.getsockname()).reloading()
    told = read(manager_socket)
    assert told["RELOADING"] == "1"
    assert before <= int(told["MONOTONIC_USEC"]) <= time.monotonic_ns() // 1000


def test_stopping_asks_for_more_time_than_the_drain_may_take(manager_socket):
    ServiceManager(manager_socket.getsockname()).stopping(300.0)
    told = read(manager_socket)
    assert told["STOPPING"] == "1"
    assert int(told["EXTEND_TIMEOUT_USEC"]) > 300e6


def test_an_abstract_socket_is_written_with_an_at_sign():
    name = f"lanewise-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(f"\0{name}")
        sock.settimeout(PATIENCE_S)
        ServiceManager(f"@{name}").ready("up")
        assert read(sock)["READY"] == "1"


def test_the_environment_is_read_once_and_not_handed_on(manager_socket):
    address = manager_socket.getsockname()
    environment = {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid()), "PATH": "/"}
    manager = ServiceManager.of_environment(environment)
    assert environment == {"PATH": "/"}
    assert manager.watchdog_s == 30.0
    manager.ready("up")
    assert read(manager_socket)["READY"] == "1"


@pytest.mark.parametrize(
    "environment",
    [{}, {"WATCHDOG_USEC": "0"}, {"WATCHDOG_USEC": "soon"}, {"WATCHDOG_USEC": "1000", "WATCHDOG_PID": "1"}],
    ids=["nothing", "zero", "no number", "another process"],
)
def test_without_a_watchdog_of_ours_there_is_nothing_to_feed(environment):
    assert ServiceManager.of_environment(environment).watchdog_s is None


async def test_the_watchdog_is_fed_as_long_as_the_loop_runs(manager_socket):
    watch = asyncio.ensure_future(ServiceManager(manager_socket.getsockname(), 0.002).watch(lambda: "2 of 2 up"))
    try:
        told = [await asyncio.to_thread(read, manager_socket) for _ in range(3)]
    finally:
        watch.cancel()
    assert told == [{"WATCHDOG": "1", "STATUS": "2 of 2 up"}] * 3


@pytest.mark.parametrize("address", ["", "/nowhere/notify", "@nobody-listens-here"])
async def test_nobody_to_tell_holds_nothing_up(address):
    manager = ServiceManager(address)
    manager.ready("up")
    manager.stopping(1.0)
    asked = Mock()
    async with asyncio.timeout(PATIENCE_S):
        await manager.watch(asked)
    asked.assert_not_called()
