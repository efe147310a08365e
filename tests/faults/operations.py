"""The operations cases on signals, disks, clocks and descriptors: a real process, and what is done to it."""

import asyncio
import json
import os
import resource
import signal
import time
from collections.abc import Awaitable, Callable
from typing import Any

from tests.faults import upstream, wire
from tests.faults.admission import by_status
from tests.faults.bodies import RECORDED
from tests.faults.case import NotRunError, case
from tests.faults.lifecycle import FREE, ONE_AT_A_TIME, STREAM
from tests.faults.station import Options, Process, Station, eventually, start, trace_rows
from tests.faults.upstream import service, slow_stream
from tests.faults.wire import chat


async def load(station: Station, seconds: float, per_s: float, until: Callable[[], Awaitable[None]]) -> list[int]:
    """Ask at a steady rate while something happens halfway; return the statuses (0: no whole answer)."""

    async def one() -> int:
        try:
            talk = await station.ask(chat(), 5.0)
        except OSError:
            return 0
        return talk.answer.status if talk.answer.complete else 0

    count = int(seconds * per_s)
    asked: list[asyncio.Future[int]] = []
    for number in range(count):
        asked.append(asyncio.ensure_future(one()))
        if number == count // 2:
            await until()
        await asyncio.sleep(1 / per_s)
    return list(await asyncio.gather(*asked))


async def _streams(station: Station, count: int) -> list[wire.Client]:
    first = len(station.upstream.requests)
    clients = [await station.open(STREAM) for _ in range(count)]
    await station.upstream.arrival(first + count - 1)
    return clients


@case(
    "OPS-00",
    "SIGTERM while 50 streams run; and SIGTERM twice while one runs that would go on",
    {
        "ready_at_once": 503,
        "new_client": {"status": 503, "retry_after": {"matches": r"^\d+$"}},
        "streams_whole": 50,
        "exit": 0,
        "twice": {"exit": 0, "seconds": {"at_most": 3.0}, "looks_whole": False, "error_event": True},
    },
    why="not ready at once, the port still answers, what runs is finished; the second signal does not wait",
)
async def _term() -> dict[str, Any]:
    config = {"scheduling": {"concurrency": 64, "prefill_budget_tokens": "unlimited"}, "timeouts": {"drain": "20s"}}
    async with start(config, slow_stream(30, 0.1)) as station:
        clients = await _streams(station, 50)
        station.process.signal(signal.SIGTERM)
        ready = await eventually(lambda: _ready(station), lambda status: status != 200, 0.5)
        refused = (await station.ask(chat())).answer
        talks = await asyncio.gather(*(client.read_answer(15.0) for client in clients))
        code = await station.process.exit(5.0)
    return {
        "ready_at_once": ready,
        "new_client": {"status": refused.status, "retry_after": refused.header("retry-after")},
        "streams_whole": sum(talk.answer.complete and b"[DONE]" in talk.received for talk in talks),
        "exit": code,
        "twice": await _term_twice(),
    }


async def _ready(station: Station) -> int:
    return (await station.page("/readyz")).answer.status


async def _term_twice() -> dict[str, Any]:
    async with start({"timeouts": {"drain": "60s"}}, slow_stream(1000, 0.1)) as station:
        (client,) = await _streams(station, 1)
        await client.read_until(b"w2")
        station.process.signal(signal.SIGTERM)
        await asyncio.sleep(0.3)
        began = time.monotonic()
        station.process.signal(signal.SIGTERM)
        talk = await client.read_answer(10.0)
        code = await station.process.exit(10.0)
        seconds = time.monotonic() - began
    return {
        "exit": code,
        "seconds": round(seconds, 2),
        "looks_whole": talk.answer.complete,
        "error_event": b'"error"' in talk.received,
    }


@case(
    "OPS-01",
    "SIGTERM while four wait in the queue; and while one runs that outlasts the drain",
    {
        "finished": {"each": {"one_of": [200, 503]}, "count": 5},
        "outlasted": {"each": {"status": 503, "retry_after": {"matches": r"^\d+$"}}, "count": 2},
        "exit": 0,
    },
    why="each is served, or told 503 and when to come back; none is lost",
)
async def _term_queue() -> dict[str, Any]:
    async with start(ONE_AT_A_TIME, service(0.2)) as station:
        clients = [await station.open(chat()) for _ in range(5)]
        await station.waiting(4)
        station.process.signal(signal.SIGTERM)
        talks = await asyncio.gather(*(client.read_answer(6.0) for client in clients))
        code = await station.process.exit(5.0)
    async with start(ONE_AT_A_TIME | {"timeouts": {"drain": "1s"}}, upstream.silent) as station:
        late = [await station.open(chat()) for _ in range(3)]
        await station.waiting(2)
        station.process.signal(signal.SIGTERM)
        answers = [(await client.read_answer(6.0)).answer for client in late[1:]]
    return {
        "finished": [talk.answer.status for talk in talks],
        "outlasted": [{"status": one.status, "retry_after": one.header("retry-after")} for one in answers],
        "exit": code,
    }


async def _rewrite(station: Station, change: Callable[[dict[str, Any]], Any]) -> None:
    document = json.loads(station.config.read_text("utf-8"))
    changed = change(document)
    station.config.write_text(changed if isinstance(changed, str) else json.dumps(changed), "utf-8")
    station.process.signal(signal.SIGHUP)


async def _concurrency(station: Station) -> int:
    if station.process.popen.poll() is not None:
        return 0
    return int((await station.status())["backends"][0]["concurrency"])


@case(
    "OPS-02",
    "SIGHUP with a good configuration at 200 requests/s",
    {"statuses": {"200": 400}, "alive": True, "concurrency": 7},
    why="not one request fails, and the new value is in force",
    alone=True,
)
async def _reload() -> dict[str, Any]:
    async with start() as station:

        async def change() -> None:
            await _rewrite(
                station, lambda document: document | {"scheduling": {"concurrency": 7, "drop_factor": "never"}}
            )

        statuses = await load(station, 2.0, 200, change)
        alive = station.process.popen.poll() is None
        concurrency = await eventually(lambda: _concurrency(station), lambda n: n == 7, 2.0) if alive else 0
    return {"statuses": by_status(statuses), "alive": alive, "concurrency": concurrency}


@case(
    "OPS-03",
    "SIGHUP with a configuration that is no YAML, and with one that contradicts itself",
    {
        "each_way": {
            "each": {"alive": True, "status": 200, "concurrency": 32, "last_reload_success": 0},
            "count": 2,
        }
    },
    why="the old one stays in force and a metric says so",
)
async def _bad_reload() -> dict[str, Any]:
    changes: list[Callable[[dict[str, Any]], Any]] = [
        lambda document: "listen: [",
        lambda document: document | {"scheduling": {"concurrency": 0}},
    ]
    found = []
    for change in changes:
        async with start() as station:
            await _rewrite(station, change)
            await asyncio.sleep(0.5)
            alive = station.process.popen.poll() is None
            if not alive:
                found.append({"alive": False, "exit": station.process.popen.poll()})
                continue
            metrics = await station.metrics()
            success = metrics.get("config_last_reload_success")
            status = (await station.ask(chat())).answer.status
            concurrency = await _concurrency(station)
            found.append({"alive": True, "status": status, "concurrency": concurrency, "last_reload_success": success})
    return {"each_way": found}


@case(
    "OPS-04",
    "kill -9 while the trace is written",
    {"rows": {"at_least": 50}, "broken_lines_before_the_last": 0, "served": {"at_least": 200}},
    why="every line but perhaps the last is whole",
)
async def _kill() -> dict[str, Any]:
    async with start(RECORDED) as station:

        async def nothing() -> None:
            pass

        statuses = await load(station, 2.5, 100, nothing)
        station.process.signal(signal.SIGKILL)
        await station.process.exit(5.0)
        lines: list[bytes] = []
        for file in sorted((station.folder / "trace").glob("trace-*.jsonl")):
            lines += file.read_bytes().split(b"\n")
    whole, broken = 0, 0
    for line in lines[:-1]:
        try:
            whole += isinstance(json.loads(line), dict)
        except ValueError:
            broken += bool(line)
    return {"rows": whole, "broken_lines_before_the_last": broken, "served": statuses.count(200)}


def _in_namespace(*commands: str) -> tuple[str, ...]:
    """Run the program in a mount namespace of its own, after those shell commands."""
    script = " && ".join([*commands, 'exec "$@"'])
    return ("unshare", "-rm", "sh", "-c", script, "sh")


async def _need_namespace() -> None:
    try:
        probe = await asyncio.create_subprocess_exec("unshare", "-rm", "true", stderr=asyncio.subprocess.DEVNULL)
    except FileNotFoundError:
        raise NotRunError("the program unshare") from None
    if await probe.wait():
        raise NotRunError("a mount namespace (unshare -rm), which this kernel or container refuses")


@case(
    "OPS-05",
    "the disk of the trace is full (a tmpfs of 64 kB)",
    {
        "statuses": {"200": 400},
        "dropped": {"at_least": 1},
        "written": {"at_least": 1},
        "log_lines": {"at_most": 20},
        "traceback": False,
    },
    why="requests go on, what is not written is counted, the log says it once in a while",
)
async def _full_disk() -> dict[str, Any]:
    await _need_namespace()
    prefix = _in_namespace("mkdir -p trace", "mount -t tmpfs -o size=64k none trace")

    async def nothing() -> None:
        pass

    async with start(RECORDED, options=Options(prefix=prefix)) as station:
        statuses = await load(station, 2.5, 160, nothing)
        dropped = await eventually(lambda: station.total("recorder_dropped_total", "disk_error"), bool, 3.0)
        return {
            "statuses": by_status(statuses),
            "dropped": dropped,
            "written": await station.total("recorder_records_total"),
            "log_lines": len(station.log.splitlines()),
            "traceback": "Traceback" in station.log,
        }


@case(
    "OPS-06",
    "a disk that takes a second for each write",
    {"statuses": {"200": 300}, "worst_s": {"at_most": 0.5}, "dropped": {"at_least": 1}},
    why="the queue of the recorder is bounded: it drops and counts, and no request waits for it",
    alone=True,
)
async def _slow_disk() -> dict[str, Any]:
    config = {"recorder": RECORDED["recorder"] | {"queue_records": 20}}
    async with start(config, options=Options({"FAULT_SLOW_DISK": "1.0"})) as station:
        talks = [await station.ask(chat()) for _ in range(300)]
        dropped = await station.total("recorder_dropped_total", "queue_full")
        station.process.popen.kill()
    return {
        "statuses": by_status([talk.answer.status for talk in talks]),
        "worst_s": round(max(talk.seconds_to_end for talk in talks), 3),
        "dropped": dropped,
    }


@case(
    "OPS-07",
    "64 descriptors, 15 streams, and 60 clients more",
    {
        "streams_whole": 15,
        "cpu_share_meanwhile": {"at_most": 0.5},
        "served_after": 200,
        "traceback": False,
        "log_lines": {"at_most": 40},
    },
    why="the streams go on, no busy loop, no storm in the log, and it recovers",
    alone=True,
)
async def _descriptors() -> dict[str, Any]:
    options = Options(before=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64)))
    async with start(
        {"scheduling": {"prefill_budget_tokens": "unlimited"}}, slow_stream(30, 0.1), options=options
    ) as station:
        clients = await _streams(station, 15)
        more = [await _quietly_connect(station) for _ in range(60)]
        cpu, began = station.process.cpu_s, time.monotonic()
        await asyncio.sleep(1.5)
        share = (station.process.cpu_s - cpu) / (time.monotonic() - began)
        for one in more:
            if one is not None:
                one.reset()
        talks = await asyncio.gather(*(client.read_answer(10.0) for client in clients))
        station.upstream.script = upstream.healthy
        after = await eventually(lambda: _status(station), lambda status: status == 200, 5.0)
        log = station.log
    return {
        "streams_whole": sum(talk.answer.complete and b"[DONE]" in talk.received for talk in talks),
        "cpu_share_meanwhile": round(share, 2),
        "served_after": after,
        "traceback": "Traceback" in log,
        "log_lines": len(log.splitlines()),
    }


async def _quietly_connect(station: Station) -> wire.Client | None:
    try:
        return await station.connect()
    except OSError:
        return None


async def _status(station: Station) -> int:
    try:
        return (await station.ask(chat())).answer.status
    except OSError:
        return 0


@case(
    "OPS-08",
    "the wall clock jumps an hour ahead, and an hour back, in the middle of a stream with one more in the queue",
    {
        "each_way": {
            "each": {
                "statuses": [200, 200],
                "seconds": {"each": {"at_least": 0.5, "at_most": 3.0}},
                "first_token_s": {"each": {"at_least": 0, "at_most": 3.0}},
                "stamps_jumped": True,
            },
            "count": 2,
        }
    },
    why="durations come from another clock; the jump is planted in time.time (stamps_jumped: it took)",
)
async def _clock() -> dict[str, Any]:
    found = []
    for jump in ("3600", "-3600"):
        options = Options({"FAULT_CLOCK_JUMP": jump})
        async with start(RECORDED | ONE_AT_A_TIME, slow_stream(6, 0.1), options=options) as station:
            clients = [await station.open(STREAM) for _ in range(2)]
            await clients[0].read_until(b"w1")
            station.process.signal(signal.SIGUSR2)
            talks = [await client.read_answer(5.0) for client in clients]
            await station.ask(chat())
            rows = await trace_rows(station, 3)
        stamps = [row["arrived_s"] for row in rows]
        found.append(
            {
                "statuses": [talk.answer.status for talk in talks],
                "seconds": [row.get("end_s") for row in rows[:2]],
                "first_token_s": [row.get("first_token_s") for row in rows[:2]],
                "stamps_jumped": abs(stamps[-1] - stamps[0]) > 3000,
            }
        )
    return {"each_way": found}


@case(
    "OPS-09",
    "the event loop is blocked for 500 ms",
    {"lag_over_250_ms": {"at_least": 1}, "said_in_log": True},
    why="the lag histogram shows it, and a line of the log says so",
)
async def _blocked() -> dict[str, Any]:
    async with start(options=Options({"FAULT_BLOCK_LOOP": "0.5"})) as station:
        logged = len(station.log)
        await eventually(lambda: station.total("event_loop_lag_seconds_count"), lambda ticks: ticks >= 2, 10.0)
        station.process.signal(signal.SIGUSR1)
        late = await eventually(lambda: _late_ticks(station), bool, 4.0)
        await asyncio.sleep(0.3)
        text = station.log[logged:]
    return {"lag_over_250_ms": late, "said_in_log": "event loop" in text.lower(), "log": text[:300]}


async def _late_ticks(station: Station) -> float:
    """How often the loop was later than its highest bucket below 0.25 s."""
    metrics = await station.metrics()
    buckets = {key: value for key, value in metrics.items() if key.startswith("event_loop_lag_seconds_bucket")}
    total = metrics.get("event_loop_lag_seconds_count", 0)
    return total - max((value for key, value in buckets.items() if _bound(key) <= 0.25), default=total)


def _bound(series: str) -> float:
    return float(series.partition('le="')[2].partition('"')[0])


_SOAK_S = float(os.environ.get("FAULTS_SOAK_S", "20"))


@case(
    "OPS-10",
    f"{_SOAK_S:g} s of 50 requests/s with aborts",
    {
        "rss_grew_mb": {"at_most": 3},
        "descriptors_more": {"at_most": 3},
        "held_after": FREE,
        "accounted": True,
        "traceback": False,
    },
    why="two hours, scaled (FAULTS_SOAK_S=7200); growth counts after the first third",
)
async def _soak() -> dict[str, Any]:
    async with start(RECORDED, slow_stream(4, 0.01)) as station:
        base = station.process.descriptors
        rss, sent, began = 0.0, 0, time.monotonic()
        running: set[asyncio.Future[None]] = set()

        async def one(number: int) -> None:
            client = await station.open(STREAM)
            if number % 3:
                await client.read_answer(5.0)
            else:
                await client.read_some(0.005 * (number % 12))
            client.reset()

        while (passed := time.monotonic() - began) < _SOAK_S:
            if not rss and passed > _SOAK_S / 3:
                rss = station.process.rss_mb
            running.add(asyncio.ensure_future(one(sent)))
            running = {task for task in running if not task.done()}
            sent += 1
            await asyncio.sleep(0.02)
        await asyncio.gather(*running)
        held = await station.settled()
        grew = station.process.rss_mb - rss
        accounted = await eventually(station.outcomes, lambda found: sum(found.values()) >= sent, 3.0)
        await asyncio.sleep(4.5)
        return {
            "sent": sent,
            "accounted": sum(accounted.values()) == sent,
            "outcomes": accounted,
            "rss_grew_mb": round(grew, 2),
            "descriptors_more": station.process.descriptors - base,
            "held_after": held,
            "traceback": "Traceback" in station.log,
        }


async def exit_of(process: Process, within: float = 10.0) -> dict[str, Any]:
    """The exit code of a program that should not start, and its last words."""
    code = await process.exit(within)
    words = process.log[-400:]
    await process.stop()
    return {"exit": code, "words": words}
